-- void: the engine restarted; what this process holds there, and all orphaned sums, exist no more. ARGV: 3 engine.

local id = ARGV[3]

begin()
local engine = engine_of(id)
if engine then
  void_slots(mine, engine)
  drop_orphans(id, everyone)
  drop_if_unused(engine)
  stirred = true
end
return finish()
