-- reserve: enqueue, then run the grant loop.
--
-- ARGV: 3 request, 4 seq ('' for a new one), 5 how many of the tenant may wait, 6 ack ('' when not said), 7 tenant,
-- 8 class, 9 work, 10 tokens, 11 rank from now (ms; '' for one by arrival), 12 rank kept with `seq`, 13 force, 14 let
-- in already (1 or 0 each), 15 deviations left free at each point of the grid ('' for the default), 16 number of
-- engines to avoid and their ids, then of engines that it prefers and theirs; then the prices: shape, blocks, seqs,
-- prefill tokens, forecast ('' for a guaranteed one), for each shape.
-- Idempotent for a request that is queued, or was granted above `ack`. A refusal leaves nothing behind, and spends
-- nothing. What is answered when stands in `kvgate.ledger.core`.
-- Adds: 'queued', the seq and the rank (the grant, if there is one, is in the stream); 'rate', the budget and the ms
-- until it covers the request; 'taken'; or the refusal.

local rid = ARGV[3]
local seq = ARGV[4] ~= '' and whole(4)
local depth = whole(5)
local ack = ARGV[6] ~= '' and whole(6)
local class, work, tokens = whole(8), whole(9), whole(10)
local rank_in = ARGV[11] ~= '' and whole(11)
local rank_kept, is_forced, is_let_in = whole(12), whole(13) == 1, whole(14) == 1
local z = ARGV[15] ~= '' and ARGV[15]
forecasts.read_z(z)
local avoid, prefer_at = names(16)
local prefer, prices_at = names(prefer_at)
local costs = forecasts.prices(prices_at)

begin()
if not has_lease(mine) then
  return no_lease()
end
local process = process_of(mine)

-- The place of a grant that this ask asked for before, false when there is none, nil when it is another's.
local function unread_grant()
  local found = call('HGET', K.unseen, rid)
  if not found then
    return false
  end
  local pid, gseq, seq_granted, rank_granted = found:match('^([^\1]+)\1(%d+)\1(%d+)\1(%d+)$')
  if pid ~= mine then
    return nil
  end
  local is_unread = ack and tonumber(gseq) > ack or (not ack and not seq)
  return is_unread and { seq = tonumber(seq_granted), rank = tonumber(rank_granted) }
end

local function knows_another()
  if not avoid[1] then
    return process.mask:find('[12]') ~= nil
  end
  local avoided = set_of(avoid)
  for id, engine in pairs(all_engines()) do
    if mask_at(process.mask, engine.no) ~= UNKNOWN and not avoided[id] then
      return true
    end
  end
  return false
end

local function refuse(refusal, ...)
  count('refused_' .. refusal)
  return finish(refusal, ...)
end

local function queued(place_given)
  return finish('queued', int(place_given.seq), int(place_given.rank))
end

local function start(entry, forced)
  if not knows_another() or not start_by_force(entry, forced) then
    return refuse('no_engine')
  end
  return queued(entry)
end

local waiting = entry_of(rid)
local place_granted = not waiting and unread_grant()
if place_granted == nil or (waiting and waiting.pid ~= mine) then
  return finish('taken')
end
if waiting or place_granted then
  return queued(waiting or place_granted)
end

local tenant = tenant_of(ARGV[7])
local is_new = not seq and not is_let_in -- it is asked at the door
local function new_entry()
  seq = seq or meta.seq + 1
  meta.seq = max(meta.seq, seq)
  local rank = ARGV[4] ~= '' and rank_kept or (rank_in and now + rank_in or 0)
  return {
    rid = rid, pid = mine, seq = seq, since = now, bypasses = 0, avoid = avoid[1] and avoid or false,
    tenant = tenant.name, class = class, rank = rank, work = work, tokens = tokens,
    prefer = prefer[1] and prefer or false, z = z, costs = costs,
  }
end

count('arrivals')
if never_fits(process.mask, costs, is_let_in and costs or up_to(costs, limit_of(tenant))) then
  if is_forced then
    return start(new_entry(), 'never_fits')
  end
  return refuse('never_fits')
end
if not knows_another() then
  return refuse('no_engine')
end
local budget, covered_in = spent(tenant, tokens)
if is_new and budget then
  if is_forced then
    return start(new_entry(), 'rate')
  end
  count('refused_rate')
  return finish('rate', budget, int(covered_in))
end
local is_full = is_new and tenant.queued >= depth
local is_fresh = not seq
local entry = new_entry()
local looked_at = SCAN_DEPTH + meta.pins
if is_full and not is_forced and tenant.active[class] >= looked_at and ahead_in(K.queue, equip(entry)) >= looked_at then
  return refuse('queue_full') -- it would come behind all that a walk looks at
end
add(entry)
if is_reached(entry) then
  pump()
end
if entry_of(rid) and (is_full or is_forced) then
  leave_queue(entry)
  if not is_forced then
    return refuse('queue_full')
  end
  settle_down()
  if is_full then
    return start(entry, 'queue_full')
  end
  if not start_by_force(entry, 'queued') then
    return refuse('no_engine')
  end
end
if is_fresh then
  spend(tenant, tokens)
end
return queued(entry)
