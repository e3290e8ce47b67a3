-- Main part for requests that take slots alone: each has one account of one quota. Equal ones are a
-- group. Arguments and reply are those of `groups.lua`.
--
-- A group of the usual kind needs no general code. A block, a mark, an invalid value, a slot that has
-- ended, and a clock that stepped back are left to it. Only freed slots have been removed until then.
local layout, at = ARGV[plans], 1
local reply, after = {}, nil
local score, scored, decide, answer

-- Decides a group. Returns its part of the reply, or nothing if it is not of the usual kind.
local function usual(key, plan, callers)
  local address, _, possible, cost, need, limit, set, mark, waits, _, ttl, store, first, freed =
    struct.unpack('<I4BBHI5I5HHHI5I7c8I8Hc0', plan, 5)
  if redis.pcall('GET', key) or mark > 0 and redis.pcall('GET', KEYS[mark]) then
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
  if fit < callers and waits > 0 then
    return
  elseif fit > 0 then
    take(set, store, first, fit * cost, ttl, score)
  end
  return struct.pack('<HHBI4I7c1HI4I4', fit, fit, 0, 18, now, 'c', 8, address, held + fit * cost)
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
