-- The most common case of slots: one account with one quota, which is charged, and no mark. All other
-- cases continue below, with nothing changed.

-- Returns the reply to a group of equal requests, or nothing for other cases.
local function hold_slots(key, plan, count)
  if string.sub(plan, 1, 3) ~= '\1\1c' then
    return
  end
  local charges, _, cost, need, limit, set, mark, _, _, ttl, _, number, freed =
    struct.unpack('<BBHI5I5HHHI5I7c8c8Hc0', plan, 4)
  if charges == 0 or mark > 0 or redis.pcall('GET', key) then
    return
  end
  local value, healed = load_slots(KEYS[set])
  if healed then
    return
  end
  local most = now + ttl
  local before, after, first, last, held, changed = free_slots(value, most, freed)
  local passed = math.min(count, math.floor((limit - held - need) / cost) + 1)
  if passed > 0 then
    add_slots(KEYS[set], number, passed * cost, most, before, after, first, held)
    held = held + passed * cost
  elseif changed then
    keep_slots(KEYS[set], before, after, first, last, held)
  end
  passed = math.max(0, passed)
  return struct.pack('<HHBI4I7c1HI4', passed, passed, 0, 14, now, 'c', 4, held)
end
