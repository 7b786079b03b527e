-- The grant loop: who starts now, and where? The same rules, in the same order, as the ledger in memory
-- (`kvgate.ledger.grants`, where they are told, and `kvgate_policies.placement`); what differs is only that an
-- engine which the owner of an entry does not use is not accepting for that entry.
--
-- Bounds of one run: SCAN_DEPTH passed entries of a flow without a pin, FLOWS_MAX such flows, GRANTS_MAX grants,
-- SET_ASIDE_MAX parked or suspended, RECHECK_MAX looked through after a change of engines, RETIERED_MAX flows after a
-- change of shares. At a bound `meta.dirty` is set, and goes on next time.

local refuse_waiting, up_to, within_limit, left_open, start_by_force, recheck, pump

(function() -- the rest is its own (README)

local SET_ASIDE_MAX = 256
local RECHECK_MAX = 256

-- Tell a waiting process. The entry in the stream is the only answer, also for a grant within `reserve`.
local function push(entry, ...)
  call('XADD', K.grants, 'MAXLEN', '~', STREAM_MAX, '*', 'pid', entry.pid, 'rid', entry.rid, ...)
end

function refuse_waiting(entry, refusal)
  leave_ungranted(entry)
  count('refused_' .. refusal)
  push(entry, 'refusal', refusal)
end

local granted, set_aside, unfinished = 0, 0, false

local function is_spent()
  return granted >= GRANTS_MAX or set_aside >= SET_ASIDE_MAX
end

local function new_walk()
  return {
    passed = {}, place_of = {}, seen = {}, done = {}, flows = 0, claimed = {}, kept = {}, misfits = {}, again = false,
  }
end

local function finish_flow(walk, flow, seen)
  walk.done[flow] = true
  if seen.unpinned > 0 then
    walk.flows = walk.flows + 1
  end
end

local function let_go(rid, walk)
  if unpin(rid) then
    walk.again = true
    walk.misfits = {}
  end
end

-- The prices of which a tenant would use at most so many blocks; the same table when all are.
function up_to(costs, blocks)
  if not blocks then
    return costs
  end
  local some, is_less = {}, false
  for shape, cost in pairs(costs) do
    if forecasts.use_of(cost) <= blocks then
      some[shape] = cost
    else
      is_less = true
    end
  end
  return is_less and some or costs
end

-- Its prices that do not take its tenant above its limit.
function within_limit(entry)
  local tenant = tenant_of(entry.tenant)
  local limit = limit_of(tenant)
  return limit and up_to(entry.costs, limit - tenant.use) or entry.costs
end

local function used_blocks()
  local blocks = 0
  for _, engine in pairs(all_engines()) do
    blocks = blocks + engine.use
  end
  return blocks
end

-- Blocks that a tenant may take of all that is not set aside for others, those apart that are kept free for others in
-- this walk; nil where nothing is set aside.
function left_open(tenant, walk)
  if meta.hard == 0 then
    return nil
  end
  local room = meta.capacity - used_blocks() - meta.kept + tenant.kept
  if tenant.hard == 0 then
    for _, blocks in pairs(walk.kept) do
      room = room - blocks
    end
  end
  return room
end

-- Keep an engine, and of the open part what it costs, free for one that is entitled.
local function hold_for(entry, costs, walk)
  if meta.hard > 0 and tenant_of(entry.tenant).hard == 0 and next(costs) then
    local most = 0
    for _, cost in pairs(costs) do
      most = max(most, forecasts.use_of(cost))
    end
    walk.kept[entry.rid] = most
  end
  local held = pinned[entry.rid]
  if held and could_use(entry, costs, held) then
    return
  end
  let_go(entry.rid, walk)
  local engine = to_pin(entry, costs) or to_pin(entry, costs, walk.place_of)
  if engine then
    set_pin(engine, entry.rid)
    count('pins')
    walk.again = true
  end
end

-- One that was passed often enough is entitled to an engine, and one whose tenant lacks its guarantee, also with what
-- is kept free for it already; any other lets go.
local function keep_free(entry, costs, walk)
  local tenant = tenant_of(entry.tenant)
  local claimed = walk.claimed[tenant.name] or 0
  local is_below = tenant.use + claimed < guarantee_of(tenant)
  if entry.bypasses < BYPASS_MAX and not is_below then
    let_go(entry.rid, walk)
    return
  end
  hold_for(entry, costs, walk)
  local engine = pinned[entry.rid]
  if is_below and engine then
    walk.claimed[tenant.name] = claimed + forecasts.use_of(costs[engine.shape])
  end
end

local function count_bypasses(walk)
  for _, entry in ipairs(walk.passed) do
    if entry.bypasses < BYPASS_MAX then
      entry.bypasses = entry.bypasses + 1
      changed_entry(entry)
      count('bypasses')
    end
    if entry.bypasses >= BYPASS_MAX then
      hold_for(entry, within_limit(entry), walk)
    end
  end
end

-- Whether it needs as much room as one that fitted nowhere in this walk: no need to look.
local function is_misfit(entry, walk)
  if pinned[entry.rid] then
    return false
  end
  for _, misfit in ipairs(walk.misfits) do
    if misfit.owner.mask == entry.owner.mask and needs_as_much(entry, misfit) then
      return true
    end
  end
  return false
end

-- Reserve what an entry costs on an engine, and tell its owner. `forced` says what would have been done instead.
local function hold(entry, engine, forced)
  local cost = entry.costs[engine.shape]
  local slot = slot_of(entry.pid, engine.id, entry.tenant)
  meta.gseq = meta.gseq + 1
  meta.tie = meta.tie + 1
  slot.u = slot.u .. unseen_entry(meta.gseq, entry.rid, cost)
  add_to_slot(slot, engine, cost[1], cost[2], cost[3], 1, forecasts.use_of(cost), cost[4])
  serve(tenant_of(entry.tenant), entry.work)
  count('grants')
  local gseq, seq, rank = int(meta.gseq), int(entry.seq), int(entry.rank)
  call('HSET', K.unseen, entry.rid, table.concat({ entry.pid, gseq, seq, rank }, SEPARATOR))
  push(
    entry, 'engine', engine.id, 'seq', seq, 'gseq', gseq, 'shape', engine.shape,
    'cost', forecasts.text_of_price(cost),
    'tenant', entry.tenant, 'rank', rank, 'forced', forced or ''
  )
end

local function grant(entry, costs, walk)
  if is_misfit(entry, walk) then
    return false
  end
  local tenant = tenant_of(entry.tenant)
  local open = up_to(costs, left_open(tenant, walk))
  local engine = place(entry, open)
  if not engine then
    if open == entry.costs and not entry.avoids then
      walk.misfits[#walk.misfits + 1] = entry
    end
    return false
  end
  if is_below_guarantee(tenant) then
    walk.again = true -- others of its entries may be entitled no longer
  end
  take_turn(tenant, entry.class, entry.work)
  remove(entry)
  let_go(entry.rid, walk)
  hold(entry, engine)
  granted = granted + 1
  count_bypasses(walk)
  return true
end

-- Start one that is not queued, whatever is reserved; false when its owner uses no engine with a price.
function start_by_force(entry, forced)
  equip(entry)
  local engine = least_loaded(entry, entry.avoids) or least_loaded(entry, nil)
  if engine then
    hold(entry, engine, forced)
  end
  return engine ~= nil
end

local function park_if_hopeless(entry, walk)
  if could_start(entry) then
    return false
  end
  park(entry)
  let_go(entry.rid, walk)
  set_aside = set_aside + 1
  return true
end

-- No engine could ever hold it within its tenant's limit, as things are.
local function stop_at_limit(entry, seen, walk)
  let_go(entry.rid, walk)
  if seen.passed > 0 then
    finish_flow(walk, entry.flow, seen)
  else
    leave_walk(tenant_of(entry.tenant), entry.class, SUSPENDED)
    set_aside = set_aside + 1
  end
end

local function pass(entry, costs, seen, walk)
  walk.passed[#walk.passed + 1] = entry
  walk.place_of[entry.rid] = #walk.passed
  seen.passed = seen.passed + 1
  keep_free(entry, costs, walk)
  if not pinned[entry.rid] then
    seen.unpinned = seen.unpinned + 1
  end
end

-- One whose owner is gone: it would be taken out anyway, and must not start meanwhile.
local function drop_if_gone(entry, walk)
  if entry.owner ~= NOBODY then
    return false
  end
  let_go(entry.rid, walk)
  leave_ungranted(entry)
  return true
end

-- Look at the entries of the flow that is due, as long as it is: until a grant, or until it is done.
local function visit(flow, walk)
  local seen = walk.seen[flow] or { passed = 0, unpinned = 0 }
  walk.seen[flow] = seen
  while seen.unpinned < SCAN_DEPTH do
    local entry = entry_at(flow, seen.passed)
    if not entry then
      break
    end
    unfinished = is_spent()
    if unfinished then
      return
    end
    if not drop_if_gone(entry, walk) then
      local costs = within_limit(entry)
      if grant(entry, costs, walk) then
        return
      end
      if not park_if_hopeless(entry, walk) then
        if costs ~= entry.costs and not could_start(entry, costs) then
          return stop_at_limit(entry, seen, walk)
        end
        pass(entry, costs, seen, walk)
      end
    end
  end
  finish_flow(walk, flow, seen)
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

-- One walk in the order of the flows; true when there is reason for another.
local function walk_once()
  local walk = new_walk()
  unfinished = false
  while walk.flows < FLOWS_MAX do
    local flow = first_flow(walk.done)
    if not flow then
      break
    end
    visit(flow, walk)
    if unfinished then
      return false
    end
  end
  let_go_unseen(walk)
  return walk.again
end

-- After a change of engines, who can never start now, and who has an engine to wait for again? `meta.recheck` is
-- a letter for what is left to look through (q: queue, then parked; p: parked only) and where to go on.
local function recheck_some()
  local left = RECHECK_MAX
  while meta.recheck ~= '' and left > 0 do
    local in_queue = meta.recheck:sub(1, 1) == 'q'
    local key = in_queue and K.queue or K.parked
    local some = call('ZRANGEBYLEX', key, meta.recheck:sub(2), '+', 'LIMIT', 0, left)
    for _, member in ipairs(some) do
      local entry = entry_of(rid_of(member))
      if never_fits(entry.owner.mask, entry.costs) then
        refuse_waiting(entry, 'never_fits')
      elseif not in_queue and could_start(entry) then
        unpark(entry)
      end
    end
    if #some == left then
      meta.recheck = meta.recheck:sub(1, 1) .. '(' .. some[#some]
    else
      meta.recheck = in_queue and 'p-' or ''
    end
    left = left - #some
  end
end

function recheck(everyone)
  if everyone then
    meta.recheck = 'q-'
  elseif meta.recheck:sub(1, 1) ~= 'q' then
    meta.recheck = 'p-'
  end
  retier()
end



-- Run the grant loop, within its bounds; not before a new epoch's grace is over.
function pump()
  pumped, stirred = true, false
  if now < meta.grace then
    meta.dirty = 1
    return
  end
  all_engines()
  retier_some()
  recheck_some()
  granted, set_aside, unfinished = 0, 0, false
  repeat
    local again = walk_once()
  until not again
  stirred = false
  meta.dirty = (unfinished or more_to_reap or meta.recheck ~= '' or meta.retier ~= '') and 1 or 0
end

end)()
