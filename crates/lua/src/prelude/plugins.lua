-- Plugins of files: what a file says of its plugin, and the programs that run it.

local S = ...
local programs, outside = S.programs, S.outside
local load, error, type, tostring, setmetatable, ipairs = load, error, type, tostring, setmetatable, ipairs

-- In the order that the gateway counts them in: a program of a plugin has the numbers from its own on.
local PHASES = { "rewrite", "access", "before_proxy", "header_filter", "body_filter", "log" }

-- What APISIX knows of a plugin, and nothing here asks for.
local UNUSED = { "preread", "delayed_body_filter", "destroy", "api", "control_api", "workflow_handler", "metadata_schema",
  "encrypt_fields", "run_policy" }

-- Versions of files by their numbers. One that no program needs is collected.
local loaded = setmetatable({}, { __mode = "v" })
-- Those of programs.
local version_of_program = {}

-- What a file returns. What it sets globally is its own: two versions of a file share nothing.
local function version_of(id, name, source)
  local version = loaded[id]
  if version then return version end
  local environment = setmetatable({}, { __index = _G })
  environment._G = environment
  local chunk, why = load(source, "=" .. name, "t", environment)
  if not chunk then error(why, 0) end
  version = { owner = S.owner(name), chunk = chunk, source = source, programs = 0 }
  S.own = outside(version.owner)
  local plugin = chunk()
  S.own = nil
  if type(plugin) ~= "table" then error(name .. ": it returns no table of a plugin, but " .. type(plugin), 0) end
  version.plugin = plugin
  loaded[id] = version
  return version
end

S.version_of = version_of

local function describe(id, name, source)
  local plugin = version_of(id, name, source).plugin
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
  local version = version_of(id, name, source)
  S.own = outside(version.owner)
  local ok, why = version.plugin.check_schema(conf)
  S.own = nil
  if not ok then return nil, tostring(why) end
  return conf
end

local function load_plugin(program_id, name, conf, id, file, source)
  local version = version_of(id, file, source)
  local plugin = version.plugin
  if type(plugin.init) == "function" and not version.is_started then
    S.own = outside(version.owner)
    plugin.init()
    S.own = nil
    version.is_started = true
  end
  if version.programs == 0 then S.tell_of_chunk(version.chunk, source) end
  version.programs = version.programs + 1
  version_of_program[program_id] = version
  local key = name .. "#" .. program_id
  for at, phase in ipairs(PHASES) do
    if type(plugin[phase]) == "function" then
      programs[program_id + at - 1] = { key = key, functions = { plugin[phase] }, count = 1, conf = conf,
        is_plugin = true, owner = version.owner }
    end
  end
end

local function forget_plugin(program_id)
  for at = 0, #PHASES - 1 do programs[program_id + at] = nil end
  local version = version_of_program[program_id]
  version_of_program[program_id] = nil
  version.programs = version.programs - 1
  if version.programs == 0 then S.tell_of_chunk_gone(version.chunk) end
end

local entries = S.entries
entries.describe, entries.check_conf, entries.load_plugin = describe, check_conf, load_plugin
entries.forget_plugin = forget_plugin

return entries
