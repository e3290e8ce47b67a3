-- Runs before the other functions are defined.
if plans == 1 then
  local reply = hold_slots(KEYS[1], ARGV[1], 1)
  if reply then
    return struct.pack('<I7H', now, nano) .. reply
  end
end
