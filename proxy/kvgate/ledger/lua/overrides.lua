-- overrides: the texts that hold now. Adds: name, text, ms that are left, for each.

begin()
local rows, listed = {}, call('HGETALL', K.overrides)
for place = 1, #listed, 2 do
  local text, until_ms = unpack(cmsgpack.unpack(listed[place + 1]))
  if until_ms > now then
    rows[#rows + 1] = { listed[place], text, until_ms - now }
  end
end
return finish(rows)
