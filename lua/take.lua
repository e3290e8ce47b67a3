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

-- Adds an account to its group of alternatives, of which the first that fits pays. One that is not
-- binding fits.
local function join(groups, account)
  local group = groups[account.group] or { times = 0, possible = false }
  local times = account.binding and account.times or 1
  if group.times == 0 then
    group.paying, group.times = account, times
  end
  group.possible = group.possible or times > 0 or account.possible
  groups[account.group] = group
end

-- Charges all accounts or none for each of `count` requests: reads all of the `size` accounts first.
-- Of each group of alternatives, it charges one. A share is charged if it and the next account fit, and
-- otherwise the next account leaves its reserve. A request with groups is decided alone. Returns the
-- number of allowed requests, which come first, and the accounts, each with the number of its charges.
local function decide(keys, texts, size, count)
  local accounts, passed, possible, blocked, rates = {}, count, true, false, count
  local groups = {}

  for i = 1, size do
    local account = read(keys[i], texts[i])
    local places, share = account.places, accounts[i - 1]
    accounts[i], account.times, account.possible = account, count, true
    if share and share.reserve and share.times == 0 then
      local place = places[1]
      place.room, place.room_nano =
        minus(place.room, place.room_nano, share.reserve, share.reserve_nano)
    end
    for at = 1, #places do
      local place = places[at]
      if place.charges == 1 then
        local fit = fitting(place, count)
        account.charging, account.times = true, math.min(account.times, fit)
        if account.binding and account.group == 0 and not place.set then
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
    if account.reserve then
      -- A share need not fit.
    elseif account.group > 0 then
      join(groups, account)
    elseif account.binding then
      passed, possible = math.min(passed, account.times), possible and account.possible
    end
  end
  for _, group in pairs(groups) do
    passed, rates = math.min(passed, group.times), math.min(rates, group.times)
    possible = possible and group.possible
  end
  passed = blocked and 0 or passed

  for i = 1, size do
    local account = accounts[i]
    local places, pool = account.places, account.reserve and accounts[i + 1]
    if pool then
      account.times = math.min(account.times, pool.times)
    end
    account.times = account.charging and math.min(passed, account.times) or 0
    local group = groups[account.group]
    local is_passed_over = passed > 0 and group and group.paying ~= account
    if is_passed_over then
      account.times = 0
    end
    for at = 1, #places do
      local place = places[at]
      if place.charges == 1 then
        if account.times > 0 then
          place.algorithm.charge(place, account.times)
          account.changed = account.changed or not place.set
        elseif possible and not blocked and not place.state and place.possible == 1
          and not is_passed_over then
          -- The first request opens an account that starts at `initial`.
          place.algorithm.open(place)
          account.changed = account.changed or place.state
        end
        if place.mark then
          -- The requests up to `rates` are denied by slots alone.
          local taken = account.times * place.cost
          local waits = possible and not blocked and passed < rates
          place.algorithm.mark(place, taken, waits, passed < count)
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
