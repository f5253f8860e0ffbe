-- The request in one header field, in which each value is quoted as JSON quotes it.
local core = require("apisix.core")
local fields = { "request_method", "scheme", "host", "uri", "args" }

return function(conf, ctx)
  local text = ""
  for at = 1, #fields do
    text = text .. fields[at] .. "=" .. core.json.encode(ngx.var[fields[at]] or "") .. ";"
  end
  core.request.set_header(ctx, "X-Request", text)
end
