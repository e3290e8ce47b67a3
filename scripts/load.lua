-- Counts the answers of a limited server to wrk and checks its quota: RATE a second after a burst
-- of BURST (defaults: 5 and 10). Exits with 1 if the server broke the quota.

local rate = tonumber(os.getenv("RATE") or 5)
local burst = tonumber(os.getenv("BURST") or 10)
local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

function init()
   admitted, rejected, other, lacking, shortest = 0, 0, 0, 0, math.huge
end

function response(status, headers)
   if status == 200 then
      admitted = admitted + 1
   elseif status == 429 then
      rejected = rejected + 1
      local wait = tonumber(headers["retry-after"] or headers["Retry-After"])
      if wait then
         shortest = math.min(shortest, wait)
      else
         lacking = lacking + 1
      end
   else
      other = other + 1
   end
end

local function sum(name)
   local total = 0
   for _, thread in ipairs(threads) do
      total = total + thread:get(name)
   end
   return total
end

local function check(holds, ...)
   if not holds then
      print("FAILED: " .. string.format(...))
      os.exit(1)
   end
end

function done(summary)
   local admitted, rejected, other, lacking = sum("admitted"), sum("rejected"), sum("other"), sum("lacking")
   local shortest = math.huge
   for _, thread in ipairs(threads) do
      shortest = math.min(shortest, thread:get("shortest"))
   end
   local seconds = summary.duration / 1e6
   local bound = burst + rate * seconds
   local errors = summary.errors

   print(string.format("admitted %d (burst + rate * %.3f s = %.1f), rejected %d, other %d",
      admitted, seconds, bound, rejected, other))
   print(string.format("shortest Retry-After %s, rejections without one %d", shortest, lacking))

   check(admitted <= bound + rate, "more requests were admitted than %d/s burst %d allows", rate, burst)
   check(admitted >= 0.9 * bound, "fewer requests were admitted than %d/s burst %d allows", rate, burst)
   check(rejected > 0, "no request was rejected")
   check(lacking == 0 and shortest >= 1, "a rejection needs a Retry-After of at least 1")
   check(other == 0, "only 200 and 429 are expected")
   local broken = errors.connect + errors.read + errors.write + errors.timeout
   check(broken == 0, "%d connections failed", broken)
end
