-- Held slots are a string: the earliest end of an entry, or an instant before it (7 bytes), the latest
-- end, or an instant after it (7), the number of slots (4), and the entries. Each call that took slots
-- has one: its number (8), which no other call of any process has, how many of its slots are held (4),
-- and the microsecond until which they count (7).

-- Returns the value of a key with slots, or false, and true if it is invalid.
local function load_slots(set)
  local value = redis.pcall('GET', set)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then
      redis.call('GET', set)
    end
  elseif not value or #value > 18 and math.fmod(#value - 18, 19) == 0 then
    return value
  end
  return false, true
end

-- Returns the entries, their earliest and latest end and the number of slots, without those that have
-- ended. An entry of `left` has at most that many slots. One that is in `renewed` as well counts until
-- `most`, and is set to true there. None counts for longer, unless the clock stepped back.
local function sweep_slots(entries, most, left, renewed)
  local first, last, held = most, now, 0
  entries = string.gsub(entries, '(........)(....)(.......)', function(number, units, ends)
    units, ends = struct.unpack('<I4I7', units .. ends)
    units, ends = math.min(units, left[number] or units), math.min(ends, most)
    if units == 0 or ends <= now then
      return ''
    elseif renewed and left[number] then
      renewed[number], ends = true, most
    end
    first, last, held = math.min(first, ends), math.max(last, ends), held + units
    return struct.pack('<c8I4I7', number, units, ends)
  end)
  return entries, first, last, held
end

-- Returns a list of freed slots as a table: how many slots of each call are left.
local function by_number(freed)
  local left = {}
  for at = 1, #freed, 12 do
    local number, units = struct.unpack('<c8I4', freed, at)
    left[number] = units
  end
  return left
end

-- Returns the same as `sweep_slots` for the value of a key, with the entries in two parts, and true if
-- it differs from the value. The server hashes each string of a script, so there are few long ones.
local function free_slots(value, most, freed)
  if not value then
    return '', '', most, now, 0
  end
  local first, last, held = struct.unpack('<I7I7I4', value)
  if first <= now or last > most or #freed > 96 then
    local entries
    entries, first, last, held = sweep_slots(string.sub(value, 19), most, by_number(freed))
    return entries, '', first, last, held, true
  end
  local from, before, after, changed = 19, nil, nil, false
  for at = 1, #freed, 12 do
    if before then
      value, from, before = before .. after, 1, nil
    end
    local number, left = struct.unpack('<c8I4', freed, at)
    local found = string.find(value, number, from, true)
    while found and math.fmod(found - from, 19) > 0 do
      found = string.find(value, number, found + 1, true)
    end
    local units = found and struct.unpack('<I4', value, found + 8) or 0
    if left < units then
      held, changed = held - units + left, true
      before = string.sub(value, from, found - 1)
      if left > 0 then
        before = before .. struct.pack('<c8I4c7', number, left, string.sub(value, found + 12, found + 18))
      end
      after = string.sub(value, found + 19)
    end
  end
  return before or string.sub(value, from), before and after or '', first, last, held, changed
end

-- Writes slots of which none is new. No answer depends on it, so a server that rejects writes can still
-- deny. If it has no memory, it does not reject a write after one that needs none.
local function keep_slots(set, before, after, first, last, held)
  local ms = math.ceil((last - now) / 1000) + extra_ttl
  local value = struct.pack('<I7I7I4', first, last, held) .. before .. after
  if held == 0 then
    redis.pcall('UNLINK', set)
  elseif redis.pcall('SET', set, value, 'PX', ms).err then
    redis.pcall('PEXPIRE', set, ms)
    redis.pcall('SET', set, value, 'PX', ms)
  end
end

-- Adds the slots of a call, which count until `most`.
local function add_slots(set, number, units, most, before, after, first, held)
  first = held > 0 and first or most
  local head = struct.pack('<I7I7I4', first, most, held + units)
  local value = head .. before .. after .. struct.pack('<c8I4I7', number, units, most)
  redis.call('PSETEX', set, math.ceil((most - now) / 1000) + extra_ttl, value)
end
