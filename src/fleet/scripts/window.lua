-- One window that many hosts share: how it is kept, and how it moves with time.
--
-- Time falls into sub-buckets of `step` microseconds, counted from `origin`. The newest `slots` of them count: one of a fixed
-- window, which is its own, and k + 1 of a sliding one that is k steps long. A window by the calendar has an origin and a
-- step for as long as it lasts, and is given the next ones by whoever asks first; which of them holds says the clock of Redis.
--
-- What a host had by its last report and neither holds nor gives back now it has spent, and that counts in the sub-bucket of
-- now. A hold that nobody speaks of any more is taken for spent when its generation falls out.
--
-- Why no window of any place in time admits more than `limit`, but for what hosts owe: whatever a host admitted at a moment a
-- is, at any later moment t, either still held (each holds only what it was granted, and lets go of it before its generation
-- falls out) or was counted at a moment r, a <= r <= t. The sub-bucket of r ends after r, so after a: it counts for as long
-- as a lies in the window that ends at t. And what counts and what is held are never more than `limit` after a grant. Being
-- counted late costs use, at most one sub-bucket in each window, and never the bound.
local WINDOW = '<i8I4I4i8i8i8i8i8i8i8i8i8i8I4I4'
local WINDOW_BYTES = 104
local SLOTS_MAX = 61
-- How a cell stands to one who asks: there is something, or will be; all is spent; it is not the window that he means.
local OPEN, SPENT_OUT, OTHER_WINDOW = 0, 1, 2
local BY_ITSELF, BY_CALENDAR = 0, 1

local function sub_bucket(c, time)
  return floor((time - c.origin) / c.step)
end

local function spent(c)
  local sum = 0
  for i = 1, c.slots do sum = sum + c[i] end
  return sum
end

-- Sub-buckets begin until this moment; as many leave.
local function turn(c, time)
  local newest = sub_bucket(c, time)
  if newest <= c.newest then return end
  for bucket = max(c.newest + 1, newest - c.slots + 1), newest do c[bucket % c.slots + 1] = 0 end
  c.newest = newest
end

local function spend(c, amount, time)
  turn(c, time)
  if amount <= 0 then return end
  local i = c.newest % c.slots + 1
  c[i] = c[i] + min(amount, AMOUNT_MAX - spent(c))
end

-- What was counted and not used leaves the oldest first: so no sub-bucket ever counts less than was admitted in it and in
-- those before it.
local function unspend(c, amount)
  for bucket = c.newest - c.slots + 1, c.newest do
    local i = bucket % c.slots + 1
    local part = min(amount, c[i])
    c[i], amount = c[i] - part, amount - part
  end
end

-- Time falls into other sub-buckets from now on: what counts counts in the one of now, for as long as that does.
local function gather(c, now, slots, step, origin)
  local sum = spent(c)
  c.slots, c.step, c.origin = slots, step, origin
  c.newest = sub_bucket(c, now)
  for i = 1, slots do c[i] = 0 end
  c[c.newest % slots + 1] = sum
end

-- A cell at `now`. A clock that is back by no more than a generation waits; one that was set starts from there.
local function forward_window(c, now)
  if now < c.at then
    if c.at - now <= GENERATION then return end
    gather(c, now, c.slots, c.step, c.origin)
    c.at = now
  end
  for _ = 1, 2 do
    local edge = c.at - c.at % GENERATION + GENERATION
    if now < edge then break end
    spend(c, c.held0, edge)
    c.held0, c.demand0, c.hosts0 = c.held, c.demand, c.hosts
    c.held, c.demand, c.hosts = 0, 0, 0
    c.at = edge
  end
  turn(c, now)
  c.at = now
end

-- The cell that a value is, or nothing.
local function read_window(value)
  if not value or #value < WINDOW_BYTES + 8 then return nil end
  local c = {}
  c.version, c.slots, c.kind, c.step, c.origin, c.limit, c.since, c.newest, c.at, c.held, c.held0, c.demand, c.demand0,
    c.hosts, c.hosts0 = read(WINDOW, value)
  if c.slots < 1 or c.slots > SLOTS_MAX or #value ~= WINDOW_BYTES + 8 * c.slots or c.step < 1 then return nil end
  for i = 1, c.slots do c[i] = read('<i8', value, WINDOW_BYTES + 8 * i - 7) end
  return c
