-- override: keep a text under a name for all processes, until its time is over.
-- ARGV: 3 name, 4 text ('' ends it), 5 for how long (ms), 6 1 to keep one that is there. Texts are never empty.
-- Those whose time is over go here. Errors when there are too many.

local OVERRIDES_MAX = 1000
local name, text, left, is_shy = ARGV[3], ARGV[4], whole(5), whole(6) == 1

begin()
local listed = call('HGETALL', K.overrides)
for place = 1, #listed, 2 do
  if cmsgpack.unpack(listed[place + 1])[2] <= now then
    call('HDEL', K.overrides, listed[place])
  end
end
if text == '' then
  call('HDEL', K.overrides, name)
elseif call('HEXISTS', K.overrides, name) == 0 and call('HLEN', K.overrides) >= OVERRIDES_MAX then
  finish()
  return redis.error_reply('TOOMANY ' .. OVERRIDES_MAX .. ' overrides are in force')
elseif not (is_shy and call('HEXISTS', K.overrides, name) == 1) then
  call('HSET', K.overrides, name, cmsgpack.pack({ text, now + left }))
end
return finish()
