-- The current time by the server's clock: microseconds since the epoch, and the remaining
-- nanoseconds. All instants and durations in the scripts are such pairs, because a double
-- represents a Unix time in microseconds exactly, but not one in nanoseconds. `now` is the instant of the
-- call, which `steady.lua` may move. Times to live and sets of slots go by the clock itself, `real`.
local clock = redis.call('TIME')
local real, nano = clock[1] * 1000000 + clock[2], 0
local now, fraction = real, 0
local plans, extra_ttl = #ARGV, 0
