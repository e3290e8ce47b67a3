-- Now, by Redis's own clock: microseconds since the epoch, and the nanoseconds beyond them. All
-- instants and times here are such pairs, because a double holds a Unix time in microseconds
-- exactly and one in nanoseconds not.
local clock = redis.call('TIME')
local now, nano = clock[1] * 1000000 + clock[2], 0
local plans, linger = #ARGV, 0
