-- Forecasts: what is expected to be held, beside the peaks (`kvgate_policies.occupancy`, `forecast_fit`).
--
-- A price is { blocks at the peak, seqs, prefill tokens, f }. The `f` of a price, a slot, an engine or an orphan is
-- nil where all of it is guaranteed (false where it is packed). Else it has for each point of the grid the mean less the
-- peak, in 1/SCALE block; then the variances. So what is guaranteed costs nothing here, and sums of forecasts that ended
-- come back to nil. No `f` is changed in place: several may share one.

local forecasts = {} -- one name for all of it: each name more makes every later function dearer (README)

(function() -- the rest is its own (README)

local SCALE, Z_DEFAULT = POLICIES.scale, POLICIES.deviations
local POINTS = #Z_DEFAULT
local sqrt = math.sqrt

-- An `f` from its text, nil from an empty one.
function forecasts.read(text)
  if text == '' then
    return nil
  end
  local f = {}
  for number in text:gmatch('[^:]+') do
    f[#f + 1] = tonumber(number)
  end
  if #f ~= 2 * POINTS then
    error({ err = 'ERR not a forecast: ' .. text })
  end
  return f
end

-- The `f` of an engine, which is opened when it is first asked for.
function forecasts.of(engine)
  if engine.packed_f then
    engine.f, engine.packed_f = cmsgpack.unpack(engine.packed_f), false
  end
  return engine.f
end

-- As it is stored, false for none.
function forecasts.packed(engine)
  if engine.packed_f or not engine.f then
    return engine.packed_f or false
  end
  engine.fullest = engine.fullest or 1
  engine.full_mean, engine.full_variance = engine.f[engine.fullest], engine.f[POINTS + engine.fullest]
  return cmsgpack.pack(engine.f)
end

-- The prices among the arguments, from `index` to the end: shape, blocks, seqs, prefill tokens, `f`, and so on.
function forecasts.prices(index)
  local costs = {}
  for place = index, #ARGV, 5 do
    costs[ARGV[place]] = { whole(place + 1), whole(place + 2), whole(place + 3), forecasts.read(ARGV[place + 4]) }
  end
  return costs
end

function forecasts.text(f)
  if not f then
    return ''
  end
  local words = {}
  for place = 1, 2 * POINTS do
    words[place] = int(f[place])
  end
  return table.concat(words, ':')
end

-- The `f` of a price as text: its numbers are small enough for Lua's own way to write them (`wire.FORECAST_MAX`).
function forecasts.text_of(cost)
  return cost[4] and table.concat(cost[4], ':') or ''
end

-- A price as it is told in the stream.
function forecasts.text_of_price(cost)
  local text = int(cost[1]) .. ':' .. int(cost[2]) .. ':' .. int(cost[3])
  return cost[4] and text .. ':' .. forecasts.text_of(cost) or text
end

-- The sum of two, or with `sign` -1 the difference; nil when nothing is left of it.
function forecasts.add(one, other, sign)
  if not other then
    return one
  end
  sign = sign or 1
  local sum, is_zero = {}, true
  for place = 1, 2 * POINTS do
    local number = (one and one[place] or 0) + sign * other[place]
    sum[place] = number
    is_zero = is_zero and number == 0
  end
  return not is_zero and sum or nil
end

-- What stands for a forecast that is not renewed any more: its largest mean and variance, at every point.
function forecasts.flat(f)
  if not f then
    return nil
  end
  local mean, variance, flat = f[1], f[POINTS + 1], {}
  for place = 2, POINTS do
    mean, variance = max(mean, f[place]), max(variance, f[POINTS + place])
  end
  for place = 1, POINTS do
    flat[place], flat[POINTS + place] = mean, variance
  end
  return flat
end

function forecasts.is_below_zero(f, blocks)
  for place = 1, f and POINTS or 0 do
    if SCALE * blocks + f[place] < 0 or f[POINTS + place] < 0 then
      return true
    end
  end
  return false
end

-- Whether one of some prices has a forecast.
function forecasts.has(costs)
  for _, cost in pairs(costs) do
    if cost[4] then
      return true
    end
  end
  return false
end

-- What its tenant is said to use by a price: the largest mean, in blocks, rounded up.
function forecasts.use_of(cost)
  local f = cost[4]
  if not f then
    return cost[1]
  end
  local mean = f[1]
  for place = 2, POINTS do
    mean = max(mean, f[place])
  end
  return math.ceil(cost[1] + mean / SCALE)
end

-- Blocks that are held now: the mean at the first point.
function forecasts.blocks_now(blocks, f)
  return f and floor(blocks + f[1] / SCALE) or blocks
end

-- What is taken at a point of the grid by what is held and a newcomer (each `f` may be nil), in 1/SCALE block. In the
-- order of operations of `forecast_fit.blocks_taken`.
local function taken_at(place, peaks, f, more, z)
  local mean, variance = peaks, 0
  if f then
    mean, variance = mean + f[place], f[POINTS + place]
  end
  if more then
    mean, variance = mean + more[place], variance + more[POINTS + place]
  end
  return variance == 0 and mean or mean + z[place] * sqrt(SCALE * variance)
end

-- The left side of the inequality, at the point where it is largest, or the peaks, where those are less; blocks.
function forecasts.blocks_taken(blocks, f, more, z)
  if not f and not more then
    return blocks
  end
  local most, peaks = 0, SCALE * blocks
  for place = 1, POINTS do
    most = max(most, taken_at(place, peaks, f, more, z))
  end
  return min(most / SCALE, blocks)
end

-- The same for an engine, nil when it is more than what is open there at some point.
function forecasts.blocks_within(engine, blocks, more, z)
  local f = forecasts.of(engine)
  if blocks <= engine.open then
    return forecasts.blocks_taken(blocks, f, more, z)
  end
  if not f and not more then
    return nil
  end
  local most, peaks, top = 0, SCALE * blocks, SCALE * engine.open
  for place = 1, POINTS do
    local taken = taken_at(place, peaks, f, more, z)
    if taken > top then
      engine.fullest = place
      return nil
    end
    most = max(most, taken)
  end
  return most / SCALE
end

-- Whether an engine with forecasts has too little at the point where somebody did not fit last. Most engines of a busy
-- pool are too full, and mostly at the same point: this is asked first, and of each, so it is `taken_at` without calls.
function forecasts.is_full(engine, cost, z)
  local place, f, more = engine.fullest or 1, engine.f, cost[4]
  if (engine.is_plain and not more) or engine.ub + cost[1] <= engine.open then
    return false
  end
  local taken = SCALE * (engine.ub + cost[1]) + (f and f[place] or engine.packed_f and engine.full_mean or 0)
  local variance = f and f[POINTS + place] or engine.packed_f and engine.full_variance or 0
  if more then
    taken, variance = taken + more[place], variance + more[POINTS + place]
  end
  local top = SCALE * engine.open
  return taken > top or taken + z[place] * sqrt(SCALE * variance) > top
end

-- Whether a price expects at least as much as another at each point.
function forecasts.is_at_least(cost, other)
  local f, g, peaks = cost[4], other[4], SCALE * (cost[1] - other[1])
  for place = 1, (f or g) and POINTS or 0 do
    if peaks + (f and f[place] or 0) < (g and g[place] or 0)
      or (f and f[POINTS + place] or 0) < (g and g[POINTS + place] or 0) then
      return false
    end
  end
  return true
end

-- The standard deviations that are left free, from the text of an entry (false for the default).
function forecasts.read_z(text)
  if not text then
    return Z_DEFAULT
  end
  local z = {}
  for word in text:gmatch('%S+') do
    z[#z + 1] = tonumber(word)
  end
  if #z ~= POINTS then
    error({ err = 'ERR not deviations: ' .. text })
  end
  return z
end

end)()
