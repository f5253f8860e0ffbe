-- `resty.redis`: a client on the worker's event loop. The request waits for the server.
--
-- The gateway owns the connections, which have numbers here, and passes on complete replies.

local S = ...
local ask, search, op, closed, raise, null = S.ask, S.search, S.operations, S.closed, S.raise, S.null
local whole = S.whole
local type, tostring, tonumber, pairs, ipairs, select = type, tostring, tonumber, pairs, ipairs, select
local setmetatable, rawget, min = setmetatable, rawget, math.min
local unpack, format, sub, byte, find, concat = unpack, string.format, string.sub, string.byte, string.find, table.concat

local LINK = 7
-- As in OpenResty's sockets.
local TIMEOUT_MS, KEEP_MS, KEEP_COUNT = 60000, 60000, 30
-- The longest time that an idle connection is kept.
local KEEP_MS_MAX = 3600000

local BULK, STATUS, INTEGER, ERROR = 36, 43, 58, 45

local function act(...)
  if not ask(op.can_wait, "", "", 0) then
    raise("API disabled in the context of " .. ask(op.phase, "", "", 0) .. ": resty.redis")
  end
  return S.wait(LINK, 0, concat({ ... }, "\0"))
end

-- Replies

local function line_at(text, at)
  local _, spot = search(op.find, text, "\r\n", 2 * (at - 1) + 1)
  spot = spot[0]
  return sub(text, at, spot - 1), spot + 2
end

-- The value of a reply, the error if it is one, and the position of the next reply. The gateway has checked that it is complete.
local function read(text, at)
  local kind, line, behind = byte(text, at), line_at(text, at + 1)
  if kind == STATUS then return line, nil, behind end
  if kind == ERROR then return false, line, behind end
  local number = tonumber(line)
  if kind == INTEGER then return number, nil, behind end
  if number < 0 then return null, nil, behind end
  if kind == BULK then return sub(text, behind, behind + number - 1), nil, behind + number + 2 end
  local list = {}
  for index = 1, number do
    local value, why
    value, why, behind = read(text, behind)
    if value == false then value = { false, why } end
    list[index] = value
  end
  return list, nil, behind
end

-- Commands

local function argument(value, at, name)
  local kind = type(value)
  if kind == "string" then return value end
  if kind == "number" then
    -- Integers of more than 14 digits are written without an exponent.
    if value % 1 == 0 and (value >= 1e14 or value <= -1e14) and value <= 2 ^ 63 and value >= -2 ^ 63 then return format("%.0f", value) end
    return (tostring(value))
  end
  if kind == "boolean" then return (tostring(value)) end
  raise("bad argument #" .. at .. " to '" .. name .. "' (a text or number expected, got " .. (value == null and "null" or kind) .. ")")
end

