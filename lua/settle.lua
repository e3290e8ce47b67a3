-- Changes accounts without testing whether a charge fits: settle, undo, reset, block and unblock.
--
-- KEYS: the accounts, then their logs, sets of slots and marks. ARGV: the operation, an instant (of
-- the charge to undo) or a duration (of a block), and a plan for each account.
local what, accounts, outside = ARGV[1], {}, false
local us, ns = struct.unpack('<I7H', ARGV[2])

for i = 1, plans - 2 do
  accounts[i] = read(KEYS[i], ARGV[i + 2], true)
  outside = outside or accounts[i].outside
end
-- Outside of the periods of a plan, nothing changes, and the reply is an error.
for _, account in ipairs(outside and {} or accounts) do
  for _, place in ipairs(account.places) do
    -- A reset has removed earlier charges. Undoing one of them would release later charges of others.
    local void = what == 'undo' and place.void and not before(place.reset, place.reset_nano, us, ns)
    if void or place.set and what ~= 'reset' then
      -- The slots stay as they are.
    elseif what == 'late' then
      place.algorithm.late(place)
      own(place)
    elseif place.set then
      redis.call('DEL', place.set)
      place.held = 0
    elseif what == 'reset' then
      local ends = place.state and place.algorithm.ends(place) or now
      place.reset, place.reset_nano = now, nano
      ends = math.max(ends, now + place.algorithm.longest(place))
      -- A key lives for ten years at most.
      place.void = math.max(place.void or 0, math.min(ends, now + 315360000000000))
      place.state, place.raw, place.stored_end, place.last = nil, nil, nil, nil
      if place.list then
        redis.call('DEL', place.list)
      end
    elseif what ~= 'block' and what ~= 'unblock' then
      if what == 'refund' and not place.state and place.cost + (place.cost_nano or 0) > 0 then
        place.algorithm.open(place)
      end
      if place.state then
        place.algorithm[what](place, us, ns)
        place.last = nil
        if what ~= 'undo' then
          own(place)
        end
      end
    end
    -- The plan of an undo may be older than the account, and does not end it.
    if what ~= 'undo' and place.state and not place.algorithm.is_active(place) then
      place.state = nil
    end
  end
  if what == 'block' then
    account.block, account.block_nano = plus(now, nano, us, ns)
    account.block_last = nil
  elseif what == 'unblock' then
    account.block = nil
  end
  write(account)
end
return struct.pack('<I7H', now, nano) .. answer(what == 'undo' and 0 or 1, accounts)
