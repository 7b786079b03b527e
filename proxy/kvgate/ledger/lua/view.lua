-- view: a snapshot. ARGV: 3 most tenants. Adds: how many wait; the longest wait (ms) of the tenants that are listed;
-- the engines (id, shape, blocks, seqs, prefill tokens, used by anyone, blocks that may be filled or '', the sums as in
-- `inspect`, pinned by) in their order; the counters; the tenants (name, rules, blocks, guarantee and limit in blocks, reservations, how many wait, the longest
-- wait of the first of its flows in ms, service). Those that wait or hold something first, then by name the others
-- that have rules, where these are not more than NAMED_MAX.

local tenants_max = whole(3)
local NAMED_MAX = 1000

begin()
settle_down()
write_all()
counts = {}

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
    e.id, e.shape, e.blocks, e.seqs, e.prefill, is_used(e), e.usable or '', e.ub, e.us, e.up, e.n, e.use, forecasts.text(forecasts.of(e)),
    e.pin or '',
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

-- The names to be listed: `busy` and, where there is room, those with rules.
local function shown()
  local list = call('ZRANGE', K.busy, 0, tenants_max - 1)
  if tenants_max == 0 or #list >= tenants_max or call('HLEN', K[meta.side]) > NAMED_MAX then
    return tenants_max == 0 and {} or list
  end
  local busy, named = set_of(list), {}
  for _, name in ipairs(call('HKEYS', K[meta.side])) do
    if name ~= HARD and not busy[name] then
      named[#named + 1] = name
    end
  end
  table.sort(named, precedes)
  for place = 1, min(#named, tenants_max - #list) do
    list[#list + 1] = named[place]
  end
  return list
end

local function wait_ms(name)
  local longest = 0
  for class = 1, CLASSES do
    local from, to = flow_range(flow_key(class, name))
    for _, key in ipairs({ K.queue, K.parked }) do
      local member = call('ZRANGEBYLEX', key, from, to, 'LIMIT', 0, 1)[1]
      local entry = member and entry_of(rid_of(member))
      longest = entry and max(longest, now - entry.since) or longest
    end
  end
  return longest
end

local function text(number)
  return number and exact(number) or ''
end

local longest, uses = 0, {}
local shown_names = shown()
read_tenants(shown_names)
for place, name in ipairs(shown_names) do
  local t = tenants[name]
  local wait = t.queued > 0 and wait_ms(name) or 0
  longest = max(longest, wait)
  uses[place] = {
    name, exact(t.weight), exact(t.guarantee), exact(t.limit), text(t.limit_tokens), t.borrow and 1 or 0,
    text(t.tokens_rate), text(t.requests_rate),
    t.use, guarantee_of(t), limit_of(t) or meta.capacity, t.n, t.queued, wait, exact(t.service),
  }
end
return finish(call('HLEN', K.waiters), longest, rows, totals, uses)
