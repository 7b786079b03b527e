-- ahead: how many stand before each of these requests in its flow, parked ones included; 0 for one that does not
-- wait. ARGV: from 3, each a request. Adds: the numbers.

begin()
local numbers = {}
for index = 3, #ARGV do
  local entry = entry_of(ARGV[index])
  numbers[index - 2] = entry and ahead_in(K.queue, entry) + ahead_in(K.parked, entry) or 0
end
return finish(numbers)
