-- The waiting requests, in their order.
--
-- `queue` and `parked` have one member for each that waits, all of score 0, in lexical order: class, tenant, rank,
-- seq, request. So a flow is one stretch of it. A request is in exactly one of `queue` (an engine that its owner
-- uses could hold it once empty) and `parked` (none could: no part of the walk). `waiters` has the records; `owners`
-- lists the requests of each process.

local flow_key, flow_range, rid_of, equip, member_of, entry_of, changed_entry, entry_at, add, remove, park, unpark,
  is_parked, ahead_in, leave_ungranted, write_entries
local NOBODY = { mask = '' } -- the owner of an entry whose process is gone

(function() -- the rest is its own (README)

local entries, entries_changed = {}, {}
local windows = {} -- of each flow, the first members as far as they were read
local WINDOW = 12 -- members read at a time: a call that makes one grant looks at about that many
local CLASS_DIGITS = { '1', '2', '3' }
local COSTS_AT = 13 -- where the prices begin in a packed record

local function unpack_entry(rid, packed)
  local a = cmsgpack.unpack(packed)
  local costs = {}
  for place = COSTS_AT, #a, 5 do
    costs[a[place]] = { a[place + 1], a[place + 2], a[place + 3], a[place + 4] or nil }
  end
  return {
    rid = rid, pid = a[1], seq = a[2], since = a[3], bypasses = a[4], avoid = a[5],
    tenant = a[6], class = a[7], rank = a[8], work = a[9], tokens = a[10], prefer = a[11], z = a[12], costs = costs,
  }
end

local function pack_entry(e)
  local a = {
    e.pid, e.seq, e.since, e.bypasses, e.avoid, e.tenant, e.class, e.rank, e.work, e.tokens, e.prefer, e.z,
  }
  for shape, cost in pairs(e.costs) do
    local place = #a
    a[place + 1], a[place + 2], a[place + 3], a[place + 4] = shape, cost[1], cost[2], cost[3]
    a[place + 5] = cost[4] or false
  end
  return cmsgpack.pack(a)
end

function flow_key(class, tenant)
  return CLASS_DIGITS[class] .. SEPARATOR .. tenant .. SEPARATOR
end

-- The lexical range of a flow.
function flow_range(flow)
  return '[' .. flow, '(' .. flow:sub(1, -2) .. '\2'
end

-- The request of a member: behind the class, the tenant, and two numbers of 16 digits.
function rid_of(member)
  return member:sub(member:find(SEPARATOR, 3, true) + 35)
end

-- Add what the decisions need: the owner (`NOBODY` when it is gone), the avoided engines as a set, the deviations that
-- are left free beside forecasts, and its flow.
function equip(entry)
  entry.owner = process_of(entry.pid) or NOBODY
  entry.avoids = entry.avoid and set_of(entry.avoid)
  entry.deviations = forecasts.read_z(entry.z)
  entry.flow = flow_key(entry.class, entry.tenant)
  return entry
end

-- How it is called in `queue` or `parked`.
function member_of(entry)
  if not entry.member then
    entry.member = entry.flow .. string.format('%016.0f\1%016.0f\1', entry.rank, entry.seq) .. entry.rid
  end
  return entry.member
end

-- The record of one that waits, nil when it does not.
function entry_of(rid)
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

function changed_entry(entry)
  entries_changed[entry.rid] = entry
end

-- The entry that stands at `place` (0 is the first) in a flow, nil behind the last.
function entry_at(flow, place)
  local window = windows[flow]
  if not window then
    window = { whole = false }
    windows[flow] = window
  end
  while place >= #window and not window.whole do
    local from, to = flow_range(flow)
    local more = call('ZRANGEBYLEX', K.queue, from, to, 'LIMIT', #window, WINDOW)
    for _, member in ipairs(more) do
      window[#window + 1] = member:sub(#flow + 35)
    end
    window.whole = #more < WINDOW
  end
  local rid = window[place + 1]
  return rid and entry_of(rid)
end

local function drop_from_window(entry)
  for place, other in ipairs(windows[entry.flow] or {}) do
    if other == entry.rid then
      table.remove(windows[entry.flow], place)
      return
    end
  end
end

-- A suspended flow whose first request is another one now goes on.
local function is_first(entry)
  return call('ZLEXCOUNT', K.queue, '[' .. entry.flow, '(' .. member_of(entry)) == 0
end

local function activate(entry)
  local tenant, class = tenant_of(entry.tenant), entry.class
  call('ZADD', K.queue, 0, member_of(entry))
  windows[entry.flow] = nil
  tenant.active[class] = tenant.active[class] + 1
  changed_tenant(tenant)
  if tenant.active[class] == 1 then
    enter(tenant, class)
  elseif tenant.state[class] == SUSPENDED and is_first(entry) then
    readmit(tenant, class)
  end
end

-- It was in `queue` and is no more.
local function deactivate(entry)
  local tenant, class = tenant_of(entry.tenant), entry.class
  drop_from_window(entry)
  tenant.active[class] = tenant.active[class] - 1
  changed_tenant(tenant)
  if tenant.active[class] == 0 then
    leave_walk(tenant, class, OUT)
  elseif tenant.state[class] == SUSPENDED and is_first(entry) then
    readmit(tenant, class)
  end
end

local function count_queued(entry, number)
  local tenant = tenant_of(entry.tenant)
  tenant.queued = tenant.queued + number
  changed_tenant(tenant)
end

function add(entry)
  entries[entry.rid] = equip(entry)
  call('HSET', K.waiters, entry.rid, pack_entry(entry))
  call('ZADD', K.owners, 0, entry.pid .. SEPARATOR .. entry.rid)
  count_queued(entry, 1)
  activate(entry)
end

function remove(entry)
  if call('ZREM', K.queue, member_of(entry)) == 1 then
    deactivate(entry)
  else
    call('ZREM', K.parked, member_of(entry))
  end
  count_queued(entry, -1)
  call('HDEL', K.waiters, entry.rid)
  call('ZREM', K.owners, entry.pid .. SEPARATOR .. entry.rid)
  entries[entry.rid], entries_changed[entry.rid] = nil, nil
end

function park(entry)
  call('ZREM', K.queue, member_of(entry))
  call('ZADD', K.parked, 0, member_of(entry))
  deactivate(entry)
end

function unpark(entry)
  call('ZREM', K.parked, member_of(entry))
  activate(entry)
end

function is_parked(entry)
  return call('ZSCORE', K.parked, member_of(entry)) ~= false
end

-- How many stand before one in its flow, in `queue` or `parked`.
function ahead_in(key, entry)
  return call('ZLEXCOUNT', key, '[' .. entry.flow, '(' .. member_of(entry))
end

-- It ends without a grant: what it had pinned is free, and its tokens are given back.
function leave_ungranted(entry)
  correct_tokens(tenant_of(entry.tenant), -entry.tokens)
  remove(entry)
  if unpin(entry.rid) then
    stirred = true
  end
end

function write_entries()
  for rid, entry in pairs(entries_changed) do
    call('HSET', K.waiters, rid, pack_entry(entry))
  end
end

end)()
