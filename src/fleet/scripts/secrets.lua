#!lua
-- Which of the secrets that hosts have makes the keys: kept where beats are, and changed for all at one moment of this clock.
--
-- What is in use stays so while some host does not name another one first. Once all do, that is taken, from some seconds on:
-- each host hears of it before. What nobody has any more gives way. A Redis that has forgotten it goes by what hosts use.
local SILENT = 5000000
-- A host that is away for a moment, as while it restarts, is waited for.
local GONE = 30000000
-- More than any host goes by what it last heard of this (2.5 s): none is surprised.
local LEAD = 3000000
-- After all was forgotten: until each host has beaten once, and has said what it uses.
local SETTLES = 2000000
local COUNTED = 500000
local NAMES_MAX = 4
local NAME_BYTES = 8
local NO_SECRET = string.rep('\0', 8)
local NO_NAMES = string.rep('\0', NAMES_MAX * NAME_BYTES)
local IN_USE = '<i8i8I4'
local IN_USE_BYTES = 76

local min, max, sub = math.min, math.max, string.sub
local pack, read = struct.pack, struct.unpack

-- What hosts have said: whether this one may be taken instead of the one in use; and how many do not name `wanted` first.
local function count_secrets(key, now, alive, first, uses, wanted)
  local listed, all_first, is_had, lacking, names = 0, true, false, 0, {}
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field ~= 'use' then
      local at = #value >= 24 and read('<i8', value) or -1
      if at < now - GONE or at > now then
        redis.call('HDEL', key, field)
      else
        local its_first = sub(value, 17, 24)
        if at >= now - SILENT then
          listed = listed + 1
          is_had = is_had or its_first == uses or sub(value, 25, 32) == uses
        end
        all_first = all_first and its_first == first
        if its_first ~= wanted then
          lacking = lacking + 1
          names[lacking] = sub(field, 1, NAME_BYTES)
        end
      end
    end
  end
  table.sort(names)
  local told = sub(table.concat(names, '', 1, min(lacking, NAMES_MAX)) .. NO_NAMES, 1, #NO_NAMES)
  return not is_had or all_first and listed >= alive, lacking + max(alive - listed, 0), told
end

-- What one host says (which it uses, if it knows; which it has, in its order), and what is said to it.
local function agree(key, now, host, said, alive)
  if said == '' then return '' end
  local values = redis.call('HMGET', key, 'use', host)
  local state, known = values[1], values[2]
  local here, first = sub(said, 1, 8), sub(said, 9, 16)
  local before, uses, wanted, from, counted, lacking, names = NO_SECRET, here, NO_SECRET, now, -1, 0, NO_NAMES
  if state and #state == IN_USE_BYTES then
    before, uses, wanted, names = sub(state, 1, 8), sub(state, 9, 16), sub(state, 17, 24), sub(state, 45, 76)
    from, counted, lacking = read(IN_USE, state, 25)
    -- The clock was set back.
    from = min(from, now + LEAD)
  elseif here == NO_SECRET then
    uses, from = first, now + SETTLES
  end
  -- Who uses one speaks before who is yet to be told of one.
  if before == NO_SECRET and now < from and here ~= NO_SECRET then uses, from = here, now end
  redis.call('HSET', key, host, pack('<i8', now) .. said)
  if not known or sub(known, 9) ~= said or counted <= now - COUNTED or counted > now then
    counted = now
    if first ~= uses then wanted = first end
    local may_turn
    may_turn, lacking, names = count_secrets(key, now, alive, first, uses, wanted)
    if may_turn and first ~= uses and now >= from then before, uses, from = uses, first, now + LEAD end
  end
  redis.call('HSET', key, 'use', before .. uses .. wanted .. pack(IN_USE, from, counted, lacking) .. names)
  redis.call('PEXPIRE', key, 2678400000)
  if wanted ~= first then lacking, names = 0, NO_NAMES end
  return before .. uses .. pack('<i8I4', from, lacking) .. names
end
