-- Slots: what one process holds on one engine. `u` lists the grants among it that the process has not acknowledged:
-- gseq, request, cost.

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

local function write_slots()
  for key in pairs(slots_changed) do
    local slot = slots[key]
    if slot.n == 0 and slot.u == '' then
      call('HDEL', K.slots, key)
    else
      call('HSET', K.slots, key, cmsgpack.pack({ slot.b, slot.s, slot.p, slot.n, slot.u }))
    end
  end
end
