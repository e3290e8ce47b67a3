-- Main part for groups of equal requests whose quotas all use GCRA, start full and are charged.
-- Arguments and reply are those of `groups.lua`, and groups are decided one after another as there.
--
-- `values` holds each account as the groups so far left it. A changed account is written once, after
-- the last group. A group with any other value (a block, a reset, an entry of another plan, an invalid
-- value, a change by a clock that stepped back) is left to the general code, which reads and writes its
-- accounts itself. Nothing of the group has been changed until then.
local call, pack, take = redis.call, struct.pack, struct.unpack
local layout, at = ARGV[plans], 1
-- The latest TAT of each account to write.
local ends = {}
local reply, n = { pack('<I7H', now, nano), '', '' }, 1
-- For each account of a group of several: its key, its value after the charges, and its latest TAT.
local keys, charged_values, latests = {}, {}, {}
-- The last plan, time to live and head of an account, because many are equal.
local plan, address, cost, cost_nano, room, room_nano, _
local ms_written, ms_text
local head, head_charges, head_length

-- `MGET` finds nothing at a key of another type, which the general code replaces.
local missing = {}
for key = 1, #KEYS do
  if not values[key] then
    missing[#missing + 1] = KEYS[key]
  end
end
if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
  for key = 1, #KEYS do
    values[key] = values[key] or ''
  end
end

repeat
  local usual, callers, size, first = true, 0, 0, 0
  while usual and at <= #layout do
    callers, size, first = take('<HH', layout, at)
    local passed, asked, key, charged, latest = callers, 0, 0, '', 0
    -- Accounts before the last one that limits the group have too many charges, so a second round.
    repeat
      asked, at = passed, first
      for i = 1, size do
        local text
        key, text, at = take('<HH', layout, at)
        local value, quotas, from = values[key], ARGV[text], 8
        latest = now
        usual = usual and (not value or #value == 7 + (#quotas - 3) / 43 * 16)
        for quota = 5, #quotas, 43 do
          if quotas ~= plan or quota > 5 then
            address, _, cost, cost_nano, room, room_nano = take('<I4HI7Hi7H', quotas, quota)
            plan = #quotas == 46 and quotas
          end
          local tat, tat_nano = now, nano
          if value and usual then
            -- The letter `g` and the length 13 are the number 3431.
            local kind, found, us, ns
            kind, found, us, ns, from = take('<I3I4I7H', value, from)
            -- A TAT further ahead is not possible under this quota.
            usual = kind == 3431 and found == address and ns < 1000 and us - now <= 2 * (room + cost)
            if us > now or us == now and ns > nano then
              tat, tat_nano = us, ns
            end
          end
          local left, left_nano = now + room - tat, nano + room_nano - tat_nano
          if left * 1000 + left_nano < 0 then
            passed = 0
          elseif passed > 1 then
            local more = (left + left_nano / 1000) / (cost + cost_nano / 1000)
            more = more < passed - 1 and more - more % 1 or passed - 1
            -- The quotient was rounded. The difference is exact, or far from zero.
            left, left_nano = left - more * cost, left_nano - more * cost_nano
            if left * 1000 + left_nano < 0 then
              more = more - 1
            elseif more < passed - 1 and (left - cost) * 1000 + left_nano - cost_nano >= 0 then
              more = more + 1
            end
            passed = more + 1
          end
          if passed > 0 then
            tat, tat_nano = tat + passed * cost, tat_nano + passed * cost_nano
            if tat_nano >= 1000 then
              tat, tat_nano = tat + (tat_nano - tat_nano % 1000) / 1000, tat_nano % 1000
            end
            latest = tat > latest and tat or latest
            charged = quota == 5 and pack('<I7I3I4I7H', now, 3431, address, tat, tat_nano)
              or charged .. pack('<I3I4I7H', 3431, address, tat, tat_nano)
          end
        end
        if size > 1 then
          keys[i], charged_values[i], latests[i] = key, charged, latest
        end
      end
    until not usual or passed == asked or passed == 0
    for i = 1, usual and size or 0 do
      if size > 1 then
        key, charged, latest = keys[i], charged_values[i], latests[i]
      end
      if passed > 0 then
        values[key], ends[key] = charged, latest
      end
      local value = values[key] or ''
      if passed ~= head_charges or #value ~= head_length then
        head_charges, head_length, head = passed, #value, pack('<HHBI4', passed, passed, 0, #value)
      end
      -- The number of allowed requests comes once for the group.
      reply[n + 1] = i == 1 and head or string.sub(head, 3)
      reply[n + 2] = value
      n = n + 2
    end
  end

  for key = 1, #KEYS do
    if ends[key] then
      local ms = (ends[key] + 1000 - real) / 1000
      ms = ms - ms % 1
      if ms ~= ms_written then
        -- Redis takes longer to format a number.
        ms_written, ms_text = ms, string.format('%d', (ms < 315360000000 and ms or 315360000000) + extra_ttl)
      end
      call('PSETEX', KEYS[key], ms_text, values[key])
      ends[key] = nil
    end
  end
  if not usual then
    local decide, answer = general()
    local names, texts, indices = {}, {}, {}
    at = first
    for i = 1, size do
      local text
      indices[i], text, at = take('<HH', layout, at)
      names[i], texts[i] = KEYS[indices[i]], ARGV[text]
    end
    local allowed, accounts = decide(names, texts, size, callers)
    n = n + 1
    reply[n] = answer(allowed, accounts)
    for i = 1, size do
      local value = accounts[i].value
      values[indices[i]] = value ~= '' and value
    end
  end
until at > #layout
-- One group leaves a place empty.
return table.concat(reply, '', 1, n)
