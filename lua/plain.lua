-- Any number of accounts and GCRA quotas that start full and are all charged, without the tables of
-- the general path. All other cases continue below, with nothing changed.

-- Returns the value of an account, its value after the charge (false if the charge does not fit),
-- and the microsecond from which on that value may be dropped. Returns nothing for a value that
-- needs the general path.
local function look(key, plan)
  local value = redis.pcall('GET', key)
  if value and (#value < 23 or struct.unpack('<I7', value) > now) then
    return
  end
  local charged, ends, from = struct.pack('<I7', now), 0, 8
  for at = 5, #plan, 43 do
    local address, _, _, cost, cost_nano, room, room_nano = struct.unpack('<I4BBI7Hi7H', plan, at)
    local tat, tat_nano = now, nano
    if value then
      -- The states of the plan, in its order. All others need the general path.
      if from + 15 > #value then
        return
      end
      local letter, length, found, us, ns = struct.unpack('<c1HI4I7H', value, from)
      from = from + 16
      if letter ~= 'g' or length ~= 13 or found ~= address or ns >= 1000
        or us - now > 2 * (room + cost) then
        return
      end
      if before(now, nano, us, ns) then
        tat, tat_nano = us, ns
      end
    end
    local most, most_nano = plus(now, nano, room, room_nano)
    if charged and not before(most, most_nano, tat, tat_nano) then
      tat, tat_nano = plus(tat, tat_nano, cost, cost_nano)
      charged = struct.pack('<c0c1HI4I7H', charged, 'g', 13, address, tat, tat_nano)
      ends = math.max(ends, tat + 1)
    else
      charged = false
    end
  end
  if value and from <= #value then
    return
  end
  return value or '', charged, ends
end

local accounts, allowed = {}, true
for i = 1, plans do
  local value, charged, ends = look(KEYS[i], ARGV[i])
  if not value then
    accounts = nil
    break
  end
  allowed = allowed and charged
  accounts[i] = { value, charged, ends }
end
if accounts then
  local answer = struct.pack('<I7HH', now, nano, allowed and 1 or 0)
  for i = 1, plans do
    local value, charged, ends = unpack(accounts[i])
    local charges = allowed and charged and 1 or 0
    if charges == 1 then
      local ms = math.ceil((ends - now) / 1000)
      redis.call('PSETEX', KEYS[i], math.min(ms, 315360000000) + extra_ttl, charged)
      value = charged
    end
    answer = struct.pack('<c0HBI4c0', answer, charges, 0, #value, value)
  end
  return answer
end
