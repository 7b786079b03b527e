-- ahead: how many stand before each of these places in the queue. ARGV: from 3, each a seq. Adds: the numbers.

local places = {}
for index = 3, #ARGV do
  places[#places + 1] = whole(index)
end

begin()
local numbers = {}
for index, seq in ipairs(places) do
  local before = '(' .. int(seq)
  numbers[index] = call('ZCOUNT', K.active, '-inf', before) + call('ZCOUNT', K.parked, '-inf', before)
end
return finish(numbers)
