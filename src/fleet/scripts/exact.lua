-- exact: remote checks. Charges the costs of up to 32 keys of one bucket, all costs of a check or none.
--
-- KEYS: birth, one for each cell. ARGV: the birth that the host knows; the costs of the cells; a byte for each check, the
-- number of its costs.
-- Reply: birth, now; for each cell level, wait (0: enough tokens; -1: never), lost, version; for each window also the
-- microseconds until its next increase, and its status. The costs of a check are charged if all their waits are 0.
local COST = '<i8I4I4i8i8i8'
local COST_BYTES = 40
-- The fields of a window, as in a sync.
local WINDOW_COST = '<i8i8i8i8'
local WINDOW_COST_BYTES = 32
-- The wait for a request of another window than the current one: the host retries immediately, with the current one.
local AT_ONCE = 1

-- Returns the microseconds until a level reaches `cost`. `ahead`: how far the time of the cell is ahead of the clock.
local function wait_us(num, den, burst, level, rem, cost, ahead)
  if level >= cost then return 0 end
  if cost > burst then return -1 end
  local part = (cost - level) % num
  local us = (cost - level - part) / num * den
  if us >= AMOUNT_MAX then return AMOUNT_MAX end
  local more = part * den - rem
  if more >= 0 then us = us + floor((more + num - 1) / num) else us = us - floor(-more / num) end
  return min(us + ahead, AMOUNT_MAX)
end

local now, values, reply, other_birth = begin()
local costs, cells, counts = ARGV[2], #KEYS - 1, ARGV[3]

if not fits_keys(costs, COST_BYTES, WINDOW_COST_BYTES) then return redis.error_reply('ERR the costs do not fit the cells') end

-- The check of each cell.
local check_of = {}
for check = 1, #counts do
  for _ = 1, string.byte(counts, check) do check_of[#check_of + 1] = check end
end
if #check_of ~= cells then return redis.error_reply('ERR the checks do not fit the cells') end

local found, refused, next_cost = {}, {}, 1
for i = 1, cells do
  local ask_version, ask_num, ask_den, ask_burst, cost, knew, after = read(COST, costs, next_cost)
  next_cost = after
  local wait
  if ask_num == 0 then
    local step, origin, turns, finish, behind = read(WINDOW_COST, costs, next_cost)
    next_cost = behind
    local c, lost, is_its =
      window_at(now, values[i + 1], ask_version, ask_den, ask_burst, step, origin, turns, finish, knew)
    wait = is_its and window_wait(c, cost, now) or AT_ONCE
    found[i] = { window = c, is_its = is_its, is_window = true, cost = cost, wait = wait, lost = lost, asked = ask_version }
  else
    local version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0, lost =
      cell_at(now, values[i + 1], ask_version, ask_num, ask_den, ask_burst, knew, other_birth)
    wait = wait_us(num, den, burst, level, rem, cost, at - now)
    found[i] = { version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0, cost, wait, lost }
  end
  if wait ~= 0 then refused[check_of[i]] = true end
end

for i = 1, cells do
  local f, paid = found[i], not refused[check_of[i]]
  if f.is_window then
    local c, level, again, version = f.window, 0, 0, f.asked
    if c then
      if paid then spend(c, f.cost, c.at) end
      keep_window(KEYS[i + 1], c)
      level, again, version = f.is_its and level_of(c) or 0, more(c, now), c.version
    end
    reply[i + 1] = pack('<i8i8I1i8i8I1', level, f.wait, f.lost, version, again, c and stands(c, f.is_its) or OTHER_WINDOW)
  else
    local version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0, cost, wait, lost = unpack(f)
    if paid then level = level - cost end
    keep(KEYS[i + 1], version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
    reply[i + 1] = pack('<i8i8I1i8', level, wait, lost, version)
  end
end
return table.concat(reply)
