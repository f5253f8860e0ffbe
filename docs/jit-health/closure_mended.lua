-- The same as closure.lua with a function that is made once.
local cache = require("resty.lrucache").new(1000)
local fields = { "request_method", "scheme", "host", "uri" }

local function add_field(key, name, value)
  return key .. name .. "=" .. (value or "") .. "|"
end

local function each_field(key, visit)
  for at = 1, #fields do key = visit(key, fields[at], ngx.var[fields[at]]) end
  return key
end

return function(conf, ctx)
  local key = each_field("", add_field)
  local route = cache:get(key)
  if not route then
    route = "the route of " .. key
    cache:set(key, route)
  end
  ctx.route = route
end
