-- wrk sends the requests in the files it is given, in turn, and says what came of them as JSON.
-- The first word is how many a second are due.
-- What is due goes to whichever connection is free: with enough of them nothing waits for an answer.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long ns; } moment; int clock_gettime(int, moment *);")
local sent, turn = {}, 0
local moment, first, due = ffi.new("moment"), nil, 0

local function now()  -- milliseconds, of the clock that is never set
  ffi.C.clock_gettime(1, moment)
  return tonumber(moment.s) * 1e3 + tonumber(moment.ns) / 1e6
end

function setup(thread)
  asked = thread  -- wrk has one here
end

function init(words)
  local rate = tonumber(words[1])
  for i = 2, #words do
    local file = assert(io.open(words[i], "rb"))
    sent[#sent + 1] = file:read("*a")
    file:close()
  end
  function delay()
    first = first or now()
    local wait = first + due * 1e3 / rate - now()
    due = due + 1
    late = math.max(late or 0, -wait)
    return math.max(wait, 0)
  end
end

function request()
  turn = turn % #sent + 1
  return sent[turn]
end

function done(summary, latency)
  local failed = summary.errors
  local lost = failed.connect + failed.read + failed.write + failed.timeout
  io.write(string.format(
    '\n{"images_per_second": %.3f, "median_ms": %.3f, "p95_ms": %.3f, "answers": %d, '
      .. '"refused": %d, "lost": %d, "errors": %d, "latest_ms": %.3f}\n',
    (summary.requests - failed.status) / summary.duration * 1e6, latency:percentile(50) / 1e3,
    latency:percentile(95) / 1e3, summary.requests, failed.status, lost, lost + failed.status,
    asked:get("late") or 0))
end
