#!lua
-- overrides: reads or replaces the document of fleet overrides. Only a host that has read the current one can replace it.
--
-- KEYS: the document. ARGV: the stamp of the value that the host last read; the new document, if any.
-- The stamp of a value is its SHA-1; '' if there is none; '-' if no host wrote it. Hosts check documents; Redis cannot.
-- Reply: the result; the value, if it differs from the one that the host last read.
local BYTES_MAX, KEPT_MS = 65536, 34560000000
local SAME, CHANGED, WRITTEN, UNREADABLE = '\0', '\1', '\2', '\3'

local value, stamp = redis.pcall('GET', KEYS[1]), ''
if type(value) == 'table' and not string.find(value.err, '^WRONGTYPE') then return value end
if type(value) == 'table' or value and #value > BYTES_MAX then
  stamp = '-'
elseif value and value ~= '' then
  stamp = redis.sha1hex(value)
end
if stamp ~= ARGV[1] then return stamp == '-' and UNREADABLE or CHANGED .. (value or '') end
if not ARGV[2] then return SAME end
redis.call('SET', KEYS[1], ARGV[2], 'PX', KEPT_MS)
return WRITTEN
