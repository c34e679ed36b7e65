-- sync: a host reports its held, returned, owed and wanted tokens of up to 32 keys of one bucket, and gets its grants.
--
-- KEYS: birth, one for each cell. ARGV: the birth that the host knows; the requests for the cells.
-- Reply: birth, now; for each cell level, demand, grant, hosts, lost, version, generation; for each window also the
-- microseconds until its next increase, and its status.
local ASK = '<i8I4I4i8i8i8i8i8i8i8i8i8i8I4i8'
local ASK_BYTES = 108
-- More fields of a window, which has a rate of zero: step and origin; start and end of the next window (-1: windows have a
-- fixed length); charged tokens to refund, and the earliest time at which they were charged.
local WINDOW_ASK = '<i8i8i8i8i8i8'
local WINDOW_ASK_BYTES = 48

local now, values, reply, other_birth = begin()
local asks, cells = ARGV[2], #KEYS - 1

if not fits_keys(asks, ASK_BYTES, WINDOW_ASK_BYTES) then return redis.error_reply('ERR the asks do not fit the cells') end

local next_ask = 1

-- Applies the report of a host to a window, and returns its part of the reply.
local function sync_window(i, version, slots, limit, last_hold, last_demand, last_gen, hold, back, owed, want, demand, dice,
    knew)
  local step, origin, turns, finish, returned, returned_at, after = read(WINDOW_ASK, asks, next_ask)
  next_ask = after
  local c, lost, is_its = window_at(now, values[i + 1], version, slots, limit, step, origin, turns, finish, knew)
  if not c then
    local gen = (now - now % GENERATION) / GENERATION
    return pack('<i8i8i8I4I1i8i8i8I1', 0, 0, 0, 0, lost, version, gen, 0, OTHER_WINDOW)
  end
  local gen = (c.at - c.at % GENERATION) / GENERATION
  if other_birth then last_gen = -1 end
  if last_gen >= 0 and (last_gen == gen or last_gen == gen - 1) then spend(c, last_hold - hold - back, c.at) end
  c.held, c.held0, c.demand, c.demand0, c.hosts, c.hosts0 = reported(gen, c.held, c.held0, c.demand, c.demand0, c.hosts,
    c.hosts0, last_hold, last_demand, last_gen, hold, demand)
  spend(c, owed, c.at)
  -- Refund only if the sub-bucket of the charge still counts, and the window was not lost since.
  if returned_at >= c.since and sub_bucket(c, returned_at) > c.newest - c.slots then
    unspend(c, returned)
  end
  local all, level, grant = c.demand + c.demand0, 0, 0
  if is_its then
    level = level_of(c)
    grant = granted(level, portion(level, demand, all), all, want, dice)
    level, c.held = level - grant, min(c.held + grant, AMOUNT_MAX)
  end
  keep_window(KEYS[i + 1], c)
  return pack('<i8i8i8I4I1i8i8i8I1', level, all, grant, c.hosts + c.hosts0, lost, c.version, gen, more(c, now),
    stands(c, is_its))
end

for i = 1, cells do
  local ask_version, ask_num, ask_den, ask_burst, last_hold, last_demand, last_gen, hold, back, owed, want, ask_demand,
    waited, dice, knew, after = read(ASK, asks, next_ask)
  next_ask = after
  if ask_num == 0 then
    reply[i + 1] = sync_window(i, ask_version, ask_den, ask_burst, last_hold, last_demand, last_gen, hold, back, owed, want,
      ask_demand, dice, knew)
  else
    local version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0, lost =
      cell_at(now, values[i + 1], ask_version, ask_num, ask_den, ask_burst, knew, other_birth)

    -- Replace the previous report.
    local gen = (at - at % GENERATION) / GENERATION
    if other_birth then last_gen = -1 end
    held, held0, demand, demand0, hosts, hosts0 = reported(gen, held, held0, demand, demand0, hosts, hosts0,
      last_hold, last_demand, last_gen, hold, ask_demand)

    -- Returned tokens were taken from the bucket, so there is room for them, unless they expired and were refilled.
    level = max(level, min(level + back, burst - held - held0))
    level = max(level - owed, -debt_max(burst))

    local all = demand + demand0
    local share = portion(level + earn(0, 0, num, den, waited, burst), ask_demand, all)
    local grant = granted(level, share, all, want, dice)
    level = level - grant
    held = min(held + grant, AMOUNT_MAX)
    keep(KEYS[i + 1], version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
    reply[i + 1] = pack('<i8i8i8I4I1i8i8', level, all, grant, hosts + hosts0, lost, version, gen)
  end
end
return table.concat(reply)
