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
local active, parked, owners = scores_of(K.active), scores_of(K.parked), scores_of(K.owners)
local waiters, unseen = pairs_of(K.waiters), pairs_of(K.unseen)

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
  local function add_sums(id, b, s, p, n)
    expect(not is_below_zero(b, s, p, n), 'engine %s: a part of %s/%s/%s of %s', id, b, s, p, n)
    local sum = sums[id] or { 0, 0, 0, 0 }
    sums[id] = { sum[1] + b, sum[2] + s, sum[3] + p, sum[4] + n }
  end
  local function check_unseen(text)
    local _, _, grants = split_unseen(text, 2 ^ 53)
    for rid in pairs(grants) do
      expect(unseen[rid], 'request %s: its grant is unacknowledged, and not listed so', rid)
      listed = listed + 1
    end
  end
  for key, packed in pairs(pairs_of(K.slots)) do
    local pid, id = key:match('^([^\1]+)\1(.+)$')
    local slot = read_slot(packed)
    expect(known[pid], 'engine %s: sums of process %s, which is not known', id, pid)
    add_sums(id, slot.b, slot.s, slot.p, slot.n)
    check_unseen(slot.u)
  end
  for id in pairs(pairs_of(K.orphans)) do
    expect(meta.hold > 0, 'engine %s: orphans that nobody will drop', id)
    for _, orphan in ipairs(read_orphans(id).list) do
      add_sums(id, orphan[3], orphan[4], orphan[5], orphan[6])
      check_unseen(orphan[7])
    end
  end
  expect(size(unseen) <= listed, '%s unacknowledged grants are listed, and the parts have %s', size(unseen), listed)
  for id, e in pairs(all_engines()) do
    local sum = sums[id] or { 0, 0, 0, 0 }
    expect(
      sum[1] == e.ub and sum[2] == e.us and sum[3] == e.up and sum[4] == e.n,
      'engine %s: %s/%s/%s of %s, but its parts sum up to %s/%s/%s of %s',
      id, e.ub, e.us, e.up, e.n, sum[1], sum[2], sum[3], sum[4]
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
    expect((active[rid] or parked[rid]) == entry.seq, 'request %s: not at its place', rid)
    expect(owners[entry.pid .. SEPARATOR .. rid], 'request %s: not listed for its owner', rid)
    expect(entry.owner ~= NOBODY or leases[entry.pid], 'request %s: its owner is gone', rid)
  end
end

local function check_pins()
  local number = 0
  for id, engine in pairs(all_engines()) do
    if engine.pin then
      number = number + 1
      expect(active[engine.pin] == engine.pin_seq, 'engine %s: pinned by %s, which does not wait', id, engine.pin)
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
  local looked, at = 0, 0
  while looked < SCAN_DEPTH do
    local entry = active_at(at)
    if not entry then
      break
    end
    local engine = place(entry)
    expect(not engine, 'request %s: waits, and fits %s', entry.rid, engine and engine.id)
    looked, at = looked + (pinned[entry.rid] and 0 or 1), at + 1
  end
  for rid in pairs(parked) do
    expect(not could_start(entry_of(rid)), 'request %s: parked, and could start', rid)
  end
  for rid in pairs(waiters) do
    local entry = entry_of(rid)
    expect(not never_fits(entry.owner.mask, entry.costs), 'request %s: waits, and never fits', rid)
  end
end

check_sums()
check_queue()
check_pins()
check_processes()
check_wake_ups()
return finish(faults)
