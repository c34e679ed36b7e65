#!lua
-- beat: a host says that it is alive and what its pools have, and is told how many hosts there are and what they have together.
--
-- What a host says of a pool takes the place of what it said before, so a beat that comes twice counts once, and one that was
-- overtaken by a later one counts for nothing. What was not said again for two seconds is gone with the next count.
--
-- KEYS: hosts by their last beat, hosts with the same secret by their last beat, the epochs of hosts, one for each pool.
-- ARGV: host; epoch and seq; the pools' numbers. Reply: hosts, hosts with the same secret, whether a host of this name has a
-- later epoch; for each pool slots, critical, other, hosts, whether it was overtaken, and whether what hosts said before may be
-- missing: not all of them have had the time to say it again.
local COUNTED = 500000
local KEPT = 2000000
local COUNT_MAX = 1000000000000
local REPORT = '<i8i8i8'
local REPORT_BYTES = 24
-- Of all hosts: since when all is known, when they were counted, and what they had. Of one: epoch, seq, when it said so, and what it has.
local SUMS = '<i8i8i8i8i8i8'
local SUMS_BYTES = 48
local SAID = '<i8i8i8i8i8i8'
local SAID_BYTES = 48

local min = math.min
local pack, read = struct.pack, struct.unpack

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local host, reports, pools = ARGV[1], ARGV[3], #KEYS - 3
local epoch, seq = read('<i8i8', ARGV[2])
if #reports ~= pools * REPORT_BYTES then return redis.error_reply('ERR the reports do not fit the pools') end

-- What the fields of all hosts come to. Those that nobody said again go; those of a clock that was set back begin anew.
local function count(key)
  local slots, critical, other, hosts = 0, 0, 0, 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field ~= 'sums' then
      local its_epoch, its_seq, at, its_slots, its_critical, its_other
      if #value == SAID_BYTES then its_epoch, its_seq, at, its_slots, its_critical, its_other = read(SAID, value) end
      if not at or at < now - KEPT then
        redis.call('HDEL', key, field)
      else
        if at > now then
          redis.call('HSET', key, field, pack(SAID, its_epoch, its_seq, now, its_slots, its_critical, its_other))
        end
        slots, critical, other, hosts = slots + its_slots, critical + its_critical, other + its_other, hosts + 1
      end
    end
  end
  return now, slots, critical, other, hosts
end

local now_ms = math.floor(now / 1000)
-- Adds this host to a set, drops the hosts that are gone from it, and returns how many are left. A host is gone after five
-- seconds of silence; or if its beat is of a time to come, which a clock that was set back leaves behind. Then its epoch goes too.
local function alive(key, epochs)
  redis.call('ZADD', key, now_ms, host)
  for _, range in ipairs({ { '-inf', '(' .. now_ms - 5000 }, { '(' .. now_ms + 5000, '+inf' } }) do
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', key, range[1], range[2], 'LIMIT', 0, 1000)) do
      redis.call('ZREM', key, gone)
      if epochs then redis.call('HDEL', epochs, gone) end
    end
  end
  redis.call('PEXPIRE', key, 60000)
  return redis.call('ZCARD', key)
end

local hosts_alive = alive(KEYS[1], KEYS[3])
-- Of two daemons with one name, the one that started first has to take another.
local last_epoch = redis.call('HMGET', KEYS[3], host)[1]
local is_taken = last_epoch and #last_epoch == 8 and read('<i8', last_epoch) > epoch
if not is_taken then redis.call('HSET', KEYS[3], host, pack('<i8', epoch)) end
redis.call('PEXPIRE', KEYS[3], 60000)
local reply = { pack('<I4I4I1', hosts_alive, alive(KEYS[2]), is_taken and 1 or 0) }

for i = 1, pools do
  local key = KEYS[i + 3]
  local slots_here, critical_here, other_here = read(REPORT, reports, (i - 1) * REPORT_BYTES + 1)
  local values = redis.call('HMGET', key, 'sums', host)
  local sums, said, overtaken = values[1], values[2], 0
  local since, counted, slots, critical, other, hosts = now, -1, 0, 0, 0, 0
  if sums and #sums == SUMS_BYTES then since, counted, slots, critical, other, hosts = read(SUMS, sums) end
  local is_said = said and #said == SAID_BYTES
  local is_old = counted < 0 or counted > now or counted <= now - COUNTED or said and not is_said
  -- Nobody has spoken for so long, or the clock was set on: all of it is gone at once.
  if counted < now - KEPT then since = now end
  since = min(since, now)
  if is_said then
    local its_epoch, its_seq, _, its_slots, its_critical, its_other = read(SAID, said)
    if its_epoch > epoch or its_epoch == epoch and its_seq > seq then
      overtaken = 1
    else
      slots, critical, other, hosts = slots - its_slots, critical - its_critical, other - its_other, hosts - 1
    end
  end
  if overtaken == 0 then
    if slots_here + critical_here + other_here > 0 then
      redis.call('HSET', key, host, pack(SAID, epoch, seq, now, slots_here, critical_here, other_here))
      slots, critical, other, hosts = slots + slots_here, critical + critical_here, other + other_here, hosts + 1
    elseif said then
      redis.call('HDEL', key, host)
    end
  end
  if is_old then counted, slots, critical, other, hosts = count(key) end
  redis.call('HSET', key, 'sums', pack(SUMS, since, counted, slots, critical, other, hosts))
  redis.call('PEXPIRE', key, 60000)
  local missing = now - since < KEPT and 1 or 0
  slots, critical, other = min(slots, COUNT_MAX), min(critical, COUNT_MAX), min(other, COUNT_MAX)
  reply[i + 1] = pack('<i8i8i8I4I1I1', slots, critical, other, hosts, overtaken, missing)
end
return table.concat(reply)
