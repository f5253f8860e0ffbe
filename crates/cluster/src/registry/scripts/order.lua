-- Put before the scripts that compare connections. These stay text, as Lua's numbers are exact only up to 2^53.
local function is_below(a, b)
  return #a < #b or #a == #b and a < b
end
