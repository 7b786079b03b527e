-- missing: which of these requests are not queued (any more). ARGV: from 3, each a request of this process.
-- Adds: a 1 for each that is not, a 0 for each that is, in the order of the arguments.

begin()
local flags = {}
for index = 3, #ARGV do
  local entry = entry_of(ARGV[index])
  flags[index - 2] = (entry and entry.pid == mine) and 0 or 1
end
return finish(flags)
