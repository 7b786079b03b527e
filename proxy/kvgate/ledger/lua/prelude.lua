-- What every script begins with: the keys, the time, and `meta`.
--
-- A verb reads its arguments first, then calls `begin`, then decides, and leaves only through `finish` (or
-- `no_lease`, `corrupt`, which go through it). `finish` runs the grant loop if anything was stirred up, then
-- writes back what changed. So whatever makes room is followed by the grant loop in the same call: there is no
-- early return that could lose a wake-up. What was read is kept in Lua tables and written once, at the end,
-- except for the queue, whose commands take effect at once.
--
-- ARGV[1] is a token that makes an epoch unique, ARGV[2] the process that calls ('' for none).
-- Numbers are integers below 2^53; `int` writes them, as Lua itself would write 1.8e+15.

local K = {
  meta = KEYS[1], leases = KEYS[2], processes = KEYS[3], engines = KEYS[4], slots = KEYS[5], orphans = KEYS[6],
  active = KEYS[7], parked = KEYS[8], waiters = KEYS[9], owners = KEYS[10], unseen = KEYS[11],
  ceilings = KEYS[12], grants = KEYS[13],
}
local call, floor, max, min, byte = redis.call, math.floor, math.max, math.min, string.byte
local mine = ARGV[2]
local SEPARATOR = '\1' -- stands between the parts of a field; ids have no control characters

local KEEP_MS = 86400000 -- the pool's keys go a day after the last beat
local STREAM_MAX = 8192 -- entries; a process reads within a beat what 30 s of full load write

local function int(number)
  return string.format('%.0f', number)
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

-- Prices from `index` to the end: shape, blocks, seqs, prefill tokens, and so on.
local function prices(index)
  local costs = {}
  for place = index, #ARGV, 4 do
    costs[ARGV[place]] = { whole(place + 1), whole(place + 2), whole(place + 3) }
  end
  return costs
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list or {}) do
    set[name] = true
  end
  return set
end

-- Time and meta.

local now -- ms, of the server
local META = { 'epoch', 'grace', 'seq', 'gseq', 'tie', 'pins', 'dirty', 'recheck', 'hold' }
-- grace: until when nothing is granted (ms). seq, gseq: the last given. tie: turns among equal engines.
-- pins: how many engines are pinned. dirty: 1 when a call stopped at its bounds or in the grace.
-- recheck: where looking through the whole queue goes on ('' when not). hold: when orphans are due (ms; 0: none).
local meta, meta_read = {}, {}
local counts = {} -- counters to be added
local stirred = false -- something changed that the grant loop must hear of
local more_to_reap = false -- waiters of a process that is gone are left for the next call

local function count(name, number)
  counts[name] = (counts[name] or 0) + (number or 1)
end

-- An epoch begins with nothing. `seq` and `gseq` begin at the time in µs, above all of any earlier epoch.
local function new_epoch(now_us)
  call('DEL', unpack(KEYS))
  meta_read = {}
  meta = {
    epoch = ARGV[1] .. '-' .. int(now_us), grace = now + GRACE_MS, seq = now_us, gseq = now_us, tie = 0,
    pins = 0, dirty = 0, recheck = '', hold = 0,
  }
end

local function read_meta()
  local time = call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  now = floor(now_us / 1000)
  local values = call('HMGET', K.meta, unpack(META))
  if not values[1] then
    return new_epoch(now_us)
  end
  for place, name in ipairs(META) do
    local value = values[place]
    if name ~= 'epoch' and name ~= 'recheck' then
      value = tonumber(value)
    end
    meta[name], meta_read[name] = value, value
  end
end

local function write_meta()
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
