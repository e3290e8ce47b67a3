-- One account of one quota of slots, in which every entry counts: the most common call with slots. It
-- returns before the other functions are defined. All other cases (an ended entry, other pending
-- charges, a clock that stepped back) continue below; nothing has been changed until then.
local binding, quotas, letter, charges, _, cost, need, limit, process, sequence, held, life, pending =
  struct.unpack('<BBc1BBI3I5I5c8I6I3I7Hc0', ARGV[1])
if plans == 1 and binding == 1 and quotas == 1 and pending == '' then
  local value = redis.pcall('GET', KEYS[1])
  local others, slots, own, first, simple = '', 0, 0, now + life, not value
  if value and #value >= 45 then
    local last, mark, length, sum, ends = struct.unpack('<I7c1HI4I7', value)
    simple = mark == 'c' and length == #value - 10 and length < 65000 and last <= now and ends > now
    local from, to = string.find(value, process, 22, true), #value + 1
    if from then
      local newest
      _, newest, own = struct.unpack('<c8I6I3', value, from)
      simple = simple and newest < sequence and math.fmod(from, 24) == 22
      to = from + 24
      while simple and to < #value and string.sub(value, to, to + 7) == process do
        own, to = own + struct.unpack('<I3', value, to + 14), to + 24
      end
    end
    others = string.sub(value, 22, (from or to) - 1) .. string.sub(value, to)
    slots = sum - own
    if others ~= '' then
      first = math.min(first, ends)
    end
  end
  if simple then
    local ends, fits = now + life, slots + held + need <= limit
    local charged, size = charges == 1 and fits and 1 or 0, #others + 35
    if charged == 1 then
      value = struct.pack('<I7c1HI4I7c0c8I6I3I7c8I6I3I7', now, 'c', size + 24, slots + held + cost, first,
        others, process, sequence, held, ends, process, sequence, cost, ends)
    elseif held > 0 or own > 0 then
      value = struct.pack('<I7c1HI4I7c0c8I6I3I7', now, 'c', size, slots + held, first, others, process,
        sequence, held, ends)
    end
    if charged == 1 or held > 0 or own > 0 then
      redis.call('PSETEX', KEYS[1], math.ceil(life / 1000) + linger, value)
    end
    value = value or ''
    return struct.pack('<BI7HBI4c0', (charges == 0 or fits) and 1 or 0, now, nano, charged, #value, value)
  end
end
