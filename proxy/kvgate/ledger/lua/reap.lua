-- reap: take every process whose lease ran out for gone. Adds: their ids.

begin()
for _, pid in ipairs(call('ZRANGEBYSCORE', K.leases, '-inf', int(now))) do
  reap(pid)
end
return finish(reaped)
