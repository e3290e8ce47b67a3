-- Sets the instant of a call. If the clock is less than a second behind the last change of an account of
-- the call, the instant is that of the change: otherwise, the time between them would refill twice.
-- Accounts that are further ahead are moved to the instant when they are read: `values` has an invalid
-- value for these.
local values = redis.call('MGET', unpack(KEYS))
for key = 1, #KEYS do
  local value = values[key]
  if value and #value > 6 then
    local last = struct.unpack('<I7', value)
    if last >= real + 1000000 then
      values[key] = ''
    elseif last > now then
      now, nano = last, 0
    end
  end
end
