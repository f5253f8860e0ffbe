-- The bridge to the gateway, and the standard library as far as functions may use it.
--
-- `S` is shared by the parts of the prelude. User code never sees it: it is held in locals only, and `debug` is not available.

local S = ...
local ffi, ops = S.ffi, S.operations
local error, type, tostring, tonumber, ipairs, setmetatable = error, type, tostring, tonumber, ipairs, setmetatable
local pcall, load, unpack = pcall, load, unpack
local ffi_string, ffi_cast = ffi.string, ffi.cast
local sub, byte, byte_concat = string.sub, string.byte, table.concat

ffi.cdef(S.declarations)
local call = ffi_cast("stillgate_call", S.call)
local bridge = ffi_cast("const void *", S.bridge)
local reply = ffi.new("stillgate_reply")
local int_array = ffi.typeof("const int32_t *")

-- The running place in user code: `NAME:LINE: `. The names of the prelude's own chunks begin with a bracket.
local getinfo = S.getinfo

local function place()
  for level = 2, 30 do
    local info = getinfo(level, "Sl")
    if not info then break end
    if info.currentline > 0 and byte(info.short_src) ~= 40 then return info.short_src .. ":" .. info.currentline .. ": " end
  end
  return ""
end

-- An error with its place in user code, however deep in the prelude it occurs.
local function raise(message) error(place() .. message, 0) end
S.place, S.raise = place, raise

-- A result of a built-in function is returned in brackets, here and below. Otherwise it would be a tail call, which LuaJIT
-- compiles only within the caller of this function. If callers are not compiled, LuaJIT would give this function up, and all
-- others that call it.

