-- One account of one quota of slots, in which every entry counts: the most common call with slots. It
-- returns before the other functions are defined. All other cases (an ended entry, other pending
-- charges, a clock that stepped back) continue below; nothing has been changed until then.
local binding, quotas, letter, charges, _, cost, need, limit, process, sequence, held, life, pending =
  struct.unpack('<BBc1BBI3I5I5c8I6I3I7Hc0', ARGV[1])
if plans == 1 and binding == 1 and quotas == 1 and pending == '' then
  local value = redis.pcall('GET', KEYS[1])
  local others, mine, slots, own, latest, simple = '', '', 0, 0, now + life, not value
  local first = latest
  if value and #value >= 45 then
    local last, mark, length, sum, ends = struct.unpack('<I7c1HI4I7', value)
    simple = mark == 'c' and length == #value - 10 and length < 65000
      and last <= now and ends > now and ends <= latest
    local from = string.find(value, process, 22, true)
    if from then
      local _, newest, held_before = struct.unpack('<c8I6I3', value, from)
      simple, own = simple and newest < sequence and math.fmod(from, 24) == 22, held_before
      local to = from + 24
      while simple and to < #value and string.sub(value, to, to + 7) == process do
        own, to = own + struct.unpack('<I3', value, to + 14), to + 24
      end
      mine = string.sub(value, from, to - 1)
      if #mine < length - 11 then
        others = string.sub(value, 22, from - 1) .. string.sub(value, to)
      end
    else
      others = string.sub(value, 22)
    end
    slots = sum - own
    simple = simple and slots >= 0
    if others ~= '' then
      first = ends
    end
  end
  if simple then
    local fits = slots + held + need <= limit
    local charged = charges == 1 and fits and 1 or 0
    if charged == 1 or held > 0 or own > 0 then
      if charged == 1 then
        mine = struct.pack('<c8I6I3I7c8I6I3I7', process, sequence, held, latest, process, sequence, cost,
          latest)
      else
        mine = struct.pack('<c8I6I3I7', process, sequence, held, latest)
      end
      own = held + charged * cost
      value = struct.pack('<I7c1HI4I7', now, 'c', 11 + #others + #mine, slots + own, first)
      value = others == '' and value .. mine or value .. others .. mine
      redis.call('PSETEX', KEYS[1], math.ceil(life / 1000) + linger, value)
    end
    -- The reply has no entries of others, because the sum is enough.
    local allowed = (charges == 0 or fits) and 1 or 0
    return struct.pack('<BI7HBI4I7c1HI4I7', allowed, now, nano, charged, 21 + #mine, now, 'c',
      11 + #mine, slots + own, first) .. mine
  end
end
