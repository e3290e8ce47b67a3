-- Registers a process in a sorted set for a time, and forgets those whose time has ended.
--
-- KEYS: the set. ARGV: the time in microseconds (7 bytes) and the process (8). Returns the rank of the
-- process among all, and their number.
local ttl, process = struct.unpack('<I7c8', ARGV[1])
local set, rank = KEYS[1], 0
if last_end(set) then
  local ended = redis.call('ZRANGE', set, '-inf', score_of(now), 'BYSCORE', 'LIMIT', 0, 256)
  if #ended > 0 then
    redis.call('ZREM', set, unpack(ended))
  end
  -- The clock stepped back. Processes that run register again.
  local ahead = '(' .. score_of(now + ttl)
  ahead = redis.call('ZRANGE', set, '+inf', ahead, 'BYSCORE', 'REV', 'LIMIT', 0, 256)
  if #ahead > 0 then
    redis.call('ZREM', set, unpack(ahead))
  end
end
redis.call('ZADD', set, until_end({ process }, now + ttl))
redis.call('PEXPIRE', set, math.ceil(ttl / 1000) + extra_ttl)

-- Returns true if a process comes before this one. The order of texts depends on the locale of the server.
local function is_before(other)
  for i = 1, #process do
    local code, own = string.byte(other, i) or 0, string.byte(process, i)
    if code ~= own then
      return code < own
    end
  end
  return false
end

local all = redis.call('ZRANGE', set, 0, -1)
for i = 1, #all do
  rank = rank + (is_before(all[i]) and 1 or 0)
end
return { rank, #all }
