-- Renews or frees held slots. Slots that have ended are never renewed.
--
-- KEYS: those of the slots. ARGV: whether to renew (1 byte) and the time to live in microseconds (7),
-- then for each key the number of each call (8) and how many of its slots are left (4). Returns `1` for
-- each call whose slots were renewed, and `0` for the others.
local renews, ttl = struct.unpack('<BI7', ARGV[1])
local most, counted = now + ttl, ''

for i = 1, plans - 1 do
  local set, freed, renewed = KEYS[i], ARGV[i + 1], {}
  local value = load_slots(set)
  if value and renews == 1 then
    local entries, first, last, held = sweep_slots(string.sub(value, 19), most, by_number(freed), renewed)
    keep_slots(set, entries, '', first, last, held)
  elseif value then
    keep_slots(set, free_slots(value, most, freed))
  end
  for at = 1, #freed, 12 do
    counted = counted .. (renewed[string.sub(freed, at, at + 7)] and '1' or '0')
  end
end
return counted
