-- `ngx.run_worker_thread`: runs a function of the plugin's own file on a thread that does not serve requests. Arguments and
-- results are copied.

local S = ...
local ask, op, ngx, raise = S.ask, S.operations, S.ngx, S.raise
local type, tonumber, pairs, select, unpack = type, tonumber, pairs, select, unpack
local error, pcall = error, pcall
local format, sub, find, concat = string.format, string.sub, string.find, table.concat

local WORK = 6
local DEPTH_MAX = 100

-- A value as bytes: a letter for its type, and its content.
local function write(value, out, depth)
  local kind = type(value)
  if kind == "nil" then
    out[#out + 1] = "z"
  elseif kind == "boolean" then
    out[#out + 1] = value and "t" or "f"
  elseif kind == "number" then
    out[#out + 1] = format("n%.17g;", value)
  elseif kind == "string" then
    out[#out + 1] = "s" .. #value .. ";"
    out[#out + 1] = value
  elseif kind == "table" then
    if depth > DEPTH_MAX then error("a table is too deep for another thread", 0) end
    out[#out + 1] = "{"
    for key, inner in pairs(value) do
      write(key, out, depth + 1)
      write(inner, out, depth + 1)
    end
    out[#out + 1] = "}"
  else
    error("a value of the type " .. kind .. " cannot go to another thread", 0)
  end
end

local function written(...)
  local count = select("#", ...)
  local out = { count .. ";" }
  for at = 1, count do write((select(at, ...)), out, 1) end
  return concat(out)
end

-- The number up to the next semicolon, and the position after it.
local function number_at(text, at)
  local stop = find(text, ";", at, true)
  return tonumber(sub(text, at, stop - 1)), stop + 1
end

local function read(text, at)
  local kind = sub(text, at, at)
  at = at + 1
  if kind == "z" then return nil, at end
  if kind == "t" then return true, at end
  if kind == "f" then return false, at end
  if kind == "n" then return number_at(text, at) end
  if kind == "s" then
    local length
    length, at = number_at(text, at)
    return sub(text, at, at + length - 1), at + length
  end
  local value, key, inner = {}, nil, nil
  while sub(text, at, at) ~= "}" do
    key, at = read(text, at)
    inner, at = read(text, at)
    value[key] = inner
  end
  return value, at + 1
end

local function values(text)
  local count, at = number_at(text, 1)
  local list = {}
  for index = 1, count do list[index], at = read(text, at) end
  return list, count
end

rawset(ngx, "run_worker_thread", function(pool, module, name, ...)
  if type(module) ~= "string" or type(name) ~= "string" then
    raise("bad argument to 'run_worker_thread' (the names of a thread pool, a module and a function expected)")
  end
  if not ask(op.can_wait, "", "", 0) then
    raise("API disabled in the context of " .. ask(op.phase, "", "", 0) .. ": ngx.run_worker_thread")
  end
  local ok, arguments = pcall(written, ...)
  if not ok then raise(arguments) end
  local result, why = S.wait(WORK, 0, module .. "\0" .. name .. "\0" .. arguments)
  if not result then return false, why end
  local list, count = values(result)
  return true, unpack(list, 1, count)
end)

-- On the other thread.
S.entries.work = function(modules, name, arguments)
  local plugin, version = S.plugin_of(modules)
  local run = plugin[name]
  if type(run) ~= "function" then error(modules[#modules].file .. ": there is no function " .. name, 0) end
  local list, count = values(arguments)
  S.own = S.outside(version.owner)
  local result = written(run(unpack(list, 1, count)))
  S.own = nil
  return result
end

return S.entries
