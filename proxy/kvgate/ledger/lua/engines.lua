-- Engines: what each holds in all (for every process the same), the sums of everything reserved there, and its pin.
-- `open` is what reservations may fill at present: all blocks, or less where `usable` says so. `use` is what the tenants
-- of what is reserved are said to use by it. `fullest` is the point of the grid where somebody did not fit last; its
-- mean and variance are kept apart, so that `f`, packed, is seldom opened (`forecasts.of`).
-- Always: sums of an engine = its slots (the parts of the processes) + its orphans. A record without a shape was
-- named by a beat only: nobody observed it yet in this epoch.

local engine_of, all_engines, changed_engine, set_open, new_engine, set_pin, unpin, changed_limits, ceilings_of, covered,
  drop_if_unused, write_engines
local capacity_changed = false -- an engine came, went, or holds more or less in all
local pinned = {} -- request → its engine; complete once all engines are loaded

(function() -- the rest is its own (README)

local engines, engines_changed, all_loaded = {}, {}, false

-- What is `open` there; and whether it is `plain`: something is reserved, all of it guaranteed.
function set_open(engine)
  engine.open = engine.usable and min(engine.blocks, engine.usable) or engine.blocks
  engine.is_plain = engine.n > 0 and not (engine.f or engine.packed_f)
end

-- Most have none of what stands behind the first twelve: short records are read in less time, and all are read by every
-- grant loop.
local function unpack_engine(id, packed)
  local a = cmsgpack.unpack(packed)
  local engine = {
    id = id, no = a[1], order = a[2], knowers = a[3], shape = a[4], blocks = a[5], seqs = a[6], prefill = a[7],
    ub = a[8], us = a[9], up = a[10], n = a[11], pin = a[12], use = a[13] or a[8], open = a[5], is_plain = a[11] > 0,
  }
  if a[13] then
    engine.usable, engine.packed_f = a[14], a[15]
    engine.fullest, engine.full_mean, engine.full_variance = a[16], a[17], a[18]
    set_open(engine)
  end
  engines[id] = engine
  if engine.pin then
    pinned[engine.pin] = engine
  end
  return engine
end

local function pack_engine(e)
  local a = { e.no, e.order, e.knowers, e.shape, e.blocks, e.seqs, e.prefill, e.ub, e.us, e.up, e.n, e.pin }
  local packed_f = forecasts.packed(e)
  if packed_f or e.usable or e.use ~= e.ub then
    a[13], a[14], a[15], a[16], a[17], a[18] = e.use, e.usable or false, packed_f, e.fullest, e.full_mean, e.full_variance
  end
  return cmsgpack.pack(a)
end

-- The record of an engine, nil when there is none.
function engine_of(id)
  local engine = engines[id]
  if engine == nil and not all_loaded then
    local packed = call('HGET', K.engines, id)
    engine = packed and unpack_engine(id, packed)
  end
  return engine or nil
end

-- All records, by id, in no order.
function all_engines()
  if not all_loaded then
    local pairs_read = call('HGETALL', K.engines)
    for place = 1, #pairs_read, 2 do
      if engines[pairs_read[place]] == nil then
        unpack_engine(pairs_read[place], pairs_read[place + 1])
      end
    end
    all_loaded = true
  end
  return engines
end

function changed_engine(engine)
  engines_changed[engine.id] = engine
end

-- A record for an engine that has none. `no` is its place in the masks of the processes, the lowest free one;
-- `order` is its place among equals, by the time it came.
function new_engine(id)
  local used, order = {}, 0
  for _, other in pairs(all_engines()) do
    used[other.no] = true
    order = max(order, other.order)
  end
  local no = 1
  while used[no] do
    no = no + 1
  end
  local engine = {
    id = id, no = no, order = order + 1, knowers = 0, shape = false, blocks = 0, seqs = 0, prefill = 0,
    ub = 0, us = 0, up = 0, n = 0, pin = false, use = 0, open = 0,
    is_plain = false,
  }
  engines[id] = engine
  changed_engine(engine)
  return engine
end

function set_pin(engine, rid)
  if engine.pin then
    pinned[engine.pin] = nil
    meta.pins = meta.pins - 1
  end
  engine.pin = rid
  if rid then
    pinned[rid] = engine
    meta.pins = meta.pins + 1
  end
  changed_engine(engine)
end

-- Let go of the engine pinned by a request; false when it has none.
function unpin(rid)
  if meta.pins == 0 then
    return false
  end
  all_engines()
  local engine = pinned[rid]
  if not engine then
    return false
  end
  set_pin(engine, false)
  return true
end

-- Ceilings: the distinct whole capacities of the engines a process knows, and of those it uses, by its mask.

local ceilings = {}
local CEILINGS_MAX = 64 -- masks kept; each is made again from the engines when it is missing

function changed_limits()
  capacity_changed = true
  ceilings = {}
  call('DEL', K.ceilings)
end

local function add_ceiling(list, seen, engine)
  local key = engine.shape .. ' ' .. int(engine.blocks) .. ' ' .. int(engine.seqs)
  if not seen[key] then
    seen[key] = true
    list[#list + 1] = engine.shape
    list[#list + 1] = engine.blocks
    list[#list + 1] = engine.seqs
  end
end

local function measure(mask)
  local known, used, known_seen, used_seen = {}, {}, {}, {}
  for _, engine in pairs(all_engines()) do
    local state = byte(mask, engine.no)
    if engine.shape and (state == 49 or state == 50) then
      add_ceiling(known, known_seen, engine)
      if state == 50 then
        add_ceiling(used, used_seen, engine)
      end
    end
  end
  return { known, used }
end

-- { known, used }, each a flat list of shape, blocks, seqs.
function ceilings_of(mask)
  local found = ceilings[mask]
  if not found then
    local packed = call('HGET', K.ceilings, mask)
    if packed then
      found = cmsgpack.unpack(packed)
    else
      found = measure(mask)
      if call('HLEN', K.ceilings) >= CEILINGS_MAX then
        call('DEL', K.ceilings)
      end
      call('HSET', K.ceilings, mask, cmsgpack.pack(found))
    end
    ceilings[mask] = found
  end
  return found
end

-- Whether there is a price for one of them, and whether one, when empty, would hold the request.
function covered(list, costs)
  local priced = false
  for place = 1, #list, 3 do
    local cost = costs[list[place]]
    if cost then
      priced = true
      if cost[1] <= list[place + 1] and cost[2] <= list[place + 2] then
        return true, true
      end
    end
  end
  return priced, false
end

-- Drop an engine's record when no process knows it and nothing is held there.
function drop_if_unused(engine)
  if engine.knowers > 0 or engine.n > 0 then
    return
  end
  set_pin(engine, false)
  engines[engine.id] = nil
  engines_changed[engine.id] = nil
  call('HDEL', K.engines, engine.id)
  call('HDEL', K.orphans, engine.id)
  changed_limits()
end

function write_engines()
  for id, engine in pairs(engines_changed) do
    call('HSET', K.engines, id, pack_engine(engine))
  end
end

end)()
