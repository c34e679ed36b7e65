-- What makes a call happen once: the number of the last one in this lane, and what was said to it.
local OK, STALE, UNKNOWN = 0, 1, 2
local NO_NONCE = string.rep('\0', 16)

local function header(kind, nonce, now)
  return pack('<I1', kind) .. (nonce or NO_NONCE) .. pack('<i8', now)
end

-- What to answer at once, or nothing when the call is to be done. `gaps`: whether it may follow on one that never came.
local function answered(guard, nonce, now, epoch, seq, gaps)
  local last_epoch, last_seq = -1, 0
  if guard and #guard >= 16 then last_epoch, last_seq = read('<i8i8', guard) end
  if last_epoch > epoch or (last_epoch == epoch and last_seq > seq) then return header(STALE, nonce, now) end
  if last_epoch == epoch and last_seq == seq then return string.sub(guard, 17) end
  if last_epoch < epoch then last_seq = 0 end
  if not gaps and seq ~= last_seq + 1 then return header(UNKNOWN, nonce, now) end
end

-- A call begins: what to answer at once, or nothing when it is to be done; now; what lies under its keys; its number.
local function begin(gaps)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local values = redis.call('MGET', unpack(KEYS))
  local epoch, seq = read('<i8i8', ARGV[1])
  return answered(values[1], values[2], now, epoch, seq, gaps), now, values, epoch, seq
end

-- How the reply to a call that is done begins; and whether the host knows another nonce, or none. The nonce of this bucket
-- of cells is made by the first who writes here; another one says that everything was lost.
local function begin_reply(stored, now)
  local nonce, known = stored, string.sub(ARGV[1], 33, 48)
  if not nonce or #nonce ~= 16 then nonce = string.sub(ARGV[1], 17, 32) end
  redis.call('SET', KEYS[2], nonce, 'PX', 2592000000)
  return { header(OK, nonce, now) }, stored ~= known
end

local function remember(epoch, seq, reply)
  redis.call('SET', KEYS[1], pack('<i8i8', epoch, seq) .. reply, 'PX', 60000)
  return reply
end
