-- Sliding window. The state has the charges of the last period by buckets, oldest first, 14 bytes
-- each: the instant of the last charge in the bucket, and its units. Newer buckets count in full.
-- The oldest one, which is leaving, counts by the share of it that is still inside the period.

-- Returns the instant at which the bucket of an instant has left the period. It leaves during the
-- width before that.
local function left(place, us)
  return us - math.fmod(us, place.width) + (place.buckets + 1) * place.width
end

local function same(place, us, other)
  return whole(us, place.width) == whole(other, place.width)
end

local function entry(state, i)
  return struct.unpack('<I7HI5', state.list, i * 14 + 1)
end

-- Returns the units in the buckets that are completely inside; the units of leaving buckets times
-- their microseconds inside, rounded up; and the number of entries that have left.
local function used(place)
  local state = place.state
  if not state then
    return 0, 0, 0
  end
  local inner, leaving, leaving_nano, gone = state.total, 0, 0, 0
  for i = 0, #state.list / 14 - 1 do
    local us, _, units = entry(state, i)
    local inside, inside_nano = minus(left(place, us), 0, now, nano)
    if inside >= place.width and inside + inside_nano > place.width then
      break
    end
    inner = inner - units
    if inside < 0 or inside + inside_nano == 0 then
      gone = i + 1
    else
      leaving, leaving_nano = leaving + units * inside, leaving_nano + units * inside_nano
    end
  end
  return inner, leaving + whole(leaving_nano + 999, 1000), gone
end

local function add(place, more)
  local state = place.state or { list = '', total = 0 }
  local _, _, gone = used(place)
  for i = 0, gone - 1 do
    local _, _, units = entry(state, i)
    state.total = state.total - units
  end
  if gone > 0 then
    state.list = string.sub(state.list, gone * 14 + 1)
  end
  if more > 0 then
    local us, ns, units = now, nano, 0
    local newest = #state.list / 14 - 1
    if newest >= 0 then
      local last, last_nano, last_units = entry(state, newest)
      local later = not before(last, last_nano, now, nano)
      if later or same(place, last, now) then
        units = last_units
        if later then
          us, ns = last, last_nano
        end
        state.list = string.sub(state.list, 1, newest * 14)
      end
    end
    state.list = state.list .. struct.pack('<I7HI5', us, ns, units + more)
    state.total = state.total + more
  end
  place.state = state
end

-- Removes up to `units` units, newest first, from the entries that `which` selects.
local function take(place, units, which)
  local state, kept = place.state, {}
  if not state then
    return
  end
  for i = #state.list / 14 - 1, 0, -1 do
    local us, ns, of = entry(state, i)
    if which(us) then
      local taken = math.min(of, units)
      of, units, state.total = of - taken, units - taken, state.total - taken
    end
    if of > 0 then
      table.insert(kept, 1, struct.pack('<I7HI5', us, ns, of))
    end
  end
  state.list = table.concat(kept)
end

algorithms.s = {
  letter = 's',

  plan = function(plan, at)
    local charges, possible, cost, need, most, units, soft, width, buckets, after =
      struct.unpack('<BBI5I5I5I5I5I7I4', plan, at)
    return {
      algorithm = algorithms.s, charges = charges, possible = possible, cost = cost, need = need,
      most = most, units = units, soft = soft, width = width, buckets = buckets,
    }, after
  end,

  read = function(_, value, at, length)
    if length < 5 or math.fmod(length - 5, 14) > 0 then
      return
    end
    local total, sum, newest = struct.unpack('<I5', value, at), 0, 0
    for item = at + 5, at + length - 1, 14 do
      local us, units = instant(value, item), struct.unpack('<I5', value, item + 9)
      if not us or us < newest or units == 0 then
        return
      end
      sum, newest = sum + units, us
    end
    if sum == total then
      return { total = total, list = string.sub(value, at + 5, at + length - 1) }
    end
  end,

  write = function(place)
    local state = place.state
    return struct.pack('<I5', state.total) .. state.list
  end,

  newest = function(place)
    local list = place.state.list
    return list == '' and 0 or (entry(place.state, #list / 14 - 1))
  end,

  -- Buckets move by whole widths.
  follow = function(place, _, last)
    local state, moved = place.state, {}
    local back = (whole(last, place.width) - whole(now, place.width)) * place.width
    for i = 0, #state.list / 14 - 1 do
      local us, ns, units = entry(state, i)
      moved[i + 1] = struct.pack('<I7HI5', math.max(0, us - back), ns, units)
    end
    state.list = table.concat(moved)
  end,

  is_active = function(place)
    return algorithms.s.ends(place) > now
  end,

  ends = function(place)
    local state = place.state
    if state.list == '' then
      return 0
    end
    return left(place, (entry(state, #state.list / 14 - 1)))
  end,

  longest = function(place)
    return left(place, now) - now
  end,

  fits = function(place, ahead)
    local inner, leaving = used(place)
    local room = place.units + place.soft - inner - ahead * place.cost - place.need
    return room >= 0 and leaving <= room * place.width
  end,

  charge = function(place, times)
    add(place, times * place.cost)
  end,

  open = function() end,

  late = function(place)
    local inner, leaving = used(place)
    local over = whole(leaving + place.width - 1, place.width)
    add(place, math.min(place.cost, math.max(0, place.most - inner - over)))
  end,

  refund = function(place)
    take(place, place.cost, function()
      return true
    end)
  end,

  undo = function(place, taken)
    take(place, place.cost, function(us)
      return same(place, us, taken)
    end)
  end,
}
