-- Two alternatives of one GCRA quota each that starts full and is charged: the first that fits is
-- charged, and the other is only read. All other cases (an invalid value, a block, a clock that stepped
-- back) continue below; nothing has been changed until then.
local one, two, simple = redis.pcall('GET', KEYS[1]), redis.pcall('GET', KEYS[2]), true
local us, ns, other_us, other_ns = now, nano, now, nano
-- The letter `g` and the length 9 are the number 2407.
if one then
  local last, kind
  simple = #one == 19
  if simple then
    last, kind, us, ns = struct.unpack('<I7I3I7H', one)
    simple = kind == 2407 and last <= now and ns < 1000 and us < 9007199254740992
  end
end
if two and simple then
  local last, kind
  simple = #two == 19
  if simple then
    last, kind, other_us, other_ns = struct.unpack('<I7I3I7H', two)
    simple = kind == 2407 and last <= now and other_ns < 1000 and other_us < 9007199254740992
  end
end
if simple then
  one, two = one or '', two or ''
  for i = 1, 2 do
    local cost, cost_nano, room, room_nano = struct.unpack('<I7Hi7H', ARGV[i], 6)
    if us < now or us == now and ns < nano then
      us, ns = now, nano
    elseif us - now > 2 * (room + cost) then
      -- A TAT further ahead is not possible under this quota.
      simple = false
      break
    end
    local most, most_nano = now + room, nano + room_nano
    if most_nano >= 1000 then
      most, most_nano = most + 1, most_nano - 1000
    end
    if us < most or us == most and ns <= most_nano then
      us, ns = us + cost, ns + cost_nano
      if ns >= 1000 then
        us, ns = us + 1, ns - 1000
      end
      local value = struct.pack('<I7I3I7H', now, 2407, us, ns)
      local ms = math.min(math.ceil((us + 1 - now) / 1000), 315360000000) + extra_ttl
      redis.call('PSETEX', KEYS[i], ms, value)
      if i == 1 then
        return struct.pack('<I7HHHBI4c0HBI4c0', now, nano, 1, 1, 0, 19, value, 0, 0, #two, two)
      end
      return struct.pack('<I7HHHBI4c0HBI4c0', now, nano, 1, 0, 0, #one, one, 1, 0, 19, value)
    end
    us, ns = other_us, other_ns
  end
  if simple then
    return struct.pack('<I7HHHBI4c0HBI4c0', now, nano, 0, 0, 0, #one, one, 0, 0, #two, two)
  end
end
