-- beat: give or renew a lease, and say what the process holds.
--
-- ARGV: 3 ack, 4 rel, 5 processes that it knew of, 6 number of closed engines and their ids; then for each engine and
-- tenant with sums: engine, tenant, blocks, seqs, prefill tokens, reservations, blocks used, forecast (or ''). Sums are
-- absolute; what is not named has none.
-- A slot becomes what was asserted + the grants above `ack`; the sums of its engine and the use of its tenant change
-- by the difference. A beat older than the last (by `ack` or `rel`) leaves the sums alone: they would bring back what
-- was released since.
-- The first beat of a process that was taken for gone takes its orphans back before, so nothing is counted twice.
-- Adds: processes with a lease, 1 when this one had none, the latest gseq, how many of the processes with a lease sort
-- before this one. Errors: LEDGERCORRUPT.

local ack, rel, known = whole(3), whole(4), whole(5)
local closed_list, sums_at = names(6)
local closed, asserted = set_of(closed_list), {}
for place = sums_at, #ARGV, 8 do
  local said = {
    whole(place + 2), whole(place + 3), whole(place + 4), whole(place + 5), whole(place + 6),
    forecasts.add(nil, forecasts.read(ARGV[place + 7])),
  }
  asserted[mine .. SEPARATOR .. ARGV[place] .. SEPARATOR .. ARGV[place + 1]] = said
end

begin()
-- A failover to an older copy, or to a clock that is behind, would give numbers again that this process has read.
meta.gseq = max(meta.gseq, ack)
local process = process_of(mine)
local is_new = process == nil
if is_new then
  process = { mask = '', ack = 0, rel = 0 }
  processes[mine] = process
  changed_process(mine)
  take_back(mine)
end
call('ZADD', K.leases, int(now + LEASE_MS), mine)
await_all(known)

local function engine_for(slot)
  return engine_of(slot.id) or new_engine(slot.id)
end

-- What one slot would change by; nil when by nothing. It may be below zero only where the slot is: what else its
-- engine holds is its other slots and its orphans.
local function change_of(slot)
  local said = asserted[slot.key] or { 0, 0, 0, 0, 0 }
  local kept, above, read = '', { 0, 0, 0, 0, 0 }, {}
  if slot.u ~= '' then
    kept, above, read = split_unseen(slot.u, ack)
  end
  local b, s = said[1] + above[1] - slot.b, said[2] + above[2] - slot.s
  local p, n = said[3] + above[3] - slot.p, said[4] + above[4] - slot.n
  local use, f = said[5] + above[5] - slot.use, forecasts.add(forecasts.add(said[6], above[6]), slot.f, -1)
  if b == 0 and s == 0 and p == 0 and n == 0 and use == 0 and not f and not next(read) then
    return nil
  end
  return { slot = slot, sums = { b, s, p, n, use, f }, kept = kept, read = read }
end

-- All that would change, or nil and why it cannot.
local function changes()
  local list, all = {}, slots_of(mine)
  for key, said in pairs(asserted) do
    local pid, id, name = key:match('^([^\1]+)\1([^\1]+)\1(.+)$')
    if said[4] > 0 or engine_of(id) then
      all[key] = all[key] or slot_of(pid, id, name)
    end
  end
  for _, slot in pairs(all) do
    local change = change_of(slot)
    if change then
      local why = objection(slot, engine_for(slot), unpack(change.sums, 1, 6))
      if why then
        return nil, why
      end
      list[#list + 1] = change
    end
  end
  return list
end

local function apply(list)
  for _, change in ipairs(list) do
    local slot = change.slot
    slot.u = change.kept
    add_to_slot(slot, engine_for(slot), unpack(change.sums, 1, 6))
    drop_unseen(change.read)
  end
  for _, change in ipairs(list) do
    local engine = engine_of(change.slot.id)
    if engine then
      drop_if_unused(engine)
    end
  end
end

if ack >= process.ack and rel >= process.rel then
  local list, why = changes()
  if not list then
    return corrupt(why)
  end
  apply(list)
  process.ack, process.rel = ack, rel
  changed_process(mine)
end

for id, engine in pairs(all_engines()) do
  if mask_at(process.mask, engine.no) ~= UNKNOWN then
    local state = closed[id] and KNOWN or USED
    if set_mask(mine, process, engine, state) ~= state then
      recheck(false)
    end
  end
end

local live, rank = call('ZRANGEBYSCORE', K.leases, '(' .. int(now), '+inf'), 0
for _, pid in ipairs(live) do
  if pid < mine then
    rank = rank + 1
  end
end
local answer = finish(#live, is_new and 1 or 0, meta.gseq, rank)
if call('PTTL', K.meta) < KEEP_MS / 2 then
  for _, key in ipairs(KEYS) do
    call('PEXPIRE', key, KEEP_MS)
  end
end
return answer
