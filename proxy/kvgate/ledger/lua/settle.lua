-- settle: what the gauge of an engine shows. ARGV: 3 engine, 4 blocks in use.
--
-- What is in use beyond the sums of live processes is the excess. Orphaned blocks shrink to the larger excess of
-- two readings in a row (at least SETTLE_GAP_MS apart), the oldest first; when that is no more than a hundredth of
-- the engine, all of them go. A live sum is a peak that is rarely reached, so the excess errs on the low side;
-- what is then still running on the engine shows in its own gauge, which is the brake.

local id, in_use = ARGV[3], whole(4)

local function blocks_of(list)
  local blocks = 0
  for _, orphan in ipairs(list) do
    blocks = blocks + orphan[3]
  end
  return blocks
end

-- Take blocks from the orphans of an engine, the oldest first.
local function shrink(engine, list, blocks)
  for _, orphan in ipairs(list) do
    local part = min(blocks, orphan[3])
    orphan[3] = orphan[3] - part
    blocks = blocks - part
    add_to_engine(engine, -part, 0, 0, 0)
  end
end

begin()
local engine, record = engine_of(id), read_orphans(id)
if not engine or not record.list[1] or (record.excess and now - record.read < SETTLE_GAP_MS) then
  return finish()
end
local orphaned = blocks_of(record.list)
local excess = max(0, in_use - (engine.ub - orphaned))
local before = record.excess
record.excess, record.read = excess, now
if not before then
  write_orphans(id, record)
elseif max(before, excess) <= math.ceil(engine.blocks / 100) then
  drop_orphans(id, everyone)
else
  shrink(engine, record.list, max(0, orphaned - max(before, excess)))
  write_orphans(id, record)
end
return finish()
