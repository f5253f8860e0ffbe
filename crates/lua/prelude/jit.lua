-- Reports the events of LuaJIT's compiler to the gateway (`jit/mod.rs`). They are rare: only while functions become warm.
--
-- An instruction that ends a recording is often in the prelude or in LuaJIT. Users want to see their own line that led there, so
-- the calls of a recording are kept until it has ended.

local S = ...
local attach, util, band, rshift = S.jit.attach, S.jit_util, bit.band, bit.rshift
local compiler_on, compiler_off = S.jit.on, S.jit.off
local function_info, bytecode, constant = util.funcinfo, util.funcbc, util.funck
local trace_info, machine_code = util.traceinfo, util.tracemc
local compiled, compiled_line, aborted, flushed = S.on_compiled, S.on_compiled_line, S.on_aborted, S.on_flushed
local loaded_text, loaded_function, forgotten = S.on_loaded_text, S.on_loaded_function, S.on_forgotten
local FNEW, BLACKLISTING = S.fnew, S.blacklisting
local type, tonumber, pairs, setmetatable, byte, clear = type, tonumber, pairs, setmetatable, string.byte, S.table_clear

-- The names of LuaJIT's functions. They have no name of their own, and the libraries are closed after this.
local names = {}
for name, value in pairs(_G) do
  if type(value) == "function" then
    names[value] = name
  elseif type(value) == "table" and name ~= "_G" and name ~= "package" then
    for member, inner in pairs(value) do
      if type(inner) == "function" then names[inner] = name .. "." .. member end
    end
  end
end
names[S.document] = "ctx.matched_route"

-- The names of the prelude's functions, when all of it is loaded.
local are_ours_named = false

local function name_ours()
  -- The prelude has loops that LuaJIT may find hot while it is loaded.
  if not S.modules or not S.modules["apisix.core"] then return end
  are_ours_named = true
  local function name_members(prefix, members, depth)
    for member, value in pairs(members) do
      if type(value) == "function" then
        names[value] = names[value] or prefix .. member
      elseif type(value) == "table" and depth > 0 and type(member) == "string" then
        name_members(prefix .. member .. ".", value, depth - 1)
      end
    end
  end
  name_members("ngx.", S.ngx, 1)
  name_members("string.", string, 0)
  name_members("table.", table, 0)
  for module, members in pairs(S.modules) do
    if module == "resty.lrucache" then name_members("lrucache.", members, 0) end
    if module == "apisix.core" then name_members("core.", members, 1) end
  end
end

-- The recording, instruction by instruction: the function, the place in it, and how deep in calls it is.
local functions, places, depths, count = {}, {}, {}, 0
local start_function, start_place, is_root

-- Chunks whose names begin with a bracket are ours; only those of the configuration are shown line by line.
local own = setmetatable({}, { __mode = "k" })

local function is_users(func)
  local is = own[func]
  if is == nil then
    local source = function_info(func).source
    -- A function of C has none.
    is = source ~= nil and byte(source, 2) ~= 40
    own[func] = is
  end
  return is
end

-- The line of an instruction: LuaJIT has the line in which a closure ends, and users look for the one in which it begins.
local function line_of(func, place)
  local info = function_info(func, place)
  -- A function of C.
  if not info.source then return 0, info end
  local instruction = bytecode(func, place)
  if instruction and band(instruction, 255) == FNEW then
    local made = constant(func, -rshift(instruction, 16) - 1)
    if made then return function_info(made).linedefined, info end
  end
  return info.currentline or 0, info
end

-- The innermost user call in the recording, from its last instruction outwards: function and place, and the name of the callee.
-- Earlier calls at the same depth have returned.
local function users_place()
  local depth
  for at = count, 1, -1 do
    if not depth or depths[at] < depth then
      depth = depths[at]
      if is_users(functions[at]) then return functions[at], places[at], at < count and names[functions[at + 1]] end
    end
  end
  return nil
end

local function forget_recording()
  clear(functions)
  clear(places)
  clear(depths)
  count, start_function = 0, nil
end

local function on_record(_, func, place, depth)
  if type(func) ~= "function" then return end
  count = count + 1
  functions[count], places[count], depths[count] = func, place, depth
end

-- Functions of the prelude whose machine code ends at a call that is not compiled, with the name that users call; and the lines
-- of users that call functions of the prelude in machine code. LuaJIT may compile either of them first.
local leaving, callers, callers_count = {}, {}, 0
local CALLERS_MAX = 4096

local function leaves(func, name)
  leaving[func] = name
  for _, place in pairs(callers[func] or {}) do compiled_line(place.source, place.linedefined, place.currentline, name) end
  callers[func] = nil
end

local function calls(func, info)
  if leaving[func] then
    compiled_line(info.source, info.linedefined, info.currentline, leaving[func])
    return
  end
  local of_func, key = callers[func], info.source .. ":" .. info.currentline
  if not of_func then
    of_func = {}
    callers[func] = of_func
  end
  if not of_func[key] and callers_count < CALLERS_MAX then
    of_func[key], callers_count = info, callers_count + 1
  end
