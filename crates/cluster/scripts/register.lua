-- directory::register. KEYS: the device's entry. ARGV: node, epoch, connection, generation, since, how long the entry is
-- kept. Answers whether the entry is this connection's now.
local node, epoch, connection, generation = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local entry = entry_of(KEYS[1])
if entry then
  local is_online, stored, _, at_epoch, at_connection, at_node = string.match(entry, '^(%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if stored then
    if is_online == '1' and at_node == node and at_epoch == epoch and is_below(connection, at_connection) then
      return 0
    end
    local is_own = is_online == '1' and at_node == node
      and (at_connection == connection or stored == generation)
    if not is_own and tonumber(stored) >= tonumber(generation) then
      return 0
    end
  end
end
local new = table.concat({1, generation, ARGV[5], epoch, connection, node}, ' ')
redis.call('SET', KEYS[1], new, 'PX', ARGV[6])
return 1
