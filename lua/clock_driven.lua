-- For tests: now is what the two last arguments say. What is kept then lingers for a quarter of an hour of Redis's
-- own time, or that would end accounts of a clock which stands still.
local now, nano = ARGV[#ARGV - 1] + 0, ARGV[#ARGV] + 0
local plans, linger = #ARGV - 2, 900000
