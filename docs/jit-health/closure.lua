-- The route of a request, kept in a cache by the fields that routes ask for.
local cache = require("resty.lrucache").new(1000)
local fields = { "request_method", "scheme", "host", "uri" }

local function each_field(visit)
  for at = 1, #fields do visit(fields[at], ngx.var[fields[at]]) end
end

return function(conf, ctx)
  local key = ""
  each_field(function(name, value)
    key = key .. name .. "=" .. (value or "") .. "|"
  end)
  local route = cache:get(key)
  if not route then
    route = "the route of " .. key
    cache:set(key, route)
  end
  ctx.route = route
end
