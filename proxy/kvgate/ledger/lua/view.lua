-- view: a snapshot. Adds: how many wait; the longest wait (ms) of the heads of `active` and `parked`; the engines
-- (id, shape, blocks, seqs, prefill tokens, used by anyone, the sums, pinned by) in their order; the counters.

begin()
settle_down()
write_all()
counts = {}

local function wait_ms(key)
  local rid = call('ZRANGE', key, 0, 0)[1]
  return rid and max(0, now - entry_of(rid).since) or 0
end

local masks = {}
for _, packed in ipairs(call('HVALS', K.processes)) do
  masks[#masks + 1] = cmsgpack.unpack(packed)[1]
end

local function is_used(engine)
  for _, mask in ipairs(masks) do
    if mask_at(mask, engine.no) == USED then
      return 1
    end
  end
  return 0
end

local listed, rows = {}, {}
for _, engine in pairs(all_engines()) do
  if engine.knowers > 0 then
    listed[#listed + 1] = engine
  end
end
table.sort(listed, by_order)
for place_in_order, e in ipairs(listed) do
  rows[place_in_order] = {
    e.id, e.shape, e.blocks, e.seqs, e.prefill, is_used(e), e.ub, e.us, e.up, e.n, e.pin or '',
  }
end

local totals = {}
local fields = call('HGETALL', K.meta)
for index = 1, #fields, 2 do
  if fields[index]:sub(1, 2) == 't:' then
    totals[#totals + 1] = fields[index]:sub(3)
    totals[#totals + 1] = tonumber(fields[index + 1])
  end
end
return finish(call('HLEN', K.waiters), max(wait_ms(K.active), wait_ms(K.parked)), rows, totals)
