-- plant: up to 32 cells go by other names from some moment on. The first who says so is heard: what was asked for by the new
-- name since then is newer. What stood there before is of another time, when that name was in use before. Before that moment
-- nothing is done: what is asked for by then could not be told from what was there before.
--
-- KEYS: one for each cell. ARGV: the moment; what each cell is, to the byte. Reply: now.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local from = read('<i8', ARGV[1])
if now < from then return pack('<i8', now) end
local values = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local value, brought = values[i], ARGV[i + 1]
  local c = read_window(brought)
  if c then
    local present = read_window(value)
    if not present or present.at < from then keep_window(key, c) end
  elseif is_cell(brought) then
    local _, _, _, _, _, _, at = read(CELL, is_cell(value) and value or brought)
    if not is_cell(value) or at < from then keep(key, read(CELL, brought)) end
  end
end
return pack('<i8', now)
