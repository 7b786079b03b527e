-- What every script begins with: the keys, the time, and `meta`.
--
-- A verb reads its arguments first, then calls `begin`, then decides, and leaves only through `finish` (or
-- `no_lease`, `corrupt`, which go through it). `finish` runs the grant loop if anything was stirred up, then
-- writes back what changed. So whatever makes room is followed by the grant loop in the same call: there is no
-- early return that could lose a wake-up. What was read is kept in Lua tables and written once, at the end,
-- except for the queue, whose commands take effect at once.
--
-- ARGV[1] is a token that makes an epoch unique, ARGV[2] the process that calls ('' for none).
-- Numbers are integers below 2^53, which `int` writes, as Lua itself would write 1.8e+15; or doubles (start tags,
-- virtual times, budgets), which `exact` writes, so that they are the same here and in the ledger in memory.

local K = {
  meta = KEYS[1], leases = KEYS[2], processes = KEYS[3], engines = KEYS[4], slots = KEYS[5], holdings = KEYS[6],
  orphans = KEYS[7], tenants = KEYS[8], busy = KEYS[9], a = KEYS[10], b = KEYS[11], overrides = KEYS[12],
  flows = KEYS[13], queue = KEYS[14], parked = KEYS[15], waiters = KEYS[16], owners = KEYS[17], unseen = KEYS[18],
  ceilings = KEYS[19], grants = KEYS[20],
}
local call, floor, max, min, byte = redis.call, math.floor, math.max, math.min, string.byte
local mine = ARGV[2]
local SEPARATOR = '\1' -- stands between the parts of a field; ids have no control characters

local KEEP_MS = 86400000 -- the pool's keys go a day after the last beat
local STREAM_MAX = 8192 -- entries; a process reads within a beat what 30 s of full load write

local ARGUMENTS_MAX = 1000 -- in one command; Lua cannot pass more than some 8,000 arguments

local function int(number)
  return string.format('%.0f', number)
end

-- A number as text that gives the same double again.
local function exact(number)
  return string.format('%.17g', number)
end

-- Arguments. All are read, and so checked, before the first write.

local function whole(index)
  local number = tonumber(ARGV[index])
  if not number or number ~= floor(number) then
    error({ err = 'ERR argument ' .. index .. ' of ' .. #ARGV .. ' is no whole number' })
  end
  return number
end

-- The names counted by the argument at `index`, as a list, and the index behind them.
local function names(index)
  local list = {}
  for place = index + 1, index + whole(index) do
    list[#list + 1] = ARGV[place]
  end
  return list, index + 1 + #list
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list or {}) do
    set[name] = true
  end
  return set
end

-- Whether a text comes before another, byte by byte; `<` would ask the locale of the server.
local function precedes(one, other)
  for place = 1, min(#one, #other) do
    local a, b = byte(one, place), byte(other, place)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- Time and meta.

local now -- ms, of the server
local META = { 'epoch', 'grace', 'seq', 'gseq', 'tie', 'pins', 'dirty', 'recheck', 'hold', 'shares' }
local SHARES = { -- what `shares` has, in one packed field, since it is read and often written by every call
  'rules', 'side', 'digest', 'staged', 'parts', 'capacity', 'block_min', 'hard', 'kept', 'retier',
  'v1', 'v2', 'v3', 'o1', 'o2', 'o3', 'w1', 'w2', 'w3', 'grace_from', 'expected',
}
-- grace: until when nothing is granted (ms). seq, gseq: the last given. tie: turns among equal engines.
-- pins: how many engines are pinned. dirty: 1 when a call stopped at its bounds or in the grace.
-- recheck: where looking through the whole queue goes on ('' when not). hold: when orphans are due (ms; 0: none).
-- Of the shares: rules: counts the changes of the tenants' rules. side: which of `a` and `b` has them. digest: of their content.
-- staged, parts: digest and parts of those that are still coming. capacity: blocks of all known engines.
-- block_min: the smallest block size among them. hard: guarantees of the tenants that lend nothing, blocks; kept: how
-- much of that is not used. retier: the flow from which on all are placed anew ('' when not).
-- grace_from: when the last grace began; expected: how many processes are to say in it what they hold.
-- v, o, w: of each class, the virtual time, by how many grants it was overtaken, flows in the walk.
local META_TEXT = set_of({ 'epoch', 'recheck', 'shares' })
local meta, meta_read = {}, {}
local counts = {} -- counters to be added
local stirred = false -- something changed that the grant loop must hear of
local pumped = false -- the grant loop ran in this call
local more_to_reap = false -- waiters of a process that is gone are left for the next call

local function count(name, number)
  counts[name] = (counts[name] or 0) + (number or 1)
end

-- An epoch begins with nothing, but for what operators set until some time. `seq` and `gseq` begin at the time in
-- µs, above all of any earlier epoch.
local function new_epoch(now_us)
  for _, key in pairs(K) do
    if key ~= K.overrides then
      call('UNLINK', key)
    end
  end
  meta_read = {}
  meta = {
    epoch = ARGV[1] .. '-' .. int(now_us), grace = now + GRACE_MS, seq = now_us, gseq = now_us, tie = 0,
    pins = 0, dirty = 0, recheck = '', hold = 0,
    rules = 0, side = 'a', digest = '', staged = '', parts = 0, capacity = 0, block_min = 0, hard = 0, kept = 0,
    retier = '', v1 = 0, v2 = 0, v3 = 0, o1 = 0, o2 = 0, o3 = 0, w1 = 0, w2 = 0, w3 = 0,
    grace_from = now, expected = 0,
  }
end

local function read_meta()
  local time = call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  now = floor(now_us / 1000)
  local values = call('HMGET', K.meta, unpack(META))
  if not values[1] or not values[#META] then
    return new_epoch(now_us)
  end
  for place, name in ipairs(META) do
    local value = values[place]
    if not META_TEXT[name] then
      value = tonumber(value)
    end
    meta[name], meta_read[name] = value, value
  end
  for place, value in ipairs(cmsgpack.unpack(meta.shares)) do
    meta[SHARES[place]] = value
  end
end

local function pack_shares()
  local values = {}
  for place, name in ipairs(SHARES) do
    values[place] = meta[name]
  end
  meta.shares = cmsgpack.pack(values)
end

local function write_meta()
  pack_shares()
  local changed = {}
  for _, name in ipairs(META) do
    local value = meta[name]
    if value ~= meta_read[name] then
      changed[#changed + 1] = name
      changed[#changed + 1] = type(value) == 'number' and int(value) or value
    end
  end
  if changed[1] then
    call('HSET', K.meta, unpack(changed))
  end
  for name, number in pairs(counts) do
    if number > 0 then
      call('HINCRBY', K.meta, 't:' .. name, number)
    end
  end
end
