-- Lease::acquire_or_renew, the era, and all leases. KEYS: the era, the hash of leases. ARGV: node, epoch, length of a lease, the era in
-- which everything is registered or 0, the node's address, whether to hold a lease or only to read, how long a dead node is
-- kept, the longest lease. Times are of the directory's own clock. If it was put back, a lease would seem to last as long as that:
-- it ends after the longest lease from here on. A living node renews it meanwhile.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local last = now + tonumber(ARGV[8])
local leases = redis.pcall('HGETALL', KEYS[2])
if leases.err then
  redis.call('DEL', KEYS[2])
  leases = {}
end
for index = 1, #leases, 2 do
  local epoch, until_ms, rest = string.match(leases[index + 1], '^(%d+) (%d+) (.*)$')
  if not until_ms or tonumber(until_ms) + tonumber(ARGV[7]) < now then
    redis.call('HDEL', KEYS[2], leases[index])
  elseif tonumber(until_ms) > last then
    redis.call('HSET', KEYS[2], leases[index], table.concat({epoch, string.format('%.0f', last), rest}, ' '))
  end
end
local is_held = 0
if ARGV[6] == '1' then
  local lease = redis.call('HGET', KEYS[2], ARGV[1])
  local epoch, until_ms
  if lease then
    epoch, until_ms = string.match(lease, '^(%d+) (%d+) ')
  end
  if not epoch or epoch == ARGV[2] or now >= tonumber(until_ms) then
    local ends = string.format('%.0f', now + tonumber(ARGV[3]))
    redis.call('HSET', KEYS[2], ARGV[1], table.concat({ARGV[2], ends, ARGV[4], ARGV[5]}, ' '))
    is_held = 1
  end
end
local era = redis.pcall('GET', KEYS[1])
return {is_held, type(era) == 'string' and era or '', string.format('%.0f', now), redis.call('HGETALL', KEYS[2])}