end

-- Whether a window by the calendar, with the one after it, lies around now: where it begins, and how long it is.
local function around(now, start, turns, finish)
  if start <= now and now < turns then return start, turns - start end
  if turns <= now and now < finish then return turns, finish - turns end
end

-- The cell of one who asks, at `now`; whether it was lost (1) before; whether it is of the window that holds now. Where that
-- is not known there may be no cell at all.
--
-- The newest version of its rule that was seen here sets the numbers. A cell that is not there has nothing spent, unless he
-- was told of it in a window that lasts: then it is spent, until that is over.
local function window_at(now, value, version, slots, limit, step, origin, turns, finish, knew)
  local kind = turns >= 0 and BY_CALENDAR or BY_ITSELF
  local start, lasts = origin, step
  if kind == BY_CALENDAR then start, lasts = around(now, origin, turns, finish) end
  local c = read_window(value)
  if not c then
    local lost = knew >= 0 and 1 or 0
    if not start then return nil, lost, false end
    c = { version = version, slots = slots, kind = kind, step = lasts, origin = start, limit = limit, since = now, at = now,
      held = 0, held0 = 0, demand = 0, demand0 = 0, hosts = 0, hosts0 = 0, newest = 0 }
    for i = 1, slots do c[i] = 0 end
    c.newest = sub_bucket(c, now)
    if lost == 1 then spend(c, limit, now) end
    return c, lost, true
  end
  forward_window(c, now)
  if version > c.version then
    local is_alike = c.kind == kind and c.slots == slots and (kind == BY_CALENDAR or c.step == step and c.origin == origin)
    if not is_alike and start then
      gather(c, now, slots, lasts, start)
      c.kind = kind
    end
    if is_alike or start then c.version, c.limit = version, limit end
  end
  if c.kind == BY_ITSELF then return c, 0, true end
  local function is_in() return c.origin <= now and now < c.origin + c.step end
  -- What was counted since the one before was over is of the next.
  if not is_in() and kind == BY_CALENDAR and start then gather(c, now, 1, lasts, start) end
  return c, 0, is_in()
end

local function level_of(c)
  return max(c.limit - spent(c) - min(c.held + c.held0, AMOUNT_MAX), -4500000000000000)
end

-- In how many microseconds a sub-bucket leaves.
local function leaves(c, bucket, now)
  return min(max((bucket + c.slots) * c.step + c.origin - now, 1), AMOUNT_MAX)
end

-- In how many microseconds there is more by itself; nothing (0) where nothing is spent of what slides.
local function more(c, now)
  for bucket = c.newest - c.slots + 1, c.newest do
    if c.slots == 1 or c[bucket % c.slots + 1] > 0 then return leaves(c, bucket, now) end
  end
  return 0
end

-- How many microseconds until there is so much, if hosts keep what they hold; -1: never.
local function window_wait(c, cost, now)
  local level = level_of(c)
  if level >= cost then return 0 end
  if cost > c.limit then return -1 end
  for bucket = c.newest - c.slots + 1, c.newest do
    level = level + c[bucket % c.slots + 1]
    if level >= cost then return leaves(c, bucket, now) end
  end
  return leaves(c, c.newest, now)
end

local function stands(c, is_its)
  if not is_its then return OTHER_WINDOW end
  if c.limit - spent(c) < TOKEN then return SPENT_OUT end
  return OPEN
end

-- Keeps a cell until nothing counts any more, what is held included, and ten seconds.
local function keep_window(key, c)
  local values = { pack(WINDOW, c.version, c.slots, c.kind, c.step, c.origin, c.limit, c.since, c.newest, c.at, c.held,
    c.held0, c.demand, c.demand0, c.hosts, c.hosts0) }
  for i = 1, c.slots do values[i + 1] = pack('<i8', c[i]) end
  local us = leaves(c, c.newest, c.at) + 2 * GENERATION + c.step
  redis.call('SET', key, table.concat(values), 'PX', min(floor(us / 1000) + 10001, 69120000000))
end
