-- directory::connect. KEYS: the device's entry. ARGV: node, epoch, connection, era's first generation, whether a connection
-- that lives stays, the generation that is known to be dead, now, how long the entry is kept (both in milliseconds).
-- Generations are below 2^53, so Lua's numbers hold them; all else stays text.
local node, epoch, connection = ARGV[1], ARGV[2], ARGV[3]
local entry = entry_of(KEYS[1])
local is_online, before, _, at_epoch, at_connection, at_node
if entry then
  is_online, before, _, at_epoch, at_connection, at_node = string.match(entry, '^(%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
end
is_online = is_online == '1'
if is_online and at_node == node and at_epoch == epoch and is_below(connection, at_connection) then
  return {0, before, at_epoch, at_connection, at_node}
end
if is_online and ARGV[5] == '1' and not (at_node == node and at_epoch == epoch) and before ~= ARGV[6] then
  return {0, before, at_epoch, at_connection, at_node}
end
local is_same = is_online and at_node == node and at_epoch == epoch and at_connection == connection
local generation = math.max((tonumber(before) or 0) + (is_same and 0 or 1), tonumber(ARGV[4]))
generation = string.format('%.0f', generation)
local new = table.concat({1, generation, ARGV[7], epoch, connection, node}, ' ')
redis.call('SET', KEYS[1], new, 'PX', ARGV[8])
if is_online and not is_same then
  return {1, generation, at_epoch, at_connection, at_node}
end
return {1, generation}
