-- Prints the totals of `wrk` for the program that started it.

function done(summary, latency)
   local errors = summary.errors
   local broken = errors.connect + errors.read + errors.write + errors.timeout
   print(string.format("summary %d %d %d %d %f %f", summary.requests, summary.duration, errors.status,
      broken, latency:percentile(50), latency:percentile(99)))
end
