-- GCRA. The state is the TAT, the instant at which the account is full again. The account is kept
-- for another `kept` (`initial`), as the quota of this call says.
local function tat(place)
  local state = place.state
  if not state then
    return plus(now, nano, place.initial, place.initial_nano)
  end
  if before(state.us, state.ns, now, nano) then
    return now, nano
  end
  return state.us, state.ns
end

-- Returns the TAT after a number of charges.
local function after(place, times)
  local us, ns = tat(place)
  local nanos = place.cost_nano * times
  return plus(us, ns, place.cost * times + whole(nanos, 1000), math.fmod(nanos, 1000))
end

-- A quota that keeps no full account (`kept` is 0) drops the end that another limit stored, also in an undo.
local function put(place, us, ns)
  place.state = { us = us, ns = ns }
  if place.kept + place.kept_nano == 0 then
    place.stored_end = nil
  end
end

algorithms.g = {
  letter = 'g',

  -- `cost` is the time to add or subtract. `room` is the largest distance of the TAT at which the
  -- charge fits. For a late charge, `room` is the largest distance after it. For an undo, `room` is
  -- the TAT after the charge (an instant), and `possible` is 0 if the charge queued.
  plan = function(plan, at)
    local charges, possible, cost, cost_nano, room, room_nano, kept, kept_nano, initial,
      initial_nano, after = struct.unpack('<BBI7Hi7HI7HI7H', plan, at)
    return {
      algorithm = algorithms.g, charges = charges, possible = possible, cost = cost,
      cost_nano = cost_nano, room = room, room_nano = room_nano, kept = kept,
      kept_nano = kept_nano, initial = initial, initial_nano = initial_nano,
    }, after
  end,

  read = function(_, value, at, length)
    local us, ns = instant(value, at)
    if length == 9 and us then
      return { us = us, ns = ns }
    end
  end,

  write = function(place)
    return struct.pack('<I7H', place.state.us, place.state.ns)
  end,

  -- A TAT may be any time ahead.
  newest = function()
    return 0
  end,

  follow = function(place, back)
    place.state.us = math.max(0, place.state.us - back)
  end,

  is_active = function(place)
    local us, ns = plus(place.state.us, place.state.ns, place.kept, place.kept_nano)
    return before(now, nano, us, ns)
  end,

  ends = function(place)
    return place.state.us + place.kept + 2
  end,

  -- The longest time for which a receipt may hold units. For a reset, `room` is the largest
  -- distance after a charge.
  longest = function(place)
    return place.room + place.kept + 1
  end,

  -- Further ahead leads only a late charge of a quota with a large max_debt. An `unbounded` call has
  -- another `room`, so it tests each TAT. A TAT is the same instant under any plan, so none is reduced.
  exceeds_plan = function(place, unbounded)
    return unbounded or place.state.us - now > 2 * (place.room + place.cost) + 2
  end,

  fits = function(place, ahead)
    local us, ns = after(place, ahead)
    local most, most_nano = plus(now, nano, place.room, place.room_nano)
    return not before(most, most_nano, us, ns)
  end,

  charge = function(place, times)
    put(place, after(place, times))
  end,

  open = function(place)
    if place.kept + place.kept_nano > 0 then
      put(place, tat(place))
    end
  end,

  late = function(place)
    local us, ns = tat(place)
    local after, after_nano = plus(us, ns, place.cost, place.cost_nano)
    local most, most_nano = plus(now, nano, place.room, place.room_nano)
    if before(most, most_nano, after, after_nano) then
      after, after_nano = most, most_nano
    end
    if before(us, ns, after, after_nano) then
      put(place, after, after_nano)
    elseif not place.state then
      algorithms.g.open(place)
    end
  end,

  refund = function(place)
    local us, ns = tat(place)
    if not before(now, nano, us, ns) then
      return
    end
    us, ns = minus(us, ns, place.cost, place.cost_nano)
    if before(us, ns, now, nano) then
      us, ns = now, nano
    end
    put(place, us, ns)
  end,

  -- Units that have come back since are not refunded twice, and charges of others stay. A charge
  -- that queued is undone only if no other charge has queued behind it.
  undo = function(place, charged, charged_nano)
    local us, ns = tat(place)
    if place.possible == 0 and (us ~= place.room or ns ~= place.room_nano) then
      return
    end
    -- A clock that stepped back since the charge does not refill.
    local from, from_nano = now, nano
    if before(now, nano, charged, charged_nano) then
      from, from_nano = charged, charged_nano
    end
    local held, held_nano = minus(place.room, place.room_nano, from, from_nano)
    if held < 0 then
      return
    end
    if before(held, held_nano, place.cost, place.cost_nano) then
      place.cost, place.cost_nano = held, held_nano
    end
    algorithms.g.refund(place)
  end,
}
