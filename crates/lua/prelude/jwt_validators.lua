-- `resty.jwt-validators`: functions that check one claim of a token each.
--
-- A validator gets the claim's value, its name and the whole token as JSON. It fails by `false`, or by an error that says why.

local S = ...
local closed, ngx = S.closed, S.ngx
local type, error, ipairs, pairs, next, select = type, error, ipairs, pairs, next, select
local format, match, concat = string.format, string.match, table.concat

local function fail(pattern, ...) error(format(pattern, ...), 0) end

local function check_type(value, wanted, name)
  if value == nil then fail("Cannot create validator for nil %s.", name) end
  if type(value) ~= wanted then fail("Cannot create validator for non-%s %s.", wanted, name) end
end

local function check_list(list, wanted, name)
  check_type(list, "table", name)
  if next(list) == nil then fail("Cannot create validator for empty table %s.", name) end
  for _, value in ipairs(list) do
    if type(value) ~= wanted then fail("Cannot create validator for non-%s table %s.", wanted, name) end
  end
end

local function malformed(claim, wanted) fail("'%s' is malformed.  Expected to be a %s.", claim, wanted) end

local validators = {}

function validators.chain(...)
  local list = { ... }
  for at = 1, select("#", ...) do check_type(list[at], "function", "chain_function") end
  return function(value, claim, json)
    for _, one in ipairs(list) do
      if one(value, claim, json) == false then return false end
    end
    return true
  end
end

local function is_there(value, claim)
  if value == nil then fail("'%s' claim is required.", claim) end
  return true
end

function validators.required(one)
  if one == nil then return is_there end
  return validators.chain(is_there, one)
end

function validators.require_one_of(names)
  check_list(names, "string", "claim_keys")
  return function(token, claim)
    if type(token) ~= "table" then malformed(claim, "table") end
    if type(token.payload) ~= "table" then malformed(claim .. ".payload", "table") end
    for _, name in ipairs(names) do
      if token.payload[name] ~= nil then return true end
    end
    fail("Missing one of claims - [ %s ].", concat(names, ", "))
  end
end

-- Both forms of a validator: `opt_NAME` accepts a missing claim.
local function define(name, optional)
  validators["opt_" .. name] = optional
  validators[name] = function(...) return validators.chain(is_there, optional(...)) end
end

-- Accepts values of a type for which `holds(value, expected)` is true.
local function checks(expected, holds, name, kind)
  if expected == nil then fail("Cannot create validator for nil %s.", name) end
  check_type(holds, "function", "check_function")
  kind = kind or type(expected)
  return function(value, claim)
    if value == nil then return true end
    if type(value) ~= kind then malformed(claim, kind) end
    return holds(value, expected)
  end
end

define("check", function(expected, holds, name, kind) return checks(expected, holds, name or "check_val", kind) end)

local function any_of(list, holds, name, kind, kind_of_list)
  name = name or "check_values"
  check_type(list, "table", name)
  kind_of_list = kind_of_list or type(list[1])
  check_list(list, kind_of_list, name)
  check_type(holds, "function", "check_function")
  return checks(list, function(value)
    for _, one in ipairs(list) do
      if holds(value, one) then return true end
    end
    return false
  end, name, kind or kind_of_list)
end

define("any_of", any_of)

local function equals(value, expected) return value == expected end
local function matches(value, pattern) return match(value, pattern) ~= nil end

local function contains(values, wanted)
  for _, value in pairs(values) do
    if value == wanted then return true end
  end
  return false
end

define("equals", function(expected) return checks(expected, equals, "check_val") end)
define("equals_any_of", function(list) return any_of(list, equals, "check_values") end)
define("contains_any_of", function(list, name) return any_of(list, contains, name, "table", "string") end)
define("matches_any_of", function(list) return any_of(list, matches, "patterns", "string", "string") end)
define("matches", function(pattern)
  check_type(pattern, "string", "pattern")
  return checks(pattern, matches, "pattern", "string")
end)

local function define_order(name, holds)
  define(name, function(number)
    check_type(number, "number", "check_val")
    return checks(number, holds, "check_val", "number")
  end)
end

define_order("greater_than", function(value, number) return value > number end)
define_order("greater_than_or_equal", function(value, number) return value >= number end)
define_order("less_than", function(value, number) return value < number end)
define_order("less_than_or_equal", function(value, number) return value <= number end)

-- Times. Leeway and clock of the module apply to all functions of the worker, as in OpenResty.

local system_leeway, system_clock = 0, ngx.now

local function check_seconds(seconds, what)
  if type(seconds) ~= "number" or not (seconds >= 0) then fail("%s a non-negative number", what) end
end

function validators.set_system_leeway(seconds)
  check_seconds(seconds, "leeway must be")
  system_leeway = seconds
end

function validators.set_system_clock(clock)
  if type(clock) ~= "function" then fail("clock must be a function") end
  check_seconds(clock(), "clock function must return")
  system_clock = clock
end

local function define_time(name, holds, what)
  define(name, function(options)
    local leeway
    if options ~= nil then
      check_type(options, "table", "options")
      leeway = options.leeway
      if leeway ~= nil then check_seconds(leeway, "leeway must be") end
    end
    return function(value, claim)
      if value == nil then return true end
      -- NaN is not a time, either.
      if type(value) ~= "number" or not (value >= 0) then malformed(claim, "positive numeric value") end
      if holds(value, system_clock(), leeway or system_leeway) then return true end
      fail("'%s' claim %s %s", claim, what, ngx.http_time(value))
    end
  end)
end

define_time("is_not_before", function(value, now, leeway) return value <= now + leeway end, "not valid until")
define_time("is_not_expired", function(value, now, leeway) return value > now - leeway end, "expired at")
define_time("is_at", function(value, now, leeway) return value >= now - leeway and value <= now + leeway end, "is only valid at")

S.jwt_validators = closed("resty.jwt-validators", validators)
S.modules["resty.jwt-validators"] = validators

return S.entries
