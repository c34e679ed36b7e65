-- places: a host says how many places it has of up to 64 keys of one bucket and how many it would like, and is told how many
-- more it gets. Nothing refills: what is free is what no host has reported in this generation or the one before.
--
-- KEYS: guard, nonce, one for each key. ARGV: epoch, seq, nonce offered, nonce known (sixteen zeros: none); the keys' asks.
-- Reply: kind, nonce, now; for each key free, demand, grant, hosts, lost, version, generation. Places in millionths.
local ASK = '<i8i8i8i8i8i8i8i8i8I4i8'
local ASK_BYTES = 84
local PLACES = '<i8i8i8i8i8i8i8I4I4i8'
local PLACES_BYTES = 72

-- The places of one who asks. Those that were lost are not given away before every host has had time to say what it has.
local function places_at(now, value, ask_version, ask_most, knew, other_nonce)
  if not value or #value ~= PLACES_BYTES then
    local lost = knew >= 0 and (other_nonce or knew < 9000000)
    return ask_version, ask_most, now, 0, 0, 0, 0, 0, 0, lost and floor(now / GENERATION) + 2 or 0, lost and 1 or 0
  end
  local version, most, at, held, held0, demand, demand0, hosts, hosts0, closed = read(PLACES, value)
  local passed = floor(now / GENERATION) - floor(at / GENERATION)
  if passed == 1 then
    held, held0, demand, demand0, hosts, hosts0 = 0, held, 0, demand, 0, hosts
  elseif passed > 1 then
    held, held0, demand, demand0, hosts, hosts0 = 0, 0, 0, 0, 0, 0
  end
  if now > at or at - now > GENERATION then at = now end
  closed = min(closed, floor(at / GENERATION) + 2)
  if ask_version > version then version, most = ask_version, ask_most end
  return version, most, at, held, held0, demand, demand0, hosts, hosts0, closed, 0
end

local done, now, values, epoch, seq = begin(false)
if done then return done end
local asks, cells = ARGV[2], #KEYS - 2
if #asks ~= cells * ASK_BYTES then return redis.error_reply('ERR the asks do not fit the keys') end
local reply, other_nonce = begin_reply(values[2], now)

for i = 1, cells do
  local ask_version, ask_most, last_hold, last_demand, last_gen, hold, want, need, ask_demand, dice, knew =
    read(ASK, asks, (i - 1) * ASK_BYTES + 1)
  local version, most, at, held, held0, demand, demand0, hosts, hosts0, closed, lost =
    places_at(now, values[i + 2], ask_version, ask_most, knew, other_nonce)
  local gen = floor(at / GENERATION)
  if other_nonce then last_gen = -1 end
  held, held0, demand, demand0, hosts, hosts0 = reported(gen, held, held0, demand, demand0, hosts, hosts0,
    last_hold, last_demand, last_gen, hold, ask_demand)

  -- Who has less than its part gets up to that before those who have more.
  local all, grant = demand + demand0, 0
  local free = most - held - held0
  if gen >= closed then
    local share = max(portion(free, ask_demand, all), portion(most, ask_demand, all) - hold)
    grant = granted(free, share, all, want, dice)
    -- For whom somebody waits he gets it as long as there is one, as from one counter that all ask.
    if free >= TOKEN then grant = max(grant, min(need, want, free - free % TOKEN)) end
  end
  held = min(held + grant, AMOUNT_MAX)
  redis.call('SET', KEYS[i + 2],
    pack(PLACES, version, most, at, held, held0, demand, demand0, hosts, hosts0, closed), 'PX', 10001)
  reply[i + 1] = pack('<i8i8i8I4I1i8i8', free - grant, all, grant, hosts + hosts0, lost, version, gen)
end
return remember(epoch, seq, table.concat(reply))
