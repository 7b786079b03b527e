-- inspect: the parts that view sums up. ARGV: 3 most entries of the head of the queue.
--
-- Adds: leases (process, ms left); slots (process, engine, sums, unacknowledged grants); orphans (process, engine,
-- sums, age in ms); the head of the queue (process, request, seq, wait in ms, bypasses); how many are parked.

local head_max = whole(3)

begin()
settle_down()
write_all()
counts = {}

local leases, holdings, orphans, head = {}, {}, {}, {}
local listed = call('ZRANGE', K.leases, 0, -1, 'WITHSCORES')
for place = 1, #listed, 2 do
  leases[#leases + 1] = { listed[place], tonumber(listed[place + 1]) - now }
end
listed = call('HGETALL', K.slots)
for place = 1, #listed, 2 do
  local pid, id = listed[place]:match('^([^\1]+)\1(.+)$')
  local slot = read_slot(listed[place + 1])
  local _, sums = split_unseen(slot.u, 0)
  holdings[#holdings + 1] = { pid, id, slot.b, slot.s, slot.p, slot.n, sums[4] }
end
for _, id in ipairs(call('HKEYS', K.orphans)) do
  for _, orphan in ipairs(read_orphans(id).list) do
    orphans[#orphans + 1] = { orphan[1], id, orphan[3], orphan[4], orphan[5], orphan[6], now - orphan[2] }
  end
end
for _, rid in ipairs(head_max > 0 and call('ZRANGE', K.active, 0, head_max - 1) or {}) do
  local entry = entry_of(rid)
  head[#head + 1] = { entry.pid, rid, entry.seq, max(0, now - entry.since), entry.bypasses }
end
return finish(leases, holdings, orphans, head, call('ZCARD', K.parked))
