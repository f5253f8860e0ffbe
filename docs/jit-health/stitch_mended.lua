-- The same as stitch.lua, quoted by what is compiled.
local core = require("apisix.core")
local fields = { "request_method", "scheme", "host", "uri", "args" }

local function quoted(value)
  return '"' .. ngx.escape_uri(value) .. '"'
end

return function(conf, ctx)
  local text = ""
  for at = 1, #fields do
    text = text .. fields[at] .. "=" .. quoted(ngx.var[fields[at]] or "") .. ";"
  end
  core.request.set_header(ctx, "X-Request", text)
end
