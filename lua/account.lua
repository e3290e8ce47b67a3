-- Accounts and their storage format.
--
-- An account is one string, little-endian. It starts with the instant of the last change
-- (microseconds, 7 bytes). A place follows for each quota: a letter, a length (2 bytes) and the
-- state that the algorithm of that letter stores. The place of a quota without an account is `-`. A
-- block and a reset may precede the places. A block is `b` with the instant of its end. A reset is
-- `r` with its instant, and the microsecond from which on no receipt of an earlier charge holds any
-- units.
local algorithms = {}

-- Parses a value into the places of the plan. Returns false if the value is invalid.
local function parse(account, value)
  if type(value) ~= 'string' or #value < 10 then
    return false
  end
  local places, at, i = account.places, 8, 0
  account.last = struct.unpack('<I7', value)
  if account.last >= 9007199254740992 then
    return false
  end
  while at <= #value do
    if at + 2 > #value then
      return false
    end
    local letter, length, from = struct.unpack('<c1H', value, at)
    if from + length > #value + 1 or not string.find('br-gtfsl', letter, 1, true) then
      return false
    elseif letter == 'b' then
      if length ~= 9 or i > 0 then
        return false
      end
      account.block, account.block_nano = instant(value, from)
      if not account.block then
        return false
      end
    elseif letter == 'r' then
      if length ~= 16 or i > 0 then
        return false
      end
      account.reset, account.reset_nano = instant(value, from)
      account.void = struct.unpack('<I7', value, from + 9)
      if not account.reset or account.void >= 9007199254740992 then
        return false
      end
    else
      i = i + 1
      local place = places[i]
      local algorithm = place and place.algorithm
      if not algorithm then
        -- Not part of the call: the state is kept as it is.
        places[i] = { raw = string.sub(value, at, from + length - 1) }
      elseif algorithm.letter == letter then
        place.state = algorithm.read(place, value, from, length)
        if not place.state then
          return false
        end
      elseif letter ~= '-' then
        -- The state of another algorithm, until a charge replaces it.
        place.raw = string.sub(value, at, from + length - 1)
      end
    end
    at = from + length
  end
  return true
end

-- Moves the state of a quota that is not part of the call. Only a TAT may be in the future. A call
-- of the quota moves any other state.
local function moved(raw, back)
  if #raw ~= 12 or string.sub(raw, 1, 1) ~= 'g' then
    return raw
  end
  local us, ns = struct.unpack('<I7H', raw, 4)
  return struct.pack('<c1HI7H', 'g', 9, math.max(0, us - back), ns)
end

-- Updates an account to the instant of the call: moves it if the clock stepped far back, and ends expired
-- state. The bytes of expired state are kept until a charge replaces them, because another plan may
-- keep the state for longer.
local function refresh(account)
  local back, places = account.last - now, account.places
  for i = 1, #places do
    local place = places[i]
    if place.raw and back > 0 then
      place.raw = moved(place.raw, back)
    end
    if place.state then
      -- A call without this quota may have been the first after a step back.
      local ahead = math.max(back, place.algorithm.newest(place) - now)
      if ahead > 0 then
        place.algorithm.follow(place, ahead, now + ahead)
        account.changed = true
      end
      if not place.algorithm.is_active(place) then
        place.raw, place.state = place.algorithm.write(place), nil
      end
    end
  end
  if back > 0 then
    account.block = account.block and account.block - back
    account.void = account.void and account.void - back
    account.changed = true
  end
  if account.void and account.void <= now then
    account.reset, account.void, account.changed = nil, nil, true
  end
  if account.block and not before(now, nano, account.block, account.block_nano) then
    account.block, account.changed = nil, true
  end
end

-- Replaces a foreign or broken account by an empty one.
local function clear(account)
  account.healed, account.changed, account.block, account.value = true, true, nil, nil
  account.reset, account.void = nil, nil
  for _, place in ipairs(account.places) do
    place.state, place.raw = nil, nil
    if place.list then
      redis.call('DEL', place.list)
    end
  end
end

-- Returns true if the key lives until an instant.
local function lasts(account, ends)
  account.left = account.left or redis.call('PTTL', account.key)
  return account.left >= 0 and math.min((ends - real) / 1000, 315360000000) <= account.left + 1000
end

