-- Main part for requests that take slots of one quota, alone or with one GCRA quota of the same account,
-- which starts full and is charged. Equal ones are a group. Arguments and reply are those of `groups.lua`.
--
-- A group of the usual kind needs no general code. A block, a mark, an invalid value, a slot that has
-- ended, an entry of another plan, and a clock that stepped back are left to it. Only freed slots have been
-- removed until then.
local layout, at = ARGV[plans], 1
local reply, after = {}, nil
local score, scored, decide, answer

-- Decides a group. Returns its part of the reply, or nothing if it is not of the usual kind.
local function usual(key, plan, callers)
  -- The plan has the quotas of the account in their order.
  local rate_at = string.byte(plan, 4) == 103 and 5
  local address, _, possible, cost, need, limit, set, mark, waits, _, ttl, store, first, freed, next_at =
    struct.unpack('<I4BBHI5I5HHHI5I7c8I8Hc0', plan, rate_at and 48 or 5)
  if not rate_at and next_at <= #plan then
    rate_at = next_at + 1
  end
  local value = redis.pcall('GET', key)
  if value and not rate_at or mark > 0 and redis.pcall('GET', KEYS[mark]) then
    return
  end
  set = KEYS[set]
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
  local fit, room = 0, limit - held - need
  if possible == 1 and room >= 0 then
    fit = (room - room % cost) / cost + 1
    fit = fit < callers and fit or callers
  end
  local state, tat, tat_nano = '', nil, nil
  if rate_at then
    fit, tat, tat_nano = rate_fits(value, plan, rate_at, fit)
  end
  if not fit or fit < callers and waits > 0 then
    return
  elseif fit > 0 then
    take(set, store, first, fit * cost, ttl, score)
    state = rate_at and charge_rate(key, plan, rate_at, tat, tat_nano, fit) or ''
  elseif value then
    state = string.sub(value, 8)
  end
  held = held + fit * cost
  return struct.pack('<HHBI4I7c1HI4I4c0', fit, fit, 0, 18 + #state, now, 'c', 8, address, held, state)
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
