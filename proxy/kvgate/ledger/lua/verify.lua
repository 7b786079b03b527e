-- verify: every invariant that does not hold, in words. Reads everything. Adds: the lines.

begin()
settle_down()
write_all()
counts = {}

local faults = {}

local function expect(holds, ...)
  if not holds then
    faults[#faults + 1] = string.format(...)
  end
end

local function pairs_of(key)
  local map, list = {}, call('HGETALL', key)
  for place = 1, #list, 2 do
    map[list[place]] = list[place + 1]
  end
  return map
end

local function scores_of(key)
  local map, list = {}, call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for place = 1, #list, 2 do
    map[list[place]] = tonumber(list[place + 1])
  end
  return map
end

local leases, known = scores_of(K.leases), pairs_of(K.processes)
local active, parked, owners = scores_of(K.queue), scores_of(K.parked), scores_of(K.owners)
local waiters, unseen, holdings = pairs_of(K.waiters), pairs_of(K.unseen), scores_of(K.holdings)
for name in pairs(pairs_of(K.tenants)) do
  tenant_of(name)
end

local function size(map)
  local number = 0
  for _ in pairs(map) do
    number = number + 1
  end
  return number
end

-- Sums: of each engine, its slots and its orphans.
local function check_sums()
  local sums, listed = {}, 0
  local function add_sums(id, b, s, p, n, use, f)
    expect(not is_below_zero(b, s, p, n, use, f), 'engine %s: a part of %s/%s/%s of %s (%s)', id, b, s, p, n, forecasts.text(f))
    local sum = sums[id] or { 0, 0, 0, 0, 0 }
    sums[id] = { sum[1] + b, sum[2] + s, sum[3] + p, sum[4] + n, sum[5] + use, forecasts.add(sum[6], f) }
  end
  local function check_unseen(text)
    local _, _, grants = split_unseen(text, 2 ^ 53)
    for rid in pairs(grants) do
      expect(unseen[rid], 'request %s: its grant is unacknowledged, and not listed so', rid)
      listed = listed + 1
    end
  end
  local uses, number = {}, 0
  for key, packed in pairs(pairs_of(K.slots)) do
    local slot = read_slot(key, packed)
    expect(known[slot.pid], 'engine %s: sums of process %s, which is not known', slot.id, slot.pid)
    expect(holdings[key], 'engine %s: sums of process %s for %s, not listed', slot.id, slot.pid, slot.name)
    add_sums(slot.id, unpack(sums_of(slot), 1, 6))
    check_unseen(slot.u)
    local use = uses[slot.name] or { 0, 0 }
    uses[slot.name] = { use[1] + slot.use, use[2] + slot.n }
    number = number + 1
  end
  expect(size(holdings) == number, '%s slots are listed, and there are %s', size(holdings), number)
  for name, tenant in pairs(tenants) do
    local use = uses[name] or { 0, 0 }
    expect(
      use[1] == tenant.use and use[2] == tenant.n,
      'tenant %s: %s of %s, but its parts sum up to %s of %s', name, tenant.use, tenant.n, use[1], use[2]
    )
    uses[name] = nil
  end
  for name in pairs(uses) do
    expect(false, 'tenant %s: sums, but no record', name)
  end
  for id in pairs(pairs_of(K.orphans)) do
    expect(meta.hold > 0, 'engine %s: orphans that nobody will drop', id)
    for _, orphan in ipairs(read_orphans(id).list) do
      add_sums(id, orphan[3], orphan[4], orphan[5], orphan[6], orphan[9], orphan[10])
      check_unseen(orphan[7])
    end
  end
  expect(size(unseen) <= listed, '%s unacknowledged grants are listed, and the parts have %s', size(unseen), listed)
  for id, e in pairs(all_engines()) do
    local sum = sums[id] or { 0, 0, 0, 0, 0 }
    expect(
      sum[1] == e.ub and sum[2] == e.us and sum[3] == e.up and sum[4] == e.n,
      'engine %s: %s/%s/%s of %s, but its parts sum up to %s/%s/%s of %s',
      id, e.ub, e.us, e.up, e.n, sum[1], sum[2], sum[3], sum[4]
    )
    expect(
      sum[5] == e.use and not forecasts.add(sum[6], forecasts.of(e), -1),
      'engine %s: forecasts of %s blocks (%s), but its parts sum up to %s (%s)',
      id, e.use, forecasts.text(forecasts.of(e)), sum[5], forecasts.text(sum[6])
    )
    sums[id] = nil
  end
  for id in pairs(sums) do
    expect(false, 'engine %s: sums, but no record', id)
  end
end

-- The queue: the same requests in each of its parts.
local function check_queue()
  local number = size(active) + size(parked)
  expect(size(waiters) == number, '%s wait, %s are active or parked', size(waiters), number)
  expect(size(waiters) == size(owners), '%s wait, %s have an owner', size(waiters), size(owners))
  for rid in pairs(waiters) do
    local entry = entry_of(rid)
    expect(active[member_of(entry)] or parked[member_of(entry)], 'request %s: not at its place', rid)
    expect(owners[entry.pid .. SEPARATOR .. rid], 'request %s: not listed for its owner', rid)
    expect(entry.owner ~= NOBODY or leases[entry.pid], 'request %s: its owner is gone', rid)
  end
end

-- What is counted of each tenant, and its flows.
local function check_tenants()
  local queued, waits, walks, hard, kept = {}, {}, { 0, 0, 0 }, 0, 0
  local flows, busy = scores_of(K.flows), scores_of(K.busy)
  for rid in pairs(waiters) do
    local entry = entry_of(rid)
    queued[entry.tenant] = (queued[entry.tenant] or 0) + 1
    if active[member_of(entry)] then
      waits[entry.flow] = (waits[entry.flow] or 0) + 1
    end
  end
  for name, t in pairs(tenants) do
    expect(t.queued == (queued[name] or 0), 'tenant %s: %s wait, %s counted', name, queued[name] or 0, t.queued)
    expect((busy[name] ~= nil) == (t.queued > 0 or t.n > 0), 'tenant %s: wrongly listed as busy or not', name)
    for class = 1, CLASSES do
      local number = waits[flow_key(class, name)] or 0
      expect(t.active[class] == number, 'tenant %s, class %s: %s, %s counted', name, class, number, t.active[class])
      expect((t.state[class] == OUT) == (number == 0), 'tenant %s, class %s: wrongly in the walk or not', name, class)
      expect(t.stands[class] == stand_of(t, class), 'tenant %s, class %s: not where it belongs', name, class)
      expect(t.stands[class] == '' or flows[t.stands[class]], 'tenant %s, class %s: not in its place', name, class)
      walks[class] = walks[class] + (t.state[class] == IN and 1 or 0)
    end
    hard, kept = hard + t.hard, kept + t.kept
  end
  for class = 1, CLASSES do
    local counted = meta['w' .. class]
    expect(walks[class] == counted, 'class %s: %s flows, %s counted', class, walks[class], counted)
  end
  expect(size(flows) == walks[1] + walks[2] + walks[3], '%s flows have a place', size(flows))
  expect(hard == meta.hard, '%s blocks are set aside, %s counted', hard, meta.hard)
  expect(kept == meta.kept, '%s blocks are kept free for who lends nothing, %s counted', kept, meta.kept)
  local capacity = 0
  for _, engine in pairs(all_engines()) do
    capacity = capacity + (engine.shape and engine.knowers > 0 and engine.blocks or 0)
  end
  expect(capacity == meta.capacity, '%s blocks in all, %s counted', capacity, meta.capacity)
end

local function check_pins()
  local number = 0
  for id, engine in pairs(all_engines()) do
    if engine.pin then
      number = number + 1
      local entry = entry_of(engine.pin)
      expect(entry and active[member_of(entry)], 'engine %s: pinned by %s, which does not wait', id, engine.pin)
      expect(pinned[engine.pin] == engine, 'request %s: pins two engines', engine.pin)
    end
  end
  expect(number == meta.pins, '%s engines are pinned, and %s counted', number, meta.pins)
end

local function check_processes()
  for pid in pairs(known) do
    expect(leases[pid], 'process %s: known without a lease', pid)
  end
  for pid, expiry in pairs(leases) do
    expect(known[pid] or expiry <= now, 'process %s: a lease, and not known', pid)
  end
  local places = {}
  for id, engine in pairs(all_engines()) do
    local knowers = 0
    for pid in pairs(known) do
      if mask_at(process_of(pid).mask, engine.no) ~= UNKNOWN then
        knowers = knowers + 1
      end
    end
    expect(knowers == engine.knowers, 'engine %s: known to %s, and %s counted', id, knowers, engine.knowers)
    expect(not places[engine.no], 'engine %s: at the place of another', id)
    expect(knowers > 0 or engine.n > 0, 'engine %s: nobody knows it', id)
    places[engine.no] = true
  end
end

-- No lost wake-up: nobody within the scan waits while an engine is free for it, and nobody in vain.
local function check_wake_ups()
  if meta.dirty == 1 or now < meta.grace then
    return
  end
  local flow_number, seen, flow = 0, {}, first_flow({})
  while flow and flow_number < FLOWS_MAX do
    local looked, at = 0, 0
    while looked < SCAN_DEPTH do
      local entry = entry_at(flow, at)
      if not entry then
        break
      end
      local within = within_limit(entry)
      local engine = place(entry, up_to(within, left_open(tenant_of(entry.tenant), { kept = {} })))
      expect(not engine or meta.hard > 0, 'request %s: waits, and fits %s', entry.rid, engine and engine.id)
      looked, at = looked + (pinned[entry.rid] and 0 or 1), at + 1
      if within ~= entry.costs and not could_start(entry, within) then
        break
      end
    end
    seen[flow] = true
    flow_number, flow = flow_number + 1, first_flow(seen)
  end
  for member in pairs(parked) do
    local entry = entry_of(rid_of(member))
    expect(not could_start(entry), 'request %s: parked, and could start', entry.rid)
  end
  for rid in pairs(waiters) do
    local entry = entry_of(rid)
    expect(not never_fits(entry.owner.mask, entry.costs), 'request %s: waits, and never fits', rid)
  end
end

check_sums()
check_queue()
check_tenants()
check_pins()
check_processes()
check_wake_ups()
return finish(faults)
