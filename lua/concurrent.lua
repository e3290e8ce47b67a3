-- Slots: their number is bounded. The account itself has no state. The mark of a set is a key with a
-- store whose request waits for a slot: once others have had their turn, the next one that is free is
-- left to it. Only requests that may wait read it.

-- The microseconds for which other stores go on after a mark. Short requests of one store then run one
-- after another, and the slot is handed over less often.
local turn = 50000

-- Removes freed slots and at most 256 ended ones. Returns the number of held slots, and true if the
-- key held an invalid value.
local function count(place, freed)
  local set, latest, last, healed = place.set, real + place.ttl, last_end(place.set)
  if not last then
    return 0, healed
  end
  if freed ~= '' then
    remove(set, place.store, freed)
  end
  -- No answer depends on these writes, so a server that rejects writes can still deny.
  if last > latest + fraction then
    -- The clock stepped back.
    local ahead = '(' .. score_of(latest)
    ahead = redis.call('ZRANGE', set, '+inf', ahead, 'BYSCORE', 'REV', 'LIMIT', 0, 256)
    if #ahead > 0 then
      redis.pcall('ZADD', set, until_end(ahead, latest))
    end
  end
  local ended = score_of(real)
  ended = redis.call('ZRANGE', set, '-inf', ended, 'BYSCORE', 'LIMIT', 0, 256)
  if #ended > 0 then
    redis.pcall('ZREM', set, unpack(ended))
  end
  return redis.call('ZCOUNT', set, '(' .. score_of(real), '+inf')
end

-- Reads the mark of a set. If it is of another store, a slot is left to that from an instant on: at once by
-- a request of a higher headroom, and by one of an equal headroom after `lead` more slots, when this store has
-- as many as the other one had. One of a lower headroom leaves none. An unreadable mark is ignored.
local function leave(place, key)
  local mark, headroom = redis.pcall('GET', key), place.need - place.cost
  place.mark, place.marks = key, true
  if type(mark) == 'string' and #mark == 25 then
    local store, behind, own, since = struct.unpack('<c8I5I5I7', mark)
    if store == place.store then
      place.marked, place.since = own, since
    elseif behind <= headroom then
      local lead = behind == headroom and own - place.own or 0
      place.marks, place.lead = lead > 0, since <= real and lead or nil
    end
  end
end

-- Returns the number of slots that are left to another store, once this store took its lead.
local function left_after(place, taken)
  return place.lead and taken >= place.lead and 1 or 0
end

algorithms.c = {
  letter = 'c',
  open = function() end,

  -- Removes the mark of this store once it has more slots, so that others have their turn. Otherwise
  -- sets it for a request that waits. A denial needs no memory, so a failure is ignored. A denied request
  -- sees a slot that is left to another store as held. Returns true if this store has the mark and others
  -- have more slots, of which they then leave one.
  mark = function(place, taken, waits, is_denied)
    if is_denied then
      place.held = place.held + left_after(place, taken)
    end
    if place.marked and taken > 0 and place.own + taken > place.marked then
      redis.pcall('DEL', place.mark)
    elseif waits and place.marks and place.held + place.need > place.limit then
      local headroom, own = place.need - place.cost, place.own + taken
      -- A clock that stepped back delays nothing.
      local since = math.min(place.since or latest_instant, real + turn)
      local mark = struct.pack('<c8I5I5I7', place.store, headroom, own, since)
      redis.pcall('PSETEX', place.mark, place.waits, mark)
      return place.held - own > own
    end
  end,

  plan = function(plan, at)
    local charges, possible, cost, need, limit, key, mark, waits, own, ttl, store, first, freed, after =
      struct.unpack('<BBHI5I5HHHI5I7c8I8Hc0', plan, at)
    local place = {
      algorithm = algorithms.c, charges = charges, possible = possible, cost = cost, need = need,
      limit = limit, set = KEYS[key], waits = waits, own = own, ttl = ttl, store = store, first = first,
    }
    place.held, place.healed = count(place, freed)
    if mark > 0 then
      leave(place, KEYS[mark])
    end
    return place, after
  end,

  fits = function(place, ahead)
    local taken = ahead * place.cost
    return place.held + left_after(place, taken) + taken + place.need <= place.limit
  end,

  charge = function(place, times)
    local units = times * place.cost
    take(place.set, place.store, place.first, units, place.ttl, score_of(real + place.ttl))
    place.held = place.held + units
  end,
}
