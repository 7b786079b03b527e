-- Processes: a lease each, what they said last, and which engines they know and use.
--
-- `mask` has one character for each engine, at its `no`: 0 unknown to the process, 1 known but not used now
-- (down, draining, full by its own word), 2 used. Each process finds that out for itself, so that one that is
-- cut off from the engines takes them from nobody else. `ack`, `rel`: of its last beat or release.

local processes, processes_changed = {}, {}
local UNKNOWN, KNOWN, USED = '0', '1', '2'

-- The record of a process, nil when it has none.
local function process_of(pid)
  local process = processes[pid]
  if process == nil then
    local packed = call('HGET', K.processes, pid)
    if packed then
      local a = cmsgpack.unpack(packed)
      process = { mask = a[1], ack = a[2], rel = a[3] }
      processes[pid] = process
    end
  end
  return process
end

local function changed_process(pid)
  processes_changed[pid] = true
end

local function has_lease(pid)
  local expiry = call('ZSCORE', K.leases, pid)
  return expiry and tonumber(expiry) > now
end

local function mask_at(mask, no)
  return no <= #mask and mask:sub(no, no) or UNKNOWN
end

-- Set how a process stands to an engine; the state it had.
local function set_mask(pid, process, engine, state)
  local mask = process.mask
  local before = mask_at(mask, engine.no)
  if before ~= state then
    mask = mask .. UNKNOWN:rep(engine.no - #mask)
    process.mask = mask:sub(1, engine.no - 1) .. state .. mask:sub(engine.no + 1)
    changed_process(pid)
    if before == UNKNOWN or state == UNKNOWN then
      engine.knowers = engine.knowers + (state == UNKNOWN and -1 or 1)
      capacity_changed = true
      changed_engine(engine)
    end
  end
  return before
end

local function write_processes()
  for pid in pairs(processes_changed) do
    local process = processes[pid]
    call('HSET', K.processes, pid, cmsgpack.pack({ process.mask, process.ack, process.rel }))
  end
end
