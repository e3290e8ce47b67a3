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
-- Returns the number of allowed requests, which come first, and the accounts, each with the number
-- of its charges.
local function decide(keys, texts, size, count)
  local accounts, passed, possible, blocked, rates = {}, count, true, false, count

  for i = 1, size do
    local account = read(keys[i], texts[i])
    local places = account.places
    accounts[i], account.times = account, count
    for at = 1, #places do
      local place = places[at]
      if place.charges == 1 then
        local fit = fitting(place, count)
        account.charging, account.times = true, math.min(account.times, fit)
        if account.binding and not place.set then
          rates = math.min(rates, fit)
        end
        if fit == 0 and account.binding then
          possible = possible and place.possible == 1
        end
      end
    end
    blocked = blocked or account.block and account.binding and account.charging
    passed = account.binding and math.min(passed, account.times) or passed
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
          account.changed = account.changed or not place.set
        elseif possible and not blocked and not place.state and place.possible == 1 then
          -- The first request opens an account that starts at `initial`.
          place.algorithm.open(place)
          account.changed = account.changed or place.state
        end
        if place.mark then
          -- The requests up to `rates` are denied by slots alone.
          local taken = account.times * place.cost
          place.algorithm.mark(place, taken, possible and not blocked and passed < rates)
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
