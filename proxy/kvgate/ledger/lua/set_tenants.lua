-- set_tenants: the rules of all tenants of the pool, in parts; all of them change with the last part.
--
-- ARGV: 3 digest of the whole, 4 number of this part (from 0; -1 only asks), 5 number of parts; then for each tenant:
-- name, weight, guarantee, limit, limit in tokens or '', 1 or 0 for `borrow`, tokens and requests per minute or ''.
-- A part that is there already changes nothing, so that processes which say the same help each other; another digest
-- begins anew. Adds: the number of the part that is wanted next, or -1 when these are the rules now.

local digest, part, parts = ARGV[3], whole(4), whole(5)
local rows, names_hard = {}, {}

local function real(index)
  local number = tonumber(ARGV[index])
  if not number then
    error({ err = 'ERR argument ' .. index .. ' of ' .. #ARGV .. ' is no number' })
  end
  return number
end

local function real_or_none(index)
  return ARGV[index] ~= '' and real(index)
end

for index = 6, #ARGV, 8 do
  local borrow = whole(index + 5) == 1
  rows[ARGV[index]] = cmsgpack.pack({
    real(index + 1), real(index + 2), real(index + 3), real_or_none(index + 4), borrow,
    real_or_none(index + 6), real_or_none(index + 7),
  })
  if not borrow then
    names_hard[#names_hard + 1] = ARGV[index]
  end
end

local function other_side()
  return meta.side == 'a' and 'b' or 'a'
end

local function store_part()
  local side = other_side()
  for name, rules in pairs(rows) do
    call('HSET', K[side], name, rules)
  end
  if names_hard[1] then
    local all = hard_tenants(side)
    for _, name in ipairs(names_hard) do
      all[#all + 1] = name
    end
    call('HSET', K[side], HARD, cmsgpack.pack(all))
  end
  meta.parts = meta.parts + 1
end

local function turn_to_new_rules()
  local before = meta.side
  local hard_before = hard_tenants(before)
  meta.side, meta.rules, meta.digest, meta.staged, meta.parts = other_side(), meta.rules + 1, digest, '', 0
  for _, tenant in pairs(tenants) do
    take_rules(tenant)
  end
  read_tenants(hard_before)
  read_tenants(hard_tenants(meta.side))
  call('UNLINK', K[before])
  retier()
end

begin()
if digest == meta.digest then
  return finish(-1)
end
if meta.staged ~= digest then
  if part ~= 0 then
    return finish(0)
  end
  call('UNLINK', K[other_side()])
  meta.staged, meta.parts = digest, 0
end
if part == meta.parts then
  store_part()
end
if meta.parts >= parts then
  turn_to_new_rules()
  return finish(-1)
end
return finish(meta.parts)
