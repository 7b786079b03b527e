-- On which engine does an entry start, and for which engine does one that fits nowhere wait? The rules are those of
-- `kvgate_policies.placement`, for the engines that the owner of the entry uses. Loads are quotients of integers, or
-- with forecasts the same operations on the same doubles, so they compare here as they do there.

local by_order, place, least_loaded, to_pin, needs_as_much, could_use, could_start, never_fits

(function() -- the rest is its own (README)

local function usable(entry, engine)
  return byte(entry.owner.mask, engine.no) == 50 and engine.shape and not (entry.avoids and entry.avoids[engine.id])
end

local function covers(cost, engine)
  return cost[1] <= engine.blocks and cost[2] <= engine.seqs
end

local function prefill_fits(cost, engine)
  return engine.up <= 0 or engine.up + cost[3] <= engine.prefill
end

-- Blocks that are counted there once the cost is added.
local function blocks_after(cost, engine, z)
  return forecasts.blocks_taken(engine.ub + cost[1], forecasts.of(engine), cost[4], z)
end

-- What is counted there once the request started, nil when it could not start now. An engine that holds nothing takes
-- what it covers.
local function fits(cost, engine, z)
  if engine.n == 0 then
    return covers(cost, engine) and blocks_after(cost, engine, z)
  end
  if forecasts.is_full(engine, cost, z) or not covers(cost, engine) or engine.us + cost[2] > engine.seqs
    or not prefill_fits(cost, engine) then
    return nil
  end
  return forecasts.blocks_within(engine, engine.ub + cost[1], cost[4], z)
end

-- `after` are the blocks that are counted there then.
local function load_of(engine, after, seqs)
  return max(after / max(engine.blocks, 1), (engine.us + seqs) / max(engine.seqs, 1))
end

function by_order(one, other)
  return one.order < other.order
end

-- One of some equally loaded engines, each in its turn.
local function in_turn(equals)
  if not equals then
    return nil
  end
  if #equals > 1 then
    table.sort(equals, by_order)
  end
  return equals[meta.tie % #equals + 1]
end

-- The first engine that it prefers and that is not much fuller than the least loaded one; nil when none.
local function preferred(entry, loads, least)
  for _, id in ipairs(least and entry.prefer or {}) do
    if loads[id] and loads[id] <= least + POLICIES.prefer_margin then
      return engine_of(id)
    end
  end
  return nil
end

-- The engine to start on: of those that fit at these prices one that it prefers, or the least loaded after placement;
-- nil when none.
function place(entry, costs)
  local least, equals, z = nil, nil, entry.deviations
  local loads, is_soft = entry.prefer and {}, forecasts.has(costs)
  for _, engine in pairs(all_engines()) do
    local cost = costs[engine.shape]
    -- Most engines of a busy pool lack the blocks: that is asked first, and here, as it is asked of each.
    if cost and (is_soft or not engine.is_plain or engine.ub + cost[1] <= engine.open)
      and (not engine.pin or engine.pin == entry.rid) then
      local after = fits(cost, engine, z)
      if after and usable(entry, engine) then
        local load = load_of(engine, after, cost[2])
        if not least or load < least then
          least, equals = load, { engine }
        elseif load == least then
          equals[#equals + 1] = engine
        end
        if loads then
          loads[engine.id] = load
        end
      end
    end
  end
  return (loads and preferred(entry, loads, least)) or in_turn(equals)
end

-- The engine for one that starts whatever is reserved: the least loaded of all that its owner uses, pinned ones too.
function least_loaded(entry, avoids)
  local least, equals = nil, nil
  for _, engine in pairs(all_engines()) do
    local cost = entry.costs[engine.shape]
    if cost and byte(entry.owner.mask, engine.no) == 50 and not (avoids and avoids[engine.id]) then
      local load = load_of(engine, blocks_after(cost, engine, entry.deviations), cost[2])
      if not least or load < least then
        least, equals = load, { engine }
      elseif load == least then
        equals[#equals + 1] = engine
      end
    end
  end
  return in_turn(equals)
end

-- The largest part of a capacity to be given back before the cost fits; 0 when it fits now.
local function missing(engine, cost, z)
  if engine.n == 0 then
    return 0
  end
  local prefill = 0
  if not prefill_fits(cost, engine) then
    prefill = min(engine.up + cost[3] - engine.prefill, engine.up) / max(engine.prefill, 1)
  end
  return max(
    0,
    (blocks_after(cost, engine, z) - engine.open) / max(engine.blocks, 1),
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

-- The engine that will fit an entry soonest at these prices, of those that are free, and with `place_of` of those that
-- are pinned by one without a place, or with one behind its own.
function to_pin(entry, costs, place_of)
  local best, z = nil, entry.deviations
  for _, engine in pairs(all_engines()) do
    local cost = costs[engine.shape]
    local free = not engine.pin
      or (place_of and (not place_of[engine.pin] or place_of[engine.pin] > place_of[entry.rid]))
    if cost and free and usable(entry, engine) and covers(cost, engine) then
      local now_taken = forecasts.blocks_taken(engine.ub, forecasts.of(engine), nil, z)
      local candidate = { engine = engine, missing = missing(engine, cost, z), load = load_of(engine, now_taken, 0) }
      if not best or is_sooner(candidate, best) then
        best = candidate
      end
    end
  end
  return best and best.engine
end

-- Whether one leaves at least as many deviations free as the other.
local function leaves_as_much(z, other)
  for place = 1, z == other and 0 or #z do
    if z[place] < other[place] then
      return false
    end
  end
  return true
end

-- Whether an entry needs as much room as another on every engine it is priced for.
function needs_as_much(entry, other_entry)
  if not leaves_as_much(entry.deviations, other_entry.deviations) then
    return false
  end
  for shape, cost in pairs(entry.costs) do
    local other = other_entry.costs[shape]
    if not other or cost[1] < other[1] or cost[2] < other[2] or cost[3] < other[3]
      or not forecasts.is_at_least(cost, other) then
      return false
    end
  end
  return true
end

function could_use(entry, costs, engine)
  local cost = costs[engine.shape]
  return cost ~= nil and usable(entry, engine) and covers(cost, engine)
end

-- Whether some engine would hold the entry once it is empty, at these prices (or its own).
function could_start(entry, costs)
  costs = costs or entry.costs
  if not entry.avoids then
    local _, is_covered = covered(ceilings_of(entry.owner.mask)[2], costs)
    return is_covered
  end
  for _, engine in pairs(all_engines()) do
    if could_use(entry, costs, engine) then
      return true
    end
  end
  return false
end

-- Whether one is priced for an engine that its process knows, and none of those covers it, at these prices or some.
function never_fits(mask, costs, some)
  local known = ceilings_of(mask)[1]
  local is_priced, is_covered = covered(known, costs)
  if some and some ~= costs and is_covered then
    is_priced, is_covered = true, select(2, covered(known, some))
  end
  return is_priced and not is_covered
end

end)()
