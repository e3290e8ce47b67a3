-- Sliding log: each charge of the last period with its instant, in a list next to the account,
-- oldest first, 14 bytes each. The account holds the sum of their units and the newest instant. A
-- list that does not match the account (it was evicted, or is foreign) counts as empty.

-- The maximum number of entries that a reply is computed from. They take 0.1 ms of the server.
local most_entries = 250

local function entry(item, back)
  if type(item) == 'string' and #item == 14 then
    local us, ns, units = struct.unpack('<I7HI5', item)
    us = math.max(0, us - back)
    if us <= now and ns < 1000 and units > 0 then
      return us, ns, units
    end
  end
end

local function at(place, index)
  return entry(redis.pcall('LINDEX', place.list, index), 0)
end

local function gone(place, us, ns)
  return not before(now, nano, us + place.period, ns)
end

-- Drops expired entries.
local function forget(place)
  local state = place.state
  while state and state.total > 0 do
    local us, ns, units = at(place, 0)
    if not us then
      state.total = 0
    elseif not gone(place, us, ns) then
      return
    else
      redis.call('LPOP', place.list)
      state.total = math.max(0, state.total - units)
    end
  end
end

local function add(place, units)
  local state = place.state
  if not state or state.total == 0 then
    redis.call('DEL', place.list)
    state = { total = 0, us = 0, ns = 0 }
    place.state = state
  end
  if units == 0 then
    return
  end
  state.total = state.total + units
  if not before(state.us, state.ns, now, nano) then
    local _, _, of = at(place, -1)
    if of then
      redis.call('LSET', place.list, -1, struct.pack('<I7HI5', state.us, state.ns, of + units))
      return
    end
  end
  state.us, state.ns = now, nano
  redis.call('RPUSH', place.list, struct.pack('<I7HI5', now, nano, units))
end

-- Recomputes the sum once per period, so that lost or broken entries have no lasting effect.
local function recount(place)
  local total = 0
  for _, item in ipairs(redis.pcall('LRANGE', place.list, 0, -1)) do
    local us, _, units = entry(item, 0)
    total = total + (us and units or 0)
  end
  place.state.total = total
end

-- Removes up to `units` units from the entry at an index. Returns the number of removed units.
local function take(place, index, units)
  local state = place.state
  local us, ns, of = at(place, index)
  if not us then
    return 0
  end
  local taken = math.min(of, units)
  state.total = math.max(0, state.total - taken)
  if of > taken then
    redis.call('LSET', place.list, index, struct.pack('<I7HI5', us, ns, of - taken))
  else
    redis.call('LSET', place.list, index, 'gone')
    redis.call('LREM', place.list, -1, 'gone')
    local newest, newest_nano = at(place, -1)
    state.us, state.ns = newest or 0, newest_nano or 0
  end
  return taken
end

-- Returns the index of the entry of an instant. The entries are in order, and each has at least one
-- unit, so the sum is at least their number.
local function find(place, us, ns)
  local low, high = 0, place.state.total - 1
  while low <= high do
    local middle = whole(low + high, 2)
    local found, found_nano = at(place, middle)
    if not found or before(us, ns, found, found_nano) then
      high = middle - 1
    elseif before(found, found_nano, us, ns) then
      low = middle + 1
    else
      return middle
    end
  end
end

algorithms.l = {
  letter = 'l',

  plan = function(plan, from)
    local charges, possible, cost, need, most, units, soft, period, key, after =
      struct.unpack('<BBI5I5I5I5I5I7H', plan, from)
    return {
      algorithm = algorithms.l, charges = charges, possible = possible, cost = cost, need = need,
      most = most, units = units, soft = soft, period = period, list = KEYS[key],
    }, after
  end,

  read = function(place, value, from, length)
    local us, ns = instant(value, from + 5)
    if length == 14 and us then
      return { total = struct.unpack('<I5', value, from), us = us, ns = ns }
    end
  end,

  write = function(place)
    local state = place.state
    return struct.pack('<I5I7H', state.total, state.us, state.ns)
  end,

  -- The reply does not need the whole log, only the entries until one more unit fits and until this
  -- cost fits. After several charges, each of them needs other entries. One entry at the newest instant
  -- replaces the rest. A wait for more than `most_entries` is therefore too long, and never too short.
  show = function(place)
    local state, several = place.state, place.times and place.times > 1
    local parts = { struct.pack('<I5I7H', state.total, state.us, state.ns) }
    local left, sum = state.total, 0
    local next_room = math.min(state.total, place.units) - 1
    local cost_room = place.units + place.soft - math.max(1, place.need)
    local room = math.max(next_room, cost_room)
    local last = math.max(0, cost_room >= 0 and math.min(next_room, cost_room) or next_room)
    -- Each entry has at least one unit.
    local most = math.min(left - last, most_entries)
    local items = most > 0 and redis.pcall('LRANGE', place.list, 0, most - 1) or {}
    for _, item in ipairs(items) do
      local us, ns, units = entry(item, 0)
      if not us or left <= last then
        break
      end
      left, sum = left - units, sum + units
      if left <= room or several then
        parts[#parts + 1] = struct.pack('<I7HI5', us, ns, sum)
        sum, room = 0, last
      end
    end
    if left + sum > 0 then
      parts[#parts + 1] = struct.pack('<I7HI5', state.us, state.ns, left + sum)
    end
    return table.concat(parts)
  end,

  newest = function(place)
    return place.state.us
  end,

  follow = function(place, back)
    local state, items = place.state, redis.pcall('LRANGE', place.list, 0, -1)
    redis.call('DEL', place.list)
    state.us, state.total = math.max(0, state.us - back), 0
    for _, item in ipairs(items) do
      local us, ns, units = entry(item, back)
      if us then
        redis.call('RPUSH', place.list, struct.pack('<I7HI5', us, ns, units))
        state.total = state.total + units
      end
    end
  end,

  is_active = function(place)
    local total, period = place.state.total, place.period
    if place.last and whole(place.last, period) ~= whole(now, period) then
      recount(place)
      place.last, place.shrunk = nil, true
    end
    forget(place)
    place.shrunk = place.shrunk or place.state.total ~= total
    return place.state.total > 0 and not gone(place, place.state.us, place.state.ns)
  end,

  ends = function(place)
    return place.state.us + place.period + 1
  end,

  longest = function(place)
    return place.period + 1
  end,

  fits = function(place, ahead)
    local total = place.state and place.state.total or 0
    return total + ahead * place.cost + place.need <= place.units + place.soft
  end,

  charge = function(place, times)
    add(place, times * place.cost)
    place.times = times
  end,

  open = function() end,

  late = function(place)
    local total = place.state and place.state.total or 0
    add(place, math.min(place.cost, math.max(0, place.most - total)))
  end,

  refund = function(place)
    local left, taken = place.cost, nil
    while left > 0 and taken ~= 0 do
      taken = take(place, -1, left)
      left = left - taken
    end
  end,

  undo = function(place, taken, taken_nano)
    local index = find(place, taken, taken_nano)
    if index then
      take(place, index, place.cost)
    end
  end,
}
