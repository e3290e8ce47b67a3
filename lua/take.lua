-- Decides equal requests, one after another at one instant.

-- Returns how many of `most` equal requests fit, one after another.
local function fitting(place, most)
  local fits = place.algorithm.fits
  if not fits(place, 0) then
    return 0
  elseif fits(place, most - 1) then
    return most
  end
  -- Each charge leaves less room for the next, so the last one that fits can be searched.
  local low, high = 1, most
  while high - low > 1 do
    local middle = whole(low + high, 2)
    if fits(place, middle - 1) then
      low = middle
    else
      high = middle
    end
  end
  return low
end

-- Charges all accounts or none for each of `count` requests: reads all of the `size` accounts first.
-- Returns the number of allowed requests, which come first, and the accounts, each with the number of its
-- charges.
local function decide(keys, texts, size, count)
  local accounts, passed, possible, blocked, rates = {}, count, true, false, count

  for i = 1, size do
    local account = read(keys[i], texts[i])
    local places = account.places
    accounts[i], account.times, account.possible = account, count, true
    for at = 1, #places do
      local place = places[at]
      if place.charges == 1 then
        local fit = fitting(place, count)
        account.charging, account.times = true, math.min(account.times, fit)
        if account.binding and not place.set then
          rates = math.min(rates, fit)
        end
        if fit == 0 then
          account.possible = account.possible and place.possible == 1
        end
      end
    end
    -- If an account is outside of the periods of its plan, the reply is an error. A block also holds
    -- without quotas.
    local stops = account.binding and (account.charging or #places == 0)
    blocked = blocked or account.outside or account.block and stops
    if account.binding then
      passed, possible = math.min(passed, account.times), possible and account.possible
    end
  end
  passed = blocked and 0 or passed

  for i = 1, size do
    local account = accounts[i]
    local places = account.places
    account.times = account.charging and math.min(passed, account.times) or 0
    for at = 1, #places do
      local place = places[at]
      if place.charges == 1 then
        if account.times > 0 then
          place.algorithm.charge(place, account.times)
          own(place)
          account.changed = account.changed or not place.set
        elseif possible and not blocked and not place.state and place.possible == 1 then
          -- The first request opens an account that starts at `initial`.
          place.algorithm.open(place)
          place.last, account.changed = nil, account.changed or place.state
        end
        if place.mark then
          -- The requests up to `rates` are denied by slots alone.
          local taken = account.times * place.cost
          local waits = possible and not blocked and passed < rates
          account.marked = place.algorithm.mark(place, taken, waits, passed < count)
        end
      end
      account.changed = account.changed or place.shrunk
    end
    if account.changed then
      write(account)
    end
  end
  return passed, accounts
end
