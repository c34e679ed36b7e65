-- peek: what up to 32 cells are now. It changes nothing.
--
-- KEYS: one for each cell. Reply: now; for each cell whether it is there, version, num, den, burst, level, held, demand, hosts.
-- Of a window the rate is one in one, and the burst its limit.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = { pack('<i8', now) }
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  local c = read_window(value)
  if c then
    forward_window(c, now)
    reply[i + 1] = pack('<I1i8I4I4i8i8i8i8I4', 1, c.version, 1, 1, c.limit, level_of(c), c.held + c.held0,
      c.demand + c.demand0, c.hosts + c.hosts0)
  elseif is_cell(value) then
    local version, num, den, burst, level, _, _, held, held0, demand, demand0, hosts, hosts0 =
      cell_at(now, value, 0, 1, 1, 0, -1, false)
    reply[i + 1] =
      pack('<I1i8I4I4i8i8i8i8I4', 1, version, num, den, burst, level, held + held0, demand + demand0, hosts + hosts0)
  else
    reply[i + 1] = pack('<I1i8I4I4i8i8i8i8I4', 0, 0, 0, 0, 0, 0, 0, 0, 0)
  end
end
return table.concat(reply)
