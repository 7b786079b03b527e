-- settle: what the gauges of an engine show. ARGV: 3 engine, 4 blocks in use, 5 sequences there (or nothing). Adds: its
-- sums afterwards, as in `inspect`; nothing for an engine without a record.
--
-- What is there beyond the sums of live processes is the excess. When two readings in a row (at least SETTLE_GAP_MS
-- apart) show next to none, all orphaned sums of the engine go; never a part of them. What a killed process held is
-- free within a second, and then all of it. A process that is only cut off from here goes on, and fills up again to
-- what it held: a part that its engine shows free is free for a moment only.
-- It is counted in sequences: a sequence that runs is one that was reserved, whereas of its blocks only a part is
-- in use before its end, so that an excess in blocks hides behind live sums. Blocks serve where the engine does not
-- tell its sequences, those of a forecast as many as it has now; they err on the low side.

local id, in_use = ARGV[3], whole(4)
local there = ARGV[5] and whole(5)

-- What all orphans of a list hold: sequences, or blocks.
local function orphaned(list, in_seqs)
  local sum = 0
  for _, orphan in ipairs(list) do
    sum = sum + (in_seqs and orphan[4] or forecasts.blocks_now(orphan[3], orphan[10]))
  end
  return sum
end

-- An excess that may be noise: a live request that ended while its engine was read. Of few orphans nothing is noise.
local function next_to_nothing(held, all)
  return min(math.ceil(all / 100), floor(held / 8))
end

local function answer(e)
  settle_down()
  return finish(e.ub, e.us, e.up, e.n, e.use, forecasts.text(forecasts.of(e)))
end

begin()
local engine, record = engine_of(id), read_orphans(id)
if not engine then
  return finish()
elseif not record.list[1] or (record.excess and now - record.read < SETTLE_GAP_MS) then
  return answer(engine)
end
local held = orphaned(record.list, there)
local live = (there and engine.us or forecasts.blocks_now(engine.ub, forecasts.of(engine))) - held
local nothing = next_to_nothing(held, there and live or engine.blocks)
local before = record.excess
record.excess, record.read = max(0, (there or in_use) - live), now
if before and max(before, record.excess) <= nothing then
  drop_orphans(id, everyone)
else
  write_orphans(id, record)
end
return answer(engine)
