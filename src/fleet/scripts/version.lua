#!lua
-- version: which number the terms of a rule have. The higher one is newer, so that all hosts agree while a rollout goes on.
--
-- KEYS: the versions of one rule. ARGV: its terms now; its terms before (empty: none known); the number those had (0: none).
-- Reply: the number.
local now, before, known = ARGV[1], ARGV[2], tonumber(ARGV[3])
local stored = redis.call('HMGET', KEYS[1], '#', now, before)
local last, number, number_before = tonumber(stored[1] or 0), tonumber(stored[2] or 0), tonumber(stored[3] or 0)
number_before = math.max(number_before, known)

if before == now then
  -- The same as ever, told to a Redis that may have forgotten it.
  number = number_before
elseif number <= number_before then
  -- Back to terms of before: an edit like any other.
  number = 0
end
last = math.max(last, number_before)
if number == 0 then number = last + 1 end
redis.call('HSET', KEYS[1], now, string.format('%.0f', number), '#', string.format('%.0f', math.max(last, number)))
redis.call('PEXPIRE', KEYS[1], 34560000000)

-- Of many edits the oldest is forgotten; terms that come back later get a new number, as they should.
if redis.call('HLEN', KEYS[1]) > 64 then
  local all, oldest, lowest = redis.call('HGETALL', KEYS[1]), nil, nil
  for i = 1, #all, 2 do
    local of_these = tonumber(all[i + 1])
    if all[i] ~= '#' and (lowest == nil or of_these < lowest) then oldest, lowest = all[i], of_these end
  end
  redis.call('HDEL', KEYS[1], oldest)
end
return struct.pack('<i8', number)
