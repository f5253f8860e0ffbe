-- Plugins of files: what a file says of its plugin, and the programs that run it.

local S = ...
local programs, outside, forget = S.programs, S.outside, S.entries.forget
local load, error, type, tostring, setmetatable, ipairs = load, error, type, tostring, setmetatable, ipairs

-- In the order that the gateway counts them in: a program of a plugin has the numbers from its own on.
local PHASES = { "rewrite", "access", "before_proxy", "header_filter", "body_filter", "log" }

-- What APISIX knows of a plugin, and nothing here asks for.
local UNUSED = { "preread", "delayed_body_filter", "destroy", "api", "control_api", "workflow_handler", "metadata_schema",
  "encrypt_fields", "run_policy" }

-- By the number of a version of a file. A version that no program needs is collected.
local loaded = setmetatable({}, { __mode = "v" })
local started = setmetatable({}, { __mode = "k" })

-- What a file returns. What it sets globally is its own: two versions of a file share nothing.
local function version_of(id, name, source)
  local plugin = loaded[id]
  if plugin then return plugin end
  local environment = setmetatable({}, { __index = _G })
  environment._G = environment
  local chunk, why = load(source, "=" .. name, "t", environment)
  if not chunk then error(why, 0) end
  S.own = outside()
  plugin = chunk()
  S.own = nil
  if type(plugin) ~= "table" then error(name .. ": it returns no table of a plugin, but " .. type(plugin), 0) end
  S.tell_of_chunk(chunk, source)
  loaded[id] = plugin
  return plugin
end

S.version_of = version_of

local function describe(id, name, source)
  local plugin = version_of(id, name, source)
  local phases, unused = {}, {}
  for at, phase in ipairs(PHASES) do
    local run = plugin[phase]
    if type(run) == "function" then
      phases[#phases + 1] = at - 1
    elseif run ~= nil then
      error(name .. ": " .. phase .. " is no function, but " .. type(run), 0)
    end
  end
  for _, key in ipairs(UNUSED) do
    if plugin[key] ~= nil then unused[#unused + 1] = key end
  end
  return { name = plugin.name, priority = plugin.priority, version = plugin.version, schema = plugin.schema,
    checks = type(plugin.check_schema) == "function",
    authenticates = plugin.type == "auth" or plugin.consumer_schema ~= nil, phases = phases, unused = unused }
end

-- The configuration as `check_schema` leaves it; `nil, why`: it refuses it.
local function check_conf(id, name, source, conf)
  local plugin = version_of(id, name, source)
  S.own = outside()
  local ok, why = plugin.check_schema(conf)
  S.own = nil
  if not ok then return nil, tostring(why) end
  return conf
end

local function load_plugin(program_id, name, conf, id, file, source)
  local plugin = version_of(id, file, source)
  if type(plugin.init) == "function" and not started[plugin] then
    S.own = outside()
    plugin.init()
    S.own = nil
    started[plugin] = true
  end
  local key = name .. "#" .. program_id
  for at, phase in ipairs(PHASES) do
    if type(plugin[phase]) == "function" then
      -- The plugin is named so that it stays loaded.
      programs[program_id + at - 1] = { key = key, functions = { plugin[phase] }, count = 1, conf = conf,
        is_plugin = true, plugin = plugin }
    end
  end
end

local entries = S.entries
entries.describe, entries.check_conf, entries.load_plugin = describe, check_conf, load_plugin
entries.forget_plugin = function(program_id)
  for at = 0, #PHASES - 1 do forget(program_id + at) end
end

return entries
