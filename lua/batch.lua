-- Many requests in one call, decided one after another at one instant: GCRA quotas that start full
-- and are all charged.
--
-- KEYS: the accounts of all requests, in order. ARGV: each distinct plan, then the layout. The
-- layout has entries for consecutive groups of equal requests: the number of groups, the number of
-- requests in each group, the number of accounts, and the index of the plan of each account.
--
-- The reply is the instant, then for each group one or more runs: the number of requests, the
-- number of allowed ones (they come first), and the accounts after the call, as in other replies.
local told, shape, first, at = { struct.pack('<I7H', now, nano) }, ARGV[plans], 1, 1

-- Decides the requests of one group by the general path, one at a time until one is denied.
local function ask(key, args, count)
  local keys = {}
  for i = 1, #args do
    keys[i] = KEYS[key + i - 1]
  end
  while count > 0 do
    local answer = general(keys, args, #args)
    local passed = string.byte(answer)
    local run = passed == 1 and 1 or count
    told[#told + 1] = struct.pack('<HH', run, passed) .. string.sub(answer, 11)
    count = count - run
  end
end

while at <= #shape do
  local times, count, accounts = struct.unpack('<HHH', shape, at)
  local args = {}
  for i = 1, accounts do
    args[i] = ARGV[struct.unpack('<H', shape, at + 4 + 2 * i)]
  end
  at = at + 6 + 2 * accounts

  -- One account of one quota, the most common case: no tables, and one read per group.
  local short = accounts == 1 and #args[1] == 41
  local cost, cost_nano, room, room_nano = struct.unpack('<I7Hi7H', args[1], 6)
  local most, most_nano = plus(now, nano, room, room_nano)
  -- The furthest TAT that is possible under this quota.
  local furthest = now + 2 * (room + cost)
  for key = first, first + accounts * times - 1, accounts do
    local value, simple = nil, false
    local tat, tat_nano = now, nano
    if short then
      value = redis.pcall('GET', KEYS[key])
      simple = not value
      if value and #value == 19 then
        -- The number of the three bytes of `g` and its length.
        local last, head, us, ns = struct.unpack('<I7I3I7H', value)
        simple = head == 2407 and last <= now and ns < 1000 and us <= furthest
        if us > now or us == now and ns > nano then
          tat, tat_nano = us, ns
        end
      end
    end
    if simple then
      local passed = 0
      while passed < count and (tat < most or tat == most and tat_nano <= most_nano) do
        passed = passed + 1
        tat, tat_nano = tat + cost, tat_nano + cost_nano
        if tat_nano >= 1000 then
          tat, tat_nano = tat + 1, tat_nano - 1000
        end
      end
      if passed > 0 then
        value = struct.pack('<I7I3I7H', now, 2407, tat, tat_nano)
        local ms = math.ceil((tat + 1 - now) / 1000)
        redis.call('SET', KEYS[key], value, 'PX', math.min(ms, 315360000000) + linger)
      end
      value = value or ''
      local charged = passed > 0 and 1 or 0
      told[#told + 1] = struct.pack('<HHBI4c0', count, passed, charged, #value, value)
    else
      ask(key, args, count)
    end
  end
  first = first + accounts * times
end
return table.concat(told)
