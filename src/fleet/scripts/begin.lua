-- Starts a command on the cells of one bucket. Returns the clock, the values of its keys, the head of its reply, and whether
-- the birth of the bucket differs from the one that the host knows: then Redis has lost the bucket.
--
-- KEYS[1]: the birth, the time at which Redis first stored the bucket. ARGV[1]: the birth that the host knows; 0: none.
local function begin()
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local values = redis.call('MGET', unpack(KEYS))
  local born = now
  if values[1] and #values[1] == 8 then born = read('<i8', values[1]) end
  redis.call('SET', KEYS[1], pack('<i8', born), 'PX', 2592000000)
  return now, values, { pack('<i8i8', born, now) }, read('<i8', ARGV[1]) ~= born
end

-- Whether `entries` has one entry for each key but the birth: of `length` bytes, or `more` of them for a window, whose rate is 0.
local function fits_keys(entries, length, more)
  local at = 1
  for _ = 2, #KEYS do
    if #entries < at + length - 1 then return false end
    at = at + length + (read('<I4', entries, at + 8) == 0 and more or 0)
  end
  return at - 1 == #entries
end
