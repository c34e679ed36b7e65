#!lua
-- overrides: the one document of fleet overrides. It is replaced whole, by a host that has seen the document that it replaces.
--
-- KEYS: the document. ARGV: the stamp of the value that the host last saw; the document to put in its place, if there is one.
-- The stamp of a value is its SHA-1; without a value that of '', and that of '-' if no host wrote it. Redis cannot check a
-- document: hosts do. Reply: the value, if it is another than the host last saw; else 1, and the new document is stored.
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
