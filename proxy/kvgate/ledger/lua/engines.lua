-- Engines, and what is held on them.
--
-- `engines`: what each holds in all (for every process the same), the sums of everything reserved there, and
-- its pin. `slots`: the part of the sums that belongs to one process. Always: sums of an engine = its slots +
-- its orphans. A record without a shape was named by a beat only: nobody observed it yet in this epoch.

local engines, engines_changed, all_loaded = {}, {}, false
local pinned = {} -- request → its engine; complete once all engines are loaded

local function unpack_engine(id, packed)
  local a = cmsgpack.unpack(packed)
  local engine = {
    id = id, no = a[1], order = a[2], knowers = a[3], shape = a[4], blocks = a[5], seqs = a[6], prefill = a[7],
    ub = a[8], us = a[9], up = a[10], n = a[11], pin = a[12], pin_seq = a[13],
  }
  engines[id] = engine
  if engine.pin then
    pinned[engine.pin] = engine
  end
  return engine
end

local function pack_engine(e)
  return cmsgpack.pack({
    e.no, e.order, e.knowers, e.shape, e.blocks, e.seqs, e.prefill, e.ub, e.us, e.up, e.n, e.pin, e.pin_seq,
  })
end

-- The record of an engine, nil when there is none.
local function engine_of(id)
  local engine = engines[id]
  if engine == nil and not all_loaded then
    local packed = call('HGET', K.engines, id)
    engine = packed and unpack_engine(id, packed)
  end
  return engine or nil
end

-- All records, by id, in no order.
local function all_engines()
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

local function changed_engine(engine)
  engines_changed[engine.id] = engine
end

-- A record for an engine that has none. `no` is its place in the masks of the processes, the lowest free one;
-- `order` is its place among equals, by the time it came.
local function new_engine(id)
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
    ub = 0, us = 0, up = 0, n = 0, pin = false, pin_seq = 0,
  }
  engines[id] = engine
  changed_engine(engine)
  return engine
end

local function set_pin(engine, rid, seq)
  if engine.pin then
    pinned[engine.pin] = nil
    meta.pins = meta.pins - 1
  end
  engine.pin, engine.pin_seq = rid, seq
  if rid then
    pinned[rid] = engine
    meta.pins = meta.pins + 1
  end
  changed_engine(engine)
end

-- Let go of the engine pinned by a request; false when it has none.
local function unpin(rid)
  if meta.pins == 0 then
    return false
  end
  all_engines()
  local engine = pinned[rid]
  if not engine then
    return false
  end
  set_pin(engine, false, 0)
  return true
end

-- Ceilings: the distinct whole capacities of the engines a process knows, and of those it uses, by its mask.

local ceilings = {}
local CEILINGS_MAX = 64 -- masks kept; each is made again from the engines when it is missing

local function changed_limits()
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
local function ceilings_of(mask)
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
local function covered(list, costs)
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

-- Slots. `u` lists the grants in a slot that the process has not acknowledged: gseq, request, cost.

local slots, slots_changed = {}, {}

local function slot_key(pid, id)
  return pid .. SEPARATOR .. id
end

local function read_slot(packed)
  if not packed then
    return { b = 0, s = 0, p = 0, n = 0, u = '' }
  end
  local a = cmsgpack.unpack(packed)
  return { b = a[1], s = a[2], p = a[3], n = a[4], u = a[5] }
end

local function slot_of(pid, id)
  local key = slot_key(pid, id)
  local slot = slots[key]
  if not slot then
    slot = read_slot(call('HGET', K.slots, key))
    slots[key] = slot
  end
  return slot
end

