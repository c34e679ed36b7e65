#!lua
-- overrides: reads or replaces the document of fleet overrides. Only a host that has read the current one can replace it.
--
-- KEYS: the document. ARGV: the stamp of the value that the host last read; the new document, if any.
-- The stamp of a value is its SHA-1, of no value that of '', and of a value that no host wrote that of '-'. Hosts check
-- documents; Redis cannot. Reply: the value, if it differs from the one that the host last read; else 1, and a new document is
-- stored.
local BYTES_MAX, KEPT_MS = 65536, 34560000000

local value = redis.pcall('GET', KEYS[1]) or ''
if type(value) == 'table' then
  if not string.find(value.err, '^WRONGTYPE') then return value end
  value = '-'
elseif #value > BYTES_MAX then
  value = '-'
end
if redis.sha1hex(value) ~= ARGV[1] then return value end
if ARGV[2] then redis.call('SET', KEYS[1], ARGV[2], 'PX', KEPT_MS) end
return 1
