-- directory::disconnect. KEYS: the device's entry. ARGV: node, epoch, connection, whether older ones have ended, too, now, how
-- long the entry is kept.
local entry = entry_of(KEYS[1])
if not entry then
  return 0
end
local is_online, generation, _, at_epoch, at_connection, at_node =
  string.match(entry, '^(%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
if is_online ~= '1' or at_node ~= ARGV[1] or at_epoch ~= ARGV[2] then
  return 0
end
if at_connection ~= ARGV[3] and not (ARGV[4] == '1' and is_below(at_connection, ARGV[3])) then
  return 0
end
redis.call('SET', KEYS[1], table.concat({0, generation, ARGV[5], 0, 0, ''}, ' '), 'PX', ARGV[6])
return 1