-- Read the slots of a process on all engines at once.
local function read_slots(pid)
  local keys = {}
  for id in pairs(all_engines()) do
    local key = slot_key(pid, id)
    if not slots[key] then
      keys[#keys + 1] = key
    end
  end
  if keys[1] then
    for place, packed in ipairs(call('HMGET', K.slots, unpack(keys))) do
      slots[keys[place]] = read_slot(packed)
    end
  end
end

local function changed_slot(pid, id)
  slots_changed[slot_key(pid, id)] = true
end

local function is_below_zero(b, s, p, n)
  return b < 0 or s < 0 or p < 0 or n < 0 or (n == 0 and (b ~= 0 or s ~= 0 or p ~= 0))
end

-- Why a change of a slot and its engine's sums cannot be made; nil when it can.
local function objection(slot, engine, b, s, p, n)
  if is_below_zero(slot.b + b, slot.s + s, slot.p + p, slot.n + n)
    or is_below_zero(engine.ub + b, engine.us + s, engine.up + p, engine.n + n) then
    return string.format(
      'engine %s: %s/%s/%s of %s in all, %s/%s/%s of %s of this process, to be changed by %s/%s/%s of %s',
      engine.id, int(engine.ub), int(engine.us), int(engine.up), int(engine.n),
      int(slot.b), int(slot.s), int(slot.p), int(slot.n), int(b), int(s), int(p), int(n)
    )
  end
  return nil
end

local function add_to_engine(engine, b, s, p, n)
  engine.ub, engine.us, engine.up, engine.n = engine.ub + b, engine.us + s, engine.up + p, engine.n + n
  changed_engine(engine)
  if b < 0 or s < 0 or p < 0 or n < 0 then
    stirred = true
  end
end

-- Change a slot and with it the sums of its engine. The caller asked `objection` where it could be below zero.
local function add_to_slot(pid, engine, slot, b, s, p, n)
  slot.b, slot.s, slot.p, slot.n = slot.b + b, slot.s + s, slot.p + p, slot.n + n
  changed_slot(pid, engine.id)
  add_to_engine(engine, b, s, p, n)
end

local function unseen_entry(gseq, rid, cost)
  return table.concat({ int(gseq), rid, int(cost[1]), int(cost[2]), int(cost[3]) }, SEPARATOR) .. '\2'
end

-- Split the unacknowledged grants of a slot: text and sums of those above `ack`, request → gseq of the others.
local function split_unseen(text, ack)
  local kept, sums, read = {}, { 0, 0, 0, 0 }, {}
  for entry, gseq, rid, b, s, p in text:gmatch('((%d+)\1([^\1]+)\1(%d+)\1(%d+)\1(%d+)\2)') do
    if tonumber(gseq) > ack then
      kept[#kept + 1] = entry
      sums = { sums[1] + b, sums[2] + s, sums[3] + p, sums[4] + 1 }
    else
      read[rid] = gseq
    end
  end
  return table.concat(kept), sums, read
end

local UNSEEN_MAX = 1000 -- in one command; Lua cannot pass more than some 8,000 arguments

local function drop_some_unseen(rids, read)
  local dropped = {}
  for place, value in ipairs(call('HMGET', K.unseen, unpack(rids))) do
    local rid = rids[place]
    if value and value:find(SEPARATOR .. read[rid] .. SEPARATOR, 1, true) then
      dropped[#dropped + 1] = rid
    end
  end
  if dropped[1] then
    call('HDEL', K.unseen, unpack(dropped))
  end
end

-- No longer list grants (request → gseq) as unacknowledged; a later grant of the same request stays listed.
local function drop_unseen(read)
  local rids = {}
  for rid in pairs(read) do
    rids[#rids + 1] = rid
    if #rids == UNSEEN_MAX then
      drop_some_unseen(rids, read)
      rids = {}
    end
  end
  if rids[1] then
    drop_some_unseen(rids, read)
  end
end

-- Drop an engine's record when no process knows it and nothing is held there.
local function drop_if_unused(engine)
  if engine.knowers > 0 or engine.n > 0 then
    return
  end
  set_pin(engine, false, 0)
  engines[engine.id] = nil
  engines_changed[engine.id] = nil
  call('HDEL', K.engines, engine.id)
  call('HDEL', K.orphans, engine.id)
  changed_limits()
end

local function write_engines()
  for id, engine in pairs(engines_changed) do
    call('HSET', K.engines, id, pack_engine(engine))
  end
  for key in pairs(slots_changed) do
    local slot = slots[key]
    if slot.n == 0 and slot.u == '' then
      call('HDEL', K.slots, key)
    else
      call('HSET', K.slots, key, cmsgpack.pack({ slot.b, slot.s, slot.p, slot.n, slot.u }))
    end
  end
end
