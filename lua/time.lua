-- Instants and times are pairs; the second is below 1000.
local function plus(us, ns, more, more_ns)
  ns = ns + more_ns
  if ns >= 1000 then
    return us + more + 1, ns - 1000
  end
  return us + more, ns
end

local function minus(us, ns, less, less_ns)
  ns = ns - less_ns
  if ns < 0 then
    return us - less - 1, ns + 1000
  end
  return us - less, ns
end

local function before(us, ns, other, other_ns)
  return us < other or us == other and ns < other_ns
end

-- Whole times that `of` goes into `us`: exact below 2^53, which a division alone is not.
local function whole(us, of)
  return (us - math.fmod(us, of)) / of
end

-- The instant that is kept at a place of a value; nothing where none can be.
local function instant(value, at)
  if #value < at + 8 then
    return
  end
  local us, ns = struct.unpack('<I7H', value, at)
  if us < 9007199254740992 and ns < 1000 then
    return us, ns
  end
end
