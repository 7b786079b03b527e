-- cancel: leave the queue. ARGV: 3 request.
-- Adds: 1 when it was queued, 0 when it was not (a grant for it may be in the stream).

local rid = ARGV[3]

begin()
local entry = entry_of(rid)
if not entry or entry.pid ~= mine then
  return finish(0)
end
count('cancels')
correct_tokens(tenant_of(entry.tenant), -entry.tokens)
leave_queue(entry)
return finish(1)
