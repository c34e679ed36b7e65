#!lua
-- orders: the one list of what operators say to all hosts. It is changed whole, and only by who knows what it says.
--
-- KEYS: the list. ARGV: the stamp of the list that the host knows (its life, its number, when it was put; number 0: none);
-- the list to put in its place, if there is one.
-- Reply: what came of it, now, the stamp that holds; the list, where the host knows another.
local STAMP_BYTES, LIST_BYTES_MAX, KEPT_MS = 32, 65536, 34560000000
local SAME, CHANGED, BEHIND, WRITTEN, TOO_LONG = '\0', '\1', '\2', '\3', '\4'
local known, put = ARGV[1], ARGV[2]
if #known ~= STAMP_BYTES then return redis.error_reply('ERR no stamp') end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local life, number = string.sub(known, 1, 16), struct.unpack('<i8', known, 17)
-- No host counts so far, and none counts down: somebody else wrote it, and counting begins again.
if number < 0 or number > 9007199254740990 then number = 0 end
local value = redis.call('GET', KEYS[1])
if value and #value < STAMP_BYTES then value = nil end
local stamp = value and string.sub(value, 1, STAMP_BYTES)
-- Lost, or taken back to what it was before: who knows a later one of the same life is to put it again.
local is_behind = not value
  or string.sub(stamp, 1, 16) == life and struct.unpack('<i8', stamp, 17) < number

if put and (is_behind or stamp == known) then
  stamp = life .. struct.pack('<i8i8', number + 1, now)
  redis.call('SET', KEYS[1], stamp .. put, 'PX', KEPT_MS)
  return WRITTEN .. struct.pack('<i8', now) .. stamp
end
if value then redis.call('PEXPIRE', KEYS[1], KEPT_MS) end
local said, list = CHANGED, ''
if is_behind and number > 0 then
  said, stamp = BEHIND, known
elseif not value or stamp == known then
  said, stamp = SAME, known
elseif #value > STAMP_BYTES + LIST_BYTES_MAX then
  said = TOO_LONG
else
  list = string.sub(value, STAMP_BYTES + 1)
end
return said .. struct.pack('<i8', now) .. stamp .. list
