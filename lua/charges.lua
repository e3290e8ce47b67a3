-- Returns how many of `most` equal charges of a GCRA quota fit, one after another, if the first leaves this
-- much of the room. One division, whose rounding is corrected.
local function charges_within(left, left_nano, cost, cost_nano, most)
  local more = (left + left_nano / 1000) / (cost + cost_nano / 1000)
  more = more < most - 1 and more - more % 1 or most - 1
  -- The difference is exact, or far from zero.
  left, left_nano = left - more * cost, left_nano - more * cost_nano
  if left * 1000 + left_nano < 0 then
    return more
  elseif more < most - 1 and (left - cost) * 1000 + left_nano - cost_nano >= 0 then
    return more + 2
  end
  return more + 1
end

-- Returns the TAT after equal charges.
local function tat_after(tat, tat_nano, cost, cost_nano, times)
  tat, tat_nano = tat + times * cost, tat_nano + times * cost_nano
  if tat_nano >= 1000 then
    return tat + (tat_nano - tat_nano % 1000) / 1000, tat_nano % 1000
  end
  return tat, tat_nano
end
