#!lua
-- The cell of a token bucket that hosts share: its format and its refill. The head of each script that uses cells.
--
-- All numbers are integers. Lua has only doubles, so each number stays below 2^53, where sums and products of integers are
-- exact, and `floor(a / b)` too: a fractional quotient lies at least 1/b below the next integer, farther than the rounding
-- error. A number that may exceed 2^53 is only compared with smaller ones, and rounding keeps that order.
--
-- Amounts are in µtok, millionths of a token; times in microseconds of this server's clock.
local GENERATION = 2000000
local TOKEN = 1000000
local AMOUNT_MAX = 4503599627370496   -- 2^52: the sum of two is exact
local CELL = '<i8I4I4i8i8I4i8i8i8i8i8I4I4'
local CELL_BYTES = 84

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local pack, read = struct.pack, struct.unpack
local call, text = redis.call, string.format

-- Refills a level for `us` microseconds, up to `cap`. Time at or above the cap adds no tokens.
local function earn(level, rem, num, den, us, cap)
  if level >= cap then return level, 0 end
  local part = us % den
  level = level + (us - part) / den * num
  if level >= cap then return cap, 0 end
  local more = part * num + rem
  rem = more % den
  level = level + (more - rem) / den
  if level >= cap then return cap, 0 end
  return level, rem
end

-- Advances a cell to `now`. Held tokens take room in the bucket, in the generation of their report and in the next one. The
-- refill is therefore computed per generation: the level must not rise into room that was taken at the time.
--
-- If the clock is back by at most a generation (two servers that differ), the cell does not change; if by more, the clock was
-- set, and the cell continues from the new time.
local function forward(now, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
  if now < at then
    if at - now > GENERATION then at = now end
    return level, rem, at, held, held0, demand, demand0, hosts, hosts0
  end
  local edge = at - at % GENERATION + GENERATION
  if now >= edge then
    level, rem = earn(level, rem, num, den, edge - at, burst - held - held0)
    at, held, held0, demand, demand0, hosts, hosts0 = edge, 0, held, 0, demand, 0, hosts
    edge = edge + GENERATION
    if now >= edge then
      level, rem = earn(level, rem, num, den, GENERATION, burst - held0)
      at, held0, demand0, hosts0 = edge, 0, 0, 0
    end
  end
  level, rem = earn(level, rem, num, den, now - at, burst - held - held0)
  return level, rem, now, held, held0, demand, demand0, hosts, hosts0
end

-- The most that a level may be below zero: two bursts and a token for each of ten thousand hosts.
local function debt_max(burst)
  return min(2 * burst + 10000000000, 4500000000000000)
end

-- Whether a value is a cell. Foreign values are treated as missing.
local function is_cell(value)
  if not value or #value ~= CELL_BYTES then return false end
  local _, num, den = read('<i8I4I4', value)
  return num > 0 and den > 0
end

-- Returns the cell at `now`, and 1 if Redis lost it, else 0.
--
-- The newest version of the rule sets the quota; of two entries of one version, that of the last request. A missing cell is
-- full if it may have expired: a cell is kept for at least ten seconds after any reply. It is empty if it was lost: the host
-- had a reply more recently, or the birth of the bucket differs.
local function cell_at(now, value, ask_version, ask_num, ask_den, ask_burst, knew, other_birth)
  local version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0
  if value and #value == CELL_BYTES then
    version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0 = read(CELL, value)
    level = max(level, -debt_max(burst))
  end
  -- The test of `is_cell`, without reading the value twice.
  if not num or num <= 0 or den <= 0 then
    local lost = knew >= 0 and (other_birth or knew < 9000000)
    return ask_version, ask_num, ask_den, ask_burst, lost and 0 or ask_burst, 0, now, 0, 0, 0, 0, 0, 0, lost and 1 or 0
  end
  level, rem, at, held, held0, demand, demand0, hosts, hosts0 =
    forward(now, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
  if ask_version >= version and (ask_num ~= num or ask_den ~= den or ask_burst ~= burst) then
    num, den, burst, level, rem = ask_num, ask_den, ask_burst, min(level, ask_burst), 0
  end
  version = max(version, ask_version)
  return version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0, 0
end

-- Stores a cell until its bucket is full, plus ten seconds. Held tokens delay the refill by at most four seconds, so an
-- expired cell was full, and no host held any of its tokens.
local function keep(key, version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
  local us = level < burst and ceil((burst - level) / num) * den or 0
  -- Redis formats a Lua number as a floating-point number, which takes three times as long.
  call('SET', key,
    pack(CELL, version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0),
    'PX', text('%d', min(floor(us / 1000) + 10001, 34560000000)))
end
