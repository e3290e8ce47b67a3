-- Instants and durations are pairs of microseconds and nanoseconds; the nanoseconds are below 1000.
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

-- Returns how often `of` fits into `us`. Exact below 2^53, unlike a plain division.
local function whole(us, of)
  return (us - math.fmod(us, of)) / of
end

-- Returns the instant at an offset of a value, or nothing if it is invalid.
local function instant(value, at)
  if #value < at + 8 then
    return
  end
  local us, ns = struct.unpack('<I7H', value, at)
  if us < 9007199254740992 and ns < 1000 then
    return us, ns
  end
end
