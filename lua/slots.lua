-- Held slots are the members of a sorted set: the store that holds the slot (8 bytes) and a number
-- (8). The score is the microsecond until which the slot counts.

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
  local entries, score = {}, string.format('%.0f', ends)
  for i = 1, #found do
    entries[2 * i - 1], entries[2 * i] = score, found[i]
  end
  return unpack(entries)
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
