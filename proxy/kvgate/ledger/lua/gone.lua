-- Processes that are gone, and what they leave behind.
--
-- A process whose lease ran out loses its place: its waiters go, and its sums become orphans, still counted on
-- their engines, until `settle` or `void` shows them free, ORPHAN_HOLD_MS are over, or the process comes back and
-- takes them again. `orphans` has one record for each engine: the excess that the last reading of its gauge showed
-- (false before the first), when that was, and the sums of each process that is gone, by tenant. A tenant's use does
-- not count them: it begins anew at once, while the engine is still kept from being overfilled.

local read_orphans, write_orphans, drop_orphans, everyone, expire_orphans, drop_waiters, void_slots, forget_process,
  reap, reap_one, take_back, await_all
local reaped = {} -- processes that were taken for gone in this call

(function() -- the rest is its own (README)

local REAPED_MAX = 256 -- waiters taken out in one call; more are taken by the calls that follow

function read_orphans(id)
  local packed = call('HGET', K.orphans, id)
  if not packed then
    return { excess = false, read = 0, list = {} }
  end
  local a = cmsgpack.unpack(packed)
  return { excess = a[1], read = a[2], list = a[3] }
end

-- Each element of the list: pid, since (ms), blocks, seqs, prefill tokens, reservations, unacknowledged grants, tenant,
-- blocks used, `f` (or nothing).
function write_orphans(id, record)
  if record.list[1] then
    call('HSET', K.orphans, id, cmsgpack.pack({ record.excess, record.read, record.list }))
  else
    call('HDEL', K.orphans, id)
  end
end

-- Its grants that nobody will acknowledge any more, as the text `u` of a slot.
local function drop_unseen_of(text)
  if text ~= '' then
    local _, _, listed = split_unseen(text, 2 ^ 53)
    drop_unseen(listed)
  end
end

local function take_from_engine(engine, sums)
  local b, s, p, n, use, f = unpack(sums, 1, 6)
  add_to_engine(engine, -b, -s, -p, -n, -use, forecasts.add(nil, f, -1))
end

-- Take those of an engine's orphans out for which `chosen(orphan)` is true, and their sums with them.
function drop_orphans(id, chosen)
  local record = read_orphans(id)
  local engine, kept = engine_of(id), {}
  for _, orphan in ipairs(record.list) do
    if chosen(orphan) then
      take_from_engine(engine, { orphan[3], orphan[4], orphan[5], orphan[6], orphan[9], orphan[10] })
      drop_unseen_of(orphan[7])
      count('orphans_dropped')
    else
      kept[#kept + 1] = orphan
    end
  end
  if #kept < #record.list then
    record.list = kept
    write_orphans(id, record)
    drop_if_unused(engine)
  end
end

function everyone()
  return true
end

-- Drop the orphans whose time is over, and note when the next ones are due.
function expire_orphans()
  local due = 0
  for _, id in ipairs(call('HKEYS', K.orphans)) do
    drop_orphans(id, function(orphan)
      return orphan[2] + ORPHAN_HOLD_MS <= now
    end)
    for _, orphan in ipairs(read_orphans(id).list) do
      local until_ms = orphan[2] + ORPHAN_HOLD_MS
      due = due == 0 and until_ms or min(due, until_ms)
    end
  end
  meta.hold = due
end

-- Take the waiters of a process out of the queue; false when there are more than one call takes.
function drop_waiters(pid)
  local from, to = '[' .. pid .. SEPARATOR, '(' .. pid .. '\2'
  local some = call('ZRANGEBYLEX', K.owners, from, to, 'LIMIT', 0, REAPED_MAX)
  for _, member in ipairs(some) do
    leave_ungranted(entry_of(member:sub(#pid + 2)))
    stirred = true
  end
  more_to_reap = #some == REAPED_MAX
  return not more_to_reap
end

-- Empty a slot, also in the use of its tenant, not in the sums of its engine; what it held, and `u`.
local function empty_slot(slot)
  local held, text = sums_of(slot), slot.u
  if slot.n > 0 or slot.u ~= '' then
    slot.b, slot.s, slot.p, slot.n, slot.use, slot.f, slot.u = 0, 0, 0, 0, 0, nil, ''
    changed_slot(slot)
    add_to_tenant(tenant_of(slot.name), -held[5], -held[4])
    stirred = true
  end
  return held, text
end

-- Its forecasts are not renewed any more. Whether it is dead or only cut off, it holds no more than the largest mean at
-- any time from now on (`ledger/share.py`): so much is counted at every point.
local function flatten(slot)
  local flat = forecasts.flat(slot.f)
  if flat then
    add_to_engine(engine_of(slot.id), 0, 0, 0, 0, 0, forecasts.add(flat, slot.f, -1))
    slot.f = forecasts.add(nil, flat)
  end
end

local function orphan_slots(pid)
  for _, slot in pairs(slots_of(pid)) do
    flatten(slot)
    local held, text = empty_slot(slot)
    if held[4] == 0 then
      drop_unseen_of(text)
    else
      local record = read_orphans(slot.id)
      record.list[#record.list + 1] = {
        pid, now, held[1], held[2], held[3], held[4], text, slot.name, held[5], held[6],
      }
      record.excess = false
      write_orphans(slot.id, record)
      count('orphaned', held[4])
      if meta.hold == 0 then
        meta.hold = now + ORPHAN_HOLD_MS
      end
    end
  end
end

-- Strike what a process holds on an engine.
function void_slots(pid, engine)
  for _, slot in pairs(slots_of(pid, engine.id)) do
    local held, text = empty_slot(slot)
    drop_unseen_of(text)
    take_from_engine(engine, held)
    count('voided', held[4])
  end
end

-- The process knows no engine any more; those that nobody knows go, unless something is held there.
function forget_process(pid)
  local process = process_of(pid)
  if process then
    for _, engine in pairs(all_engines()) do
      set_mask(pid, process, engine, UNKNOWN)
      drop_if_unused(engine)
    end
  end
  processes[pid], processes_changed[pid] = nil, nil
  call('HDEL', K.processes, pid)
  capacity_changed = true
  stirred = true
end

-- A process is gone. Called again while its lease is still listed: it had more waiters than one call takes.
function reap(pid)
  local is_done = drop_waiters(pid)
  orphan_slots(pid)
  if process_of(pid) then
    count('reaped')
    reaped[#reaped + 1] = pid
  end
  forget_process(pid)
  if is_done then
    call('ZREM', K.leases, pid)
  end
end

-- Whether nobody beat for longer than all need to say what they hold, and this process is not all there are.
local function is_silent(first)
  if now <= first[2] - LEASE_MS + GRACE_MS then
    return false
  end
  local last = call('ZRANGE', K.leases, -1, -1, 'WITHSCORES')
  return now > last[2] - LEASE_MS + GRACE_MS and (first[1] ~= mine or last[1] ~= mine)
end

-- Take the first process whose lease ran out for gone, unless it is the one that calls.
-- After a silence the sums are those of the time when all were last heard, and each may have decided alone since:
-- as in a new epoch, nothing is granted before all could say what they hold. Nor is anyone taken for gone.
function reap_one()
  local first = call('ZRANGE', K.leases, 0, 0, 'WITHSCORES')
  if not first[1] then
    return
  end
  if mine ~= '' and is_silent(first) then
    meta.grace, meta.grace_from, meta.expected = now + GRACE_MS, now, call('ZCARD', K.leases)
  end
  if first[1] ~= mine and tonumber(first[2]) <= now and now >= meta.grace then
    reap(first[1])
  end
end

-- In a grace: a process was heard that knew of `known` ones. The grace is over after GRACE_MS when as many were heard
-- in it; as long as some are missing it goes on, for a lease at most, as if they still held theirs.
function await_all(known)
  if now >= meta.grace then
    return
  end
  meta.expected = max(meta.expected, known)
  local heard = call('ZCOUNT', K.leases, int(meta.grace_from + LEASE_MS), '+inf')
  meta.grace = meta.grace_from + (heard < meta.expected and max(GRACE_MS, LEASE_MS) or GRACE_MS)
end

-- A process is back: its orphans are its slots again. The sums of the engines do not change by this.
function take_back(pid)
  for _, id in ipairs(call('HKEYS', K.orphans)) do
    local record, kept = read_orphans(id), {}
    for _, orphan in ipairs(record.list) do
      if orphan[1] == pid then
        local slot = slot_of(pid, id, orphan[8])
        slot.b, slot.s, slot.p, slot.n = slot.b + orphan[3], slot.s + orphan[4], slot.p + orphan[5], slot.n + orphan[6]
        slot.use, slot.f = slot.use + orphan[9], forecasts.add(slot.f, orphan[10])
        slot.u = slot.u .. orphan[7]
        changed_slot(slot)
        add_to_tenant(tenant_of(slot.name), orphan[9], orphan[6])
      else
        kept[#kept + 1] = orphan
      end
    end
    if #kept < #record.list then
      record.list = kept
      write_orphans(id, record)
    end
  end
end

end)()
