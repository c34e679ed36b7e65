#!lua
-- One bucket that many hosts share: how it is kept, and how it moves with time. The head of each script that touches cells.
--
-- All numbers are whole. Lua has only doubles, so each is kept below 2^53, where sums and products of whole numbers are
-- exact, and `floor(a / b)` too: a quotient that is not whole lies at least 1/b below the next whole number, farther than it
-- can be rounded. What may pass 2^53 is only compared with what cannot, and rounding keeps that order.
--
-- Amounts are in µtok, millionths of a token; times in microseconds of this Redis' own clock.
local GENERATION = 2000000
local TOKEN = 1000000
local AMOUNT_MAX = 4503599627370496   -- 2^52: two of them still add up exactly
local CELL = '<i8I4I4i8i8I4i8i8i8i8i8I4I4'
local CELL_BYTES = 84

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local pack, read = struct.pack, struct.unpack
local call, text = redis.call, string.format

-- What `us` microseconds add to a level, up to `cap`. Time at the cap, or above it, earns nothing.
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

-- A cell at `now`. What hosts hold keeps it from filling, in the generation in which they said so and the next; so time is
-- taken piece by piece between the edges of generations: a level must not rise by what was not free when it was earned.
--
-- A clock that is back by no more than a generation (two servers that disagree) waits; one that was set starts from there.
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

-- Whether a value is a cell. What somebody else wrote there is as good as nothing.
local function is_cell(value)
  if not value or #value ~= CELL_BYTES then return false end
  local _, num, den = read('<i8I4I4', value)
  return num > 0 and den > 0
end

-- The cell of one who asks, at `now`, and whether it was lost (1) before.
--
-- The newest version of its rule that was seen here sets the numbers. A cell that is not there is full, unless it cannot
-- have run out: it is kept for ten seconds at the least after any reply about it, and when this Redis is another one, or was
-- emptied, nobody can say.
local function cell_at(now, value, ask_version, ask_num, ask_den, ask_burst, knew, other_birth)
  local version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0
  if value and #value == CELL_BYTES then
    version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0 = read(CELL, value)
  end
  -- As `is_cell` has it, read once.
  if not num or num <= 0 or den <= 0 then
    local lost = knew >= 0 and (other_birth or knew < 9000000)
    return ask_version, ask_num, ask_den, ask_burst, lost and 0 or ask_burst, 0, now, 0, 0, 0, 0, 0, 0, lost and 1 or 0
  end
  level, rem, at, held, held0, demand, demand0, hosts, hosts0 =
    forward(now, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
  if ask_version > version then
    version, num, den, burst, level, rem = ask_version, ask_num, ask_den, ask_burst, min(level, ask_burst), 0
  end
  return version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0, 0
end

-- Keeps a cell until it is full by itself, and ten seconds. Holds keep it from filling for four seconds at most, so one that
-- is gone was full, and nobody held any of it.
local function keep(key, version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0)
  local us = level < burst and ceil((burst - level) / num) * den or 0
  -- Redis writes a number of Lua as one with a fraction, which takes it three times as long.
  call('SET', key,
    pack(CELL, version, num, den, burst, level, rem, at, held, held0, demand, demand0, hosts, hosts0),
    'PX', text('%d', min(floor(us / 1000) + 10001, 34560000000)))
end
