-- How every verb begins and ends.

local function begin()
  read_meta()
  if meta.hold > 0 and meta.hold <= now then
    expire_orphans()
  end
  reap_one()
  if capacity_changed then
    measure_capacity()
  end
end

local function write_all()
  write_engines()
  write_slots()
  write_processes()
  write_entries()
  write_tenants()
  write_meta()
end

local function settle_down()
  if capacity_changed then
    measure_capacity()
  end
  if stirred or (meta.dirty == 1 and not pumped) then
    pump()
  end
end

-- The answer: status (1, or 0 for no lease), epoch, time (ms), unfinished, in grace, and what the verb adds.
local function finish_with(status, ...)
  settle_down()
  write_all()
  local in_grace = now < meta.grace and 1 or 0
  local is_unfinished = (meta.dirty == 1 and in_grace == 0) and 1 or 0
  return { status, meta.epoch, now, is_unfinished, in_grace, ... }
end

local function finish(...)
  return finish_with(1, ...)
end

local function no_lease()
  return finish_with(0)
end

-- A change that would take a sum below zero: it was not made, and the caller is told. Never clamped.
local function corrupt(why)
  finish_with(1)
  return redis.error_reply('LEDGERCORRUPT ' .. why .. '; nothing was changed')
end
