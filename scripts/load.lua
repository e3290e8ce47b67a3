-- Counts what a limited server answers to wrk and checks that it was held to its quota: RATE a
-- second after a burst of BURST (5 and 10 unless set). Exits with 1 when it was not.

local rate = tonumber(os.getenv("RATE") or 5)
local burst = tonumber(os.getenv("BURST") or 10)
local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

function init()
   admitted, refused, other, lacking, shortest = 0, 0, 0, 0, math.huge
end

function response(status, headers)
   if status == 200 then
      admitted = admitted + 1
   elseif status == 429 then
      refused = refused + 1
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
   local admitted, refused, other, lacking = sum("admitted"), sum("refused"), sum("other"), sum("lacking")
   local shortest = math.huge
   for _, thread in ipairs(threads) do
      shortest = math.min(shortest, thread:get("shortest"))
   end
   local seconds = summary.duration / 1e6
   local bound = burst + rate * seconds
   local errors = summary.errors

   print(string.format("admitted %d (burst + rate * %.3f s = %.1f), refused %d, other %d",
      admitted, seconds, bound, refused, other))
   print(string.format("shortest Retry-After %s, refusals without one %d", shortest, lacking))

   check(admitted <= bound + rate, "more was admitted than %d/s burst %d allows", rate, burst)
   check(admitted >= 0.9 * bound, "less was admitted than %d/s burst %d allows", rate, burst)
   check(refused > 0, "nothing was refused")
   check(lacking == 0 and shortest >= 1, "a refusal needs a Retry-After of at least 1")
   check(other == 0, "only 200 and 429 are expected")
   local broken = errors.connect + errors.read + errors.write + errors.timeout
   check(broken == 0, "%d connections failed", broken)
end
