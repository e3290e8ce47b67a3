-- Renews held slots. A slot that has ended is never renewed. If one slot of a request has ended, its
-- others are freed.
--
-- KEYS: the sets. ARGV: the time to live in microseconds (7) and the store (8), then for each set the
-- slots of each request: the first number (8) and how many (2). Returns `1` for each request whose slots
-- count, and `0` for the others.
local ttl, store = struct.unpack('<I7c8', ARGV[1])
local counted = ''

for i = 1, plans - 1 do
  local set, requests, kept, ended = KEYS[i], ARGV[i + 1], {}, {}
  local exists = last_end(set)
  for at = 1, #requests, 10 do
    local slots = {}
    append(slots, store, struct.unpack('<I8H', requests, at))
    local scores = exists and redis.call('ZMSCORE', set, unpack(slots))
    local counts = scores
    for j = 1, #slots do
      counts = counts and scores[j] and tonumber(scores[j]) > now + fraction
    end
    local into = counts and kept or ended
    for j = 1, #slots do
      into[#into + 1] = slots[j]
    end
    counted = counted .. (counts and '1' or '0')
  end
  if exists and #ended > 0 then
    redis.call('ZREM', set, unpack(ended))
  end
  if #kept > 0 then
    -- Also without memory, because the first write of a script decides, and this one needs none.
    redis.call('PEXPIRE', set, math.ceil(ttl / 1000) + extra_ttl)
    redis.call('ZADD', set, 'XX', until_end(kept, now + ttl))
  end
end
return counted
