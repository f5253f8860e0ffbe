-- Runs programs: the functions of one configuration, one after the other, for one request.

local S = ...
local yield, raise, encode, clear = S.yield, S.raise, S.encode, S.table_clear
local next, type, tostring, pcall, error, setmetatable, concat = next, type, tostring, pcall, error, setmetatable, table.concat
local load, ipairs, rawget, unpack = load, ipairs, rawget, unpack

-- The ways in which a run ends or stops.
local DONE, ANSWER, SLEEP, BODY, STOPPED = 0, 1, 2, 3, 4
S.SLEEP, S.BODY = SLEEP, BODY

local programs, records, free, ctx_mt = {}, {}, {}, S.ctx_mt
local made = 0

-- The record of a request: a free one, or a new one.
local function take()
  local count = #free
  if count > 0 then
    local record = free[count]
    free[count] = nil
    return record
  end
  made = made + 1
  local record = { id = made, ctx = setmetatable({}, ctx_mt) }
  records[made] = record
  return record
end

-- Zero if the request has no data for its later phases: then the record is free again.
local function settle(record, is_held)
  if not is_held and next(record.ctx) == nil and not record.vars and not record.ngx and not record.held then
    free[#free + 1] = record
    return 0
  end
  return record.id
end

local function release(id)
  local record = records[id]
  if not record then return end
  clear(record.ctx)
  record.vars, record.ngx, record.held, record.said, record.status = nil, nil, nil, nil, nil
  free[#free + 1] = record
end

-- The fields that functions have set in `ctx` of a request.
local function kept(id, name)
  local record = records[id]
  return record and rawget(record.ctx, name)
end

-- Lets the request wait; the result is available when this returns, or is returned. If a function of C is on the stack, this is
-- an error, and the function continues: so the state that it needs stays set.
function S.wait(kind, number, text)
  local own = S.own
  local first, second, third = yield(kind, own.id, number, text)
  S.own = own
  return first, second, third
end

-- Ends the run with an answer; it is never resumed.
function S.finish(own, status)
  local said = own.said
  local body = said and concat(said)
  own.said, own.status = nil, nil
  yield(ANSWER, own.id, status, body)
end

-- Ends the run without an answer.
function S.stop()
  local own = S.own
  if own.said then S.finish(own, own.status or 200) end
  yield(STOPPED, own.id, nil, nil)
end

-- Handles the return values of a plugin's function, `code, body`, as APISIX does.
local function answer(own, code, body)
  if type(code) ~= "number" then
    if code ~= nil then body = code end
    code = nil
  end
  if type(body) == "table" then
    local text, why = encode(body)
    if not text then raise("failed to encode data: " .. why) end
    body = text .. "\n"
  end
  local said = own.said
  if body ~= nil then
    said = said or {}
    said[#said + 1] = tostring(body)
  end
  own.said = said
  S.finish(own, code or own.status or 200)
end

-- Calls a timer's function with `premature` = `false`, as its time has come and the gateway is not exiting.
local function run_timer(program, record)
  program.run(false, unpack(program.arguments, 1, program.count))
  if record.said then raise("a timer has no request to answer") end
end

local function run(program, record)
  if program.run then return run_timer(program, record) end
  local functions, conf, ctx = program.functions, program.conf, record.ctx
  for at = 1, program.count do
    local code, body = functions[at](conf, ctx)
    if code ~= nil or body ~= nil then
      if program.is_plugin then answer(record, code, body) end
      return code
    end
  end
  if record.said then S.finish(record, record.status or 200) end
  record.status = nil
end

-- A coroutine runs one program after the other, until one of them fails or does not end.
local function runner(program_id, record_id, is_held)
  while true do
    -- The record of a waiting run may be set: if there is no memory for a record, it must not be taken for this one's.
    S.own = nil
    local record = record_id == 0 and take() or records[record_id]
    local program = programs[program_id]
    S.own, record.program = record, program
    if not program then error("other functions have used up the memory of this worker's functions", 0) end
    if program.run then programs[program_id] = nil end
    local code = run(program, record)
    S.own = nil
    program_id, record_id, is_held = yield(DONE, settle(record, is_held), code and 1 or 0, nil)
  end
end

-- The table that replaces a request where there is none, for texts of one owner.
local function outside(owner)
  return { id = 0, ctx = setmetatable({}, ctx_mt), program = { key = "", owner = owner } }
end

-- The owner of functions: one version of the text with this name.
function S.owner(name) return { name = name, vars = {} } end

local function load_program(id, name, sources, conf, is_plugin, is_filter)
  local functions, chunks, owner = {}, {}, S.owner(name)
  local program = { key = name .. "#" .. id, functions = functions, count = #sources, is_plugin = is_plugin, chunks = chunks,
    owner = owner }
  -- Registered from here on, so that it can be forgotten if the rest fails.
  programs[id] = program
  S.own = outside(owner)
  for at = 1, #sources do
    local chunk, why = load(sources[at], #sources == 1 and "=" .. name or "=" .. name .. "[" .. at .. "]")
    if not chunk then error(why, 0) end
    -- Before it runs: its loops may be compiled then.
    S.tell_of_chunk(chunk, sources[at])
    chunks[at] = chunk
    functions[at] = chunk()
  end
  S.own = nil
  if is_filter then conf = S.var end
  program.conf = conf
end

local function forget(id)
  if not programs[id] then return end
  for _, chunk in ipairs(programs[id].chunks) do S.tell_of_chunk_gone(chunk) end
  programs[id] = nil
end

-- Checks that a text is allowed in a configuration; the errors are APISIX's.
local function check(source)
  local chunk, why = load(source, source)
  if not chunk then return "failed to loadstring: " .. why end
  S.own = outside(S.owner(""))
  local ok, value = pcall(chunk)
  if not ok then return "pcall error: " .. tostring(value) end
  if type(value) ~= "function" then return "only accept Lua function, the input code type is " .. type(value) end
  return nil
end

-- The record of a failed run, if it is not known; zero: the run had not begun.
local function failed(id)
  local own = records[id] or S.own
  S.own = nil
  if not own then return 0 end
  own.said, own.status = nil, nil
  return own.id
end

S.programs, S.outside = programs, outside
S.entries = { runner = runner, load = load_program, release = release, kept = kept, check = check, failed = failed,
  forget = forget, flush = S.jit.flush }
return S.entries
