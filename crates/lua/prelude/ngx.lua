-- `ngx`: the functions known from OpenResty.

local S = ...
local ask, search, op, closed, raise = S.ask, S.search, S.operations, S.closed, S.raise
local ask_with_flags = S.ask_with_flags
local type, tostring, tonumber, select, pairs, ipairs = type, tostring, tonumber, select, pairs, ipairs
local setmetatable, rawget, rawset = setmetatable, rawget, rawset
local sub, lower, byte, gsub, format, match = string.sub, string.lower, string.byte, string.gsub, string.format, string.match
local concat, floor = table.concat, math.floor

-- The record of the running request: { ctx, vars, ngx, said, status, id }.
S.own = nil

local ngx = {
  OK = 0, ERROR = -1, AGAIN = -2, DONE = -4, DECLINED = -5, null = S.null,
  STDERR = 0, EMERG = 1, ALERT = 2, CRIT = 3, ERR = 4, WARN = 5, NOTICE = 6, INFO = 7, DEBUG = 8,
  HTTP_GET = 2, HTTP_HEAD = 4, HTTP_POST = 8, HTTP_PUT = 16, HTTP_DELETE = 32, HTTP_OPTIONS = 512, HTTP_PATCH = 16384,
  HTTP_CONTINUE = 100, HTTP_SWITCHING_PROTOCOLS = 101, HTTP_OK = 200, HTTP_CREATED = 201, HTTP_ACCEPTED = 202,
  HTTP_NO_CONTENT = 204, HTTP_PARTIAL_CONTENT = 206, HTTP_SPECIAL_RESPONSE = 300, HTTP_MOVED_PERMANENTLY = 301,
  HTTP_MOVED_TEMPORARILY = 302, HTTP_SEE_OTHER = 303, HTTP_NOT_MODIFIED = 304, HTTP_TEMPORARY_REDIRECT = 307,
  HTTP_PERMANENT_REDIRECT = 308, HTTP_BAD_REQUEST = 400, HTTP_UNAUTHORIZED = 401, HTTP_PAYMENT_REQUIRED = 402,
  HTTP_FORBIDDEN = 403, HTTP_NOT_FOUND = 404, HTTP_NOT_ALLOWED = 405, HTTP_NOT_ACCEPTABLE = 406,
  HTTP_REQUEST_TIMEOUT = 408, HTTP_CONFLICT = 409, HTTP_GONE = 410, HTTP_UPGRADE_REQUIRED = 426,
  HTTP_TOO_MANY_REQUESTS = 429, HTTP_CLOSE = 444, HTTP_ILLEGAL = 451, HTTP_INTERNAL_SERVER_ERROR = 500,
  HTTP_METHOD_NOT_IMPLEMENTED = 501, HTTP_NOT_IMPLEMENTED = 501, HTTP_BAD_GATEWAY = 502,
  HTTP_SERVICE_UNAVAILABLE = 503, HTTP_GATEWAY_TIMEOUT = 504, HTTP_VERSION_NOT_SUPPORTED = 505,
  config = { subsystem = "http", debug = false, ngx_lua_version = 10028, nginx_version = 1027001 },
}
S.ngx = ngx

