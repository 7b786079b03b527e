-- The waiting requests, in their order.
--
-- `active` and `parked` hold ids by `seq`; `waiters` has the records; `owners` lists the ids of each process.
-- An id is in exactly one of `active` (an engine that its owner uses could hold it once empty) and `parked`
-- (none could: no part of the walk). Two of the same `seq` (possible only when the server's clock went back
-- between two epochs) stand in the order of their ids.

local entries, entries_changed = {}, {}
local window, window_whole = {}, false -- the first ids of `active`, as far as they were read
local WINDOW = 24 -- ids read at a time: a call of 16 grants looks at about that many

local function unpack_entry(rid, packed)
  local a = cmsgpack.unpack(packed)
  local costs = {}
  for place = 6, #a, 4 do
    costs[a[place]] = { a[place + 1], a[place + 2], a[place + 3] }
  end
  return { rid = rid, pid = a[1], seq = a[2], since = a[3], bypasses = a[4], avoid = a[5], costs = costs }
end

local function pack_entry(e)
  local a = { e.pid, e.seq, e.since, e.bypasses, e.avoid }
  for shape, cost in pairs(e.costs) do
    local place = #a
    a[place + 1], a[place + 2], a[place + 3], a[place + 4] = shape, cost[1], cost[2], cost[3]
  end
  return cmsgpack.pack(a)
end

local NOBODY = { mask = '' }

-- Add what the decisions need: the owner (`NOBODY` when it is gone), and the avoided engines as a set.
local function equip(entry)
  entry.owner = process_of(entry.pid) or NOBODY
  entry.avoids = entry.avoid and set_of(entry.avoid)
  return entry
end

-- The record of one that waits, nil when it does not.
local function entry_of(rid)
  local entry = entries[rid]
  if entry == nil then
    local packed = call('HGET', K.waiters, rid)
    if packed then
      entry = equip(unpack_entry(rid, packed))
      entries[rid] = entry
    end
  end
  return entry
end

local function changed_entry(entry)
  entries_changed[entry.rid] = entry
end

local function forget_window()
  window, window_whole = {}, false
end

-- The entry that stands at `place` (0 is the head) among the active ones, nil behind the last.
local function active_at(place)
  while place >= #window and not window_whole do
    local more = call('ZRANGE', K.active, #window, #window + WINDOW - 1)
    for _, rid in ipairs(more) do
      window[#window + 1] = rid
    end
    window_whole = #more < WINDOW
  end
  local rid = window[place + 1]
  return rid and entry_of(rid)
end

local function drop_from_window(rid)
  for place, other in ipairs(window) do
    if other == rid then
      table.remove(window, place)
      return
    end
  end
end

local function add(entry)
  entries[entry.rid] = equip(entry)
  call('HSET', K.waiters, entry.rid, pack_entry(entry))
  call('ZADD', K.active, int(entry.seq), entry.rid)
  call('ZADD', K.owners, 0, entry.pid .. SEPARATOR .. entry.rid)
  forget_window()
end

local function remove(entry)
  if call('ZREM', K.active, entry.rid) == 0 then
    call('ZREM', K.parked, entry.rid)
  end
  call('HDEL', K.waiters, entry.rid)
  call('ZREM', K.owners, entry.pid .. SEPARATOR .. entry.rid)
  entries[entry.rid], entries_changed[entry.rid] = nil, nil
  drop_from_window(entry.rid)
end

local function park(entry)
  call('ZREM', K.active, entry.rid)
  call('ZADD', K.parked, int(entry.seq), entry.rid)
  drop_from_window(entry.rid)
end

local function unpark(entry)
  call('ZREM', K.parked, entry.rid)
  call('ZADD', K.active, int(entry.seq), entry.rid)
  forget_window()
end

-- Whether a walk could look at the entry: if not, its coming or leaving changes nothing.
local function is_reached(rid)
  local place = call('ZRANK', K.active, rid)
  return place and place < SCAN_DEPTH + meta.pins
end

-- Take one out; those behind it move up, and what it had pinned is free.
local function leave_queue(entry)
  local mattered = is_reached(entry.rid)
  remove(entry)
  if unpin(entry.rid) or mattered then
    stirred = true
  end
end

local function write_entries()
  for rid, entry in pairs(entries_changed) do
    call('HSET', K.waiters, rid, pack_entry(entry))
  end
end
