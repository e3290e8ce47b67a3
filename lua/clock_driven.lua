-- The clock of tests: the time is in the last two arguments. Keys live a quarter of an hour longer
-- than needed, by the server's clock; otherwise they would expire while the test clock stands
-- still.
local real, nano = ARGV[#ARGV - 1] + 0, ARGV[#ARGV] + 0
local now, fraction = real, nano / 1000
local plans, extra_ttl = #ARGV - 2, 900000
