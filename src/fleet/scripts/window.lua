-- The cell of a window that hosts share: its format, and how it changes with time.
--
-- Time is divided into sub-buckets of `step` microseconds, counted from `origin`. The newest `slots` of them count: one for a
-- fixed window, k + 1 for a sliding window of k steps. A calendar window has its own origin and step; the first request after
-- its end supplies those of the next one. The clock of Redis decides which window is current.
--
-- Tokens of a host's last report that it neither holds nor returns now are spent; they count in the current sub-bucket. A hold
-- without a further report is counted as spent at the end of its generation.
--
-- Proof that no window admits more than `limit`, apart from the debt of hosts: a token admitted at time a is, at any later
-- time t, either still held (a host holds only granted tokens, and drops them before their generation ends) or was counted at
-- a time r, a <= r <= t. The sub-bucket of r ends after r, hence after a: it counts as long as a lies in the window that ends
-- at t. And counted and held tokens together never exceed `limit` after a grant. Late counting wastes at most one sub-bucket
-- in each window, and never breaks the bound.
local WINDOW = '<i8I4I4i8i8i8i8i8i8i8i8i8i8I4I4'
local WINDOW_BYTES = 104
local SLOTS_MAX = 61
-- The status of a cell: it has tokens, or held ones may return; all are spent; the request means another window.
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

-- Starts the sub-buckets up to this time, and drops as many old ones.
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

-- Refunds counted tokens, from the oldest sub-buckets first, so that no sub-bucket counts less than was admitted in it and in
-- those before it.
local function unspend(c, amount)
  for bucket = c.newest - c.slots + 1, c.newest do
    local i = bucket % c.slots + 1
    local part = min(amount, c[i])
    c[i], amount = c[i] - part, amount - part
  end
end

-- Changes the sub-buckets: all counted tokens move to the current one.
local function gather(c, now, slots, step, origin)
  local sum = spent(c)
  c.slots, c.step, c.origin = slots, step, origin
  c.newest = sub_bucket(c, now)
  for i = 1, slots do c[i] = 0 end
  c[c.newest % slots + 1] = sum
end

-- Advances a cell to `now`. If the clock is back by at most a generation, the cell does not change; if by more, the cell
-- continues from the new time.
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

-- Parses a value as a cell; nil if it is none.
local function read_window(value)
  if not value or #value < WINDOW_BYTES + 8 then return nil end
  local c = {}
  c.version, c.slots, c.kind, c.step, c.origin, c.limit, c.since, c.newest, c.at, c.held, c.held0, c.demand, c.demand0,
    c.hosts, c.hosts0 = read(WINDOW, value)
  if c.slots < 1 or c.slots > SLOTS_MAX or #value ~= WINDOW_BYTES + 8 * c.slots or c.step < 1 then return nil end
  for i = 1, c.slots do c[i] = read('<i8', value, WINDOW_BYTES + 8 * i - 7) end
  return c
end

-- Returns start and length of the calendar window or of the next one, whichever contains `now`; nil if neither does.
local function around(now, start, turns, finish)
  if start <= now and now < turns then return start, turns - start end
  if turns <= now and now < finish then return turns, finish - turns end
end

-- Returns the cell at `now`; 1 if Redis lost it, else 0; and whether its window is the current one. Without a known current
-- window there may be no cell.
--
-- The newest version of the rule sets the limit; of two entries of one version, that of the last request. Entries with other
-- windows have other cells. A missing cell is unspent, unless the host had a reply about its window: then Redis lost it, and
-- all of the window counts as spent.
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
  if version >= c.version then c.version, c.limit = version, limit end
  if c.kind == BY_ITSELF then return c, 0, true end
  local function is_in() return c.origin <= now and now < c.origin + c.step end
  -- Tokens counted since the end of the previous window belong to the next one.
  if not is_in() and kind == BY_CALENDAR and start then gather(c, now, 1, lasts, start) end
  return c, 0, is_in()
end

local function level_of(c)
  return max(c.limit - spent(c) - min(c.held + c.held0, AMOUNT_MAX), -4500000000000000)
end

-- Returns the microseconds until a sub-bucket stops counting.
local function leaves(c, bucket, now)
  return min(max((bucket + c.slots) * c.step + c.origin - now, 1), AMOUNT_MAX)
end

-- Returns the microseconds until the next increase; 0 for a sliding window without spent tokens.
local function more(c, now)
  for bucket = c.newest - c.slots + 1, c.newest do
    if c.slots == 1 or c[bucket % c.slots + 1] > 0 then return leaves(c, bucket, now) end
  end
  return 0
end

-- Returns the microseconds until the level reaches `cost` if hosts return no tokens; -1: never.
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

-- Stores a cell until no token counts, held ones included, plus ten seconds.
local function keep_window(key, c)
  local values = { pack(WINDOW, c.version, c.slots, c.kind, c.step, c.origin, c.limit, c.since, c.newest, c.at, c.held,
    c.held0, c.demand, c.demand0, c.hosts, c.hosts0) }
  for i = 1, c.slots do values[i + 1] = pack('<i8', c[i]) end
  local us = leaves(c, c.newest, c.at) + 2 * GENERATION + c.step
  redis.call('SET', key, table.concat(values), 'PX', min(floor(us / 1000) + 10001, 69120000000))
end
