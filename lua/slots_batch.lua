-- Main part for requests that take slots of one quota, alone or with one GCRA quota of the same account,
-- which starts full and is charged. Equal ones are a group. Arguments and reply are those of `groups.lua`.
--
-- A group of the usual kind needs no general code. A block, a mark, an invalid value, a slot that has
-- ended, an entry of another plan, and a clock that stepped back are left to it. Only freed slots have been
-- removed until then.
local layout, at = ARGV[plans], 1
local reply, after = {}, nil
local score, scored, decide, answer

-- Returns the number of the held slots of a set, after removing freed ones, or nothing if it is not of the
-- usual kind.
local function held_slots(set, store, freed, ttl)
  local held = redis.pcall('ZCARD', set)
  if type(held) ~= 'number' then
    return
  end
  if freed ~= '' and held > 0 then
    held = held - remove(set, store, freed)
  end
  if ttl ~= scored then
    -- Text, because Redis takes longer to format a number.
    score, scored = score_of(real + ttl), ttl
  end
  if held > 0 then
    after = after or '(' .. score_of(real)
    if redis.call('ZCOUNT', set, after, score) ~= held then
      return
    end
  end
  return held
end

-- Returns the TAT of an account with one GCRA state, or nothing if the value is not of the usual kind.
local function tat_of(value, address, furthest)
  if not value then
    return now, nano
  elseif #value ~= 23 then
    return
  end
  local last, letter, found, us, ns = struct.unpack('<I7I3I4I7H', value)
  if last > now or letter ~= 3431 or found ~= address or ns >= 1000 or us > furthest then
    return
  elseif us > now or us == now and ns > nano then
    return us, ns
  end
  return now, nano
end

-- Decides a group. Returns its part of the reply, or nothing if it is not of the usual kind.
local function usual(key, plan, callers)
  -- The plan has the quotas of the account in their order.
  local slots_at, rate_at = 4, 4
  if string.byte(plan, 4) == 103 then
    slots_at = 47
  end
  local address, _, possible, cost, need, limit, set, mark, waits, _, ttl, store, first, freed, next_at =
    struct.unpack('<I4BBHI5I5HHHI5I7c8I8Hc0', plan, slots_at + 1)
  if slots_at == 4 then
    rate_at = next_at <= #plan and next_at
  end
  local value = redis.pcall('GET', key)
  if value and not rate_at or mark > 0 and redis.pcall('GET', KEYS[mark]) then
    return
  end
  set = KEYS[set]
  local held = held_slots(set, store, freed, ttl)
  if not held then
    return
  end
  local fit, room = 0, limit - held - need
  if possible == 1 and room >= 0 then
    fit = (room - room % cost) / cost + 1
    fit = fit < callers and fit or callers
  end
  local rate, _, step, step_nano, most, most_nano, tat, tat_nano
  if rate_at then
    rate, _, step, step_nano, most, most_nano = struct.unpack('<I4HI7Hi7H', plan, rate_at + 1)
    tat, tat_nano = tat_of(value, rate, now + 2 * (most + step))
    if not tat then
      return
    end
    local left, left_nano = now + most - tat, nano + most_nano - tat_nano
    if left * 1000 + left_nano < 0 then
      fit = 0
    elseif fit > 1 then
      fit = charges_within(left, left_nano, step, step_nano, fit)
    end
  end
  if fit < callers and waits > 0 then
    return
  elseif fit > 0 then
    take(set, store, first, fit * cost, ttl, score)
  end
  local state = value and string.sub(value, 8) or ''
  if rate_at and fit > 0 then
    tat, tat_nano = tat_after(tat, tat_nano, step, step_nano, fit)
    state = struct.pack('<I3I4I7H', 3431, rate, tat, tat_nano)
    local ms = math.min(math.ceil((tat + 1 - real) / 1000), 315360000000) + extra_ttl
    redis.call('PSETEX', key, ms, struct.pack('<I7', now) .. state)
  end
  local shown = struct.pack('<I7c1HI4I4', now, 'c', 8, address, held + fit * cost) .. state
  return struct.pack('<HHBI4', fit, fit, 0, #shown) .. shown
end

while at <= #layout do
  local callers, _, key, text
  callers, _, key, text, at = struct.unpack('<HHHH', layout, at)
  local part = usual(KEYS[key], ARGV[text], callers)
  if not part then
    if not decide then
      decide, answer = general()
    end
    part = answer(decide({ KEYS[key] }, { ARGV[text] }, 1, callers))
  end
  reply[#reply + 1] = part
end
-- The general code may have moved the instant.
return struct.pack('<I7H', now, nano) .. table.concat(reply)
