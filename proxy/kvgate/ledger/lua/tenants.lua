-- Tenants: the rules that hold for each, what it uses on all engines, and where its flows stand. The same numbers, in
-- the same order of operations, as `kvgate_policies.fairness` and `kvgate.ledger.turns`.
--
-- A flow is what one tenant has waiting in one class (1 interactive, 2 standard, 3 batch), parked requests not
-- counted. It is IN the walk; or at its limit (SUSPENDED), until its tenant's use falls or another request is its
-- first; or OUT, with nothing that could start. `flows` has a member for each that is IN: tier (g: its tenant is below
-- its guarantee, o: any other), class, start tag, tenant. Its lexical order is the order in which they are served, but
-- for the turns of a class that was overtaken.
--
-- The rules are in one of two hashes, `meta.side`; the other is filled with the next ones part by part, so that all
-- change in one moment. A record knows by `at` (which `meta.rules`) whether it still has the present ones.

local changed_tenant, guarantee_of, is_below_guarantee, limit_of, enter, leave_walk, readmit, moved_tenant,
  take_rules, tenant_of, read_tenants, add_to_tenant, correct_turn, serve, stand_of, move_flows, write_tenants,
  hard_tenants, retier, measure_capacity, retier_some
local tenants = {}
local CLASSES = 3
local OUT, IN, SUSPENDED = 0, 1, 2
local HARD = '\1hard' -- the field of the rules that names the tenants with `borrow` off
local flow_lists -- the first flows of each tier and class, as far as they were read; nil when `flows` changed