-- Calls the gateway: an operation, two texts, a number.
local function ask(operation, a, b, number)
  local kind = call(bridge, operation, a, #a, b, #b, number, reply)
  if kind == 1 then return (ffi_string(reply.at, reply.length)) end
  if kind == 0 then return nil end
  if kind == 2 then return reply.number end
  if kind == 3 then return true end
  if kind == 6 then return false end
  raise(ffi_string(reply.at, reply.length))
end

-- Like `ask`, but returns an error instead of raising it.
local function try(operation, a, b, number)
  local kind = call(bridge, operation, a, #a, b, #b, number, reply)
  if kind == 1 then return (ffi_string(reply.at, reply.length)) end
  if kind == 5 then return nil, (ffi_string(reply.at, reply.length)) end
  if kind == 2 then return reply.number end
  return kind == 3
end

-- Like `ask`, with the flags of a stored value.
local function ask_with_flags(operation, a, b, number)
  local value = ask(operation, a, b, number)
  local flags = reply.flags
  if value ~= nil and flags ~= 0 then return value, flags end
  return value
end

-- Like `ask` for searches: returns the number of spans, and their positions, which are valid until the next call.
local function search(operation, text, pattern, number)
  local kind = call(bridge, operation, text, #text, pattern, #pattern, number, reply)
  if kind == 4 then return tonumber(reply.length), ffi_cast(int_array, reply.at) end
  if kind == 0 then return nil end
  return nil, nil, ffi_string(reply.at, reply.length)
end

S.ask, S.try, S.ask_with_flags, S.search = ask, try, ask_with_flags, search

-- A table in which every missing field is an error that names it.
local function closed(name, members, reason)
  return setmetatable(members, {
    __index = function(_, key) raise(name .. "." .. tostring(key) .. " " .. reason) end,
  })
end
S.closed = function(name, members) return closed(name, members, "is not supported; docs/lua.md lists what is") end

-- The n-th span of a search as Lua returns it: a text, or a position.
local function capture(text, places, at)
  local from, to = places[2 * at], places[2 * at + 1]
  if to == -2 then return from end
  return (sub(text, from, to))
end

local function captures(text, places, count)
  if count == 1 then return capture(text, places, 0) end
  if count == 2 then return capture(text, places, 1) end
  local list = {}
  for at = 1, count - 1 do list[at] = capture(text, places, at) end
  return unpack(list, 1, count - 1)
end

local function from_place(text, init)
  init = init or 1
  if init < 0 then
    init = #text + init + 1
    if init < 1 then init = 1 end
  elseif init == 0 then
    init = 1
  elseif init > #text then
    init = #text + 1
  end
  return init - 1
end

local function text_of(value, at, name)
  local kind = type(value)
  if kind == "string" then return value end
  if kind == "number" then return (tostring(value)) end
  raise("bad argument #" .. at .. " to '" .. name .. "' (string expected, got " .. (value == nil and "no value" or kind) .. ")")
end

local find_op = ops.find

function string.find(text, pattern, init, plain)
  text, pattern = text_of(text, 1, "find"), text_of(pattern, 2, "find")
  local count, places, why = search(find_op, text, pattern, 2 * from_place(text, init) + (plain and 1 or 0))
  if why then raise(why) end
  if not count then return nil end
  local from, to = places[0], places[1]
  if count == 1 then return from, to end
  return from, to, captures(text, places, count)
end

function string.match(text, pattern, init)
  text, pattern = text_of(text, 1, "match"), text_of(pattern, 2, "match")
  local count, places, why = search(find_op, text, pattern, 2 * from_place(text, init))
  if why then raise(why) end
  if not count then return nil end
  return captures(text, places, count)
end

function string.gmatch(text, pattern)
  text, pattern = text_of(text, 1, "gmatch"), text_of(pattern, 2, "gmatch")
  -- In gmatch a `^` is literal.
  if byte(pattern) == 94 then pattern = "%" .. pattern end
  local place = 0
  return function()
    local count, places, why = search(find_op, text, pattern, 2 * place)
    if why then raise(why) end
    if not count then return nil end
    local from, to = places[0], places[1]
    place = to >= from and to or to + 1
    return captures(text, places, count)
  end
end

local function replaced(replacement, kind, text, places, count, whole)
  local value
  if kind == "string" then
    -- %0 to %9 are replaced by the captures.
    local first = captures(text, places, count)
    local list = count > 2 and { captures(text, places, count) } or { first }
    local out, at = {}, 1
    while true do
      local found, spot = search(find_op, replacement, "%", 2 * (at - 1) + 1)
      if not found then break end
      spot = spot[0]
      out[#out + 1] = sub(replacement, at, spot - 1)
      local digit = byte(replacement, spot + 1)
      if digit and digit >= 48 and digit <= 57 then
        if digit == 48 then
          out[#out + 1] = whole
        else
          local value = list[digit - 48]
          if value == nil then raise("invalid capture index") end
          out[#out + 1] = value
        end
      else
        out[#out + 1] = digit and sub(replacement, spot + 1, spot + 1) or ""
      end
      at = spot + 2
    end
    out[#out + 1] = sub(replacement, at)
    return (byte_concat(out))
  elseif kind == "function" then
    value = replacement(captures(text, places, count))
  else
    value = replacement[(captures(text, places, count))]
  end
  if not value then return whole end
  kind = type(value)
  if kind ~= "string" and kind ~= "number" then
    raise("invalid replacement value (a " .. kind .. ")")
  end
  return value
end

function string.gsub(text, pattern, replacement, most)
  text, pattern = text_of(text, 1, "gsub"), text_of(pattern, 2, "gsub")
  local kind = type(replacement)
  if kind == "number" then
    replacement, kind = tostring(replacement), "string"
  elseif kind ~= "string" and kind ~= "function" and kind ~= "table" then
    raise("bad argument #3 to 'gsub' (string/function/table expected)")
  end
  local is_anchored = byte(pattern) == 94
  local is_plain = kind == "string" and search(find_op, replacement, "%", 1) == nil
  local out, number, place, done = {}, 0, 0, 0
  while not most or done < most do
    local count, places, why = search(find_op, text, pattern, 2 * place)
    if why then raise(why) end
    if not count then break end
    local from, to = places[0], places[1]
    out[number + 1] = sub(text, place + 1, from - 1)
    if is_plain then
      out[number + 2] = replacement
    else
      out[number + 2] = replaced(replacement, kind, text, places, count, sub(text, from, to))
    end
    number, done = number + 2, done + 1
    if to >= from then
      place = to
    else
      -- After an empty match one byte is copied.
      if from > #text then
        place = from - 1
        break
      end
      number = number + 1
      out[number] = sub(text, from, from)
      place = from
    end
    if is_anchored then break end
  end
  out[number + 1] = sub(text, place + 1)
  return byte_concat(out), done
end

local rep, STRING_BYTES_MAX = string.rep, S.string_bytes_max

function string.rep(text, count, separator)
  text = text_of(text, 1, "rep")
  local times = tonumber(count)
  if not times then raise("bad argument #2 to 'rep' (number expected, got " .. (count == nil and "no value" or type(count)) .. ")") end
  separator = separator == nil and "" or text_of(separator, 3, "rep")
  if times * (#text + #separator) > STRING_BYTES_MAX then
    raise("string.rep: a text of more than " .. STRING_BYTES_MAX .. " bytes")
  end
  return (rep(text, times, separator))
end

string.dump, string.gfind = nil, nil

-- Only text is loaded: bytecode could do anything.
local original_load = load

function _G.load(chunk, name, _, environment)
  if environment ~= nil then return original_load(chunk, name, "t", environment) end
  return original_load(chunk, name, "t")
end

function loadstring(chunk, name)
  if type(chunk) ~= "string" then raise("bad argument #1 to 'loadstring' (string expected)") end
  return original_load(chunk, name or chunk, "t")
end

-- While a handler of the original runs, LuaJIT calls no hook: it could not be stopped. So this one is called after the error.
local function handled(handler, ok, ...)
  if ok then return true, ... end
  return false, handler(...)
end

function xpcall(run, handler, ...)
  return handled(handler, pcall(run, ...))
end

local count_memory = collectgarbage

function collectgarbage(what)
  if what == "count" then return count_memory("count") end
  raise("collectgarbage(" .. tostring(what) .. ") is not available to functions; only \"count\" is")
end

local CLOSED = "is closed to functions"
local os_library = os
os = closed("os", {
  time = os_library.time,
  clock = os_library.clock,
  date = os_library.date,
  difftime = os_library.difftime,
  getenv = os_library.getenv,
}, CLOSED)
for _, name in ipairs({ "io", "debug", "package", "coroutine", "jit", "ffi" }) do
  _G[name] = closed(name, {}, CLOSED)
end
for _, name in ipairs({ "dofile", "loadfile", "module", "newproxy", "gcinfo", "getfenv", "setfenv" }) do
  _G[name] = function() raise(name .. " " .. CLOSED) end
end

local modules = { bit = bit, string = string, table = table, math = math, ["table.new"] = S.table_new,
  ["table.clear"] = S.table_clear }
S.modules = modules

function require(name)
  local module = modules[name]
  if module == nil then
    raise("the module '" .. tostring(name) .. "' is not supported; docs/lua.md lists what is")
  end
  return module
end
