-- Accounts and their storage format.
--
-- An account is one string, little-endian. It starts with its head, the instant of the last change
-- (microseconds, 7 bytes). Entries follow, each with a letter and a length (2 bytes). A block is `b` and the
-- instant of its end. All others have the address of a quota (4), the microsecond of their end (7), and a
-- content. The letter of a state is that of its algorithm. `r` is a reset of the quota:
-- its content is the instant, and its end the microsecond from which on no receipt of an earlier charge
-- holds any units. A GCRA state that ends with its TAT has no end of its own.
--
-- An entry that an earlier call changed last has a capital letter, and the instant of that change (7) in
-- front of its other parts. Only a clock that steps back makes it matter: each state moves by its own step.
--
-- An entry is found by its letter and its address. Entries of quotas that are not part of the call, such
-- as those of another plan, are kept until they end, at most `most_others` of them.
local algorithms = {}
local most_others = 16

-- An instant from which on a double is not exact.
local latest_instant = 9007199254740992

local function pack_entry(letter, address, ends, content)
  return struct.pack('<c1HI4I7c0', letter, 11 + #content, address, ends, content)
end

-- Parses an entry of a quota that is not part of the call. Returns false if it is invalid.
local function parse_other(value, letter, from, length, last)
  local raw, ends = struct.pack('<c1H', letter, length) .. string.sub(value, from, from + length - 1), nil
  if letter == 'g' and length == 13 then
    ends = instant(value, from + 4)
    ends = ends and ends + 1
  elseif length >= 11 then
    ends = struct.unpack('<I7', value, from + 4)
  end
  return ends and ends < latest_instant and { raw = raw, last = last, ends = ends }
end

-- Parses an entry that is no block. Returns false if it is invalid.
local function parse_entry(account, value, letter, from, length, last)
  if length < 13 or not string.find('rgtfsl', letter, 1, true) then
    return false
  end
  local place = account.known[struct.unpack('<I4', value, from)]
  if not place or letter ~= 'r' and place.algorithm.letter ~= letter then
    local other = parse_other(value, letter, from, length, last)
    account.others[#account.others + 1] = other or nil
    return other
  end
  place.last = last
  if letter == 'r' then
    place.void, place.reset, place.reset_nano = struct.unpack('<I7I7H', value, from + 4)
    return length == 20 and place.void < latest_instant
  elseif letter == 'g' and length == 13 then
    place.state = place.algorithm.read(place, value, from + 4, 9)
    return place.state
  end
  place.stored_end = struct.unpack('<I7', value, from + 4)
  place.state = place.algorithm.read(place, value, from + 11, length - 11)
  return place.state and place.stored_end < latest_instant
end

-- Parses a value into the places of the plan. Returns false if the value is invalid.
local function parse(account, value)
  if type(value) ~= 'string' or #value < 10 then
    return false
  end
  local head, at = struct.unpack('<I7', value)
  while at <= #value do
    if at + 2 > #value then
      return false
    end
    -- A code below 97 is a capital letter. Texts are not compared: their order depends on the locale of the
    -- server.
    local letter, length, from = struct.unpack('<c1H', value, at)
    local last, after = head, from + length
    if after > #value + 1 then
      return false
    elseif string.byte(letter) < 97 then
      if length < 7 then
        return false
      end
      letter, last, from = string.lower(letter), struct.unpack('<I7', value, from)
      length = after - from
    end
    if last >= latest_instant then
      return false
    elseif letter == 'b' then
      if length ~= 9 or account.block then
        return false
      end
      account.block, account.block_nano = instant(value, from)
      account.block_last = last
      if not account.block then
        return false
      end
    elseif not parse_entry(account, value, letter, from, length, last) then
      return false
    end
    at = after
  end
  return true
end

-- Returns the entry of a place with state, and its end.
local function entry_of(place, how)
  local algorithm = place.algorithm
  local ends = algorithm.ends(place)
  if algorithm.letter == 'g' and (place.stored_end or 0) <= ends and place.kept + place.kept_nano == 0 then
    return struct.pack('<c1HI4I7H', 'g', 13, place.address, place.state.us, place.state.ns), ends
  end
  -- Without a charge, the state is kept as the plan of the last charge requires.
  ends = math.max(ends, place.stored_end or 0)
  local content = (algorithm[how] or algorithm.write)(place)
  return pack_entry(algorithm.letter, place.address, ends, content), ends
end

-- Lets the plan of the call decide for how long a state is kept. An undo does not: its plan may be older.
local function own(place)
  place.last = nil
  if place.state then
    place.raw, place.stored_end = nil, nil
  end
end

-- Returns true for a state that has ended under the limit that stored it.
local function has_ended(place)
  if place.stored_end then
    return place.stored_end <= now
  end
  return not before(now, nano, place.state.us, place.state.ns)
end

-- Moves a place back whose last change is ahead of the instant of the call.
local function move(place)
  local back = place.last - now
  place.stored_end = place.stored_end and place.stored_end - back
  place.void = place.void and place.void - back
  if place.state then
    place.algorithm.follow(place, back, place.last)
  end
  place.last = nil
end

-- Updates an account to the instant of the call: moves what is ahead of it, and ends expired state. Expired
-- state is kept until it ends under the plan that stored it, or a charge replaces it. What changes in this
-- call has no instant of an earlier change.
local function refresh(account)
  local places, others = account.places, {}
  for i = 1, #places do
    local place = places[i]
    if place.state then
      -- Only a value that no call has written has a later instant.
      place.last = math.max(place.last, place.algorithm.newest(place))
    end
    if place.last and place.last > now then
      move(place)
      account.changed = true
    end
    if place.state then
      if has_ended(place) then
        place.state = nil
      elseif not place.algorithm.is_active(place) then
        place.raw, place.state = entry_of(place, 'write'), nil
      end
    end
    if place.void and place.void <= now then
      place.reset, place.void, account.changed = nil, nil, true
    end
  end
  for i = 1, #account.others do
    -- The next call of its quota moves it.
    local other = account.others[i]
    other.ends = other.ends - math.max(0, other.last - now)
    if other.ends > now then
      others[#others + 1] = other
    end
  end
  account.others = others
  if account.block and account.block_last > now then
    account.block = account.block - (account.block_last - now)
    account.block_last, account.changed = nil, true
  end
  if account.block and not before(now, nano, account.block, account.block_nano) then
    account.block, account.changed = nil, true
  end
end

-- Drops entries of other plans until there are few enough, those first that end first.
local function bound_others(account)
  local others, most = account.others, most_others + account.absent
  while #others > most do
    local first = 1
    for i = 2, #others do
      if others[i].ends < others[first].ends then
        first = i
      end
    end
    table.remove(others, first)
    account.dropped, account.changed = true, true
  end
end

-- Replaces a foreign or broken account by an empty one.
local function clear(account)
  account.healed, account.changed, account.block, account.value = true, true, nil, nil
  account.others = {}
  for _, place in ipairs(account.places) do
    place.state, place.raw, place.reset, place.void, place.stored_end, place.last = nil, nil, nil, nil, nil, nil
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

-- Returns false for an account that would outlast its key, which no plan writes: it could deny for years.
-- Stored ends are compared with the time to live. The end of a state of the call is compared only if the
-- state is impossible under this plan, because the last writer's plan may have kept others shorter.
local function is_valid(account, unbounded)
  local ends = account.block or now
  for _, place in ipairs(account.places) do
    ends = math.max(ends, place.void or now)
    -- A plan that keeps the state for longer has written it.
    local stored = place.stored_end or now
    if place.raw or place.state and stored > place.algorithm.ends(place) then
      ends = math.max(ends, stored)
    end
  end
  for _, other in ipairs(account.others) do
    ends = math.max(ends, other.ends)
  end
  if ends > now and not lasts(account, ends) then
    return false
  end
  for _, place in ipairs(account.places) do
    local algorithm = place.algorithm
    if place.state and algorithm.exceeds_plan and algorithm.exceeds_plan(place, unbounded)
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

-- Reads an account by its plan. A plan has 1 if the account is binding, the number of its quotas, the
-- number of quotas of the rule that are not part of the call, and a letter, an address and parameters for
-- each quota. The plan of an `unbounded` call does not have all bounds of a state.
local function read(key, plan, unbounded)
  local binding, count, absent, at = struct.unpack('<BBB', plan)
  local places, known = {}, {}
  local account = {
    key = key, binding = binding == 1, places = places, known = known, others = {}, absent = absent,
    value = false, changed = false, charging = false, times = 0, lists = false,
  }
  for i = 1, count do
    local letter, address, from = struct.unpack('<c1I4', plan, at)
    local place
    place, at = algorithms[letter].plan(plan, from)
    place.address, places[i], known[address] = address, place, place
    account.lists = account.lists or place.list or place.set
    account.healed = account.healed or place.healed
    account.outside = account.outside or place.outside
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
    bound_others(account)
  end
  return account
end

-- Gives each entry that an earlier call changed last the instant of that change, unless it is the latest
-- of all. Returns the latest one.
local function add_lasts(entries, lasts)
  local head = 0
  for i = 1, #entries do
    head = math.max(head, lasts[i] or now)
  end
  for i = 1, #entries do
    local last, entry = lasts[i] or now, entries[i]
    if last < head then
      local letter = string.upper(string.sub(entry, 1, 1))
      entries[i] = struct.pack('<c1HI7', letter, #entry + 4, last) .. string.sub(entry, 4)
    end
  end
  return head
end

-- Returns the account as a string, and the microsecond from which on it may be dropped. `how` is `write`
-- for the stored form and `show` for the reply, which may contain more.
local function encode(account, how)
  local entries, lasts, latest, head = {}, {}, 0, now
  if account.block then
    entries[1] = struct.pack('<c1HI7H', 'b', 9, account.block, account.block_nano)
    lasts[1], latest = account.block_last, account.block + 1
  end
  for _, place in ipairs(account.places) do
    if place.void then
      local content = struct.pack('<I7H', place.reset, place.reset_nano)
      entries[#entries + 1] = pack_entry('r', place.address, place.void, content)
      lasts[#entries], latest = place.last, math.max(latest, place.void)
    end
    if place.held then
      if how == 'show' then
        entries[#entries + 1] = struct.pack('<c1HI4I4', 'c', 8, place.address, place.held)
      end
    elseif place.state then
      local entry, ends = entry_of(place, how)
      entries[#entries + 1], latest = entry, math.max(latest, ends)
      lasts[#entries] = place.last
    elseif place.raw then
      entries[#entries + 1], latest = place.raw, math.max(latest, place.stored_end)
      lasts[#entries] = place.last
    end
  end
  for _, other in ipairs(account.others) do
    entries[#entries + 1], latest = other.raw, math.max(latest, other.ends)
    lasts[#entries] = other.last
  end
  if next(lasts) then
    head = add_lasts(entries, lasts)
  end
  return #entries > 0 and struct.pack('<I7', head) .. table.concat(entries) or '', latest
end

-- Stores the account with a time to live that ends when it may be dropped.
local function write(account)
  local value, ends = encode(account, 'write')
  if value == '' then
    redis.call('DEL', account.key)
  else
    local ms = math.ceil((ends - real) / 1000)
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
-- the accounts. Each account has the number of its charges, and a sign: 1 if its key held an invalid
-- value, 2 if a state of another plan was dropped, 3 if the next slot is left to the store of the call.
local function answer(allowed, accounts)
  local reply = struct.pack('<H', allowed)
  for i = 1, #accounts do
    local account = accounts[i]
    local value = account.lists and encode(account, 'show') or account.value or ''
    local sign = account.healed and 1 or account.dropped and 2 or account.marked and 3 or 0
    reply = reply .. struct.pack('<HBI4', account.times, sign, #value) .. value
  end
  return reply
end