(function() -- the rest is its own (README)

local tenants_changed, tenants_moved = {}, {}
local RULES = { 1, 0, 1, false, true, false, false } -- of a tenant that is not named
local RETIERED_MAX = 256 -- flows placed anew in one call

function changed_tenant(tenant)
  tenants_changed[tenant.name] = tenant
end

-- Its flows have to be placed anew before anyone looks at them.
function moved_tenant(tenant)
  tenants_changed[tenant.name] = tenant
  tenants_moved[tenant.name] = tenant
end

function guarantee_of(tenant)
  return floor(tenant.guarantee * meta.capacity)
end

function is_below_guarantee(tenant)
  return tenant.use < guarantee_of(tenant)
end

-- Blocks that it may hold at a grant; nil when nothing limits it.
function limit_of(tenant)
  if meta.capacity == 0 then
    return nil
  end
  local blocks, own = math.huge, tenant.borrow and 0 or guarantee_of(tenant)
  if tenant.limit < 1 then
    blocks = floor(tenant.limit * meta.capacity)
  end
  if tenant.limit_tokens then
    blocks = min(blocks, floor(tenant.limit_tokens / meta.block_min))
  end
  if not tenant.borrow then
    blocks = min(blocks, own)
  end
  if meta.hard > own then
    blocks = min(blocks, meta.capacity - (meta.hard - own))
  end
  return blocks < math.huge and blocks or nil
end

-- What one that lends nothing adds to the sums: its guarantee, and how much of it is kept free.
local function keep(tenant)
  local hard = tenant.borrow and 0 or guarantee_of(tenant)
  local kept = max(0, hard - tenant.use)
  if hard ~= tenant.hard or kept ~= tenant.kept then
    meta.hard, meta.kept = meta.hard + hard - tenant.hard, meta.kept + kept - tenant.kept
    tenant.hard, tenant.kept = hard, kept
    changed_tenant(tenant)
  end
end

-- How a flow comes into the walk, goes from it, and comes back.

function enter(tenant, class)
  tenant.tag[class] = max(tenant.tag[class], meta['v' .. class])
  tenant.state[class] = IN
  meta['w' .. class] = meta['w' .. class] + 1
  moved_tenant(tenant)
end

function leave_walk(tenant, class, state)
  if tenant.state[class] == IN then
    meta['w' .. class] = meta['w' .. class] - 1
  end
  tenant.state[class] = state
  moved_tenant(tenant)
end

function readmit(tenant, class)
  if tenant.state[class] == SUSPENDED then
    enter(tenant, class)
    stirred = true
  end
end

local function readmit_tenant(tenant)
  for class = 1, CLASSES do
    readmit(tenant, class)
  end
end

function take_rules(tenant)
  local packed = meta.rules > 0 and call('HGET', K[meta.side], tenant.name)
  local rules = packed and cmsgpack.unpack(packed) or RULES
  tenant.at = meta.rules
  tenant.weight, tenant.guarantee, tenant.limit, tenant.limit_tokens, tenant.borrow = unpack(rules, 1, 5)
  tenant.tokens_rate, tenant.requests_rate = rules[6], rules[7]
  keep(tenant)
  moved_tenant(tenant)
end

local function unpack_tenant(name, packed)
  local a = cmsgpack.unpack(packed)
  return {
    name = name, at = a[1],
    weight = a[2], guarantee = a[3], limit = a[4], limit_tokens = a[5], borrow = a[6],
    tokens_rate = a[7], requests_rate = a[8], tokens_tat = a[9], requests_tat = a[10],
    use = a[11], n = a[12], queued = a[13], service = a[14], hard = a[15], kept = a[16], busy = a[17],
    active = { a[18], a[19], a[20] }, tag = { a[21], a[22], a[23] }, state = { a[24], a[25], a[26] },
    stands = { a[27], a[28], a[29] },
  }
end

local function pack_tenant(t)
  return cmsgpack.pack({
    t.at, t.weight, t.guarantee, t.limit, t.limit_tokens, t.borrow,
    t.tokens_rate, t.requests_rate, t.tokens_tat, t.requests_tat,
    t.use, t.n, t.queued, t.service, t.hard, t.kept, t.busy,
    t.active[1], t.active[2], t.active[3], t.tag[1], t.tag[2], t.tag[3], t.state[1], t.state[2], t.state[3],
    t.stands[1], t.stands[2], t.stands[3],
  })
end

local function take_tenant(name, packed)
  local tenant
  if packed then
    tenant = unpack_tenant(name, packed)
  else
    tenant = {
      name = name, at = -1, tokens_tat = 0, requests_tat = 0,
      use = 0, n = 0, queued = 0, service = 0, hard = 0, kept = 0, busy = false,
      active = { 0, 0, 0 }, tag = { 0, 0, 0 }, state = { OUT, OUT, OUT }, stands = { '', '', '' },
    }
  end
  tenants[name] = tenant
  if tenant.at ~= meta.rules then
    take_rules(tenant)
  end
  return tenant
end

-- The record of a tenant; a new one where there is none.
function tenant_of(name)
  return tenants[name] or take_tenant(name, call('HGET', K.tenants, name))
end

function read_tenants(names_read)
  for from = 1, #names_read, ARGUMENTS_MAX do
    local wanted = { unpack(names_read, from, min(from + ARGUMENTS_MAX - 1, #names_read)) }
    for place, packed in ipairs(call('HMGET', K.tenants, unpack(wanted))) do
      if not tenants[wanted[place]] then
        take_tenant(wanted[place], packed)
      end
    end
  end
end

-- Change what a tenant uses. When it becomes less, those of its flows that were at their limit may go on.
function add_to_tenant(tenant, blocks, reservations)
  local was_below = is_below_guarantee(tenant)
  tenant.use, tenant.n = tenant.use + blocks, tenant.n + reservations
  keep(tenant)
  changed_tenant(tenant)
  if blocks < 0 then
    readmit_tenant(tenant)
  end
  if was_below ~= is_below_guarantee(tenant) then
    moved_tenant(tenant)
    stirred = true
  end
end

-- A request that had its turn took more than it was charged (negative: less).
function correct_turn(tenant, class, work)
  if work == 0 then
    return
  end
  if tenant.state[class] ~= IN then
    tenant.tag[class] = max(tenant.tag[class], meta['v' .. class])
  end
  tenant.tag[class] = tenant.tag[class] + work / tenant.weight
  moved_tenant(tenant)
end

function serve(tenant, work)
  tenant.service = tenant.service + work
  changed_tenant(tenant)
end

-- Text that sorts as the numbers do: the bits of the double, those of a negative one turned round.
local function sortable(number)
  local high, low = struct.unpack('>I4I4', struct.pack('>d', number + 0))
  if high >= 2147483648 then
    high, low = 4294967295 - high, 4294967295 - low
  else
    high = high + 2147483648
  end
  return string.format('%08x%08x', high, low)
end

function stand_of(tenant, class)
  if tenant.state[class] ~= IN then
    return ''
  end
  local tier = is_below_guarantee(tenant) and 'g' or 'o'
  return tier .. class .. sortable(tenant.tag[class]) .. SEPARATOR .. tenant.name
end


-- Bring `flows` up to date with the records that changed.
function move_flows()
  for _, tenant in pairs(tenants_moved) do
    for class = 1, CLASSES do
      local before, stands = tenant.stands[class], stand_of(tenant, class)
      if before ~= stands then
        if before ~= '' then
          call('ZREM', K.flows, before)
        end
        if stands ~= '' then
          call('ZADD', K.flows, 0, stands)
        end
        flow_lists = nil
        tenant.stands[class] = stands
      end
    end
  end
  tenants_moved = {}
end

function write_tenants()
  move_flows()
  for name, tenant in pairs(tenants_changed) do
    local busy = tenant.queued > 0 or tenant.n > 0
    if busy ~= tenant.busy then
      call(busy and 'ZADD' or 'ZREM', K.busy, unpack(busy and { 0, name } or { name }))
      tenant.busy = busy
    end
    call('HSET', K.tenants, name, pack_tenant(tenant))
  end
end

-- The tenants that lend nothing, by the rules of a side.
function hard_tenants(side)
  local packed = call('HGET', K[side], HARD)
  return packed and cmsgpack.unpack(packed) or {}
end

-- After a change of the rules or of the capacity all flows are placed anew, some with each call.
function retier()
  meta.retier = '-'
  stirred = true
end

-- Engines came, went or changed: the shares of the tenants are other ones.
function measure_capacity()
  local capacity, block_min = 0, 0
  for _, engine in pairs(all_engines()) do
    if engine.shape and engine.knowers > 0 then
      local block_size = tonumber(engine.shape:match('^%d+'))
      capacity = capacity + engine.blocks
      block_min = block_min == 0 and block_size or min(block_min, block_size)
    end
  end
  capacity_changed = false
  if capacity == meta.capacity and block_min == meta.block_min then
    return
  end
  meta.capacity, meta.block_min = capacity, block_min
  local hard = hard_tenants(meta.side)
  read_tenants(hard)
  for _, name in ipairs(hard) do
    keep(tenants[name])
  end
  retier()
end

-- Place some flows anew, from `meta.retier` on.
function retier_some()
  for _ = 1, RETIERED_MAX do
    if meta.retier == '' then
      return
    end
    local member = call('ZRANGEBYLEX', K.queue, meta.retier, '+', 'LIMIT', 0, 1)[1]
    if not member then
      meta.retier = ''
      return
    end
    local flow, name = member:match('^(%d\1([^\1]+))\1')
    local tenant = tenant_of(name)
    readmit_tenant(tenant)
    moved_tenant(tenant)
    meta.retier = '(' .. flow .. '\2'
  end
end

end)()
