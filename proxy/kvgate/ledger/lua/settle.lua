-- settle: what the gauges of an engine show. ARGV: 3 engine, 4 blocks in use, 5 sequences there (or nothing).
--
-- What is there beyond the sums of live processes is the excess. Orphaned sums shrink to the larger excess of two
-- readings in a row (at least SETTLE_GAP_MS apart), the oldest first; when that is next to nothing, all of them go.
-- It is counted in sequences: a sequence that runs is one that was reserved, whereas of its blocks only a part is
-- in use before its end, so that an excess in blocks hides behind live sums. Blocks serve where the engine does not
-- tell its sequences; they err on the low side.

local id, in_use = ARGV[3], whole(4)
local there = ARGV[5] and whole(5)

-- Of each part of the sums (3 blocks, 4 sequences), what all orphans of a list hold.
local function orphaned(list, part)
  local sum = 0
  for _, orphan in ipairs(list) do
    sum = sum + orphan[part]
  end
  return sum
end

-- Take blocks from the orphans of an engine, the oldest first.
local function shrink_blocks(engine, list, blocks)
  for _, orphan in ipairs(list) do
    local part = min(blocks, orphan[3])
    orphan[3] = orphan[3] - part
    blocks = blocks - part
    add_to_engine(engine, -part, 0, 0, 0)
  end
end

-- Take sequences from them, each with its part of the blocks and prefill tokens.
local function shrink_seqs(engine, list, seqs)
  for _, orphan in ipairs(list) do
    local part = min(seqs, orphan[4])
    if part > 0 then
      local blocks = math.floor(orphan[3] * part / orphan[4])
      local prefill = math.floor(orphan[5] * part / orphan[4])
      orphan[3], orphan[4], orphan[5] = orphan[3] - blocks, orphan[4] - part, orphan[5] - prefill
      seqs = seqs - part
      add_to_engine(engine, -blocks, -part, -prefill, 0)
    end
  end
end

begin()
local engine, record = engine_of(id), read_orphans(id)
if not engine or not record.list[1] or (record.excess and now - record.read < SETTLE_GAP_MS) then
  return finish()
end
local part = there and 4 or 3
local held = orphaned(record.list, part)
local live = (there and engine.us or engine.ub) - held
local nothing = math.ceil((there and live or engine.blocks) / 100)
local turnover = there and math.ceil(live / 16) or 0 -- live sequences that were reserved and are not there yet
local excess = max(0, (there or in_use) - live)
local before = record.excess
record.excess, record.read = excess, now
if not before then
  write_orphans(id, record)
elseif max(before, excess) <= nothing then
  drop_orphans(id, everyone)
else
  local shrink = there and shrink_seqs or shrink_blocks
  shrink(engine, record.list, max(0, held - max(before, excess) - turnover))
  write_orphans(id, record)
end
return finish()
