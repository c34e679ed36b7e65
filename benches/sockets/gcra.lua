-- The generic cell rate algorithm as one Redis script, as an application without tidegate would call it.
-- KEYS[1] the caller; ARGV: microseconds between two tokens, burst, cost.
-- State: the theoretical arrival time in whole microseconds. A double holds those exactly until the year 2255.
-- Returns {allowed, limit, remaining, reset_us, retry_us}, as in a tidegate decision.
local interval = tonumber(ARGV[1])
local burst = tonumber(ARGV[2])
local cost = tonumber(ARGV[3])

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local arrival = tonumber(redis.call('GET', KEYS[1])) or now
if arrival < now then
  arrival = now
end

local capacity = burst * interval
local ahead = arrival - now + cost * interval

if ahead > capacity then
  ahead = arrival - now
  return {0, burst, math.floor((capacity - ahead) / interval), (ahead - 1) % interval + 1,
    ahead + cost * interval - capacity}
end

-- PX in the same command: one call less than PEXPIRE after it. A key that is full again may go.
redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
return {1, burst, math.floor((capacity - ahead) / interval), (ahead - 1) % interval + 1, 0}
