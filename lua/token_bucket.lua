-- Token bucket. The state is the tokens (below 0 in debt), the anchor (the last refill that they
-- include) and the instant at which the bucket was opened. `units` come back after each whole
-- `period`, up to `burst`.
local function refills(tokens, place)
  return math.ceil(math.max(0, place.burst - tokens) / place.units)
end

-- Returns the bucket with all refills until now.
local function bucket(place)
  local state = place.state
  if not state then
    return { tokens = place.initial, us = now, ns = nano, opened = now, opened_nano = nano }
  end
  local full = state.us + refills(state.tokens, place) * place.period
  if state.tokens >= place.burst or not before(now, nano, full, state.ns) then
    state.tokens, state.us = place.burst, full
  else
    local gone = whole(minus(now, nano, state.us, state.ns), place.period)
    state.tokens, state.us = state.tokens + gone * place.units, state.us + gone * place.period
  end
  return state
end

-- Returns the largest debt of this plan, as tokens.
local function floor(place)
  return place.burst - math.max(place.most, 2 * place.burst) - place.soft
end

local function spend(place, units)
  local state = bucket(place)
  if state.tokens == place.burst then
    state.us, state.ns, state.opened, state.opened_nano = now, nano, now, nano
  end
  state.tokens = state.tokens - units
  place.state = state
end

local function refund(place, units)
  local state = bucket(place)
  local missing = place.burst - state.tokens
  state.tokens = state.tokens + math.min(units, missing)
  if missing > 0 and units >= missing then
    state.us, state.ns = now, nano
  end
  place.state = state
end

algorithms.t = {
  letter = 't',

  plan = function(plan, at)
    local charges, possible, cost, need, most, burst, soft, units, initial, period, kept, after =
      struct.unpack('<BBI5I5I5I5I5I5I5I7I7', plan, at)
    return {
      algorithm = algorithms.t, charges = charges, possible = possible, cost = cost, need = need,
      most = most, burst = burst, soft = soft, units = units, initial = initial, period = period, kept = kept,
    }, after
  end,

  read = function(_, value, at, length)
    if length ~= 24 then
      return
    end
    local tokens = struct.unpack('<i6', value, at)
    local us, ns = instant(value, at + 6)
    local opened, opened_nano = instant(value, at + 15)
    if us and opened then
      return { tokens = tokens, us = us, ns = ns, opened = opened, opened_nano = opened_nano }
    end
  end,

  write = function(place)
    local state = place.state
    return struct.pack('<i6I7HI7H', state.tokens, state.us, state.ns, state.opened, state.opened_nano)
  end,

  newest = function(place)
    return place.state.us
  end,

  follow = function(place, back)
    local state = place.state
    state.us, state.opened = math.max(0, state.us - back), math.max(0, state.opened - back)
  end,

  is_active = function(place)
    local state = place.state
    local full = state.us + refills(state.tokens, place) * place.period
    return before(now, nano, full + place.kept, state.ns)
  end,

  ends = function(place)
    local state = place.state
    return state.us + refills(state.tokens, place) * place.period + place.kept + 1
  end,

  longest = function(place)
    return (math.ceil((place.burst + place.soft) / place.units) + 1) * place.period
  end,

  -- A plan with a larger debt and a faster refill may have written the state. Its debt stays, unless it
  -- is far beyond any of this plan.
  exceeds_plan = function(place)
    return place.state.tokens < place.burst - 16 * (place.burst - floor(place))
  end,

  bound = function(place)
    place.state.tokens = floor(place)
  end,

  fits = function(place, ahead)
    return ahead * place.cost + place.need - place.soft <= bucket(place).tokens
  end,

  charge = function(place, times)
    spend(place, times * place.cost)
  end,

  open = function(place)
    if place.kept > 0 then
      place.state = bucket(place)
    end
  end,

  late = function(place)
    spend(place, math.min(place.cost, math.max(0, bucket(place).tokens + place.most - place.burst)))
  end,

  refund = function(place)
    refund(place, place.cost)
  end,

  -- Refills since the charge count as refills of that charge. For an undo, `need` is the number of
  -- units charged, and `cost` the number to refund.
  undo = function(place, taken, taken_nano)
    local state = bucket(place)
    if before(taken, taken_nano, state.opened, state.opened_nano) then
      return
    end
    local since, since_nano = minus(state.us, state.ns, taken, taken_nano)
    local back = 0
    if since >= 0 then
      back = whole(since, place.period) * place.units
      if math.fmod(since, place.period) + since_nano > 0 then
        back = back + place.units
      end
    end
    refund(place, math.min(place.cost, math.max(0, place.need - back)))
  end,
}
