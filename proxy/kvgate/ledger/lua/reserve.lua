-- reserve: enqueue, then run the grant loop.
--
-- ARGV: 3 request, 4 seq ('' for a new one), 5 greatest depth of the queue, 6 ack ('' when not said), 7 number of
-- engines to avoid and their ids; then the prices: shape, blocks, seqs, prefill tokens, for each shape.
-- Idempotent for a request that is queued, or was granted above `ack`. A refusal leaves nothing behind.
-- Adds: 'queued' and the seq (the grant, if there is one, is in the stream), 'taken', or the refusal.

local rid = ARGV[3]
local seq = ARGV[4] ~= '' and whole(4)
local depth = whole(5)
local ack = ARGV[6] ~= '' and whole(6)
local avoid, prices_at = names(7)
local costs = prices(prices_at)

begin()
if not has_lease(mine) then
  return no_lease()
end
local process = process_of(mine)

-- The seq of a grant that this ask asked for before, false when there is none, nil when it is another's.
local function unread_grant()
  local found = call('HGET', K.unseen, rid)
  if not found then
    return false
  end
  local pid, gseq, granted_seq = found:match('^([^\1]+)\1(%d+)\1(%-?%d+)$')
  if pid ~= mine then
    return nil
  end
  local is_unread = ack and tonumber(gseq) > ack or (not ack and not seq)
  return is_unread and tonumber(granted_seq)
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

local function refuse(refusal)
  count('refused_' .. refusal)
  return finish(refusal)
end

local waiting = entry_of(rid)
local granted_seq = not waiting and unread_grant()
if granted_seq == nil or (waiting and waiting.pid ~= mine) then
  return finish('taken')
end
if waiting or granted_seq then
  return finish('queued', waiting and waiting.seq or granted_seq)
end

count('arrivals')
if never_fits(process.mask, costs) then
  return refuse('never_fits')
end
if not knows_another() then
  return refuse('no_engine')
end
local is_full = not seq and call('HLEN', K.waiters) >= depth
if is_full and call('ZCARD', K.active) >= SCAN_DEPTH + meta.pins then
  return refuse('queue_full') -- it would come behind all that a walk looks at
end

seq = seq or meta.seq + 1
meta.seq = max(meta.seq, seq)
local entry = {
  rid = rid, pid = mine, seq = seq, since = now, bypasses = 0, avoid = avoid[1] and avoid or false, costs = costs,
}
add(entry)
if is_reached(rid) then
  pump()
end
if is_full and entry_of(rid) then
  leave_queue(entry)
  return refuse('queue_full')
end
return finish('queued', seq)
