-- Held slots are the members of a sorted set: the store that holds the slot (8 bytes) and a number
-- (8). The score is the instant until which the slot counts, in microseconds. Only the clock of a test
-- has a fraction.

-- Returns the score of an instant as text.
local function score_of(us)
  return string.format('%.17g', us + fraction)
end

-- Appends the members of a store for consecutive numbers.
local function append(found, store, first, units)
  local size = #found
  for i = 1, units do
    found[size + i] = struct.pack('<c8I8', store, first + i - 1)
  end
end

-- Returns the arguments of `ZADD` that give all members the same end. The server would format a
-- number once for each member, which takes longer than to add it.
local function until_end(found, ends)
  local entries, score = {}, score_of(ends)
  for i = 1, #found do
    entries[2 * i - 1], entries[2 * i] = score, found[i]
  end
  return unpack(entries)
end

-- Removes freed slots of a store: for each request the first number and how many. Returns the number of
-- those that were there.
local function remove(set, store, freed)
  local found = {}
  for at = 1, #freed, 10 do
    append(found, store, struct.unpack('<I8H', freed, at))
  end
  return redis.call('ZREM', set, unpack(found))
end

-- Adds consecutive slots of a store, with their end as text.
local function take(set, store, first, units, ttl, score)
  local entries, size = { score, struct.pack('<c8I8', store, first) }, 2
  if units >= 16 then
    -- A member this long ends the compact form of the set, in which each new member is compared with
    -- all others.
    entries[3], entries[4], size = score, string.rep('-', 65), 4
  end
  for number = first + 1, first + units - 1 do
    entries[size + 1], entries[size + 2] = score, struct.pack('<c8I8', store, number)
    size = size + 2
  end
  redis.call('ZADD', set, unpack(entries))
  if units >= 16 then
    redis.call('ZREM', set, entries[4])
  end
  redis.call('PEXPIRE', set, math.ceil(ttl / 1000) + extra_ttl)
end

-- Returns the last end in a set, or nothing if the set is empty. Removes a value of another type.
local function last_end(set)
  local last = redis.pcall('ZRANGE', set, -1, -1, 'WITHSCORES')
  if last.err then
    if not string.find(last.err, 'WRONGTYPE', 1, true) then
      redis.call('ZRANGE', set, -1, -1)
    end
    redis.call('DEL', set)
    return nil, true
  end
  return tonumber(last[2])
end
