-- Compare and set. KEYS: the era. ARGV: what was found ('' for none), the era to begin.
if (redis.call('GET', KEYS[1]) or '') == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
end
return redis.call('GET', KEYS[1])
