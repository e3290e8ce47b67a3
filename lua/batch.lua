-- Many requests in one call, decided one after another at one instant: GCRA quotas that start full
-- and are all charged.
--
-- KEYS: the distinct accounts. ARGV: each distinct plan, then the layout, in numbers of two bytes.
-- The layout has entries for consecutive groups of equal requests: the number of groups, the number of
-- requests in each group, the number of accounts, the index of the plan of each account, and for each
-- group the index of the key of each account.
--
-- The reply is the instant, then for each group the number of allowed requests (they come first) and
-- the accounts after the group.
--
-- One command reads all accounts. `values` holds each account as the groups so far left it, and
-- `ttls` the time to live of each account to write. Each account is written once, at the end.
local call, pack, take = redis.call, struct.pack, struct.unpack
local size = #ARGV[plans] / 2
local layout = { take('<' .. string.rep('H', size), ARGV[plans]) }
local values, ttls = call('MGET', unpack(KEYS)), {}
local reply, n, at = {}, 1, 1
-- Parts of the reply that occur often: the number of allowed requests, and with it or without it the
-- number of charges and the length of a valid account of one quota.
local number = { [0] = pack('<H', 0), pack('<H', 1) }
local head = { [0] = pack('<HBI4', 0, 0, 23), pack('<HBI4', 1, 0, 23) }
local both = { [0] = number[0] .. head[0], number[1] .. head[1] }

