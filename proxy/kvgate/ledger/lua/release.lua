-- release: give back what a reservation has, or the part by which its cost changed.
--
-- ARGV: 3 rel, 4 engine, 5 blocks, 6 seqs, 7 prefill tokens, 8 reservations (1, or 0 for a part of one).
-- A `rel` that is not above the last known was contained in a beat or came twice: nothing happens. Nor for an engine
-- that the process does not know (any more): what it held there is void. Errors: LEDGERCORRUPT.

local rel, id = whole(3), ARGV[4]
local b, s, p, n = -whole(5), -whole(6), -whole(7), -whole(8)

begin()
if not has_lease(mine) then
  return no_lease()
end
local process, engine = process_of(mine), engine_of(id)
if rel <= process.rel then
  return finish()
end
if engine and mask_at(process.mask, engine.no) ~= UNKNOWN then
  local slot = slot_of(mine, id)
  local why = objection(slot, engine, b, s, p, n)
  if why then
    return corrupt(why)
  end
  add_to_slot(mine, engine, slot, b, s, p, n)
  count('releases', -n)
end
process.rel = rel
changed_process(mine)
return finish()
