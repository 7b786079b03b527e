-- observe: add an engine, or change what it holds and whether the process uses it.
--
-- ARGV: 3 engine, 4 shape, 5 blocks, 6 seqs, 7 prefill tokens, 8 used now (1 or 0), 9 blocks that may be filled at
-- present ('' for all).
-- What it holds is the same for all processes, and the last to say it is right; whether it is used is each one's own.
-- How much may be filled changes with every reading of its gauges: nothing is looked through for it but the queue.

local id, shape = ARGV[3], ARGV[4]
local blocks, seqs, prefill = whole(5), whole(6), whole(7)
local state = whole(8) == 1 and USED or KNOWN
local usable = ARGV[9] ~= '' and whole(9)

begin()
if not has_lease(mine) then
  return no_lease()
end
local engine = engine_of(id) or new_engine(id)
local is_other_size = engine.shape ~= shape or engine.blocks ~= blocks or engine.seqs ~= seqs
local is_changed = is_other_size or engine.prefill ~= prefill
if is_changed then
  engine.shape, engine.blocks, engine.seqs, engine.prefill = shape, blocks, seqs, prefill
  changed_engine(engine)
  changed_limits()
end
if is_changed or (engine.usable or false) ~= usable then
  engine.usable, stirred = usable, true
  changed_engine(engine)
  set_open(engine)
end
local before = set_mask(mine, process_of(mine), engine, state)
if is_other_size or before == UNKNOWN then
  recheck(true)
elseif is_changed or before ~= state then
  recheck(false)
end
return finish()
