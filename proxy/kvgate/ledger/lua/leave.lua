-- leave: a process ends in good order; its waiters, sums and lease go at once.
-- One with more waiters than one call takes is left to the reaping, which goes on with the next calls.

begin()
local is_done = drop_waiters(mine)
for _, engine in pairs(all_engines()) do
  void_slots(mine, engine)
end
forget_process(mine)
if is_done then
  call('ZREM', K.leases, mine)
else
  call('ZADD', K.leases, 0, mine)
end
return finish()
