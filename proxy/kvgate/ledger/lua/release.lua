-- release: give back what a reservation has, or the part by which its cost changed.
--
-- ARGV: 3 rel, 4 engine, 5 tenant, 6 blocks, 7 seqs, 8 prefill tokens, 9 reservations (1, or 0 for a part of one), 10
-- blocks used by it, 11 forecast (or ''); by how much more it took than it was charged: 12 class, 13 work, 14 the part of
-- it that counts for its turns, 15 tokens.
-- A `rel` that is not above the last known was contained in a beat or came twice: nothing happens. Nor for an engine
-- that the process does not know (any more): what it held there is void. Errors: LEDGERCORRUPT.

local rel, id, name = whole(3), ARGV[4], ARGV[5]
local b, s, p, n = -whole(6), -whole(7), -whole(8), -whole(9)
local use, f = -whole(10), forecasts.add(nil, forecasts.read(ARGV[11]), -1)
local class, work, work_of_turn, tokens = whole(12), whole(13), whole(14), whole(15)

begin()
if not has_lease(mine) then
  return no_lease()
end
local process, engine = process_of(mine), engine_of(id)
if rel <= process.rel then
  return finish()
end
if engine and mask_at(process.mask, engine.no) ~= UNKNOWN then
  local slot, tenant = slot_of(mine, id, name), tenant_of(name)
  local why = objection(slot, engine, b, s, p, n, use, f)
  if why then
    return corrupt(why)
  end
  add_to_slot(slot, engine, b, s, p, n, use, f)
  serve(tenant, work)
  correct_turn(tenant, class, work_of_turn)
  correct_tokens(tenant, tokens)
  count('releases', -n)
end
process.rel = rel
changed_process(mine)
return finish()
