-- Which flow is due? The rules of `kvgate_policies.fairness`, as `kvgate.ledger.turns` applies them.

local first_flow, is_reached, take_turn, leave_queue
local FLOWS_MAX = 8 -- flows of which nothing fitted that one walk looks past

(function() -- the rest is its own (README)

local AGEING = 16 -- grants of higher classes that a class waits out before it is first

-- The classes in the order in which they are due: those that were overtaken from the lowest up, then the others.
local function levels_in_turn()
  local levels = {}
  for class = CLASSES, 1, -1 do
    if meta['o' .. class] >= AGEING then
      levels[#levels + 1] = class
    end
  end
  for class = 1, CLASSES do
    if meta['o' .. class] < AGEING then
      levels[#levels + 1] = class
    end
  end
  return levels
end

-- The first flows of all, or where there are more than one read brings, of each tier and class.
local function flow_list(prefix)
  local most = FLOWS_MAX + meta.pins + 1
  if not flow_lists then
    flow_lists = {}
    local some = call('ZRANGEBYLEX', K.flows, '-', '+', 'LIMIT', 0, most)
    if #some < most then
      for _, member in ipairs(some) do
        local list = flow_lists[member:sub(1, 2)] or {}
        list[#list + 1] = member
        flow_lists[member:sub(1, 2)] = list
      end
      flow_lists.whole = true
    end
  end
  if not flow_lists[prefix] then
    flow_lists[prefix] = flow_lists.whole and {}
      or call('ZRANGEBYLEX', K.flows, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, most)
  end
  return flow_lists[prefix]
end

local function first_of(prefix, done)
  for _, member in ipairs(flow_list(prefix)) do
    local flow = prefix:sub(2) .. SEPARATOR .. member:sub(20) .. SEPARATOR
    if not done[flow] then
      return flow
    end
  end
  return nil
end

-- The flow that is due, apart from those; nil when there is none.
function first_flow(done)
  move_flows()
  local due
  for class = 1, CLASSES do
    due = due or (meta['w' .. class] > 0 and first_of('g' .. class, done))
  end
  for _, class in ipairs(due and {} or levels_in_turn()) do
    due = due or (meta['w' .. class] > 0 and first_of('o' .. class, done))
  end
  return due or nil
end

-- How many flows come before one that is in the walk.
local function flows_ahead(member)
  local count_of = function(from, to)
    return call('ZLEXCOUNT', K.flows, from, to)
  end
  if member:sub(1, 1) == 'g' then
    return count_of('[g', '(' .. member)
  end
  local number = count_of('[g', '[h')
  for _, class in ipairs(levels_in_turn()) do
    local prefix = 'o' .. class
    if member:sub(1, 2) == prefix then
      return number + count_of('[' .. prefix, '(' .. member)
    end
    number = number + count_of('[' .. prefix, '(' .. prefix .. '\255')
  end
end

-- Whether a walk could look at an entry: if not, its coming or leaving changes nothing.
function is_reached(entry)
  local tenant = tenant_of(entry.tenant)
  if tenant.state[entry.class] ~= IN or is_parked(entry) or ahead_in(K.queue, entry) >= SCAN_DEPTH + meta.pins then
    return false
  end
  if meta.w1 + meta.w2 + meta.w3 <= FLOWS_MAX + meta.pins then
    return true
  end
  move_flows()
  return flows_ahead(tenant.stands[entry.class]) < FLOWS_MAX + meta.pins
end

-- A request of a flow in the walk has its turn: `work` is what it is charged.
function take_turn(tenant, class, work)
  local by_guarantee = is_below_guarantee(tenant)
  if not by_guarantee then
    meta['v' .. class] = max(tenant.tag[class], meta['v' .. class])
  end
  meta['o' .. class] = 0
  for lower = class + 1, by_guarantee and class or CLASSES do
    meta['o' .. lower] = min(meta['o' .. lower] + (meta['w' .. lower] > 0 and 1 or 0), AGEING)
  end
  tenant.tag[class] = tenant.tag[class] + work / tenant.weight
  moved_tenant(tenant)
end

-- Take one out; those behind it move up, and what it had pinned is free.
function leave_queue(entry)
  local mattered = is_reached(entry)
  remove(entry)
  if unpin(entry.rid) or mattered then
    stirred = true
  end
end

end)()
