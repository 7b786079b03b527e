-- forget: the process no longer knows an engine; what it held there is void. ARGV: 3 engine.
-- With the last process that knows it the engine goes, and the orphaned sums there.

local id = ARGV[3]

begin()
local process, engine = process_of(mine), engine_of(id)
if process and engine then
  void_slots(mine, engine)
  local pinner = engine.pin and entry_of(engine.pin)
  if pinner and pinner.pid == mine then
    set_pin(engine, false)
  end
  set_mask(mine, process, engine, UNKNOWN)
  if engine.knowers == 0 then
    drop_orphans(id, everyone)
    drop_if_unused(engine)
  end
  recheck(true)
end
return finish()
