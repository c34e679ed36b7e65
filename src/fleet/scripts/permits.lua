-- permits: adds, renews and removes members of the sets of up to 32 keys of one bucket. Each member is a lease of the host.
--
-- KEYS: birth, one set for each key. ARGV: the birth that the host knows; the name of the host; the requests.
-- Reply: birth, now; for each key the number of added members, or -1 if Redis has just lost the set and hosts may not have
-- renewed their members yet; and the number of members.
local HOLD_US = 4000000
-- Hosts renew their members every 0.9 s. Without any command for this time Redis stood still, or no host had work here.
local SILENCE_US = 2000000
-- By then each host that had members is connected again, if it runs.
local BACK_US = 6000000
-- A member of each set, with minus the time of its last command.
local HEARD = 'heard'
local REQUEST, REQUEST_BYTES = '<I4I4I4I4', 16

local now, _, reply, other_birth = begin()
local is_lost = other_birth and read('<i8', ARGV[1]) > 0
local host, requests, at = ARGV[2], ARGV[3], 1
local expires = text('%d', now + HOLD_US)

-- Removes expired members. After a silence all members stay until their hosts may be back, once: half a microsecond marks them.
local function expire(key)
  local heard = redis.call('ZRANGEBYSCORE', key, '-inf', '(0', 'WITHSCORES')[2]
  redis.call('ZADD', key, text('-%d', now), HEARD)
  if not heard or now + tonumber(heard) < SILENCE_US then
    for _, expired in ipairs(redis.call('ZRANGEBYSCORE', key, 0, text('%d', now))) do redis.call('ZREM', key, expired) end
    return
  end
  local members = redis.call('ZRANGEBYSCORE', key, 0, '+inf', 'WITHSCORES')
  for i = 1, #members, 2 do
    local ends = tonumber(members[i + 1])
    if ends % 1 == 0 then
      redis.call('ZADD', key, text('%.1f', now + BACK_US + 0.5), members[i])
    elseif ends <= now then
      redis.call('ZREM', key, members[i])
    end
  end
end

local function next_member()
  if #requests < at + 3 then error('the requests do not fit the keys') end
  local member = host .. string.sub(requests, at, at + 3)
  at = at + 4
  return member
end

for i = 1, #KEYS - 1 do
  local key = KEYS[i + 1]
  if #requests < at + REQUEST_BYTES - 1 then return redis.error_reply('ERR the requests do not fit the keys') end
  local most, wanted, kept, dropped, after = read(REQUEST, requests, at)
  at = after
  expire(key)
  for _ = 1, dropped do redis.call('ZREM', key, next_member()) end
  -- Leases in progress count even above the maximum.
  for _ = 1, kept do redis.call('ZADD', key, expires, next_member()) end
  local members, added = redis.call('ZCARD', key) - 1, is_lost and -1 or 0
  for _ = 1, wanted do
    local member = next_member()
    if not is_lost and members < most then
      redis.call('ZADD', key, expires, member)
      members, added = members + 1, added + 1
    end
  end
  redis.call('PEXPIRE', key, 60001)
  reply[i + 1] = pack('<i4I4', added, members)
end
return table.concat(reply)
