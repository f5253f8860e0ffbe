-- Compare and set. KEYS: the era. ARGV: what was found ('' for none), the era to begin.
local found = redis.pcall('GET', KEYS[1])
if (type(found) == 'string' and found or '') == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
end
return redis.call('GET', KEYS[1])
