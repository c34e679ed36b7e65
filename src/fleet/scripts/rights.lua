#!lua flags=no-writes
-- rights: the commands of the other scripts that this user may not run, and the settings of this server that matter to fleet
-- budgets. Changes nothing.
--
-- KEYS: hosts by their last heartbeat, or none if another server has them.
-- Reply: refused commands, separated by spaces; now (empty: TIME is refused); hosts (empty: no key given, or refused); the
-- eviction policy, the maximum memory and the role (empty: INFO is refused).
local KEY = KEYS[1] or 'tg:{tm}:hosts'
local CALLED = {
  { 'TIME' },
  { 'GET', KEY },
  { 'HDEL', KEY, '' },
  { 'HGETALL', KEY },
  { 'HLEN', KEY },
  { 'HMGET', KEY, '' },
  { 'HSET', KEY, '', '' },
  { 'MGET', KEY },
  { 'PEXPIRE', KEY, '1' },
  { 'SET', KEY, '', 'PX', '1' },
  { 'ZADD', KEY, '0', '' },
  { 'ZCARD', KEY },
  { 'ZRANGEBYSCORE', KEY, '0', '0', 'LIMIT', '0', '1' },
  { 'ZREM', KEY, '' },
}

local refused, may = {}, {}
for _, command in ipairs(CALLED) do
  may[command[1]] = redis.acl_check_cmd(unpack(command))
  if not may[command[1]] then refused[#refused + 1] = command[1] end
end

local now, hosts, policy, memory, role = '', '', '', '', ''
if may.TIME then
  local time = redis.call('TIME')
  now = string.format('%.0f', time[1] * 1000000 + time[2])
end
if KEYS[1] and may.ZCARD then hosts = tostring(redis.call('ZCARD', KEYS[1])) end
if redis.acl_check_cmd('INFO', 'memory') then
  local info = redis.call('INFO', 'memory')
  policy = string.match(info, 'maxmemory_policy:([%w-]+)') or ''
  memory = string.match(info, 'maxmemory:(%d+)') or ''
  role = string.match(redis.call('INFO', 'replication'), 'role:(%l+)') or ''
end
return { table.concat(refused, ' '), now, hosts, policy, memory, role }
