-- The most common case: one request with one account of one GCRA quota that starts full and is charged.
-- It returns before the other functions are defined. All other cases (an invalid value, a block, a clock that
-- stepped back) continue below; nothing has been changed until then.
if plans == 2 and #ARGV[1] == 46 and ARGV[2] == '\1\0\1\0\1\0\1\0' then
  local address, _, _, cost, cost_nano, room, room_nano = struct.unpack('<I4BBI7Hi7H', ARGV[1], 5)
  local value = redis.pcall('GET', KEYS[1])
  local tat, tat_nano, simple = now, nano, not value
  if value and #value == 23 then
    local last, letter, length, found, us, ns = struct.unpack('<I7c1HI4I7H', value)
    simple = letter == 'g' and length == 13 and found == address and last <= now and ns < 1000
    -- A TAT further ahead is not possible under this quota.
    simple = simple and us - now <= 2 * (room + cost)
    if us > now or us == now and ns > nano then
      tat, tat_nano = us, ns
    end
  end
  if simple then
    local most, most_nano = now + room, nano + room_nano
    if most_nano >= 1000 then
      most, most_nano = most + 1, most_nano - 1000
    end
    local allowed = tat < most or tat == most and tat_nano <= most_nano
    if allowed then
      tat, tat_nano = tat + cost, tat_nano + cost_nano
      if tat_nano >= 1000 then
        tat, tat_nano = tat + 1, tat_nano - 1000
      end
      value = struct.pack('<I7c1HI4I7H', now, 'g', 13, address, tat, tat_nano)
      local ms = math.ceil((tat + 1 - now) / 1000)
      redis.call('PSETEX', KEYS[1], math.min(ms, 315360000000) + extra_ttl, value)
    end
    value = value or ''
    local charges = allowed and 1 or 0
    return struct.pack('<I7HHHBI4c0', now, nano, charges, charges, 0, #value, value)
  end
end
