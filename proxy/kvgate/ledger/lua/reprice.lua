-- reprice: replace the prices of one that waits. ARGV: 3 request; then the prices, as for reserve.
-- It may start, or be told in the stream that it never will.

local rid, costs = ARGV[3], forecasts.prices(4)

begin()
local entry = entry_of(rid)
if entry and entry.pid == mine then
  entry.costs = costs
  changed_entry(entry)
  if never_fits(entry.owner.mask, costs) then
    refuse_waiting(entry, 'never_fits')
  elseif is_parked(entry) and could_start(entry) then
    unpark(entry)
  else
    readmit(tenant_of(entry.tenant), entry.class)
  end
  stirred = true
end
return finish()
