#!lua
-- version: returns the version number of a rule's quota. A higher number is newer, so that hosts agree during a rollout.
--
-- KEYS: the versions of one rule. ARGV: its quota; its previous quota (empty: unknown); the number of that (0: none).
-- Reply: the number.
local now, before, known = ARGV[1], ARGV[2], tonumber(ARGV[3])
local stored = redis.call('HMGET', KEYS[1], '#', now, before)
local last, number, number_before = tonumber(stored[1] or 0), tonumber(stored[2] or 0), tonumber(stored[3] or 0)
number_before = math.max(number_before, known)

if before == now then
  -- Unchanged: store it again, in case Redis lost it.
  number = number_before
elseif number <= number_before then
  -- A return to an earlier quota is a new version.
  number = 0
end
last = math.max(last, number_before)
if number == 0 then number = last + 1 end
redis.call('HSET', KEYS[1], now, string.format('%.0f', number), '#', string.format('%.0f', math.max(last, number)))
redis.call('PEXPIRE', KEYS[1], 34560000000)

-- Bounds the number of versions: the oldest one is removed, and gets a new number if it returns.
if redis.call('HLEN', KEYS[1]) > 64 then
  local all, oldest, lowest = redis.call('HGETALL', KEYS[1]), nil, nil
  for i = 1, #all, 2 do
    local of_these = tonumber(all[i + 1])
    if all[i] ~= '#' and (lowest == nil or of_these < lowest) then oldest, lowest = all[i], of_these end
  end
  redis.call('HDEL', KEYS[1], oldest)
end
return struct.pack('<i8', number)
