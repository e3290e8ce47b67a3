-- Fixed window. The state is the start, the units charged, and the bonus carried over from the
-- window before. A window is one period: aligned to the epoch (`kind` 0), anchored at its first
-- charge (1), or aligned and paced (2).
--
-- A period of a calendar (3) has its edges in the plan. Its state is the last charge instead of the
-- start, because the edges may move. `period` is the time for which the state is kept.
local function begin(place, us, ns)
  if place.kind == 1 or place.edges then
    return us, ns
  end
  return us - math.fmod(us, place.period), 0
end

-- Returns the end of the window that starts at an instant, or of the calendar period around it.
local function finish(place, us, ns)
  local edges = place.edges
  if not edges then
    return us + place.period, ns
  end
  for i = 1, 4 do
    if us < edges[i] then
      return edges[i], 0
    end
  end
  return 9007199254740992, 0
end

-- Returns the current window.
local function window(place)
  local state = place.state
  if state then
    -- The period of the quota may have changed.
    local us, ns = begin(place, state.us, state.ns)
    local ends, ends_nano = finish(place, us, ns)
    local carry = place.carry
    if before(now, nano, ends, ends_nano) then
      return { us = us, ns = ns, count = state.count, bonus = math.min(state.bonus, carry) }
    elseif carry > 0 and state.count > 0 and before(now, nano, ends + place.period, ns) then
      local left = math.max(0, place.units - state.count)
      return { us = ends, ns = ns, count = 0, bonus = math.min(left, carry) }
    end
  end
  local us, ns = begin(place, now, nano)
  return { us = us, ns = ns, count = 0, bonus = 0 }
end

-- Returns the instant from which on the account may be dropped.
local function expiry(place)
  local state = place.state
  local us, ns = begin(place, state.us, state.ns)
  if state.count == 0 and math.min(state.bonus, place.carry) == 0 then
    return 0, 0
  elseif state.count > 0 and place.carry > 0 then
    -- Only a window with charges carries units over.
    us = us + place.period
  end
  return us + place.period, ns
end

-- Returns the units of the allowance that pacing has released by now.
local function come(place, state)
  local allowance = place.units + state.bonus
  if place.kind ~= 2 then
    return allowance
  end
  local us, ns = minus(now, nano, state.us, state.ns)
  local gone = us * allowance + whole(ns * allowance, 1000)
  return math.min(allowance, whole(gone, place.period) + 1)
end

-- Returns the time from the start of the window until a paced allowance releases unit `k`.
local function offset(place, state, k)
  local allowance = place.units + state.bonus
  local product = (k - 1) * place.period
  local us = whole(product, allowance)
  local ns = math.ceil((product - us * allowance) * 1000 / allowance)
  return plus(us, 0, whole(ns, 1000), math.fmod(ns, 1000))
end

local function count(place, units)
  local state = window(place)
  state.count = math.max(0, state.count + units)
  if place.edges and units > 0 then
    state.us, state.ns = now, nano
  end
  place.state = state
end

algorithms.f = {
  letter = 'f',

  plan = function(plan, at)
    local charges, possible, cost, need, most, units, soft, period, carry, kind, wait, wait_nano, after =
      struct.unpack('<BBI5I5I5I5I5I7I5BI7H', plan, at)
    local edges
    if kind == 3 then
      edges = { struct.unpack('<I7I7I7I7', plan, after) }
      after = edges[5]
    end
    return {
      algorithm = algorithms.f, charges = charges, possible = possible, cost = cost, need = need,
      most = most, units = units, soft = soft, period = period, carry = carry, kind = kind, wait = wait,
      wait_nano = wait_nano, edges = edges,
      -- The clock of the process is far away.
      outside = edges and (now < edges[1] or now >= edges[4]),
    }, after
  end,

  read = function(_, value, at, length)
    local us, ns = instant(value, at)
    if length == 19 and us then
      local units, bonus = struct.unpack('<I5I5', value, at + 9)
      return { us = us, ns = ns, count = units, bonus = bonus }
    end
  end,

  write = function(place)
    local state = place.state
    return struct.pack('<I7HI5I5', state.us, state.ns, state.count, state.bonus)
  end,

  newest = function(place)
    return (begin(place, place.state.us, 0))
  end,

  -- An aligned window moves to the window of the current time.
  follow = function(place, back, last)
    if place.kind ~= 1 and not place.edges then
      back = (whole(last, place.period) - whole(now, place.period)) * place.period
    end
    place.state.us = math.max(0, place.state.us - back)
  end,

  is_active = function(place)
    return before(now, nano, expiry(place))
  end,

  ends = function(place)
    return expiry(place) + 1
  end,

  -- A receipt ends with its window.
  longest = function(place)
    return window(place).us + place.period + 1 - now
  end,

  fits = function(place, ahead)
    local state = window(place)
    local last = state.count + ahead * place.cost + place.need
    if last <= come(place, state) + place.soft then
      return true
    elseif place.possible == 0 or place.kind ~= 2 or last > place.units + state.bonus then
      return false
    end
    -- A paced charge queues within its window.
    local us, ns = offset(place, state, last)
    if us >= place.period then
      return false
    end
    us, ns = plus(us, ns, state.us, state.ns)
    local most, most_nano = plus(now, nano, place.wait, place.wait_nano)
    return not before(most, most_nano, us, ns)
  end,

  charge = function(place, times)
    count(place, times * place.cost)
  end,

  open = function() end,

  late = function(place)
    count(place, math.min(place.cost, math.max(0, place.most - window(place).count)))
  end,

  refund = function(place)
    count(place, -place.cost)
  end,

  -- For an undo, `possible` is 0 if the charge queued, and `wait` is the instant at which the unit
  -- after it is released. A charge that queued is undone only if no other charge has queued behind
  -- it.
  undo = function(place, charged, charged_nano)
    local state = window(place)
    if place.edges then
      if not before(now, nano, finish(place, charged, charged_nano)) then
        return
      end
    elseif before(charged, charged_nano, state.us, state.ns) then
      return
    elseif place.possible == 0 and place.kind == 2 then
      local us, ns = offset(place, state, state.count + 1)
      if us >= place.period then
        us, ns = place.period, 0
      end
      us, ns = plus(us, ns, state.us, state.ns)
      if us ~= place.wait or ns ~= place.wait_nano then
        return
      end
    end
    count(place, -place.cost)
  end,
}
