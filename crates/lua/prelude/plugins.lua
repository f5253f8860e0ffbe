-- Plugins in files: the description of a plugin, and the programs that run it.

local S = ...
local programs, outside = S.programs, S.outside
local load, error, type, tostring, setmetatable, ipairs = load, error, type, tostring, setmetatable, ipairs
local require = require

-- In the gateway's order: a program of a plugin has consecutive numbers from its own on.
local PHASES = { "rewrite", "access", "before_proxy", "header_filter", "body_filter", "log" }

-- Fields that APISIX reads from a plugin, and that are not used here.
local UNUSED = { "preread", "delayed_body_filter", "destroy", "api", "control_api", "workflow_handler", "encrypt_fields",
  "run_policy" }

-- Versions of files by their numbers. A version that no program needs is collected.
local loaded = setmetatable({}, { __mode = "v" })
-- The number of programs that need a version.
local program_counts = {}
-- The lists of modules of programs, and the list whose program is being loaded.
local modules_of_program, loading = {}, nil

local function tell(version)
  if not version.is_told then S.tell_of_chunk(version.chunk, version.source) end
  version.is_told = true
end

local version_of

-- `require` of a version: files beside its own take precedence. The value that a file returns is created once for all that
-- require the same version of it; `true` replaces nothing, as in Lua.
local function requirer(version, by_id)
  return function(name)
    local id = version.requires[name]
    if not id then return (require(name)) end
    local other = loaded[id]
    if not other then
      other = version_of(by_id[id], by_id, version.is_told, name)
      version.used[id] = other
    end
    return other.value
  end
end

-- The value that a file returns. Its globals are its own: two versions of a file share nothing. `is_told`: it is for requests.
-- `name`: it is required by that name, and runs for the plugin that requires it.
function version_of(module, by_id, is_told, name)
  local version = loaded[module.id]
  if version then return version end
  local environment = setmetatable({}, { __index = _G })
  environment._G = environment
  local chunk, why = load(module.source, "=" .. module.file, "t", environment)
  if not chunk then error(why, 0) end
  version = { owner = S.owner(module.file), chunk = chunk, source = module.source, requires = module.requires, used = {} }
  version.owner.attributes = by_id.attributes
  environment.require = requirer(version, by_id)
  -- Before it runs: its loops may be compiled then.
  if is_told then tell(version) end
  -- A required module runs for the module that requires it.
  if not name then S.own = outside(version.owner) end
  local value = chunk(name)
  if not name then S.own = nil end
  if value == nil then value = true end
  version.value = value
  loaded[module.id] = version
  return version
end

-- The version of the last of a list of modules; with `all`, those of the others are created, too.
local function last_of(modules, is_told, all)
  local by_id = { attributes = modules.attributes }
  for _, module in ipairs(modules) do by_id[module.id] = module end
  local version = version_of(modules[#modules], by_id, is_told)
  if all then
    S.own = outside(version.owner)
    for _, module in ipairs(modules) do version.used[module.id] = version_of(module, by_id, is_told, module.file) end
    S.own = nil
  end
  return version
end

-- The version of a plugin.
local function plugin_of(modules, is_told, all)
  local version = last_of(modules, is_told, all)
  if type(version.value) ~= "table" then
    error(modules[#modules].file .. ": it returns no table of a plugin, but " .. type(version.value), 0)
  end
  return version.value, version
end

S.plugin_of = plugin_of

-- The fields that show that a file is meant as a plugin, and not as a module.
local function has_plugin(modules)
  local value = last_of(modules, false).value
  return type(value) == "table" and (value.priority ~= nil or value.schema ~= nil)
end

local function describe(modules)
  local plugin, name = plugin_of(modules, false, true), modules[#modules].file
  local phases, unused = {}, {}
  for at, phase in ipairs(PHASES) do
    local run = plugin[phase]
    if type(run) == "function" then
      phases[#phases + 1] = at - 1
    elseif run ~= nil then
      error(name .. ": " .. phase .. " is not a function, but " .. type(run), 0)
    end
  end
  for _, key in ipairs(UNUSED) do
    if plugin[key] ~= nil then unused[#unused + 1] = key end
  end
  return { name = plugin.name, priority = plugin.priority, version = plugin.version, schema = plugin.schema,
    metadata_schema = plugin.metadata_schema,
    checks = type(plugin.check_schema) == "function",
    authenticates = plugin.type == "auth" or plugin.consumer_schema ~= nil, phases = phases, unused = unused }
end

-- The configuration after `check_schema`; `nil, why`: it is invalid.
local function check_conf(modules, conf, kind)
  local plugin, version = plugin_of(modules)
  S.own = outside(version.owner)
  local ok, why = plugin.check_schema(conf, kind)
  S.own = nil
  if not ok then return nil, tostring(why) end
  return conf
end

local function load_plugin(program_id, name, conf, modules)
  loading = modules
  for _, module in ipairs(modules) do program_counts[module.id] = (program_counts[module.id] or 0) + 1 end
  local plugin, version = plugin_of(modules, true)
  tell(version)
  if not version.is_started then
    plugin.attr = modules.attributes[plugin.name]
    if type(plugin.init) == "function" then
      S.own = outside(version.owner)
      plugin.init()
      S.own = nil
    end
    version.is_started = true
  end
  modules_of_program[program_id], loading = modules, nil
  local key = name .. "#" .. program_id
  for at, phase in ipairs(PHASES) do
    if type(plugin[phase]) == "function" then
      programs[program_id + at - 1] = { key = key, functions = { plugin[phase] }, count = 1, conf = conf,
        is_plugin = true, owner = version.owner, version = version }
    end
  end
end

-- Also for a program that could not be loaded.
local function forget_plugin(program_id)
  for at = 0, #PHASES - 1 do programs[program_id + at] = nil end
  local modules = modules_of_program[program_id] or loading
  modules_of_program[program_id], loading = nil, nil
  if not modules then return end
  for _, module in ipairs(modules) do
    local count, version = program_counts[module.id] - 1, loaded[module.id]
    program_counts[module.id] = count > 0 and count or nil
    if count == 0 and version and version.is_told then
      S.tell_of_chunk_gone(version.chunk)
      version.is_told = false
    end
  end
end

local entries = S.entries
entries.has_plugin, entries.describe = has_plugin, describe
entries.check_conf, entries.load_plugin = check_conf, load_plugin
entries.forget_plugin = forget_plugin

return entries
