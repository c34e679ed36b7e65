-- exact: remote checks. Charges up to 32 costs of keys of one bucket, all costs of a check or none.
--
-- KEYS: birth, one for each cell. ARGV: the birth that the host knows; the costs of the cells; a byte for each check, the
-- number of its costs.
-- Reply: birth, now; for each cell level, wait (0: enough tokens; -1: never) and version; for each window also the
-- microseconds until its next increase, and its status. The costs of a check are charged if all their waits are 0.
local COST = '<i8I4I4i8i8i8'
local COST_BYTES = 40
-- The fields of a window, as in a sync.
local WINDOW_COST = '<i8i8i8i8'
local WINDOW_COST_BYTES = 32
-- The wait for a request of another window than the current one: the host retries immediately, with the current one.
local AT_ONCE = 1
-- The places of two of the numbers that `cell_at` returns.
local VERSION, LEVEL = 1, 5

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

local in_checks = 0
for check = 1, #counts do in_checks = in_checks + string.byte(counts, check) end
if in_checks ~= cells then return redis.error_reply('ERR the checks do not fit the cells') end

-- The cell of each cost. Checks that name the same key are charged one after the other.
local found, cell_of, cost_of, next_cost = {}, {}, {}, 1
for i = 1, cells do
  local key = KEYS[i + 1]
  local ask_version, ask_num, ask_den, ask_burst, cost, knew, after = read(COST, costs, next_cost)
  next_cost = ask_num == 0 and after + WINDOW_COST_BYTES or after
  if found[key] == nil and ask_num == 0 then
    local step, origin, turns, finish = read(WINDOW_COST, costs, after)
    local c, _, is_its =
      window_at(now, values[i + 1], ask_version, ask_den, ask_burst, step, origin, turns, finish, knew)
    found[key] = { window = c, is_its = is_its, is_window = true }
  elseif found[key] == nil then
    found[key] = { cell_at(now, values[i + 1], ask_version, ask_num, ask_den, ask_burst, knew, other_birth) }
  end
  cell_of[i], cost_of[i] = found[key], cost
end

local first = 1
for check = 1, #counts do
  local last, waits, is_paid = first + string.byte(counts, check) - 1, {}, true
  for i = first, last do
    local f, wait = cell_of[i], AT_ONCE
    if not f.is_window then
      local _, num, den, burst, level, rem, at = unpack(f)
      wait = wait_us(num, den, burst, level, rem, cost_of[i], at - now)
    elseif f.is_its then
      wait = window_wait(f.window, cost_of[i], now)
    end
    waits[i], is_paid = wait, is_paid and wait == 0
  end
  for i = first, last do
    local f = cell_of[i]
    if f.is_window then
      local c, level, again = f.window, 0, 0
      if c then
        if is_paid then spend(c, cost_of[i], c.at) end
        level, again = f.is_its and level_of(c) or 0, more(c, now)
      end
      reply[i + 1] = pack('<i8i8i8i8I1', level, waits[i], c and c.version or 0, again,
        c and stands(c, f.is_its) or OTHER_WINDOW)
    else
      if is_paid then f[LEVEL] = f[LEVEL] - cost_of[i] end
      reply[i + 1] = pack('<i8i8i8', f[LEVEL], waits[i], f[VERSION])
    end
  end
  first = last + 1
end

for key, f in pairs(found) do
  if not f.is_window then
    keep(key, unpack(f))
  elseif f.window then
    keep_window(key, f.window)
  end
end
return table.concat(reply)
