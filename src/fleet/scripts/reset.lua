-- reset: one cell is as full as it can be with what hosts hold of it.
--
-- KEYS: the cell. Reply: whether it was there.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.call('GET', KEYS[1])
local c = read_window(value)
if c then
  forward_window(c, now)
  -- What was counted before is forgotten, and so cannot come back.
  for i = 1, c.slots do c[i] = 0 end
  c.since = now
  keep_window(KEYS[1], c)
  return pack('<I1', 1)
end
if not is_cell(value) then return pack('<I1', 0) end
local version, num, den, burst, level, _, at, held, held0, demand, demand0, hosts, hosts0 =
  cell_at(now, value, 0, 1, 1, 0, -1, false)
level = max(level, burst - held - held0)
keep(KEYS[1], version, num, den, burst, level, 0, at, held, held0, demand, demand0, hosts, hosts0)
return pack('<I1', 1)
