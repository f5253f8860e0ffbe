-- `resty.http`: a client on the worker's event loop. The request waits for the other server.

local S = ...
local ask, op, ngx, closed, raise = S.ask, S.operations, S.ngx, S.closed, S.raise
local type, tostring, pairs, ipairs, setmetatable, rawget, rawset = type, tostring, pairs, ipairs, setmetatable, rawget, rawset
local lower, gsub, find, match, concat, format = string.lower, string.gsub, string.find, string.match, table.concat, string.format
local min, max = math.min, math.max

local CALL = 5
-- As in OpenResty's sockets.
local TIMEOUT_MS = 60000

-- A part of the message to the gateway, whose parts are separated by zero bytes.
local function part(value, what)
  local text = tostring(value)
  if find(text, "\0", 1, true) then raise(what .. " has a zero byte") end
  return text
end

-- Beyond this, numbers are not exact integers.
local WHOLE_MAX = 2 ^ 53

-- An integer in the gateway's format; larger ones are limited there.
local function whole(value, default, what)
  if value == nil then value = default end
  if type(value) ~= "number" or value ~= value then raise(what .. " is not a number") end
  return format("%.0f", min(max(value, 0), WHOLE_MAX))
end
S.whole = whole

local function add_header(out, name, value)
  if type(value) == "table" then
    for _, one in ipairs(value) do add_header(out, name, one) end
  else
    out[#out + 1] = part(name, "the name of a header")
    out[#out + 1] = part(value, "the header " .. tostring(name))
  end
end

local function body_of(body)
  if body == nil then return "" end
  if type(body) == "table" then return concat(body) end
  if type(body) == "function" then raise("a function as body is not supported; give it as a text") end
  return tostring(body)
end

-- Fields by their names in any case; iteration returns the original names.
local function fields(text)
  local list, count = S.decode_values(text)
  local by_lower = {}
  local headers = setmetatable({}, {
    __index = function(_, name)
      if type(name) ~= "string" then return nil end
      name = lower(name)
      return by_lower[name] or by_lower[(gsub(name, "_", "-"))]
    end,
  })
  local names = {}
  for at = 1, count, 2 do
    local name, value = list[at], list[at + 1]
    local low = lower(name)
    names[low] = names[low] or name
    local before = by_lower[low]
    if before == nil then
      by_lower[low] = value
    elseif type(before) == "table" then
      before[#before + 1] = value
    else
      by_lower[low] = { before, value }
    end
  end
  for low, name in pairs(names) do rawset(headers, name, by_lower[low]) end
  return headers
end

local response = {}
response.__index = closed("the response of resty.http", response)

function response:read_body() return rawget(self, "body") end

local client = {}
client.__index = closed("resty.http", client)

function client:set_timeout(ms) self.timeout = ms end

function client:set_timeouts(connect, send, read)
  self.timeout = max(connect or 0, send or 0, read or 0)
end

local function query_of(query)
  if type(query) == "table" then query = ngx.encode_args(query) end
  query = tostring(query)
  return find(query, "^?") and query or "?" .. query
end

-- The URL, with the given path and query instead of its own.
local function with_target(uri, params)
  if not params.path and not params.query then return uri end
  local base, path, query = match(uri, "^(https?://[^/?]+)([^?]*)(%??.*)$")
  if not base then return uri end
  if params.path then
    path, query = params.path, ""
    if find(path, "?", 1, true) then path, query = match(path, "^([^?]*)(.*)$") end
  end
  if params.query then query = query_of(params.query) end
  return base .. path .. query
end

local function call(self, uri, params)
  if not ask(op.can_wait, "", "", 0) then
    raise("API disabled in the context of " .. ask(op.phase, "", "", 0) .. ": resty.http")
  end
  local out = { part(params.method or "GET", "the method"), part(with_target(uri, params), "the URI") }
  out[3] = params.ssl_verify == false and "0" or "1"
  out[4] = params.keepalive == false and "0" or "1"
  out[5] = whole(params.keepalive_timeout, 60000, "keepalive_timeout")
  out[6] = whole(params.keepalive_pool, 5, "keepalive_pool")
  out[7] = ""
  for name, value in pairs(params.headers or {}) do add_header(out, name, value) end
  out[7] = tostring((#out - 7) / 2)
  out[#out + 1] = body_of(params.body)
  local status, head, body = S.wait(CALL, rawget(self, "timeout") or TIMEOUT_MS, concat(out, "\0"))
  if not status then return nil, head end
  return setmetatable({ status = status, headers = fields(head), body = body, has_body = body ~= "" }, response)
end

function client:request_uri(uri, params)
  if type(uri) ~= "string" then raise("bad argument #1 to 'request_uri' (string expected, got " .. type(uri) .. ")") end
  return call(self, uri, params or {})
end

-- The connection is opened, and may fail, with the request.
function client:connect(options, port)
  if type(options) ~= "table" then options = { host = options, port = port } end
  local scheme = options.scheme or "http"
  local host = tostring(options.host)
  if find(host, ":", 1, true) and not find(host, "^%[") then host = "[" .. host .. "]" end
  self.base = scheme .. "://" .. host .. ":" .. tostring(options.port or (scheme == "https" and 443 or 80))
  self.ssl_verify = options.ssl_verify
  return true
end

function client:request(params)
  local base = rawget(self, "base")
  if not base then return nil, "not connected" end
  local copy = { ssl_verify = rawget(self, "ssl_verify") }
  for key, value in pairs(params) do copy[key] = value end
  copy.path = params.path or "/"
  return call(self, base .. "/", copy)
end

function client:set_keepalive() return 1 end
function client:close() return 1 end
function client:get_reused_times() return 0 end

function client:parse_uri(uri)
  local scheme, authority, path, query = match(uri, "^(https?)://([^/?]+)([^?]*)%??(.*)$")
  if not scheme then return nil, "bad uri: " .. tostring(uri) end
  local host, port = match(authority, "^(.-):?(%d*)$")
  if path == "" then path = "/" end
  return { scheme, host, tonumber(port) or (scheme == "https" and 443 or 80), path, query }
end

S.modules["resty.http"] = closed("resty.http", {
  new = function() return setmetatable({}, client) end,
  _VERSION = "0.17.2",
})

return S.entries
