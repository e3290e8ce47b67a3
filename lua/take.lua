-- Charges all accounts or none: reads all of them first.
--
-- KEYS: the accounts, then the lists of their sliding logs. ARGV: a plan for each account.
local accounts, allowed, possible, blocked = {}, true, true, false

for i = 1, plans do
  local account = read(KEYS[i], ARGV[i])
  local places = account.places
  accounts[i] = account
  for at = 1, #places do
    local place = places[at]
    if place.charges == 1 then
      account.charging = true
      if not place.algorithm.fits(place) then
        account.fits = false
        possible = possible and (place.possible == 1 or not account.binding)
      end
    end
  end
  blocked = blocked or account.block and account.binding and account.charging
  allowed = allowed and (account.fits or not account.binding)
end
allowed = allowed and not blocked

for i = 1, plans do
  local account = accounts[i]
  local places = account.places
  account.charged = allowed and account.fits and account.charging
  for at = 1, #places do
    local place = places[at]
    if place.charges == 1 then
      if account.charged then
        place.algorithm.charge(place)
        account.changed = account.changed or not place.set
      elseif possible and not blocked and not place.state and place.possible == 1 then
        -- The first request opens an account that starts at `initial`.
        place.algorithm.open(place)
        account.changed = account.changed or place.state
      end
    end
    account.changed = account.changed or place.shrunk
  end
  if account.changed then
    write(account)
  end
end
return answer(allowed, accounts)
