-- Sets the instant of a call. If the clock is less than a second behind the last change of an account of
-- the call, the instant is that of the change: otherwise, the time between them would refill twice.
-- Accounts that are further ahead are moved to the instant when they are read.
for _, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  if value and #value > 6 then
    local last = struct.unpack('<I7', value)
    if last > now and last < real + 1000000 then
      now, nano = last, 0
    end
  end
end