-- Concatenates texts in nested tables.
local function written(value, out)
  local kind = type(value)
  if kind == "table" then
    for _, part in ipairs(value) do written(part, out) end
  elseif value == nil then
    out[#out + 1] = "nil"
  elseif kind == "boolean" or value == S.null then
    out[#out + 1] = value == S.null and "null" or tostring(value)
  else
    out[#out + 1] = tostring(value)
  end
  return out
end

local function joined(...)
  local out = {}
  for at = 1, select("#", ...) do
    local value = select(at, ...)
    out[at] = value == S.null and "null" or tostring(value)
  end
  return (concat(out))
end

local function log(level, ...)
  if type(level) ~= "number" then raise("bad argument #1 to 'log' (number expected, got " .. type(level) .. ")") end
  if ask(op.is_logged, "", "", level) then ask(op.log, S.place() .. joined(...), "", level) end
end
S.log = log

ngx.log = log
function print(...) log(6, ...) end

-- Variables

local variable_op = op.variable

-- Variables that always have a value in nginx and APISIX, but are not available here: `nil` would be taken for it.
local unbuilt = {}
for name in ("apisix_upstream_response_time binary_remote_addr connection connection_requests connection_time document_root " ..
  "limit_rate nginx_version original_x_forwarded_for pipe proxy_host proxy_port rate_limiting_info realpath_root " ..
  "request_completion request_filename request_port server_name ssl_curve ssl_session_id ssl_session_reused"):gmatch("%S+") do
  unbuilt[name] = "is not supported; docs/lua.md lists what is"
end
for name in ("body_bytes_sent bytes_received bytes_sent request_length request_time"):gmatch("%S+") do
  unbuilt[name] = "is known from header_filter on"
end

local function absent(name)
  if name == "https" then return ask(variable_op, "scheme", "", 0) == "https" and "on" or "" end
  if name == "real_request_uri" then return ask(variable_op, "request_uri", "", 0) end
  if name == "request_line" then return ask(variable_op, "request", "", 0) end
  local why = unbuilt[name]
  if sub(name, 1, 8) == "graphql_" or sub(name, 1, 4) == "llm_" then why = "is not supported; docs/lua.md lists what is" end
  if why then raise("the variable " .. name .. " " .. why) end
  return nil
end

local function variable(name)
  if type(name) ~= "string" then raise("a variable's name has to be a text") end
  local vars = S.own.vars
  if vars then
    local value = vars[name]
    if value ~= nil then return value end
  end
  local value = ask(variable_op, name, "", 0)
  if value ~= nil then return value end
  return absent(name)
end
S.variable = variable

ngx.var = setmetatable({}, {
  __index = function(_, name)
    if type(name) == "number" then return nil end
    local raw, value = S.raw_variable(name)
    if raw then return value end
    -- Decoded, and the rewritten path, as in nginx; `ctx.var.uri` stays the one that selected the route, as in APISIX.
    if name == "uri" or name == "document_uri" then
      local path = ask(op.rewritten_path, "", "", 0)
      if path then return ask(op.decode_path, path, "", 1) end
      path = variable(name)
      return path and ask(op.decode_path, path, "", 0)
    end
    return variable(name)
  end,
  __newindex = function(_, name, value)
    if not ask(op.set_variable, name, value == nil and "" or tostring(value), 0) then
      raise("variable \"" .. tostring(name) .. "\" not found for writing; ctx.var takes any name")
    end
  end,
})

-- Header fields

local function decode_values(text)
  local list, count, from = {}, 0, 1
  while true do
    local found, spot = search(op.find, text, "\0", 2 * (from - 1) + 1)
    if not found then return list, count end
    spot = spot[0]
    count = count + 1
    list[count] = sub(text, from, spot - 1)
    from = spot + 1
  end
end

S.decode_values = decode_values

-- A single value as a text, several as a list.
local function field(operation, name)
  local text = ask(operation, name, "", 0)
  if not text then return nil end
  local found, spot = search(op.find, text, "\0", 1)
  if spot[0] == #text then return (sub(text, 1, -2)) end
  return (decode_values(text))
end
S.field = field


local by_any_name = {
  __index = function(fields, name)
    if type(name) ~= "string" then return nil end
    return (rawget(fields, (gsub(lower(name), "_", "-"))))
  end,
}

local function all_fields(operation, raw)
  local list, count = decode_values(ask(operation, "", "", 0))
  local fields = {}
  for at = 1, count, 2 do
    local name, value = raw and list[at] or lower(list[at]), list[at + 1]
    local before = fields[name]
    if before == nil then
      fields[name] = value
    elseif type(before) == "table" then
      before[#before + 1] = value
    else
      fields[name] = { before, value }
    end
  end
  if raw then return fields end
  return (setmetatable(fields, by_any_name))
end
S.all_fields = all_fields

local function as_text(value, what)
  local kind = type(value)
  if kind == "string" then return value end
  if kind == "number" or kind == "boolean" then return (tostring(value)) end
  raise("a header value has to be a text, found " .. kind .. " for " .. tostring(what))
end

local function change_field(set, add, remove, name, value)
  if type(name) ~= "string" then raise("a header name has to be a text, found " .. type(name)) end
  if value == nil or (type(value) == "table" and #value == 0) then
    ask(remove, name, "", 0)
  elseif type(value) == "table" then
    ask(set, name, as_text(value[1], name), 0)
    for at = 2, #value do ask(add, name, as_text(value[at], name), 0) end
  else
    ask(set, name, as_text(value, name), 0)
  end
end

local set_request, add_request, remove_request = op.set_request_field, op.add_request_field, op.remove_request_field
local set_response, add_response, remove_response = op.set_response_field, op.add_response_field, op.remove_response_field

-- Names as they are written in a head, by those that functions use: `content_type` is `content-type`.
local dashed, dashed_count = {}, 0

local function with_dashes(name)
  local known = dashed[name]
  if known then return known end
  if type(name) ~= "string" then raise("a header name has to be a text, found " .. type(name)) end
  known = gsub(name, "_", "-")
  if dashed_count >= 512 then dashed, dashed_count = {}, 0 end
  dashed_count = dashed_count + 1
  dashed[name] = known
  return known
end

-- The first value. As in the table of all fields, `x_a` is `X-A`, too.
function S.first_field(name)
  local dashed_name = with_dashes(name)
  local text = ask(op.request_field, name, "", 0)
  if not text and dashed_name ~= name then text = ask(op.request_field, dashed_name, "", 0) end
  if not text then return nil end
  local _, spot = search(op.find, text, "\0", 1)
  return (sub(text, 1, spot[0] - 1))
end

ngx.header = setmetatable({}, {
  __index = function(_, name) return field(op.response_field, with_dashes(name)) end,
  __newindex = function(_, name, value)
    if type(value) == "string" then
      ask(set_response, with_dashes(name), value, 0)
    else
      change_field(set_response, add_response, remove_response, with_dashes(name), value)
    end
  end,
})

local function add_lines(operation, name, value)
  if type(value) == "table" then
    for _, one in ipairs(value) do ask(operation, name, as_text(one, name), 0) end
  else
    ask(operation, name, as_text(value, name), 0)
  end
end

ngx.resp = closed("ngx.resp", {
  get_headers = function(_, raw) return all_fields(op.response_fields, raw) end,
  add_header = function(name, value) add_lines(add_response, name, value) end,
})

-- Variables whose names nginx compares in any case, and whose values it does not decode. Those of `ctx.var` are APISIX's own.

-- The first argument; one without `=` does not count.
local function raw_argument(name)
  local query = ask(variable_op, "args", "", 0)
  if not query then return nil end
  local _, spot = search(op.find, "&" .. lower(query), "&" .. name .. "=", 1)
  if not spot then return nil end
  -- The ampersand that was put before the query is not in it.
  local from = spot[0] + #name + 1
  local _, ends = search(op.find, query, "&", 2 * (from - 1) + 1)
  return (sub(query, from, ends and ends[0] - 1 or -1))
end

local function after_blanks(text, from)
  while byte(text, from) == 32 do from = from + 1 end
  return from
end

-- The cookie in one line, with blanks where nginx allows them.
local function cookie_in(line, name)
  local from, length = 1, #line
  while from <= length do
    local behind = from + #name
    if lower(sub(line, from, behind - 1)) == name then
      behind = after_blanks(line, behind)
      if byte(line, behind) == 61 then
        local _, ends = search(op.find, line, ";", 2 * behind + 1)
        return (sub(line, after_blanks(line, behind + 1), ends and ends[0] - 1 or length))
      end
    end
    local _, ends = search(op.find, line, "[;,]", 2 * (from - 1))
    if not ends then return nil end
    from = after_blanks(line, ends[0] + 1)
  end
  return nil
end

local function raw_cookie(name)
  local lines = ask(op.request_field, "cookie", "", 0)
  if not lines then return nil end
  for _, line in ipairs((decode_values(lines))) do
    local value = cookie_in(line, name)
    if value then return value end
  end
  return nil
end

-- Whether a name is of these, and its value.
function S.raw_variable(name)
  if type(name) ~= "string" then return false end
  -- Most names begin with another letter than `a` and `c`; a new string for each of them would cost more than the rest.
  local first = byte(name, 1)
  if first ~= 97 and first ~= 99 and first ~= 65 and first ~= 67 then return false end
  local plain = lower(name)
  if sub(plain, 1, 4) == "arg_" then return true, #name > 4 and raw_argument(sub(plain, 5)) or nil end
  if sub(plain, 1, 7) == "cookie_" then return true, #name > 7 and raw_cookie(sub(plain, 8)) or nil end
  return false
end

-- Arguments

local function escape(text) return ask(op.escape, tostring(text), "", 0) end
local function unescape(text) return ask(op.unescape, text, "", 0) end

-- No closures here and below: LuaJIT does not compile code that creates one, nor its callers.
local function decode_args(text, most)
  local args, count, from, length = {}, 0, 1, #text
  if most == nil then most = 100 end
  while from <= length do
    local _, ends = search(op.find, text, "&", 2 * (from - 1) + 1)
    local to = ends and ends[0] - 1 or length
    if to >= from then
      local pair = sub(text, from, to)
      local _, spot = search(op.find, pair, "=", 1)
      spot = spot and spot[0]
      local name = unescape(spot and sub(pair, 1, spot - 1) or pair)
      local value = spot == nil and true or unescape(sub(pair, spot + 1))
      if name ~= "" then
        count = count + 1
        if most > 0 and count > most then return args, "truncated" end
        local before = args[name]
        if before == nil then
          args[name] = value
        elseif type(before) == "table" then
          before[#before + 1] = value
        else
          args[name] = { before, value }
        end
      end
    end
    from = to + 2
  end
  return args
end

local function is_before(one, other) return tostring(one) < tostring(other) end

-- Up to this many names are sorted inline, so that the compiler sees no separate loop.
local FEW = 16

local function sort_names(names)
  if #names > FEW then return table.sort(names, is_before) end
  for at = 2, #names do
    local name, place = names[at], at
    while place > 1 and is_before(name, names[place - 1]) do
      names[place] = names[place - 1]
      place = place - 1
    end
    names[place] = name
  end
end

local function put_arg(out, name, value)
  if value == true then
    out[#out + 1] = escape(name)
  elseif value ~= false then
    out[#out + 1] = escape(name) .. "=" .. escape(value)
  end
end

local function encode_args(args)
  local names, out = {}, {}
  for name in pairs(args) do names[#names + 1] = name end
  sort_names(names)
  for _, name in ipairs(names) do
    local value = args[name]
    if type(value) == "table" then
      for _, one in ipairs(value) do put_arg(out, name, one) end
    else
      put_arg(out, name, value)
    end
  end
  return (concat(out, "&"))
end

local function split_target()
  local target = ask(op.target, "", "", 0)
  local _, spot = search(op.find, target, "?", 1)
  if not spot then return target, nil end
  spot = spot[0]
  return sub(target, 1, spot - 1), sub(target, spot + 1)
end

local function set_target(path, query)
  ask(op.set_target, query and query ~= "" and (path .. "?" .. query) or path, "", 0)
end

local function percent_encoded(char) return (format("%%%02X", byte(char))) end

-- The path is not encoded yet, as in nginx: a percent sign is one for the node, too.
local function set_uri(path, jump, binary)
  if type(path) ~= "string" then raise("bad argument #1 to 'set_uri' (string expected, got " .. type(path) .. ")") end
  if path == "" then raise("attempt to use zero-length uri") end
  if jump then raise("ngx.req.set_uri cannot look for another location") end
  local unsafe = not binary and match(path, "[%z\1-\8\10-\31\127]")
  if unsafe then
    raise(format("unsafe byte \"0x%02x\" in uri (maybe you want to set the 'binary' argument?)", byte(unsafe)))
  end
  local _, query = split_target()
  set_target((gsub(path, "[^%w%-%._~!%$&'%(%)%*%+,;=:@/]", percent_encoded)), query)
end

local function get_uri_args(most)
  local _, query = split_target()
  return decode_args(query or "", most)
end

local function set_uri_args(args)
  local path = split_target()
  set_target(path, type(args) == "table" and encode_args(args) or tostring(args))
end

-- The body

local function read_body()
  if ask(op.body, "", "", 0) == nil then
    if not ask(op.can_wait, "", "", 0) then raise("the body cannot be read in this phase") end
    S.wait(S.BODY, 0)
  end
end

local function get_body_data()
  local body = ask(op.body, "", "", 0)
  if body == "" then return nil end
  return body
end

ngx.req = closed("ngx.req", {
  get_method = function() return variable("request_method") end,
  set_method = function(method)
    local names = { [2] = "GET", [4] = "HEAD", [8] = "POST", [16] = "PUT", [32] = "DELETE", [512] = "OPTIONS", [16384] = "PATCH" }
    ask(op.set_method, names[method] or raise("unsupported HTTP method: " .. tostring(method)), "", 0)
  end,
  http_version = function() return tonumber((gsub(variable("server_protocol"), "HTTP/", ""))) end,
  is_internal = function() return false end,
  start_time = function() return ask(op.now, "", "", 0) end,
  get_headers = function(_, raw) return all_fields(op.request_fields, raw) end,
  set_header = function(name, value) change_field(set_request, add_request, remove_request, name, value) end,
  clear_header = function(name) ask(remove_request, name, "", 0) end,
  get_uri_args = get_uri_args,
  get_query_args = get_uri_args,
  set_uri_args = set_uri_args,
  set_uri = set_uri,
  read_body = read_body,
  get_body_data = get_body_data,
  get_body_file = function() return nil end,
  set_body_data = function(body) ask(op.set_body, tostring(body), "", 0) end,
  discard_body = function() end,
  get_post_args = function(most) return decode_args(get_body_data() or "", most) end,
})

-- Answers

local function answering(what)
  if not ask(op.can_answer, "", "", 0) then
    raise("API disabled in the context of " .. ask(op.phase, "", "", 0) .. ": " .. what)
  end
  return S.own
end

function ngx.print(...)
  local own = answering("ngx.print")
  local said = own.said or {}
  own.said = said
  for at = 1, select("#", ...) do written((select(at, ...)), said) end
  return 1
end

function ngx.say(...)
  local own = answering("ngx.say")
  local said = own.said or {}
  own.said = said
  for at = 1, select("#", ...) do written((select(at, ...)), said) end
  said[#said + 1] = "\n"
  return 1
end

function ngx.flush() return 1 end

-- Both begin an answer, even one without a body: the request ends with it when the function does.
function ngx.send_headers()
  local own = answering("ngx.send_headers")
  own.said = own.said or {}
  return 1
end

function ngx.eof()
  local own = answering("ngx.eof")
  own.said = own.said or {}
  return 1
end

-- Ends the function, even within `pcall`: it yields, and is never resumed.
function ngx.exit(status)
  if type(status) ~= "number" then raise("bad argument #1 to 'exit' (number expected, got " .. type(status) .. ")") end
  if status >= 200 then
    local own = answering("ngx.exit(" .. status .. ")")
    -- The answer has the status that was set before, as in OpenResty.
    S.finish(own, status == 200 and own.status or status)
  end
  if status == 444 or (status < 200 and status ~= 0 and status ~= -1) then raise("ngx.exit(" .. status .. ") is not supported") end
  if status == -1 then raise("ngx.exit(ngx.ERROR)") end
  S.stop()
end

function ngx.redirect(uri, status)
  answering("ngx.redirect")
  status = status or 302
  if status ~= 301 and status ~= 302 and status ~= 303 and status ~= 307 and status ~= 308 then
    raise("only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, ngx.HTTP_PERMANENT_REDIRECT, " ..
      "ngx.HTTP_SEE_OTHER, and ngx.HTTP_TEMPORARY_REDIRECT are allowed")
  end
  ask(set_response, "Location", uri, 0)
  ngx.exit(status)
end

function ngx.sleep(seconds)
  seconds = tonumber(seconds)
  -- Not a number is not below zero either.
  if not seconds or not (seconds >= 0) then raise("invalid sleep duration \"" .. tostring(seconds) .. "\"") end
  if not ask(op.can_wait, "", "", 0) then
    raise("API disabled in the context of " .. ask(op.phase, "", "", 0) .. ": ngx.sleep")
  end
  S.wait(S.SLEEP, seconds)
end

-- Time

local now = function() return ask(op.now, "", "", 0) end
local os_date, os_time = os.date, os.time
ngx.now = now
function ngx.time() return (floor(now())) end
function ngx.update_time() end
function ngx.today() return os_date("%Y-%m-%d", floor(now())) end
function ngx.localtime() return os_date("%Y-%m-%d %H:%M:%S", floor(now())) end
function ngx.utctime() return os_date("!%Y-%m-%d %H:%M:%S", floor(now())) end
function ngx.http_time(seconds) return os_date("!%a, %d %b %Y %H:%M:%S GMT", seconds) end
function ngx.cookie_time(seconds) return os_date("!%a, %d-%b-%y %H:%M:%S GMT", seconds) end

-- Texts

local function plain(value) return type(value) == "string" and value or tostring(value == nil and "" or value) end
function ngx.encode_base64(text, no_padding) return ask(op.encode_base64, plain(text), "", no_padding and 1 or 0) end
function ngx.decode_base64(text)
  if type(text) ~= "string" then raise("string argument only") end
  return ask(op.decode_base64, text, "", 0)
end
function ngx.escape_uri(text, kind) return ask(op.escape, plain(text), "", kind == 0 and 1 or 0) end
function ngx.unescape_uri(text) return ask(op.unescape, plain(text), "", 0) end
ngx.encode_args, ngx.decode_args = encode_args, decode_args
function ngx.md5(text) return ask(op.md5, plain(text), "", 0) end
function ngx.md5_bin(text) return ask(op.md5_bin, plain(text), "", 0) end
function ngx.sha1_bin(text) return ask(op.sha1_bin, plain(text), "", 0) end
function ngx.hmac_sha1(key, text) return ask(op.hmac_sha1, plain(key), plain(text), 0) end
function ngx.crc32_short(text) return ask(op.crc32, plain(text), "", 0) end
ngx.crc32_long = ngx.crc32_short

function ngx.get_phase() return ask(op.phase, "", "", 0) end

-- ngx.shared

local function tagged(value)
  local kind = type(value)
  if kind == "string" then return "s" .. value end
  if kind == "number" then return "n" .. format("%.17g", value) end
  if kind == "boolean" then return value and "b1" or "b0" end
  raise("bad value type")
end

local dictionary = {}
dictionary.__index = closed("ngx.shared.DICT", dictionary)

local function written_to(operation)
  return function(self, key, value, seconds, flags)
    if value == nil then
      ask(op.shared_delete, self.prefix .. key, "", 0)
      return true
    end
    value = tagged(value)
    if flags and flags ~= 0 then
      if type(flags) ~= "number" or flags < 0 or flags >= 2 ^ 32 or flags % 1 ~= 0 then raise("flags are a whole number of 32 bits") end
      value = format("f%d;", flags) .. value
    end
    local result = ask(operation, self.prefix .. key, value, seconds or 0)
    if result == true then return true, nil, false end
    return false, result, false
  end
end

function dictionary:get(key) return ask_with_flags(op.shared_get, self.prefix .. key, "", 0) end

-- Expired entries are removed, so that no stale value is returned.
function dictionary:get_stale(key)
  local value, flags = ask_with_flags(op.shared_get, self.prefix .. key, "", 0)
  if value == nil then return nil end
  return value, flags, false
end
dictionary.set, dictionary.safe_set = written_to(op.shared_set), written_to(op.shared_set)
dictionary.add, dictionary.safe_add = written_to(op.shared_add), written_to(op.shared_add)
dictionary.replace = written_to(op.shared_replace)

function dictionary:delete(key)
  ask(op.shared_delete, self.prefix .. key, "", 0)
  return true
end

function dictionary:incr(key, by, start, seconds)
  local numbers = format("%.17g", by)
  if start then numbers = numbers .. " " .. format("%.17g", start) end
  local result = ask(op.shared_increase, self.prefix .. key, numbers, seconds or 0)
  if type(result) == "number" then return result end
  return nil, result
end

function dictionary:ttl(key)
  local seconds = ask(op.shared_ttl, self.prefix .. key, "", 0)
  if not seconds then return nil, "not found" end
  return seconds
end

function dictionary:expire(key, seconds)
  if ask(op.shared_expire, self.prefix .. key, "", seconds) then return true end
  return nil, "not found"
end

function dictionary:flush_all() ask(op.shared_clear, self.prefix, "", 0) end
function dictionary:flush_expired() return 0 end

ngx.shared = setmetatable({}, {
  __index = function(all, name)
    local shared = setmetatable({ prefix = tostring(name) .. "\0" }, dictionary)
    rawset(all, name, shared)
    return shared
  end,
})

ngx.arg = setmetatable({}, {
  __index = function(_, at)
    -- An error where there is none.
    local piece = ask(op.piece, "", "", 0)
    if at == 1 then return piece end
    if at == 2 then return ask(op.is_last_piece, "", "", 0) == true end
    raise("ngx.arg[" .. tostring(at) .. "] is not there; in body_filter there are ngx.arg[1] and ngx.arg[2]")
  end,
  __newindex = function(_, at, value)
    ask(op.piece, "", "", 0)
    if at == 1 then
      ask(op.set_piece, value == nil and "" or concat(written(value, {})), "", 0)
    elseif at ~= 2 then
      raise("ngx.arg[" .. tostring(at) .. "] cannot be set; in body_filter there are ngx.arg[1] and ngx.arg[2]")
    else
      local is_last = ask(op.is_last_piece, "", "", 0)
      if value then
        ask(op.end_body, "", "", 0)
      elseif is_last then
        raise("ngx.arg[2] = false: the body has ended, nothing can come behind it")
      end
    end
  end,
})

-- Fields that are computed: the status, and the table of the request.
setmetatable(ngx, {
  __index = function(_, name)
    if name == "ctx" then
      local own = S.own
      local ctx = own.ngx
      if not ctx then
        ctx = { api_ctx = own.ctx }
        own.ngx = ctx
      end
      return ctx
    elseif name == "status" then
      return S.own.status or ask(op.status, "", "", 0) or 0
    elseif name == "headers_sent" then
      return S.own.said ~= nil
    end
    raise("ngx." .. tostring(name) .. " is not supported; docs/lua.md lists what is")
  end,
  __newindex = function(_, name, value)
    if name == "status" then
      local status = tonumber(value)
      if not status then raise("ngx.status has to be a number, found " .. type(value)) end
      if ask(op.can_answer, "", "", 0) then
        S.own.status = status
      else
        ask(op.set_status, "", "", status)
      end
    elseif name == "ctx" then
      S.own.ngx = value
    else
      raise("ngx." .. tostring(name) .. " cannot be set")
    end
  end,
})

_G.ngx = ngx
local base64 = closed("ngx.base64", {
  encode_base64url = function(text) return ask(op.encode_base64url, plain(text), "", 0) end,
  decode_base64url = function(text) return ask(op.decode_base64url, plain(text), "", 0) end,
})
S.modules["ngx.base64"] = base64
S.modules["ngx.resp"], S.modules["ngx.req"] = ngx.resp, ngx.req
ngx.config = closed("ngx.config", ngx.config)
S.modules["resty.core"], S.modules["resty.core.base"] = closed("resty.core", {}), closed("resty.core.base", {})
