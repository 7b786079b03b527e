-- The grant loop: who starts now, and where? The same rules, in the same order, as the ledger in memory
-- (`kvgate.ledger.grants`, where they are told, and `kvgate_policies.placement`); what differs is only that an
-- engine which the owner of an entry does not use is not accepting for that entry.
--
-- Bounds of one run: SCAN_DEPTH passed entries without a pin, GRANTS_MAX grants, PARKED_MAX parked ones,
-- RECHECK_MAX looked through after a change of engines. At a bound `meta.dirty` is set, and goes on next time.

local PARKED_MAX = 256
local RECHECK_MAX = 256

-- Tell a waiting process. The entry in the stream is the only answer, also for a grant within `reserve`.
local function push(entry, ...)
  call('XADD', K.grants, 'MAXLEN', '~', STREAM_MAX, '*', 'pid', entry.pid, 'rid', entry.rid, ...)
end

local function refuse_waiting(entry, refusal)
  remove(entry)
  unpin(entry.rid)
  count('refused_' .. refusal)
  push(entry, 'refusal', refusal)
  stirred = true
end

-- One run.

local granted, parked_now, unfinished = 0, 0, false

local function is_spent()
  return granted >= GRANTS_MAX or parked_now >= PARKED_MAX
end

local function let_go(rid, walk)
  if unpin(rid) then
    walk.again = true
    walk.misfits = {}
  end
end

-- Pin an engine for one that was passed often enough.
local function hold_if_exhausted(entry, walk)
  if entry.bypasses < BYPASS_MAX then
    return
  end
  local held = pinned[entry.rid]
  if held and could_use(entry, held) then
    return
  end
  let_go(entry.rid, walk)
  local engine = to_pin(entry, false) or to_pin(entry, true)
  if engine then
    set_pin(engine, entry.rid, entry.seq)
    count('pins')
    walk.again = true
  end
end

local function count_bypasses(walk)
  for _, entry in ipairs(walk.passed) do
    if entry.bypasses < BYPASS_MAX then
      entry.bypasses = entry.bypasses + 1
      changed_entry(entry)
      count('bypasses')
    end
    hold_if_exhausted(entry, walk)
  end
end

local function costs_at_least(costs, misfit)
  for shape, cost in pairs(costs) do
    local other = misfit[shape]
    if not other or cost[1] < other[1] or cost[2] < other[2] or cost[3] < other[3] then
      return false
    end
  end
  return true
end

-- Whether it costs as much as one that fitted nowhere in this walk: no need to look.
local function is_misfit(entry, walk)
  if pinned[entry.rid] then
    return false
  end
  for _, misfit in ipairs(walk.misfits) do
    if misfit.owner.mask == entry.owner.mask and costs_at_least(entry.costs, misfit.costs) then
      return true
    end
  end
  return false
end

local function hold(entry, engine)
  local cost = entry.costs[engine.shape]
  local slot = slot_of(entry.pid, engine.id)
  meta.gseq = meta.gseq + 1
  slot.u = slot.u .. unseen_entry(meta.gseq, entry.rid, cost)
  add_to_slot(entry.pid, engine, slot, cost[1], cost[2], cost[3], 1)
  local gseq, seq = int(meta.gseq), int(entry.seq)
  call('HSET', K.unseen, entry.rid, table.concat({ entry.pid, gseq, seq }, SEPARATOR))
  push(
    entry, 'engine', engine.id, 'seq', seq, 'gseq', gseq, 'shape', engine.shape,
    'cost', int(cost[1]) .. ':' .. int(cost[2]) .. ':' .. int(cost[3])
  )
end

local function grant(entry, walk)
  if is_misfit(entry, walk) then
    return false
  end
  local engine = place(entry)
  if not engine then
    if not entry.avoids then
      walk.misfits[#walk.misfits + 1] = entry
    end
    return false
  end
  remove(entry)
  let_go(entry.rid, walk)
  hold(entry, engine)
  count('grants')
  granted = granted + 1
  meta.tie = meta.tie + 1
  count_bypasses(walk)
  return true
end

local function park_if_hopeless(entry, walk)
  if could_start(entry) then
    return false
  end
  park(entry)
  let_go(entry.rid, walk)
  parked_now = parked_now + 1
  return true
end

-- One whose owner is gone: it would be taken out anyway, and must not start meanwhile.
local function drop_if_gone(entry, walk)
  if entry.owner ~= NOBODY then
    return false
  end
  remove(entry)
  let_go(entry.rid, walk)
  return true
end

local function let_go_unseen(walk)
  if meta.pins > 0 then
    local seen = {}
    for _, entry in ipairs(walk.passed) do
      seen[entry.rid] = true
    end
    local unseen = {}
    for rid in pairs(pinned) do
      if not seen[rid] then
        unseen[#unseen + 1] = rid
      end
    end
    for _, rid in ipairs(unseen) do
      let_go(rid, walk)
    end
  end
end

-- One walk from the head; true when there is reason for another.
local function walk_once()
  local walk = { passed = {}, misfits = {}, again = false }
  local waiting = 0
  while waiting < SCAN_DEPTH do
    local entry = active_at(#walk.passed)
    unfinished = entry ~= nil and is_spent()
    if not entry or unfinished then
      break
    end
    if not (drop_if_gone(entry, walk) or grant(entry, walk) or park_if_hopeless(entry, walk)) then
      walk.passed[#walk.passed + 1] = entry
      hold_if_exhausted(entry, walk)
      if not pinned[entry.rid] then
        waiting = waiting + 1
      end
    end
  end
  if unfinished then
    return false
  end
  let_go_unseen(walk)
  return walk.again
end

-- After a change of engines, who can never start now, and who has an engine to wait for again? `meta.recheck` is
-- a letter for what is left to look through (a: active, then parked; p: parked only) and the `seq` to go on from.
local function recheck_some()
  local left = RECHECK_MAX
  while meta.recheck ~= '' and left > 0 do
    local is_active = meta.recheck:sub(1, 1) == 'a'
    local key = is_active and K.active or K.parked
    local some = call('ZRANGE', key, meta.recheck:sub(2), '+inf', 'BYSCORE', 'LIMIT', 0, left)
    local first, last
    for _, rid in ipairs(some) do
      local entry = entry_of(rid)
      first, last = first or entry.seq, entry.seq
      if never_fits(entry.owner.mask, entry.costs) then
        refuse_waiting(entry, 'never_fits')
      elseif not is_active and could_start(entry) then
        unpark(entry)
      end
    end
    if #some == left then
      -- From the last one on, which is looked at twice, since another may have its place.
      meta.recheck = meta.recheck:sub(1, 1) .. (first == last and '(' or '') .. int(last)
    else
      meta.recheck = is_active and 'p-inf' or ''
    end
    left = left - #some
  end
end

local function recheck(everyone)
  if everyone then
    meta.recheck = 'a-inf'
  elseif meta.recheck:sub(1, 1) ~= 'a' then
    meta.recheck = 'p-inf'
  end
  stirred = true
end

local pumped = false

-- Run the grant loop, within its bounds; not before a new epoch's grace is over.
local function pump()
  pumped, stirred = true, false
  if now < meta.grace then
    meta.dirty = 1
    return
  end
  recheck_some()
  all_engines()
  granted, parked_now, unfinished = 0, 0, false
  repeat
    local again = walk_once()
  until not again
  stirred = false
  meta.dirty = (unfinished or more_to_reap or meta.recheck ~= '') and 1 or 0
end
