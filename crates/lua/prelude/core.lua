-- `apisix.core`: the functions known from APISIX.

local S = ...
local ask, op, closed, ngx, raise = S.ask, S.operations, S.closed, S.ngx, S.raise
local type, tostring, tonumber, select, pairs, ipairs, next = type, tostring, tonumber, select, pairs, ipairs, next
local setmetatable, getmetatable, rawset, unpack = setmetatable, getmetatable, rawset, unpack
local sub, find, concat = string.sub, string.find, table.concat
local new, clear = S.table_new, S.table_clear

local core = { version = { VERSION = "3.18.0" } }

core.json = S.core_json
local decode, encode = core.json.decode, S.encode

-- log

core.log = { delay_exec = function(run, ...)
  local args, count = { ... }, select("#", ...)
  return setmetatable({}, { __tostring = function() return tostring(run(unpack(args, 1, count))) end })
end }
for name, level in pairs({ emerg = 1, alert = 2, crit = 3, error = 4, warn = 5, notice = 6, info = 7, debug = 8 }) do
  core.log[name] = function(...) S.log(level, ...) end
end
core.log = closed("core.log", core.log)

-- string: Lua's own, and some more

core.string = setmetatable({
  find = function(text, pattern, from) return find(text, pattern, from, true) end,
  has_prefix = function(text, prefix)
    if type(text) ~= "string" or type(prefix) ~= "string" then raise("unexpected type: s:" .. type(text) .. ", prefix:" .. type(prefix)) end
    return sub(text, 1, #prefix) == prefix
  end,
  has_suffix = function(text, suffix)
    if type(text) ~= "string" or type(suffix) ~= "string" then raise("unexpected type: s:" .. type(text) .. ", suffix:" .. type(suffix)) end
    return suffix == "" or sub(text, -#suffix) == suffix
  end,
  rfind_char = function(text, char, from)
    if not from or from > #text then from = #text end
    for at = from, 1, -1 do
      if sub(text, at, at) == char then return at end
    end
    return nil
  end,
}, { __index = closed("core.string", setmetatable({}, { __index = string })) })
getmetatable(core.string).__index = function(_, name)
  local known = string[name]
  if known == nil then raise("core.string." .. tostring(name) .. " is not supported; docs/lua.md lists what is") end
  return known
end

-- table: Lua's own, and some more

local function is_array(value)
  local count = 0
  for _ in pairs(value) do count = count + 1 end
  return count == #value
end

local function array_find(list, value)
  if type(list) ~= "table" then return nil end
  for at, inner in ipairs(list) do
    if inner == value then return at end
  end
  return nil
end

-- Whether the value at a path of a table is shared rather than copied: `self.a.b` is listed, or at or below the prefix.
local function is_shallow(parent, path, options)
  if array_find(options.shallows, path) then return true end
  local prefix = options.shallow_prefix
  if not prefix or sub(parent, 1, #prefix) ~= prefix then return false end
  return #parent == #prefix or sub(parent, #prefix + 1, #prefix + 1) == "."
end

local function deepcopy(value, seen, parent, options)
  local copy = {}
  seen[value] = copy
  for key, inner in pairs(value) do
    local path = options and parent .. "." .. tostring(key)
    if type(inner) == "table" and not (options and is_shallow(parent, path, options)) then
      inner = seen[inner] or deepcopy(inner, seen, path, options)
    end
    copy[key] = inner
  end
  return (setmetatable(copy, getmetatable(value)))
end

-- Lists replace each other, null removes.
local function merge(origin, extend)
  for key, value in pairs(extend) do
    local own = origin[key]
    if value == S.null then
      origin[key] = nil
    elseif type(value) == "table" and type(own) == "table" and not is_array(own) and not is_array(value) then
      merge(own, value)
    else
      origin[key] = value
    end
  end
  return origin
end

local function deep_equal(one, other)
  if type(one) ~= "table" or type(other) ~= "table" then return one == other end
  for key, value in pairs(one) do
    if not deep_equal(value, other[key]) then return false end
  end
  for key in pairs(other) do
    if one[key] == nil then return false end
  end
  return true
end

core.table = closed("core.table", {
  new = new, clear = clear, insert = table.insert, concat = table.concat, sort = table.sort, remove = table.remove,
  unpack = unpack, table = table, move = table.move, maxn = table.maxn,
  clone = function(value)
    local copy = {}
    for key, inner in pairs(value) do copy[key] = inner end
    return (setmetatable(copy, getmetatable(value)))
  end,
  deepcopy = function(value, options)
    if type(value) ~= "table" then return value end
    return deepcopy(value, {}, "self", options)
  end,
  merge = merge,
  deep_eq = deep_equal,
  nkeys = function(value)
    local count = 0
    for _ in pairs(value) do count = count + 1 end
    return count
  end,
  isempty = function(value) return next(value) == nil end,
  isarray = is_array,
  pick = function(value, wanted)
    local picked = {}
    for key, inner in pairs(value) do
      if wanted[key] ~= nil then picked[key] = inner end
    end
    return picked
  end,
  set_eq = function(one, other)
    for key in pairs(one) do
      if other[key] == nil then return false end
    end
    for key in pairs(other) do
      if one[key] == nil then return false end
    end
    return true
  end,
  insert_tail = function(list, ...)
    local last = #list
    for at = 1, select("#", ...) do list[last + at] = (select(at, ...)) end
    return last + select("#", ...)
  end,
  set = function(list, ...)
    for at = 1, select("#", ...) do list[at] = (select(at, ...)) end
    return select("#", ...)
  end,
  array_find = array_find,
  try_read_attr = function(value, ...)
    for at = 1, select("#", ...) do
      if type(value) ~= "table" then return nil end
      value = value[(select(at, ...))]
    end
    return value
  end,
  keys = function(value)
    local keys = {}
    for key in pairs(value) do keys[#keys + 1] = key end
    return keys
  end,
})

-- request

local function current(ctx) return ctx or S.own.ctx end

local function set_request_field(change, ctx, name, value)
  if type(ctx) == "string" then name, value = ctx, name end
  if type(name) ~= "string" then raise("invalid header name: got " .. type(name) .. ", expected string") end
  change(name, value)
end

local function get_uri_args(ctx)
  ctx = current(ctx)
  local args = ctx.req_uri_args
  if not args then
    args = ngx.req.get_uri_args(0)
    ctx.req_uri_args = args
  end
  return args
end

local function get_body(most, ctx)
  ngx.req.read_body()
  local body = ngx.req.get_body_data()
  if body and most and #body > most then
    return nil, "request size " .. #body .. " is greater than the maximum size " .. most .. " allowed"
  end
  return body
end

local function get_post_args(ctx, most)
  ctx = current(ctx)
  if not ctx.req_post_args then
    ngx.req.read_body()
    ctx.req_post_args = ngx.req.get_post_args(most or 100)
  end
  return ctx.req_post_args
end

local add_request = op.add_request_field

local function add_to_request(name, value)
  if type(value) == "table" then
    for _, one in ipairs(value) do ask(add_request, name, tostring(one), 0) end
  else
    ask(add_request, name, tostring(value), 0)
  end
end

local function body_table(ctx, content_type)
  content_type = content_type or S.first_field("Content-Type") or ""
  if find(content_type, "application/json", 1, true) then
    local body, why = get_body()
    if not body then return nil, "could not get body: " .. (why or "request body is empty") end
    local value, reason = decode(body)
    if not value then return nil, "could not parse JSON request body: " .. (reason or "invalid JSON") end
    return value
  elseif find(content_type, "application/x-www-form-urlencoded", 1, true) then
    return get_post_args(ctx)
  end
  return nil, "unsupported content-type: " .. content_type ..
    ", supported types are: application/json, application/x-www-form-urlencoded"
end

core.request = closed("core.request", {
  headers = function() return S.all_fields(op.request_fields) end,
  header = function(ctx, name)
    if type(ctx) == "string" and name == nil then name = ctx end
    return S.first_field(name)
  end,
  set_header = function(ctx, name, value) set_request_field(ngx.req.set_header, ctx, name, value) end,
  add_header = function(ctx, name, value) set_request_field(add_to_request, ctx, name, value) end,
  get_ip = function() return S.variable("realip_remote_addr") or S.variable("remote_addr") or "" end,
  get_remote_client_ip = function() return S.variable("remote_addr") or "" end,
  get_remote_client_port = function() return tonumber(S.variable("remote_port")) end,
  get_uri_args = get_uri_args,
  set_uri_args = function(ctx, args)
    current(ctx).req_uri_args = nil
    return ngx.req.set_uri_args(args)
  end,
  get_post_args = get_post_args,
  get_body = get_body,
  get_request_body_table = body_table,
  get_json_request_body_table = function()
    local value, why = body_table(nil, "application/json")
    if not value then return nil, { message = why } end
    return value
  end,
  get_scheme = function() return S.variable("scheme") or "" end,
  get_host = function() return S.variable("host") or "" end,
  get_port = function() return tonumber(S.variable("server_port")) end,
  get_path = function() return S.variable("uri") end,
  get_http_version = ngx.req.http_version,
  get_method = ngx.req.get_method,
})

-- response

local function say(own, ...)
  for at = 1, select("#", ...) do
    local value = select(at, ...)
    if type(value) == "table" then
      local text, why = encode(value)
      if not text then raise("failed to encode data: " .. why) end
      ngx.print(text, "\n")
    elseif value ~= nil then
      ngx.print(value)
    end
  end
end

local function exit(code, ...)
  if code ~= nil and type(code) ~= "number" then
    say(S.own, code, ...)
    return
  end
  if code then ngx.status = code end
  say(S.own, ...)
  if code then ngx.exit(code) end
end

local add_response = ngx.resp.add_header

local function set_fields(set, ...)
  local count = select("#", ...)
  if count == 1 then
    local fields = ...
    if type(fields) ~= "table" then
      ngx.header[fields] = nil
      return
    end
    for name, value in pairs(fields) do set(name, value) end
    return
  end
  for at = 1, count, 2 do set((select(at, ...)), (select(at + 1, ...))) end
end

local function set_field(name, value) ngx.header[name] = value end

core.response = closed("core.response", {
  exit = exit,
  say = function(...) say(S.own, ...) end,
  set_header = function(...)
    local name, value = ...
    if select("#", ...) == 2 then
      ngx.header[name] = value
    else
      set_fields(set_field, ...)
    end
  end,
  add_header = function(...) set_fields(add_response, ...) end,
  get_upstream_status = function() return tonumber(sub(S.variable("upstream_status") or "", -3)) end,
  set_response_source = function() end,
  clear_header_as_body_modified = function()
    for _, name in ipairs({ "Content-Length", "Content-Encoding", "Last-Modified", "ETag" }) do ngx.header[name] = nil end
  end,
  hold_body_chunk = function(ctx, hold_the_copy, most)
    local own = S.own
    local held = own.held
    if not held then
      held = { n = 0, bytes = 0 }
      own.held = held
    end
    local piece = ask(op.piece, "", "", 0)
    if piece ~= "" then
      held.n = held.n + 1
      held[held.n] = piece
      held.bytes = held.bytes + #piece
      if held.bytes > S.string_bytes_max then raise("a body of more than " .. S.string_bytes_max .. " bytes is held") end
      if most and held.bytes >= most then return sub(concat(held, "", 1, held.n), 1, most) end
    end
    if ask(op.is_last_piece, "", "", 0) then
      own.held = nil
      return (concat(held, "", 1, held.n))
    end
    if not hold_the_copy then ngx.arg[1] = nil end
    return nil
  end,
})

-- lrucache: two generations. When the young one is full it becomes the old one, and entries that were not used since are dropped.

local function remember(cache, key, entry)
  if cache.count >= cache.most then
    cache.old, cache.young, cache.count = cache.young, {}, 0
  end
  cache.count = cache.count + 1
  cache.young[key] = entry
end

local function look_up(cache, key, version)
  local entry = cache.young[key]
  if not entry then
    entry = cache.old[key]
    if not entry then return nil end
    remember(cache, key, entry)
  end
  if entry.version ~= version then return nil end
  if entry.ends and entry.ends < ngx.now() then return nil end
  return entry
end

local function new_cache(options)
  options = options or {}
  local cache = { young = {}, old = {}, count = 0, most = options.count or 1024, ttl = options.ttl }
  return function(key, version, make, ...)
    local entry = look_up(cache, key, version)
    if entry then return entry.value end
    local value, why = make(...)
    if value ~= nil then
      remember(cache, key, { value = value, version = version, ends = cache.ttl and ngx.now() + cache.ttl })
    end
    return value, why
  end
end

local global_cache = new_cache({ count = 1024, ttl = 300 })

core.lrucache = setmetatable(closed("core.lrucache", {
  new = new_cache,
  global = global_cache,
  plugin_ctx = function(cache, _, extra, make, ...)
    return cache(S.own.program.key .. "#" .. tostring(extra), nil, make, ...)
  end,
  plugin_ctx_id = function(_, extra) return S.own.program.key .. "#" .. tostring(extra) end,
}), { __call = function(_, key, version, make, ...) return global_cache(key, version, make, ...) end })

local resty_lrucache = {}
resty_lrucache.__index = closed("resty.lrucache", resty_lrucache)

function resty_lrucache.new(most)
  return setmetatable({ young = {}, old = {}, count = 0, most = most }, resty_lrucache)
end

function resty_lrucache:get(key)
  local entry = look_up(self, key)
  return entry and entry.value
end

function resty_lrucache:set(key, value, seconds)
  remember(self, key, { value = value, ends = seconds and ngx.now() + seconds })
end

function resty_lrucache:delete(key) self.young[key], self.old[key] = nil, nil end
S.modules["resty.lrucache"] = resty_lrucache

-- schema, ctx

-- Defaults go into the caller's table, as in APISIX.
local function fill(value, filled)
  for key, inner in pairs(filled) do
    local own = value[key]
    if own == nil then
      value[key] = inner
    elseif type(own) == "table" and type(inner) == "table" then
      fill(own, inner)
    end
  end
end

core.schema = closed("core.schema", {
  TYPE_CONSUMER = 1,
  TYPE_METADATA = 2,
  check = function(schema, value)
    local ok, filled = S.check_schema(schema, value)
    if not ok then return false, filled end
    if type(value) == "table" and type(filled) == "table" then fill(value, filled) end
    return true
  end,
})

-- The owner of each registered variable, and its sequence number. Owners that were dropped are removed.
local registered, registrations = {}, 0
local weak = { __mode = "k" }

core.ctx = closed("core.ctx", {
  register_var = function(name, getter)
    if type(getter) ~= "function" then raise("the getter of registered var should be a function") end
    local owner = S.own.program.owner
    owner.vars[name] = getter
    registered[name] = registered[name] or setmetatable({}, weak)
    registrations = registrations + 1
    registered[name][owner] = registrations
  end,
})

-- The getter for the running functions: their own, or that of another text, but not of another version of their own: a request
-- that began with one version sees nothing of the next.
local function getter_of(name, owners)
  local own = S.own.program.owner
  local found = own.vars[name]
  if found then return found end
  local newest = 0
  for owner, number in pairs(owners) do
    if number > newest and owner.name ~= own.name then found, newest = owner.vars[name], number end
  end
  return found
end

-- The table of a request: fields that are not set in it are looked up.

local function value_of_var(_, name)
  local owners = registered[name]
  local getter = owners and getter_of(name, owners)
  if getter then return getter(S.own.ctx) end
  return S.variable(name)
end

local set_variable_op = op.set_variable

local var = setmetatable({}, {
  __index = value_of_var,
  __newindex = function(_, name, value)
    local own = S.own
    -- A variable that changes the request changes it; every other name is for functions only.
    if value ~= nil and ask(set_variable_op, name, tostring(value), 0) then return end
    local vars = own.vars
    if not vars then
      vars = {}
      own.vars = vars
    end
    vars[name] = value
  end,
})

S.var = var

local matched = setmetatable({}, {
  __index = function(_, name)
    if name == "_path" then return ask(op.matched_path, "", "", 0) end
    if name == "_method" then return S.variable("request_method") end
    if name == "_host" then return S.variable("host") end
    return S.variable("uri_param_" .. name)
  end,
})

local consumer_names = { consumer_name = "consumer_name", consumer_id = "consumer_name", consumer_group_id = "consumer_group_id",
  route_id = "route_id", route_name = "route_name", service_id = "service_id", service_name = "service_name" }

local function resource(which)
  local value = S.document(which)
  if value == nil then return nil end
  return { value = value, key = "/" .. which .. "s/" .. tostring(value.id) }
end

-- Fields that a consumer may lack, and fields that are not available here.
local optional = { group_id = true, credential_id = true, custom_id = true, desc = true }
local consumer_mt = { __index = function(_, name)
  if optional[name] then return nil end
  raise("ctx.consumer." .. tostring(name) .. " is not supported; docs/lua.md lists what is")
end }

-- Fields that APISIX keeps in the table of a request, and that are not available here: `nil` would mean that they are unset.
local unbuilt = {}
for _, name in ipairs({ "matched_upstream", "upstream_conf", "upstream_key", "upstream_version", "upstream_checker", "upstream_scheme",
  "picked_server", "balancer_ip", "balancer_port", "server_picker", "plugins", "conf_type", "conf_id", "conf_version",
  "consumer_ver", "global_rules", "route_key", "resolved_upstream", "ngx_ctx", "proxy_rewrite_regex_uri_captures" }) do
  unbuilt[name] = true
end

local static = setmetatable({ var = var }, {
  __index = function(_, name)
    local as_variable = consumer_names[name]
    if as_variable then return S.variable(as_variable) end
    if name == "curr_req_matched" then
      if ask(op.matched_path, "", "", 0) == nil then return nil end
      return matched
    elseif name == "matched_route" then
      return resource("route")
    elseif name == "jwt_auth_payload" then
      -- From then on a plain field: claims that one function writes are read by the next.
      local claims = S.document("claims")
      if claims ~= nil then rawset(S.own.ctx, name, claims) end
      return claims
    elseif name == "headers" then
      return S.all_fields(op.request_fields)
    elseif name == "consumer" then
      local consumer = S.document("consumer")
      return consumer and setmetatable(consumer, consumer_mt)
    elseif unbuilt[name] then
      raise("ctx." .. name .. " is not supported; docs/lua.md lists what is")
    end
    return nil
  end,
})
S.ctx_mt = { __index = static }

S.core = closed("core", core)
S.modules["apisix.core"] = core
for _, name in ipairs({ "json", "log", "request", "response", "table", "string", "lrucache", "schema", "ctx" }) do
  S.modules["apisix.core." .. name] = core[name]
end
