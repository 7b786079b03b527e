-- Slots: what one process holds on one engine for one tenant. The sums of an engine and the use of a tenant both
-- change with a slot, so whatever heals a slot heals them. `u` lists the grants in it that the process has not
-- acknowledged: gseq, request, cost. `holdings` lists the slots of each process.
--
-- Sums are blocks (at the peak), seqs, prefill tokens, reservations, blocks that the tenant is said to use, and `f`.

local read_slot, sums_of, slot_of, slots_of, changed_slot, is_below_zero, objection, add_to_engine, add_to_slot,
  unseen_entry, split_unseen, drop_unseen, write_slots

(function() -- the rest is its own (README)

local slots, slots_changed = {}, {}

function read_slot(key, packed)
  local pid, id, name = key:match('^([^\1]+)\1([^\1]+)\1(.+)$')
  local slot = { key = key, pid = pid, id = id, name = name, b = 0, s = 0, p = 0, n = 0, use = 0, u = '', is_new = true }
  if packed then
    local a = cmsgpack.unpack(packed)
    slot.b, slot.s, slot.p, slot.n, slot.u, slot.is_new = a[1], a[2], a[3], a[4], a[5], false
    slot.use, slot.f = a[6] or slot.b, a[7] or nil
  end
  return slot
end

function sums_of(slot)
  return { slot.b, slot.s, slot.p, slot.n, slot.use, slot.f }
end

function slot_of(pid, id, name)
  local key = pid .. SEPARATOR .. id .. SEPARATOR .. name
  local slot = slots[key]
  if not slot then
    slot = read_slot(key, call('HGET', K.slots, key))
    slots[key] = slot
  end
  return slot
end

-- All slots of a process, by key, or those on one engine.
function slots_of(pid, id)
  local prefix = pid .. SEPARATOR .. (id and id .. SEPARATOR or '')
  local range = { '[' .. prefix, '(' .. prefix:sub(1, -2) .. '\2' }
  local found, unread = {}, {}
  for _, key in ipairs(call('ZRANGEBYLEX', K.holdings, unpack(range))) do
    if not slots[key] then
      unread[#unread + 1] = key
    end
  end
  for from = 1, #unread, ARGUMENTS_MAX do
    local some = { unpack(unread, from, min(from + ARGUMENTS_MAX - 1, #unread)) }
    for place, packed in ipairs(call('HMGET', K.slots, unpack(some))) do
      slots[some[place]] = read_slot(some[place], packed)
    end
  end
  for key, slot in pairs(slots) do
    if slot.pid == pid and (not id or slot.id == id) then
      found[key] = slot
    end
  end
  return found
end

function changed_slot(slot)
  slots_changed[slot.key] = slot
end

function is_below_zero(b, s, p, n, use, f)
  return b < 0 or s < 0 or p < 0 or n < 0 or use < 0 or (n == 0 and (b ~= 0 or s ~= 0 or p ~= 0 or use ~= 0 or f))
    or forecasts.is_below_zero(f, b)
end

-- Why a change of a slot and its engine's sums cannot be made; nil when it can.
function objection(slot, engine, b, s, p, n, use, f)
  if is_below_zero(slot.b + b, slot.s + s, slot.p + p, slot.n + n, slot.use + use, forecasts.add(slot.f, f))
    or is_below_zero(
      engine.ub + b, engine.us + s, engine.up + p, engine.n + n, engine.use + use,
      forecasts.add(forecasts.of(engine), f)
    ) then
    return string.format(
      'engine %s: %s/%s/%s of %s (%s) in all, %s/%s/%s of %s (%s) of this process for %s, to be changed by %s/%s/%s of %s (%s)',
      engine.id, int(engine.ub), int(engine.us), int(engine.up), int(engine.n), forecasts.text(forecasts.of(engine)),
      int(slot.b), int(slot.s), int(slot.p), int(slot.n), forecasts.text(slot.f), slot.name,
      int(b), int(s), int(p), int(n), forecasts.text(f)
    )
  end
  return nil
end

function add_to_engine(engine, b, s, p, n, use, f)
  engine.ub, engine.us, engine.up, engine.n = engine.ub + b, engine.us + s, engine.up + p, engine.n + n
  engine.use, engine.f = engine.use + use, forecasts.add(forecasts.of(engine), f)
  set_open(engine)
  changed_engine(engine)
  if b < 0 or s < 0 or p < 0 or n < 0 or forecasts.is_below_zero(f, b) then
    stirred = true
  end
end

-- Change a slot and with it the sums of its engine and its tenant's use. The caller asked `objection` where
-- something could be below zero. A tenant that uses more may be entitled to less: what was kept free for those of it that
-- wait is open to others then.
function add_to_slot(slot, engine, b, s, p, n, use, f)
  slot.b, slot.s, slot.p, slot.n = slot.b + b, slot.s + s, slot.p + p, slot.n + n
  slot.use, slot.f = slot.use + use, forecasts.add(slot.f, f)
  changed_slot(slot)
  add_to_engine(engine, b, s, p, n, use, f)
  add_to_tenant(tenant_of(slot.name), use, n)
  stirred = stirred or use > 0
end

function unseen_entry(gseq, rid, cost)
  return table.concat({ int(gseq), rid, int(cost[1]), int(cost[2]), int(cost[3]), forecasts.text_of(cost) }, SEPARATOR) .. '\2'
end

-- Split the unacknowledged grants of a slot: text and sums of those above `ack`, request → gseq of the others.
function split_unseen(text, ack)
  local kept, sums, read = {}, { 0, 0, 0, 0, 0 }, {}
  for entry, gseq, rid, b, s, p, f in text:gmatch('((%d+)\1([^\1]+)\1(%d+)\1(%d+)\1(%d+)\1([^\2]*)\2)') do
    if tonumber(gseq) > ack then
      kept[#kept + 1] = entry
      local cost = { tonumber(b), tonumber(s), tonumber(p), forecasts.read(f) }
      sums = {
        sums[1] + cost[1], sums[2] + cost[2], sums[3] + cost[3], sums[4] + 1, sums[5] + forecasts.use_of(cost),
        forecasts.add(sums[6], cost[4]),
      }
    else
      read[rid] = gseq
    end
  end
  return table.concat(kept), sums, read
end

local function drop_some_unseen(rids, read)
  local dropped = {}
  for place, value in ipairs(call('HMGET', K.unseen, unpack(rids))) do
    local rid = rids[place]
    if value and value:match('^[^\1]+\1(%d+)') == read[rid] then
      dropped[#dropped + 1] = rid
    end
  end
  if dropped[1] then
    call('HDEL', K.unseen, unpack(dropped))
  end
end

-- No longer list grants (request → gseq) as unacknowledged; a later grant of the same request stays listed.
function drop_unseen(read)
  local rids = {}
  for rid in pairs(read) do
    rids[#rids + 1] = rid
    if #rids == ARGUMENTS_MAX then
      drop_some_unseen(rids, read)
      rids = {}
    end
  end
  if rids[1] then
    drop_some_unseen(rids, read)
  end
end

function write_slots()
  for key, slot in pairs(slots_changed) do
    if slot.n == 0 and slot.u == '' then
      call('HDEL', K.slots, key)
      call('ZREM', K.holdings, key)
    else
      local a = { slot.b, slot.s, slot.p, slot.n, slot.u }
      if slot.use ~= slot.b or slot.f then
        a[6], a[7] = slot.use, slot.f
      end
      call('HSET', K.slots, key, cmsgpack.pack(a))
      if slot.is_new then
        call('ZADD', K.holdings, 0, key)
      end
    end
  end
end

end)()
