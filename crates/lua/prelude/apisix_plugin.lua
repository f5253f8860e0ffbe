-- `apisix.plugin`: a plugin's metadata and attributes.

local S = ...
local ask, op, closed, raise, ngx = S.ask, S.operations, S.closed, S.raise, S.ngx
local type, tostring, setmetatable = type, tostring, setmetatable
local crc32_short, sorted = ngx.crc32_short, S.core_json.stably_encode

local function name_of(name, what)
  if type(name) ~= "string" then raise("bad argument #1 to '" .. what .. "' (string expected, got " .. type(name) .. ")") end
  return name
end

-- The last parsed metadata of each plugin: all requests share it, as in APISIX.
local made = {}
local item_mt = { __index = function(_, name)
  raise("plugin_metadata(...)." .. tostring(name) .. " is not supported; docs/lua.md lists what is")
end }

local function plugin_metadata(name)
  local version = ask(op.metadata_version, name_of(name, "plugin_metadata"), "", 0)
  if not version then
    made[name] = nil
    return nil
  end
  local item = made[name]
  if not item or item.modifiedIndex ~= version then
    item = setmetatable({ value = S.metadata(name), modifiedIndex = version, key = "/plugin_metadata/" .. name }, item_mt)
    made[name] = item
  end
  return item
end

local function plugin_attr(name)
  name_of(name, "plugin_attr")
  local attributes = S.own.program.owner.attributes
  if not attributes then raise("apisix.plugin.plugin_attr exists for plugins in files only") end
  return attributes[name]
end

-- A text that is equal for equal configurations. As in APISIX, it is kept in the configuration.
local function conf_version(conf)
  local version = conf._version
  if not version then
    local text, why = sorted(conf)
    if not text then raise("conf_version: " .. why) end
    version = tostring(crc32_short(text))
    conf._version = version
  end
  return version
end

S.modules["apisix.plugin"] = closed("apisix.plugin", {
  plugin_metadata = plugin_metadata,
  plugin_attr = plugin_attr,
  conf_version = conf_version,
})

return S.entries
