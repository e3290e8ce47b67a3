-- Slots. The state starts with the number of held slots (4) and a microsecond before which no entry
-- ends (7). Entries of 24 bytes follow: a process (8), a sequence (6), held slots (3), and the
-- microsecond until which the entry counts (7). The entries of a process are adjacent. The first is its
-- newest report. Each further one is a charge that was pending when the process sent that report.
--
-- A report has the slots that a process holds, without its pending charges. It replaces the earlier
-- report, and all charges that are no longer pending. A report that is older than the stored one
-- changes nothing.

-- Returns the sequences of the charges that were pending when the process sent its report.
local function pending_of(place)
  local pending = {}
  for at = 1, #place.pending, 6 do
    pending[struct.unpack('<I6', place.pending, at)] = true
  end
  return pending
end

local function own_slots(place)
  local slots = 0
  for _, entry in ipairs(place.state.own) do
    slots = slots + entry.held
  end
  return slots
end

-- Applies the report of the call. Returns true if this changes the account.
local function apply(place)
  local state = place.state or { others = '', slots = 0, first = math.huge, ends = 0, own = {} }
  local own, base, kept = state.own, state.own[1], {}
  if not base or base.sequence < place.sequence then
    kept[1] = { sequence = place.sequence, held = place.held }
    local pending = #own > 1 and pending_of(place)
    for i = 2, #own do
      if pending[own[i].sequence] then
        kept[#kept + 1] = own[i]
      end
    end
  end
  -- A process that held nothing and holds nothing has no new entry.
  local changed = #kept > 0 and (place.held > 0 or #own > 1 or base and base.held > 0)
  if changed then
    for _, entry in ipairs(kept) do
      entry.ends = now + place.life
    end
    state.own, state.ends = kept, math.max(state.ends, now + place.life)
  end
  place.state = (#state.own > 0 or state.others ~= '') and state or nil
  return changed
end

function report(account)
  for _, place in ipairs(account.places) do
    -- The state of another algorithm stays until a charge replaces it.
    if place.pending and not place.raw and apply(place) then
      account.changed = true
    end
  end
end

local function nothing() end

algorithms.c = {
  letter = 'c',
  late = nothing, refund = nothing, undo = nothing, open = nothing, follow = nothing,

  plan = function(plan, at)
    local charges, possible, cost, need, limit, process, sequence, held, life, pending, after =
      struct.unpack('<BBI3I5I5c8I6I3I7Hc0', plan, at)
    return {
      algorithm = algorithms.c, charges = charges, possible = possible, cost = cost, need = need,
      limit = limit, process = process, sequence = sequence, held = held, life = life,
      pending = pending,
    }, after
  end,

  -- An entry that counts for longer than a new one is from before a step of the clock.
  read = function(place, value, from, length)
    if math.fmod(length, 24) ~= 11 then
      return
    end
    from, length = from + 11, length - 11
    local state, kept = { others = '', slots = 0, first = math.huge, ends = 0, own = {} }, from
    for at = from, from + length - 24, 24 do
      local process, sequence, held, ends = struct.unpack('<c8I6I3I7', value, at)
      local is_own, latest = process == place.process, now + place.life
      if is_own or ends <= now or ends > latest then
        state.others, kept = state.others .. string.sub(value, kept, at - 1), at + 24
        if is_own and ends > now then
          local entry = { sequence = sequence, held = held, ends = math.min(ends, latest) }
          state.own[#state.own + 1] = entry
        elseif ends > latest then
          state.others = state.others .. struct.pack('<c8I6I3I7', process, sequence, held, latest)
        end
      end
      if ends > now then
        ends = math.min(ends, latest)
        if not is_own then
          state.slots, state.first = state.slots + held, math.min(state.first, ends)
        end
        state.ends = math.max(state.ends, ends)
      end
    end
    state.others = state.others .. string.sub(value, kept, from + length - 1)
    return state
  end,

  write = function(place)
    local content, first = place.state.others, place.state.first
    for _, entry in ipairs(place.state.own) do
      content = content
        .. struct.pack('<c8I6I3I7', place.process, entry.sequence, entry.held, entry.ends)
      first = math.min(first, entry.ends)
    end
    local slots = place.state.slots + own_slots(place)
    return content == '' and '-\0\0'
      or struct.pack('<c1HI4I7c0', 'c', 11 + #content, slots, first, content)
  end,

  newest = function()
    return 0
  end,

  lives = function()
    return true
  end,

  ends = function(place)
    return place.state.ends
  end,

  longest = function()
    return 0
  end,

  fits = function(place)
    local state = place.state
    if not state then
      return place.need <= place.limit
    end
    -- The length of the state has two bytes.
    local has_room = #state.others + 24 * #state.own < 65000
    return has_room and state.slots + own_slots(place) + place.need <= place.limit
  end,

  charge = function(place)
    local state = place.state or { others = '', slots = 0, first = math.huge, ends = 0, own = {} }
    local own, ends = state.own, now + place.life
    own[1] = own[1] or { sequence = place.sequence, held = place.held, ends = ends }
    own[#own + 1] = { sequence = place.sequence, held = place.cost, ends = ends }
    state.ends, place.state = math.max(state.ends, ends), state
  end,

  -- No process holds anything, and each process has to start at a later sequence. Its reports until
  -- then are older.
  reset = function(place)
    local content, seen, others = algorithms.c.write(place), {}, ''
    for at = 15, #content, 24 do
      local process, sequence, _, ends = struct.unpack('<c8I6I3I7', content, at)
      if not seen[process] then
        seen[process] = true
        others = others .. struct.pack('<c8I6I3I7', process, sequence + 1048576, 0, ends)
      end
    end
    return others ~= '' and { others = others, slots = 0, first = 0, ends = place.state.ends, own = {} }
  end,
}
