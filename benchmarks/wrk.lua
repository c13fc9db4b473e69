-- wrk sends the requests in the files it is given, in turn, and says what came of them as JSON.
local sent, turn = {}, 0

function init(paths)
  for _, path in ipairs(paths) do
    local file = assert(io.open(path, "rb"))
    sent[#sent + 1] = file:read("*a")
    file:close()
  end
end

function request()
  turn = turn % #sent + 1
  return sent[turn]
end

function done(summary, latency)
  local failed = summary.errors
  local errors = failed.connect + failed.read + failed.write + failed.status + failed.timeout
  io.write(string.format(
    '\n{"images_per_second": %.3f, "median_ms": %.3f, "p95_ms": %.3f, "errors": %d}\n',
    (summary.requests - failed.status) / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(95) / 1e3, errors))
end
