-- inspect: the parts that view sums up. ARGV: 3 most entries of the heads of the flows.
--
-- Adds: leases (process, ms left); slots (process, engine, tenant, sums, unacknowledged grants); orphans (process,
-- engine, tenant, sums, age in ms), sums being blocks, seqs, prefill tokens, reservations, blocks used, forecast; the first of each flow by class and tenant, then the second of each, and so on
-- (process, request, seq, wait in ms, bypasses, tenant, class); how many are parked.

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
  local slot = read_slot(listed[place], listed[place + 1])
  local _, sums = split_unseen(slot.u, 0)
  holdings[#holdings + 1] = {
    slot.pid, slot.id, slot.name, slot.b, slot.s, slot.p, slot.n, slot.use, forecasts.text(slot.f), sums[4],
  }
end
for _, id in ipairs(call('HKEYS', K.orphans)) do
  for _, orphan in ipairs(read_orphans(id).list) do
    orphans[#orphans + 1] = {
      orphan[1], id, orphan[8], orphan[3], orphan[4], orphan[5], orphan[6], orphan[9], forecasts.text(orphan[10]),
      now - orphan[2],
    }
  end
end

-- The flows with anything in `queue`, as many as may be shown.
local function some_flows()
  local flows, from = {}, '-'
  while #flows < head_max do
    local member = call('ZRANGEBYLEX', K.queue, from, '+', 'LIMIT', 0, 1)[1]
    if not member then
      break
    end
    local flow = member:match('^%d\1[^\1]+\1')
    flows[#flows + 1] = flow
    from = '(' .. flow:sub(1, -2) .. '\2'
  end
  return flows
end

local flows = some_flows()
local place, found = 0, #flows > 0
while found and #head < head_max do
  found = false
  for _, flow in ipairs(flows) do
    local entry = #head < head_max and entry_at(flow, place)
    if entry then
      found = true
      head[#head + 1] = {
        entry.pid, entry.rid, entry.seq, max(0, now - entry.since), entry.bypasses, entry.tenant, entry.class,
      }
    end
  end
  place = place + 1
end
return finish(leases, holdings, orphans, head, call('ZCARD', K.parked))
