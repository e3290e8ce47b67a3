-- Main part for groups of equal requests, decided one after another.
--
-- KEYS: the distinct keys of accounts, logs, sets of slots and marks. ARGV: the plans, then the layout, in
-- numbers of two bytes. The layout has for each group the number of requests, the number of accounts,
-- and for each account the index of its key and that of its plan.
--
-- The reply is the instant, then for each group the number of allowed requests (they come first) and
-- the accounts after the group.
local layout, at = ARGV[plans], 1
local reply = { struct.pack('<I7H', now, nano) }
while at <= #layout do
  local count, size
  count, size, at = struct.unpack('<HH', layout, at)
  local keys, texts = {}, {}
  for i = 1, size do
    local key, text
    key, text, at = struct.unpack('<HH', layout, at)
    keys[i], texts[i] = KEYS[key], ARGV[text]
  end
  reply[#reply + 1] = answer(decide(keys, texts, size, count))
end
return table.concat(reply)