end

-- Machine code that ends at a function of C continues in the interpreter: everything that led there leaves machine code, too.
local function on_left(called)
  local depth = depths[count]
  for at = count - 1, 1, -1 do
    if depths[at] < depth then
      depth = depths[at]
      local func = functions[at]
      if is_users(func) then
        local line, info = line_of(func, places[at])
        compiled_line(info.source, info.linedefined, line, names[functions[at + 1]] or called)
        return
      end
      leaves(func, names[func] or called)
    end
  end
end

local function on_stop(trace)
  local link = trace_info(trace).linktype
  local code = machine_code(trace)
  compiled(code and #code or 0)
  local last_info
  for at = 1, count do
    local func = functions[at]
    if is_users(func) then
      local info = function_info(func, places[at])
      if not last_info or info.currentline ~= last_info.currentline or info.linedefined ~= last_info.linedefined
        or info.source ~= last_info.source then
        compiled_line(info.source, info.linedefined, info.currentline, "")
        last_info = info
      end
      local callee = functions[at + 1]
      if callee and depths[at + 1] > depths[at] and not is_users(callee) then calls(callee, info) end
    end
  end
  local last = functions[count]
  -- Where a function waits or ends its run, nothing can be compiled.
  if last and (link == "stitch" or link == "return") and not function_info(last).source and names[last] ~= "coroutine.yield" then
    on_left(names[last] or "a function of C")
  end
end

local function on_abort(func, place, reason, detail)
  local source, line, within = "", 0, ""
  if type(func) == "function" then
    local its_line, info = line_of(func, place)
    source, line = info.source or "", its_line
  end
  local called = (detail ~= nil and names[detail]) or (count > 0 and names[functions[count]])
  if source == "" or not is_users(func) then
    local caller, at, calls = users_place()
    called = calls or called
    if not caller and start_function and is_users(start_function) then caller, at = start_function, start_place end
    if caller then
      within = source ~= "" and source .. ":" .. line or ""
      local its_line, info = line_of(caller, at)
      source, line = info.source, its_line
    end
  end
  local start_source, start_first, start_line, is_blacklisted = "", 0, 0, false
  if start_function then
    local info = function_info(start_function, start_place)
    start_source, start_first, start_line = info.source, info.linedefined, info.currentline
    local instruction = bytecode(start_function, start_place)
    is_blacklisted = is_root and instruction ~= nil and BLACKLISTING[band(instruction, 255)] == true
  end
  local number = type(detail) == "number" and detail or -1
  aborted(source, line, within, called or "", tonumber(reason) or -1, number, start_source, start_first, start_line,
    is_blacklisted)
end

local function on_trace(what, trace, func, place, reason, detail)
  if not are_ours_named then name_ours() end
  if what == "start" then
    forget_recording()
    start_function, start_place, is_root = func, place, reason == nil
    if type(func) ~= "function" then start_function = nil end
  elseif what == "stop" then
    on_stop(trace)
    forget_recording()
  elseif what == "abort" then
    on_abort(func, place, reason, detail)
    forget_recording()
  elseif what == "flush" then
    forget_recording()
    flushed()
  end
end

-- Reports all functions of a chunk, so that those are known, too, that were never compiled.
local function tell_functions(func)
  local info = function_info(func)
  local lines = {}
  for place = 1, info.bytecodes - 1 do lines[place] = function_info(func, place).currentline end
  loaded_function(info.source, info.linedefined, info.lastlinedefined, lines)
  if not info.children then return end
  for at = -1, -65536, -1 do
    local value = constant(func, at)
    if value == nil then break end
    if type(value) == "proto" then tell_functions(value) end
  end
end

function S.tell_of_chunk(chunk, text)
  loaded_text(function_info(chunk).source, text)
  tell_functions(chunk)
end

function S.tell_of_chunk_gone(chunk) forgotten(function_info(chunk).source) end

-- Counts how often each line of a configuration's functions runs, and its callees, for `stillgate lua check`. The hook would end
-- each recording, and LuaJIT counts these against the function, so the compiler is off.
local hits = {}

local function hit(key) hits[key] = (hits[key] or 0) + 1 end

function S.count_lines()
  if not are_ours_named then name_ours() end
  hits = {}
  compiler_off()
  S.sethook(function(event, line)
    if event == "line" then
      local source = S.getinfo(2, "S").source
      if byte(source, 2) ~= 40 then hit(source .. ":" .. line) end
      return
    end
    local called, caller = names[S.getinfo(2, "f").func], S.getinfo(3, "Sl")
    if called and caller and byte(caller.source, 2) ~= 40 then
      hit(caller.source .. ":" .. caller.currentline .. ":" .. called)
    end
  end, "cl")
end

function S.counted_lines()
  S.sethook()
  compiler_on()
  return hits
end

attach(on_trace, "trace")
attach(on_record, "record")
