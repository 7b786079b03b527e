-- On which engine does an entry start, and for which engine does one that fits nowhere wait? The rules are those of
-- `kvgate_policies.placement`, for the engines that the owner of the entry uses. Loads are quotients of integers, so
-- they compare here as they do there.

local function usable(entry, engine)
  return byte(entry.owner.mask, engine.no) == 50 and engine.shape and not (entry.avoids and entry.avoids[engine.id])
end

local function covers(cost, engine)
  return cost[1] <= engine.blocks and cost[2] <= engine.seqs
end

local function prefill_fits(cost, engine)
  return engine.up <= 0 or engine.up + cost[3] <= engine.prefill
end

-- Whether the request could start there now. An engine that holds nothing takes what it covers.
local function fits(cost, engine)
  if engine.n == 0 then
    return covers(cost, engine)
  end
  return engine.us + cost[2] <= engine.seqs and prefill_fits(cost, engine)
end

local function load_of(engine, blocks, seqs)
  return max((engine.ub + blocks) / max(engine.blocks, 1), (engine.us + seqs) / max(engine.seqs, 1))
end

local function by_order(one, other)
  return one.order < other.order
end

-- The engine to start on: of those that fit the least loaded after placement, equals in turn; nil when none.
local function place(entry)
  local least, equals, costs = nil, nil, entry.costs
  for _, engine in pairs(all_engines()) do
    local cost = costs[engine.shape]
    -- Most engines of a busy pool lack the blocks: that is asked first, and here, as it is asked of each.
    if cost and (engine.ub + cost[1] <= engine.blocks) and (not engine.pin or engine.pin == entry.rid)
      and fits(cost, engine) and usable(entry, engine) then
      local load = load_of(engine, cost[1], cost[2])
      if not least or load < least then
        least, equals = load, { engine }
      elseif load == least then
        equals[#equals + 1] = engine
      end
    end
  end
  if not equals then
    return nil
  end
  if #equals > 1 then
    table.sort(equals, by_order)
  end
  return equals[meta.tie % #equals + 1]
end

-- The largest part of a capacity to be given back before the cost fits; 0 when it fits now.
local function missing(engine, cost)
  if engine.n == 0 then
    return 0
  end
  local prefill = 0
  if not prefill_fits(cost, engine) then
    prefill = min(engine.up + cost[3] - engine.prefill, engine.up) / max(engine.prefill, 1)
  end
  return max(
    0,
    (engine.ub + cost[1] - engine.blocks) / max(engine.blocks, 1),
    (engine.us + cost[2] - engine.seqs) / max(engine.seqs, 1),
    prefill
  )
end

local function is_sooner(one, other)
  if one.missing ~= other.missing then
    return one.missing < other.missing
  end
  if one.load ~= other.load then
    return one.load < other.load
  end
  return one.engine.order < other.engine.order
end

-- The engine that will fit an entry soonest, of those that are free (or, with `later`, pinned behind it).
local function to_pin(entry, later)
  local best
  for _, engine in pairs(all_engines()) do
    local cost = entry.costs[engine.shape]
    local free = not engine.pin or (later and engine.pin_seq > entry.seq)
    if cost and free and usable(entry, engine) and covers(cost, engine) then
      local candidate = { engine = engine, missing = missing(engine, cost), load = load_of(engine, 0, 0) }
      if not best or is_sooner(candidate, best) then
        best = candidate
      end
    end
  end
  return best and best.engine
end

local function could_use(entry, engine)
  local cost = entry.costs[engine.shape]
  return cost ~= nil and usable(entry, engine) and covers(cost, engine)
end

-- Whether some engine would hold the entry once it is empty.
local function could_start(entry)
  if not entry.avoids then
    local _, is_covered = covered(ceilings_of(entry.owner.mask)[2], entry.costs)
    return is_covered
  end
  for _, engine in pairs(all_engines()) do
    if could_use(entry, engine) then
      return true
    end
  end
  return false
end

local function never_fits(mask, costs)
  local is_priced, is_covered = covered(ceilings_of(mask)[1], costs)
  return is_priced and not is_covered
end
