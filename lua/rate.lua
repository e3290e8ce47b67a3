-- One GCRA quota beside slots of the same account. It starts full and is charged.

-- Returns how many of `most` equal requests fit, one after another, and the TAT before them. Returns
-- nothing if the value of the account is not of the usual kind.
local function rate_fits(value, plan, at, most)
  local address, _, cost, cost_nano, room, room_nano = struct.unpack('<I4HI7Hi7H', plan, at)
  local tat, tat_nano = now, nano
  if value then
    if #value ~= 23 then
      return
    end
    local last, letter, found, us, ns = struct.unpack('<I7I3I4I7H', value)
    if last > now or letter ~= 3431 or found ~= address or ns >= 1000 or us - now > 2 * (room + cost) then
      return
    elseif us > now or us == now and ns > nano then
      tat, tat_nano = us, ns
    end
  end
  local left, left_nano = now + room - tat, nano + room_nano - tat_nano
  if left * 1000 + left_nano < 0 then
    return 0, tat, tat_nano
  end
  local fit = 1
  while fit < most do
    left, left_nano = left - cost, left_nano - cost_nano
    if left * 1000 + left_nano < 0 then
      break
    end
    fit = fit + 1
  end
  return math.min(fit, most), tat, tat_nano
end

-- Charges the quota of an account for equal requests. Returns its state.
local function charge_rate(key, plan, at, tat, tat_nano, times)
  local address, _, cost, cost_nano = struct.unpack('<I4HI7H', plan, at)
  tat, tat_nano = tat + times * cost, tat_nano + times * cost_nano
  if tat_nano >= 1000 then
    tat, tat_nano = tat + (tat_nano - tat_nano % 1000) / 1000, tat_nano % 1000
  end
  local state = struct.pack('<I3I4I7H', 3431, address, tat, tat_nano)
  local ms = math.min(math.ceil((tat + 1 - real) / 1000), 315360000000) + extra_ttl
  redis.call('PSETEX', key, ms, struct.pack('<I7', now) .. state)
  return state
end
