-- `ngx.timer.at`: a function that runs later, outside of the request that scheduled it.

local S = ...
local ask, op, closed, raise, ngx = S.ask, S.operations, S.closed, S.raise, S.ngx
local type, select, tostring, rawset = type, select, tostring, rawset
local programs = S.programs

-- A timer is a program that runs once, and is forgotten as it begins.
rawset(ngx, "timer", closed("ngx.timer", {
  at = function(seconds, run, ...)
    if type(seconds) ~= "number" or not (seconds >= 0) then raise("invalid delay \"" .. tostring(seconds) .. "\" of ngx.timer.at") end
    if type(run) ~= "function" then raise("bad argument #2 to 'at' (function expected, got " .. type(run) .. ")") end
    local timer = ask(op.start_timer, "", "", seconds)
    if not timer then return nil, "too many pending timers" end
    local own = S.own.program
    programs[timer] = { key = own.key, owner = own.owner, run = run, arguments = { ... }, count = select("#", ...) }
    return timer
  end,
}))