-- MGET finds no value at a key of another type. The instant of the call is that of `steady.lua`.
local missing = {}
for key = 1, #KEYS do
  local value = values[key]
  if not value then
    missing[#missing + 1] = KEYS[key]
  elseif #value > 6 then
    local last = take('<I7', value)
    if last > now and last < real + 1000000 then
      now, nano = last, 0
    end
  end
end
if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
  for key = 1, #KEYS do
    values[key] = values[key] or redis.pcall('GET', KEYS[key])
  end
end

-- Returns the milliseconds by the clock until an account of this TAT may be dropped, as text: Redis
-- takes longer to format a number.
local texts = {}
local function ttl_of(tat)
  local ms = (tat + 1000 - real) / 1000
  ms = ms - ms % 1
  if not texts[ms] then
    texts[ms] = string.format('%d', math.min(ms, 315360000000) + extra_ttl)
  end
  return texts[ms]
end

local function flush(key)
  if ttls[key] then
    call('PSETEX', KEYS[key], ttls[key], values[key])
    ttls[key] = nil
  end
end

-- Reads an account by the general path: an invalid value, a block, a reset, or a value of another
-- quota or another clock.
local read, write, tat_of
local function read_any(key, plan)
  flush(key)
  if not read then
    read, write, tat_of = general()
  end
  local found = read(KEYS[key], plan.text)
  for i = 1, #plan do
    plan[i].tat, plan[i].tat_nano = tat_of(found.places[i])
  end
  return found
end

-- Parses the plans of a group.
local function parse(from, accounts)
  local parsed = {}
  for i = 1, accounts do
    local text = ARGV[layout[from + i - 1]]
    local plan = { text = text, length = 7 + (#text - 3) / 43 * 16 }
    for at = 5, #text, 43 do
      local address, _, _, cost, cost_nano, room, room_nano = take('<I4BBI7Hi7H', text, at)
      local most, most_nano = plus(now, nano, room, room_nano)
      plan[#plan + 1] = {
        address = address, cost = cost, cost_nano = cost_nano, most = most, most_nano = most_nano,
        -- The furthest TAT that is possible under this quota.
        furthest = now + 2 * (room + cost),
      }
    end
    parsed[i] = plan
  end
  return parsed
end

-- Decides a group of requests. The layout has its keys after `before`.
local function decide(count, parsed, before)
  local passed, others = count, nil
  -- Counts the requests that fit.
  for i = 1, #parsed do
    local plan, key = parsed[i], layout[before + i]
    local value, last, letter, found, tat, tat_nano, from = values[key], now, 3431, 0, now, nano, 0
    if value and #value == plan.length then
      -- The number of the three bytes of `g` and its length.
      last, letter, found, tat, tat_nano, from = take('<I7I3I4I7H', value)
    end
    local simple = not value or from > 0 and last <= now
    for j = 1, #plan do
      local quota = plan[j]
      if j > 1 and from > 0 then
        letter, found, tat, tat_nano, from = take('<I3I4I7H', value, from)
      end
      simple = simple and letter == 3431 and (from == 0 or found == quota.address)
        and tat_nano < 1000 and tat <= quota.furthest
      if tat < now or tat == now and tat_nano < nano then
        tat, tat_nano = now, nano
      end
      quota.tat, quota.tat_nano = tat, tat_nano
    end
    if not simple then
      others = others or {}
      others[i] = read_any(key, plan)
      passed = others[i].block and 0 or passed
    end
    for j = 1, #plan do
      local quota, fit = plan[j], 0
      local tat, tat_nano, most, most_nano = quota.tat, quota.tat_nano, quota.most, quota.most_nano
      while fit < passed and (tat < most or tat == most and tat_nano <= most_nano) do
        fit, tat, tat_nano = fit + 1, tat + quota.cost, tat_nano + quota.cost_nano
        if tat_nano >= 1000 then
          tat, tat_nano = tat + 1, tat_nano - 1000
        end
      end
      passed = fit
    end
  end

  -- Charges these.
  n = n + 1
  reply[n] = number[passed] or pack('<H', passed)
  for i = 1, #parsed do
    local plan, key, found = parsed[i], layout[before + i], others and others[i]
    local value, latest, healed = values[key] or '', now, 0
    for j = 1, passed > 0 and #plan or 0 do
      local quota = plan[j]
      local tat, nanos = quota.tat + passed * quota.cost, quota.tat_nano + passed * quota.cost_nano
      if nanos >= 1000 then
        tat, nanos = tat + (nanos - nanos % 1000) / 1000, nanos % 1000
      end
      latest = tat > latest and tat or latest
      if found then
        local place = found.places[j]
        place.state, place.raw, place.stored_end = { us = tat, ns = nanos }, nil, nil
      elseif j == 1 then
        value = pack('<I7I3I4I7H', now, 3431, quota.address, tat, nanos)
      else
        value = value .. pack('<I3I4I7H', 3431, quota.address, tat, nanos)
      end
    end
    if found then
      if passed > 0 or found.changed then
        write(found)
      end
      value, healed = found.value or '', found.healed and 1 or found.dropped and 2 or 0
      values[key] = value ~= '' and value
    elseif passed > 0 then
      values[key], ttls[key] = value, ttl_of(latest)
    end
    reply[n + 1] = #value == 23 and healed == 0 and head[passed]
      or pack('<HBI4', passed, healed, #value)
    reply[n + 2] = value
    n = n + 2
  end
end

reply[1] = pack('<I7H', now, nano)
while at <= size do
  local groups, count, accounts = layout[at], layout[at + 1], layout[at + 2]
  local parsed = parse(at + 3, accounts)
  local first = at + 3 + accounts
  at = first + groups * accounts
  local quota = accounts == 1 and #parsed[1] == 1 and parsed[1][1]
  if not quota then
    for before = first - 1, at - 2, accounts do
      decide(count, parsed, before)
    end
  else
    -- One account of one quota, the most common case: the same without loops over either.
    local cost, cost_nano, most, most_nano = quota.cost, quota.cost_nano, quota.most, quota.most_nano
    local furthest, address = quota.furthest, quota.address
    for index = first, at - 1 do
      local key = layout[index]
      local value, tat, tat_nano = values[key], now, nano
      local simple = not value
      if value and #value == 23 then
        local last, letter, found, us, ns = take('<I7I3I4I7H', value)
        simple = letter == 3431 and found == address and last <= now and ns < 1000 and us <= furthest
        if us > now or us == now and ns > nano then
          tat, tat_nano = us, ns
        end
      end
      if simple then
        local passed = 0
        while passed < count and (tat < most or tat == most and tat_nano <= most_nano) do
          passed, tat, tat_nano = passed + 1, tat + cost, tat_nano + cost_nano
          if tat_nano >= 1000 then
            tat, tat_nano = tat + 1, tat_nano - 1000
          end
        end
        if passed > 0 then
          value = pack('<I7I3I4I7H', now, 3431, address, tat, tat_nano)
          values[key], ttls[key] = value, ttl_of(tat)
        end
        value, n = value or '', n + 2
        reply[n - 1] = #value == 23 and both[passed]
          or pack('<HHBI4', passed, passed, 0, #value)
        reply[n] = value
      else
        decide(count, parsed, index - 1)
      end
    end
  end
end

for key = 1, #KEYS do
  flush(key)
end
return table.concat(reply)
