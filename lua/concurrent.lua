-- Slots: their number is bounded. The account itself has no state. The mark of a set is a key with a
-- store whose request waits for slots: the next ones that are free are left to it. Only requests that
-- may wait read it.

-- Reads the slots of a place, without those that were freed or have ended.
local function count(place, freed)
  local value, healed = load_slots(place.set)
  if healed then
    redis.call('DEL', place.set)
  end
  local before, after, first, last, held, changed = free_slots(value, now + place.ttl, freed)
  if changed then
    keep_slots(place.set, before, after, first, last, held)
  end
  place.before, place.after, place.first = before, after, first
  place.held, place.stored, place.healed = held, held, healed
end

-- Reads the mark of another store, to which `left` slots are left. Requests of a lower headroom do not
-- leave them. Others do once this store has as many slots as the other one had, with `lead` more. A mark
-- that cannot be read is ignored.
local function leave(place, key)
  local mark, headroom = redis.pcall('GET', key), place.need - place.cost
  place.mark, place.marks = key, true
  if type(mark) == 'string' and #mark == 20 then
    local store, units, behind, own = struct.unpack('<c8HI5I5', mark)
    if store == place.store then
      place.marked = own
    elseif behind <= headroom then
      local lead = behind == headroom and own - place.own or 0
      place.marks, place.left, place.lead = lead > 0, units, lead
    end
  end
end

-- Counts the slots that are left to another store as held, once this store took its lead. They are not
-- stored.
local function count_left(place, taken)
  if place.left and taken >= place.lead then
    place.held, place.left = place.held + place.left, nil
  end
end

algorithms.c = {
  letter = 'c',
  open = function() end,

  -- Removes the mark of this store once it has more slots, so that others have their turn. Otherwise
  -- sets it for a request that waits. A denial needs no memory, so a failure is ignored.
  mark = function(place, taken, waits)
    if place.marked and taken > 0 and place.own + taken > place.marked then
      redis.pcall('DEL', place.mark)
    elseif waits and place.marks and place.held + place.need > place.limit then
      local headroom, own = place.need - place.cost, place.own + taken
      local mark = struct.pack('<c8HI5I5', place.store, place.cost, headroom, own)
      redis.pcall('PSETEX', place.mark, place.waits, mark)
    end
  end,

  plan = function(plan, at)
    local charges, possible, cost, need, limit, key, mark, waits, own, ttl, store, number, freed, after =
      struct.unpack('<BBHI5I5HHHI5I7c8c8Hc0', plan, at)
    local place = {
      algorithm = algorithms.c, charges = charges, possible = possible, cost = cost, need = need,
      limit = limit, set = KEYS[key], waits = waits, own = own, ttl = ttl, store = store, number = number,
    }
    count(place, freed)
    if mark > 0 then
      leave(place, KEYS[mark])
      count_left(place, 0)
    end
    return place, after
  end,

  fits = function(place, ahead)
    local taken = ahead * place.cost
    local left = place.left and taken >= place.lead and place.left or 0
    return place.held + left + taken + place.need <= place.limit
  end,

  charge = function(place, times)
    local taken = times * place.cost
    add_slots(place.set, place.number, taken, now + place.ttl, place.before, place.after, place.first, place.stored)
    place.held = place.held + taken
    count_left(place, taken)
  end,
}
