#!lua
-- heartbeat: the heartbeat of a host with the loads of its pools. Returns the host count and the sums of all hosts.
--
-- A report of a pool replaces the host's previous report, so a repeated heartbeat counts once. A heartbeat that arrives after
-- a later one is ignored. A report expires after two seconds and is removed at the next count.
--
-- KEYS: hosts by their last heartbeat, of these those with the same secret, those with the same rules, the epochs of hosts, one
-- for each pool. ARGV: host; epoch and sequence number; the reports of the pools. Reply: hosts, hosts with the same secret, with
-- the same rules, whether a host of this name has a later epoch; for each pool slots, critical, other, and whether reports may be
-- missing, as Redis lost them and not all hosts have reported since.
local COUNTED = 500000
local KEPT = 2000000
local COUNT_MAX = 1000000000000
local REPORT = '<i8i8i8'
local REPORT_BYTES = 24
-- SUMS, of all hosts: since when the reports are complete, the time of the count, the sums. SAID, of one host: epoch, sequence
-- number, time of the report, its load.
local SUMS = '<i8i8i8i8i8i8'
local SUMS_BYTES = 48
local SAID = '<i8i8i8i8i8i8'
local SAID_BYTES = 48

local min = math.min
local pack, read = struct.pack, struct.unpack

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local host, reports, pools = ARGV[1], ARGV[3], #KEYS - 4
local epoch, seq = read('<i8i8', ARGV[2])
if #reports ~= pools * REPORT_BYTES then return redis.error_reply('ERR the reports do not fit the pools') end

-- Sums the reports of all hosts. Removes expired reports; a report from the future, left by a clock that was set back, gets
-- the current time.
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
-- Adds this host to a set, removes hosts without a heartbeat for five seconds, and returns the number of hosts. Also removes
-- hosts whose heartbeat is in the future, left by a clock that was set back. The epoch of a removed host is removed too.
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

local hosts_alive = alive(KEYS[1], KEYS[4])
-- Of two daemons with one name, the one that started first must take another name.
local last_epoch = redis.call('HMGET', KEYS[4], host)[1]
local is_taken = last_epoch and #last_epoch == 8 and read('<i8', last_epoch) > epoch
if not is_taken then redis.call('HSET', KEYS[4], host, pack('<i8', epoch)) end
redis.call('PEXPIRE', KEYS[4], 60000)
local reply = { pack('<I4I4I4I1', hosts_alive, alive(KEYS[2]), alive(KEYS[3]), is_taken and 1 or 0) }

for i = 1, pools do
  local key = KEYS[i + 4]
  local slots_here, critical_here, other_here = read(REPORT, reports, (i - 1) * REPORT_BYTES + 1)
  local values = redis.call('HMGET', key, 'sums', host)
  local sums, said, is_overtaken = values[1], values[2], false
  local since, counted, slots, critical, other, hosts = now, -1, 0, 0, 0, 0
  if sums and #sums == SUMS_BYTES then since, counted, slots, critical, other, hosts = read(SUMS, sums) end
  local is_said = said and #said == SAID_BYTES
  local is_old = counted < 0 or counted > now or counted <= now - COUNTED or said and not is_said
  -- No report for that long, or the clock was set forward: all reports have expired.
  if counted < now - KEPT then since = now end
  since = min(since, now)
  if is_said then
    local its_epoch, its_seq, _, its_slots, its_critical, its_other = read(SAID, said)
    if its_epoch > epoch or its_epoch == epoch and its_seq > seq then
      is_overtaken = true
    else
      slots, critical, other, hosts = slots - its_slots, critical - its_critical, other - its_other, hosts - 1
    end
  end
  if not is_overtaken then
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
  reply[i + 1] = pack('<i8i8i8I1', slots, critical, other, missing)
end
return table.concat(reply)
