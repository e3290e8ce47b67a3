-- Sets the instant of a call. If the clock is less than a second behind the last change of an account of
-- the call, the instant is that of the change: otherwise, the time between them would refill twice.
-- Accounts that are further ahead are moved to the instant when they are read.
local values = redis.call('MGET', unpack(KEYS))

local is_late = false
for key = 1, #KEYS do
  local value = values[key]
  is_late = is_late or value and #value > 6 and struct.unpack('<I7', value) > real
end

if is_late then
  -- Returns true for the address of a quota of the call. It is a hash, so a plan has it by chance only.
  local function is_of_call(address)
    for i = 1, plans do
      if string.find(ARGV[i], address, 1, true) then
        return true
      end
    end
  end

  -- Moves the instant to the last changes of the block and of the entries of the call in a value.
  local function catch_up(value)
    local head, at = struct.unpack('<I7', value)
    while at + 9 <= #value do
      local letter, length, from = struct.unpack('<c1H', value, at)
      local last, after = head, from + length
      if string.byte(letter) < 97 then
        last, from = struct.unpack('<I7', value, from)
      end
      local is_near = last > now and last < real + 1000000
      if is_near and (string.lower(letter) == 'b' or is_of_call(string.sub(value, from, from + 3))) then
        now, nano = last, 0
      end
      at = after
    end
  end

  for key = 1, #KEYS do
    local value = values[key]
    if value and #value > 6 and struct.unpack('<I7', value) > real then
      catch_up(value)
      -- The general code reads the account.
      values[key] = ''
    end
  end
end
