#!lua
-- overrides: the one document of fleet overrides. It is replaced whole, by a host that has seen the document that it replaces.
--
-- KEYS: the document. ARGV: the stamp of the value that the host last saw; the document to put in its place, if there is one.
-- The stamp of a value is its SHA-1, '' of none, '-' of one that no host wrote. Redis cannot check a document: hosts do.
-- Reply: what came of it; the value, where it is another than the host last saw.
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
