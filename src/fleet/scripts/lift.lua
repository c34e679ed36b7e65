-- lift: what up to 32 cells are, to the byte, which are to go by other names from some moment on. It changes nothing.
--
-- KEYS: one for each cell. ARGV: the moment. Reply: now; and, unless that is before the moment, for each cell how many bytes
-- it has, and these.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = { pack('<i8', now) }
if now < read('<i8', ARGV[1]) then return reply[1] end
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  if not is_cell(value) and not read_window(value) then value = '' end
  reply[i + 1] = pack('<I4', #value) .. value
end
return table.concat(reply)