local function command(name, ...)
  local args = { ... }
  -- As in OpenResty, trailing `nil`s are ignored.
  local count = #args
  local out = { "*" .. (count + 1) .. "\r\n$" .. #name .. "\r\n" .. name .. "\r\n" }
  for at = 1, count do
    local text = argument(args[at], at, name)
    out[at + 1] = "$" .. #text .. "\r\n" .. text .. "\r\n"
  end
  return (concat(out))
end

-- Sends commands. Returns the replies as they came, or `nil` and the reason: then the connection is closed.
local function exchange(self, text, count)
  local link = rawget(self, "_link")
  if not link then return nil, "closed" end
  if #text > S.string_bytes_max then raise("resty.redis: commands of more than " .. S.string_bytes_max .. " bytes") end
  local replies, why = act("exchange", link, count, self._send_ms, self._read_ms, text)
  if not replies then self._link = nil end
  return replies, why
end

local function perform(self, name, ...)
  local text, waiting = command(name, ...), rawget(self, "_commands")
  if waiting then
    waiting[#waiting + 1] = text
    return
  end
  local replies, why = exchange(self, text, 1)
  if not replies then return nil, why end
  local value, fault = read(replies, 1)
  if fault then return false, fault end
  return value
end

local redis = { _VERSION = "0.31" }
local commands, commands_count = {}, 0

local unbuilt = {}
for _, name in ipairs({ "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "read_reply", "monitor", "sync",
  "psync", "register_module_prefix" }) do
  unbuilt[name] = true
end

local client = {}

-- Every other name is a command.
function client.__index(_, name)
  local known = rawget(redis, name) or commands[name]
  if known then return known end
  if type(name) ~= "string" or sub(name, 1, 1) == "_" then return nil end
  if unbuilt[name] then raise("resty.redis." .. name .. " is not supported; docs/lua.md lists what is") end
  if commands_count >= 512 then commands, commands_count = {}, 0 end
  local function run(self, ...) return perform(self, name, ...) end
  commands[name], commands_count = run, commands_count + 1
  return run
end

local function time_of(ms)
  if ms == nil or (type(ms) == "number" and ms <= 0) then ms = TIMEOUT_MS end
  return whole(ms, TIMEOUT_MS, "a timeout")
end

function redis.new()
  local time = time_of(nil)
  return setmetatable({ _connect_ms = time, _send_ms = time, _read_ms = time, _reused = 0 }, client)
end

function redis:set_timeout(ms) self._connect_ms, self._send_ms, self._read_ms = time_of(ms), time_of(ms), time_of(ms) end

function redis:set_timeouts(connect, send, receive)
  self._connect_ms, self._send_ms, self._read_ms = time_of(connect), time_of(send), time_of(receive)
end

-- Closes the connection of a client that does not fit.
local function give_up(self, ...)
  redis.close(self)
  return ...
end

-- Sets up a new connection: user and database.
local function introduce(self, options)
  local waiting = rawget(self, "_commands")
  self._commands = nil
  local password, user = options.password, options.username
  local ok, why = true, nil
  if password ~= nil and password ~= "" then
    if user ~= nil and user ~= "" then ok, why = perform(self, "auth", user, password) else ok, why = perform(self, "auth", password) end
    if not ok then return give_up(self, nil, "failed to authenticate: " .. tostring(why)) end
  end
  if options.db ~= nil then
    ok, why = perform(self, "select", options.db)
    if not ok then return give_up(self, nil, "failed to select database " .. tostring(options.db) .. ": " .. tostring(why)) end
  end
  self._commands = waiting
  return 1
end

function redis:connect(host, port, options)
  if type(host) ~= "string" then raise("bad argument #1 host: string expected, got " .. type(host)) end
  if find(host, "^unix:") then raise("resty.redis: sockets of the file system are not supported") end
  if find(host, "\0", 1, true) then raise("bad argument #1 host: it has a zero byte") end
  local number = tonumber(port)
  if not number then raise("bad argument #2 port: number expected, got " .. type(port)) end
  if number % 1 ~= 0 or number < 1 or number > 65535 then return nil, "bad port number: " .. tostring(port) end
  options = options or {}
  if type(options) ~= "table" then raise("bad argument #3 opts: nil or table expected, got " .. type(options)) end
  if options.server_name ~= nil and options.server_name ~= host then
    raise("resty.redis: server_name is not supported; connect to the server by this name")
  end
  if rawget(self, "_link") then redis.close(self) end
  -- A connection with another user or database cannot be reused.
  local pool = options.pool or host .. ":" .. format("%d", number)
  if not options.pool and (options.username or options.db) then
    pool = pool .. "/" .. tostring(options.username or "") .. "/" .. tostring(options.db or "")
  end
  local tls = options.ssl and (options.ssl_verify == false and "unverified" or "tls") or "plain"
  local made, why = act("connect", host, format("%d", number), tls, self._connect_ms, tostring(pool))
  if not made then return nil, why end
  local spot = find(made, " ", 1, true)
  self._link, self._reused = sub(made, 1, spot - 1), tonumber(sub(made, spot + 1))
  self._in_multi, self._pool_size = nil, options.pool_size
  if self._reused > 0 then return 1 end
  return introduce(self, options)
end

function redis:set_keepalive(ms, count)
  if rawget(self, "_in_multi") then return nil, "in transaction" end
  local link = rawget(self, "_link")
  if not link then return nil, "closed" end
  self._link = nil
  if ms == 0 then ms = KEEP_MS_MAX end
  local idle = whole(ms and min(ms, KEEP_MS_MAX), KEEP_MS, "the idle time")
  local ok, why = act("keep", link, idle, whole(count or self._pool_size, KEEP_COUNT, "the size of the pool"))
  if not ok then return nil, why end
  return 1
end

function redis:close()
  local link = rawget(self, "_link")
  if not link then return nil, "closed" end
  self._link = nil
  local ok, why = act("close", link)
  if not ok then return nil, why end
  return 1
end

function redis:get_reused_times()
  if not rawget(self, "_link") then return nil, "closed" end
  return self._reused
end

-- A connection within a transaction is not given to others.
function redis:multi()
  self._in_multi = true
  return perform(self, "multi")
end

function redis:exec()
  self._in_multi = nil
  return perform(self, "exec")
end

function redis:discard()
  self._in_multi = nil
  return perform(self, "discard")
end

function redis:init_pipeline()
  self._commands = {}
end

function redis:cancel_pipeline() self._commands = nil end

function redis:commit_pipeline()
  local waiting = rawget(self, "_commands")
  if not waiting then return nil, "no pipeline" end
  self._commands = nil
  if #waiting == 0 then return {} end
  local replies, why = exchange(self, concat(waiting), #waiting)
  if not replies then return nil, why end
  local list, behind = {}, 1
  for at = 1, #waiting do
    local value, fault
    value, fault, behind = read(replies, behind)
    if fault then value = { false, fault } end
    list[at] = value
  end
  return list
end

function redis:hmset(name, ...)
  local fields = ...
  if select("#", ...) ~= 1 or type(fields) ~= "table" then return perform(self, "hmset", name, ...) end
  local list = {}
  for key, value in pairs(fields) do
    list[#list + 1] = key
    list[#list + 1] = value
  end
  return perform(self, "hmset", name, unpack(list))
end

function redis:hmget(name, ...)
  local fields = ...
  if select("#", ...) ~= 1 or type(fields) ~= "table" then return perform(self, "hmget", name, ...) end
  return perform(self, "hmget", name, unpack(fields))
end

function redis:array_to_hash(list)
  local fields = {}
  for at = 1, #list, 2 do fields[list[at]] = list[at + 1] end
  return fields
end

-- Every name is a command anyhow.
function redis.add_commands() end

S.modules["resty.redis"] = closed("resty.redis", redis)

return S.entries
