-- Put before the scripts that compare connections: these may be beyond what Lua's numbers hold, so they stay text.
local function is_below(a, b)
  return #a < #b or #a == #b and a < b
end
