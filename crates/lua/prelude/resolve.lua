-- `core.utils`: texts with variables in them, and some more.

local S = ...
local ask, op, closed, raise, ngx, core = S.ask, S.operations, S.closed, S.raise, S.ngx, S.core
local type, tostring, tonumber, rawset = type, tostring, tonumber, rawset
local sub, byte, find, format, gsub, concat = string.sub, string.byte, string.find, string.format, string.gsub, table.concat

local BACKSLASH, OPEN, DOT, UNDERSCORE = 92, 123, 46, 95

local function is_digit(char) return char ~= nil and char >= 48 and char <= 57 end

local function is_of_name(char)
  if not char then return false end
  return is_digit(char) or char >= 65 and char <= 90 or char >= 97 and char <= 122 or char == UNDERSCORE or char == DOT
end

-- The text without surrounding blanks.
local function bare(text)
  local first, last = 1, #text
  while first <= last and byte(text, first) <= 32 do first = first + 1 end
  while last >= first and byte(text, last) <= 32 do last = last - 1 end
  return (sub(text, first, last))
end

-- The name after a `$` at this position, and the position after it: `$NAME`, `${NAME}`. After a backslash a `$` is literal.
local function name_at(text, spot)
  if spot > 1 and byte(text, spot - 1) == BACKSLASH then return nil end
  if byte(text, spot + 1) == OPEN then
    local close = find(text, "}", spot + 2, true)
    if not close or close == spot + 2 then return nil end
    return bare(sub(text, spot + 2, close - 1)), close + 1
  end
  local last = spot
  while is_of_name(byte(text, last + 1)) do last = last + 1 end
  if last == spot then return nil end
  return sub(text, spot + 1, last), last + 1
end

-- The value of a name; the text after `??` replaces a missing one. `nil`: both are missing.
local function value_of(name, vars)
  local spot = find(name, "??", 1, true)
  if not spot then return vars[name] end
  local value = vars[bare(sub(name, 1, spot - 1))]
  if value ~= nil then return value end
  local behind = sub(name, spot + 2)
  local next_one = find(behind, "??", 1, true)
  return bare(next_one and sub(behind, 1, next_one - 1) or behind)
end

-- The text with the values of its variables, and their number.
local function resolve_var(template, vars, escaper)
  if not template or not find(template, "$", 1, true) then return template, nil, 0 end
  local out, number, place, from, resolved = {}, 0, 1, 1, 0
  while true do
    local spot = find(template, "$", from, true)
    if not spot then break end
    local name, behind = name_at(template, spot)
    from = behind or spot + 1
    if name then
      local value = value_of(name, vars)
      if value == nil then
        value = ""
      else
        resolved = resolved + 1
        value = tostring(value)
        if escaper then value = escaper(value) end
      end
      out[number + 1], out[number + 2] = sub(template, place, spot - 1), value
      number, place = number + 2, behind
    end
  end
  out[number + 1] = sub(template, place)
  return concat(out), nil, resolved
end

-- Like `resolve_var` for `$1` and `${1}`, which are replaced by the captures of a regular expression.
local function resolve_var_with_captures(template, captures)
  if not template or not find(template, "$", 1, true) then return template, nil end
  captures = captures or {}
  local out, number, place, from = {}, 0, 1, 1
  while true do
    local spot = find(template, "$", from, true)
    if not spot then break end
    from = spot + 1
    if not (spot > 1 and byte(template, spot - 1) == BACKSLASH) then
      local first = byte(template, spot + 1) == OPEN and spot + 2 or spot + 1
      local last = first - 1
      while is_digit(byte(template, last + 1)) do last = last + 1 end
      if last >= first then
        out[number + 1] = sub(template, place, spot - 1)
        out[number + 2] = captures[tonumber(sub(template, first, last))] or ""
        number = number + 2
        -- Either of the braces may be missing, as in APISIX.
        place = byte(template, last + 1) == 125 and last + 2 or last + 1
        from = place
      end
    end
  end
  out[number + 1] = sub(template, place)
  return concat(out), nil
end

local function percent(char) return format("%%%02X", byte(char)) end

-- Host and port of an address; brackets are kept.
local function parse_addr(address)
  local port_at
  if byte(address, 1) == 91 then
    port_at = find(address, "]:", 1, true)
    port_at = port_at and port_at + 1
  else
    port_at = find(address, ":", 1, true)
    -- An address of IPv6 without brackets has no port.
    if port_at and find(address, ":", port_at + 1, true) then port_at = nil end
  end
  if not port_at then return address, nil end
  return sub(address, 1, port_at - 1), tonumber(sub(address, port_at + 1))
end

local function sleep(seconds) return ngx.sleep(seconds) end

rawset(core, "sleep", sleep)
rawset(core, "utils", closed("core.utils", {
  resolve_var = resolve_var,
  resolve_var_with_captures = resolve_var_with_captures,
  uri_safe_encode = function(text)
    if type(text) ~= "string" then raise("bad argument #1 to 'uri_safe_encode' (string expected, got " .. type(text) .. ")") end
    return ask(op.escape, text, "", 1)
  end,
  escape_uri_control_chars = function(text) return (gsub(text, "[%z\1-\31\127]", percent)) end,
  validate_header_field = function(name)
    for at = 1, #name do
      local char = byte(name, at)
      if char <= 32 or char >= 127 or char == 58 then return false end
    end
    return true
  end,
  validate_header_value = function(value)
    if type(value) ~= "string" then return true end
    for at = 1, #value do
      local char = byte(value, at)
      if char < 32 or char >= 127 then return false end
    end
    return true
  end,
  parse_addr = parse_addr,
  gethostname = function() return S.variable("hostname") end,
  sleep = sleep,
}))
S.modules["apisix.core.utils"] = core.utils
