-- Put before the scripts that compare connections. These stay text, as Lua's numbers are exact only up to 2^53.
local function is_below(a, b)
  return #a < #b or #a == #b and a < b
end

-- An entry, or nil; a value of another type is none, and is overwritten.
local function entry_of(key)
  local entry = redis.pcall('GET', key)
  return type(entry) == 'string' and entry or nil
end
