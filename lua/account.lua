-- Accounts, and how they are kept.
--
-- An account is one string, little-endian: when it was last changed (microseconds, 7 bytes), then
-- its places, each a letter, a length (2 bytes) and what the algorithm of that letter keeps. A
-- place without an account is `-`. Before the places there may be a block, `b` with the instant
-- at which it ends.
local algorithms = {}

-- Instants and times are pairs; the second is below 1000.
local function plus(us, ns, more, more_ns)
  ns = ns + more_ns
  if ns >= 1000 then
    return us + more + 1, ns - 1000
  end
  return us + more, ns
end

local function minus(us, ns, less, less_ns)
  ns = ns - less_ns
  if ns < 0 then
    return us - less - 1, ns + 1000
  end
  return us - less, ns
end

local function before(us, ns, other, other_ns)
  return us < other or us == other and ns < other_ns
end

-- Whole times that `of` goes into `us`: exact below 2^53, which a division alone is not.
local function whole(us, of)
  return (us - math.fmod(us, of)) / of
end

-- Reads the places of a value into those of the plan; false where it is none of ours.
local function parse(account, value)
  if type(value) ~= 'string' or #value < 10 then
    return false
  end
  local places, at, i = account.places, 8, 0
  account.last = struct.unpack('<I7', value)
  while at <= #value do
    if at + 2 > #value then
      return false
    end
    local letter, length, from = struct.unpack('<c1H', value, at)
    if from + length > #value + 1 or not string.find('b-gtfsl', letter, 1, true) then
      return false
    elseif letter == 'b' then
      if length ~= 9 or i > 0 then
        return false
      end
      account.block, account.block_nano = struct.unpack('<I7H', value, from)
    else
      i = i + 1
      local place = places[i]
      if not place or not place.algorithm then
        -- not asked for: stays as it is
        places[i] = { raw = string.sub(value, at, from + length - 1) }
      elseif place.letter == letter then
        place.state = place.algorithm.read(place, value, from, length)
        if not place.state then
          return false
        end
      elseif letter ~= '-' then
        -- the quota has changed its algorithm: another account
        account.changed = true
      end
    end
    at = from + length
  end
  return true
end

-- Reads an account by its plan: whether it binds, and for each place a letter and what the
-- algorithm of that letter needs to know. A place that is not asked for has the letter `.`.
local function read(key, plan)
  local binding, count, at = struct.unpack('<BB', plan)
  local places, account = {}, { key = key, binding = binding == 1 }
  account.places = places
  for i = 1, count do
    local place = { letter = string.sub(plan, at, at) }
    place.algorithm = algorithms[place.letter]
    at = at + 1
    if place.algorithm then
      place.charges, place.possible, at = struct.unpack('<BB', plan, at)
      at = place.algorithm.plan(place, plan, at)
    end
    places[i] = place
  end

  local value = redis.pcall('GET', key)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    redis.call('GET', key)
  end
  if not value then
    return account
  end
  account.value = value
  if not parse(account, value) then
    -- another's, or broken: as if it had never been
    account.healed, account.changed, account.block, account.value = true, true, nil, nil
    for i, place in ipairs(places) do
      place.state, place.raw = nil, nil
    end
    return account
  end
  if account.last > now then
    -- the clock stepped back: the account moves with it
    local back = account.last - now
    for _, place in ipairs(places) do
      if place.state then
        place.algorithm.follow(place, back, account.last)
      end
    end
    account.block = account.block and account.block - back
    account.changed = true
  end
  for _, place in ipairs(places) do
    if place.state and not place.algorithm.lives(place) then
      place.state, account.changed = nil, true
    end
  end
  if account.block and not before(now, nano, account.block, account.block_nano) then
    account.block, account.changed = nil, true
  end
  return account
end

-- The account as a string, and the microsecond by which it may be forgotten. `how` is `write` for
-- what is kept and `show` for the answer, which may tell more.
local function encode(account, how)
  local parts, filled, ends = { struct.pack('<I7', now) }, 1, 0
  if account.block then
    parts[2] = struct.pack('<c1HI7H', 'b', 9, account.block, account.block_nano)
    filled, ends = 2, account.block + 1
  end
  for _, place in ipairs(account.places) do
    local part = place.raw or '-\0\0'
    if place.state then
      local algorithm = place.algorithm
      local content = (algorithm[how] or algorithm.write)(place)
      part = struct.pack('<c1H', place.letter, #content) .. content
      ends = math.max(ends, algorithm.ends(place))
    end
    parts[#parts + 1] = part
    if part ~= '-\0\0' then
      filled = #parts
    end
  end
  if filled == 1 then
    return ''
  end
  return table.concat(parts, '', 1, filled), ends
end

-- Keeps the account until it may be forgotten.
local function write(account)
  local value, ends = encode(account, 'write')
  if value == '' then
    redis.call('DEL', account.key)
  else
    local ms = math.ceil((ends - now) / 1000)
    for _, place in ipairs(account.places) do
      if place.raw then
        ms = math.max(ms, redis.call('PTTL', account.key) - linger)
      end
    end
    ms = math.max(1, math.min(ms, 315360000000)) + linger
    redis.call('SET', account.key, value, 'PX', ms)
    for _, place in ipairs(account.places) do
      if place.list then
        redis.call('PEXPIRE', place.list, ms)
      end
    end
  end
  account.value = value
end

-- What the caller is told of an account: whether it was charged (1) and whether something of
-- another's was found in its place (2), then the account.
local function tell(account)
  local value = account.value or ''
  for _, place in ipairs(account.places) do
    if place.list then
      value = encode(account, 'show')
    end
  end
  local flags = (account.charged and 1 or 0) + (account.healed and 2 or 0)
  return struct.pack('<BI4', flags, #value) .. value
end

-- The whole answer.
local function answer(allowed, accounts)
  local parts = { struct.pack('<BI7H', allowed and 1 or 0, now, nano) }
  for i, account in ipairs(accounts) do
    parts[i + 1] = tell(account)
  end
  return table.concat(parts)
end
