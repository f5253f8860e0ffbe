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
-- Those of programs, and the one whose program is not loaded yet.
local version_of_program, loading = {}, nil

local function tell(version)
  if not version.is_told then S.tell_of_chunk(version.chunk, version.source) end
  version.is_told, loading = true, version
end

-- What a file returns. What it sets globally is its own: two versions of a file share nothing. `is_told`: it is for requests.
local function version_of(id, name, source, is_told)
  local version = loaded[id]
  if version then return version end
  local environment = setmetatable({}, { __index = _G })
  environment._G = environment
  local chunk, why = load(source, "=" .. name, "t", environment)
  if not chunk then error(why, 0) end
  version = { owner = S.owner(name), chunk = chunk, source = source, programs = 0 }
  -- Before it runs: its loops may be compiled then.
  if is_told then tell(version) end
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
  local version = version_of(id, file, source, true)
  tell(version)
  local plugin = version.plugin
  if type(plugin.init) == "function" and not version.is_started then
    S.own = outside(version.owner)
    plugin.init()
    S.own = nil
    version.is_started = true
  end
  version.programs = version.programs + 1
  version_of_program[program_id], loading = version, nil
  local key = name .. "#" .. program_id
  for at, phase in ipairs(PHASES) do
    if type(plugin[phase]) == "function" then
      programs[program_id + at - 1] = { key = key, functions = { plugin[phase] }, count = 1, conf = conf,
        is_plugin = true, owner = version.owner }
    end
  end
end

-- Also of a program that could not be loaded.
local function forget_plugin(program_id)
  for at = 0, #PHASES - 1 do programs[program_id + at] = nil end
  local known = version_of_program[program_id]
  local version = known or loading
  version_of_program[program_id], loading = nil, nil
  if not version then return end
  if known then version.programs = version.programs - 1 end
  if version.programs == 0 and version.is_told then
    S.tell_of_chunk_gone(version.chunk)
    version.is_told = false
  end
end

local entries = S.entries
entries.describe, entries.check_conf, entries.load_plugin = describe, check_conf, load_plugin
entries.forget_plugin = forget_plugin

return entries