-- Returns false for an account that no plan writes. It outlasts its key, and could otherwise deny
-- for years. Only a state that is impossible under the plan of the call is compared with the time
-- to live, because the last writer's plan may have kept other states for a shorter time.
local function is_valid(account, unbounded)
  local ends = math.max(account.block or now, account.void or now)
  if ends > now and not lasts(account, ends) then
    return false
  end
  for _, place in ipairs(account.places) do
    local state, algorithm = place.state, place.algorithm
    if state and algorithm.exceeds_plan and algorithm.exceeds_plan(place, unbounded)
      and not lasts(account, algorithm.ends(place) - (place.kept or 0)) then
      if not algorithm.bound then
        return false
      end
      algorithm.bound(place)
      account.changed = true
    end
  end
  return true
end

-- Reads an account by its plan. A plan has 1 if the account is binding, and a letter and parameters for
-- each quota. The letter of a quota that is not part of the call is `.`. The plan of an `unbounded` call
-- does not have all bounds of a state.
local function read(key, plan, unbounded)
  local binding, count, at = struct.unpack('<BB', plan)
  local places = {}
  local account = {
    key = key, binding = binding == 1, places = places, value = false, last = 0, changed = false,
    charging = false, times = 0, lists = false,
  }
  for i = 1, count do
    local algorithm = algorithms[string.sub(plan, at, at)]
    if algorithm then
      places[i], at = algorithm.plan(plan, at + 1)
      account.lists = account.lists or places[i].list or places[i].set
      account.healed = account.healed or places[i].healed
      account.outside = account.outside or places[i].outside
    else
      places[i], at = {}, at + 1
    end
  end

  local value = redis.pcall('GET', key)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    redis.call('GET', key)
  end
  if value then
    if parse(account, value) then
      account.value = value
      refresh(account)
    end
    if not account.value or not is_valid(account, unbounded) then
      clear(account)
    end
  end
  return account
end

-- Returns the account as a string, the microsecond from which on it may be dropped, and true if it
-- has state of other plans. `how` is `write` for the stored form and `show` for the reply, which may
-- contain more.
local function encode(account, how)
  local value, filled, ends, others = struct.pack('<I7', now), '', 0, false
  if account.block then
    value = value .. struct.pack('<c1HI7H', 'b', 9, account.block, account.block_nano)
    filled, ends = value, account.block + 1
  end
  if account.void then
    value = value .. struct.pack('<c1HI7HI7', 'r', 16, account.reset, account.reset_nano, account.void)
    filled, ends = value, math.max(ends, account.void)
  end
  local places = account.places
  for i = 1, #places do
    local place = places[i]
    local state, algorithm = place.state, place.algorithm
    if place.held and how == 'show' then
      value = value .. struct.pack('<c1HI4', 'c', 4, place.held)
      filled = value
    elseif state then
      value = value .. (algorithm[how] or algorithm.write)(place)
      ends, filled = math.max(ends, algorithm.ends(place)), value
    elseif place.raw and place.raw ~= '-\0\0' then
      value = value .. place.raw
      others, filled = true, value
    else
      value = value .. '-\0\0'
    end
  end
  return filled, ends, others
end

-- Stores the account with a time to live that ends when it may be dropped. With `keep`, or with state
-- of other plans, the key lives no shorter than before.
local function write(account, keep)
  local value, ends, others = encode(account, 'write')
  if value == '' then
    redis.call('DEL', account.key)
  else
    local ms = math.ceil((ends - real) / 1000)
    if others or keep then
      ms = math.max(ms, redis.call('PTTL', account.key) - extra_ttl)
    end
    ms = math.max(1, math.min(ms, 315360000000)) + extra_ttl
    redis.call('PSETEX', account.key, ms, value)
    if account.lists then
      for _, place in ipairs(account.places) do
        if place.list then
          redis.call('PEXPIRE', place.list, ms)
        end
      end
    end
  end
  account.value = value
end

-- Returns the reply to a group of equal requests, without the instant: the number of allowed ones, and
-- the accounts. Each account has the number of its charges, and 1 if its key held an invalid value.
local function answer(allowed, accounts)
  local reply = struct.pack('<H', allowed)
  for i = 1, #accounts do
    local account = accounts[i]
    local value = account.lists and encode(account, 'show') or account.value or ''
    reply = reply .. struct.pack('<HBI4', account.times, account.healed and 1 or 0, #value) .. value
  end
  return reply
end
