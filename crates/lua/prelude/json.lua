-- JSON: `cjson` with its settings, and `core.json`.

local S = ...
local closed, raise = S.closed, S.raise
local type, tostring, pairs, setmetatable = type, tostring, pairs, setmetatable
local json_decode, json_encode, array_mt, null = S.json_decode, S.json_encode, S.array_mt, S.null

local function decode(text)
  if type(text) ~= "string" then return nil, "bad argument #1 to 'decode' (string expected, got " .. type(text) .. ")" end
  local ok, value, why = json_decode(text)
  if not ok then return nil, why end
  return value
end

local function encode(value, forced, options)
  local sorts = options and options.sort_keys
  local text, why = json_encode(value, forced and true or false, sorts and true or false)
  if not text then return nil, why end
  return text
end
S.encode = encode

local function sorted(value)
  local text, why = json_encode(value, true, true)
  if not text then return nil, why end
  return text
end

local function strip_nulls(value)
  for key, inner in pairs(value) do
    if inner == null then
      value[key] = nil
    elseif type(inner) == "table" then
      strip_nulls(inner)
    end
  end
  return value
end

local delayed = {
  __metatable = false,
  __tostring = function(self)
    local text, why = encode(self.value, self.forced)
    return text or "encode error: " .. why
  end,
}

S.core_json = closed("core.json", {
  decode = function(text, options)
    if not (options and options.null_as_nil) then return decode(text) end
    local value, why = decode(text)
    if value == null then return nil end
    if type(value) == "table" then strip_nulls(value) end
    return value, why
  end,
  encode = encode,
  encode_with_keys_sorted = sorted,
  stably_encode = sorted,
  strip_nulls = strip_nulls,
  array_mt = array_mt,
  null = null,
  delay_encode = function(value, forced) return (setmetatable({ value = value, forced = forced }, delayed)) end,
})

-- cjson

local USUAL = { empty_is_array = false, sparse_is_object = false, sparse_ratio = 2, sparse_safe = 10, depth_max = S.json_depth_max,
  digits = 14, escapes_slash = true, invalid = 0 }
local INVALID = { [false] = 0, [true] = 1, null = 2 }

local function number_of(value, name, least, most)
  if type(value) ~= "number" or value % 1 ~= 0 or value < least or value > most then
    raise("bad argument to '" .. name .. "': a whole number from " .. least .. " to " .. most .. " expected")
  end
  return value
end

local function flag_of(value, name)
  if type(value) ~= "boolean" then raise("bad argument to '" .. name .. "': true or false expected") end
  return value
end

-- An instance. Its settings are its own, and apply to everything that it writes from then on; those of the instance that
-- `require` returns apply to all functions of the worker, as in OpenResty.
local function instance(name, is_safe)
  local settings, is_usual = {}, true
  for key, value in pairs(USUAL) do settings[key] = value end
  local function set(key, value)
    settings[key] = value
    is_usual = true
    for known, usual in pairs(USUAL) do is_usual = is_usual and settings[known] == usual end
  end
  local function write(value)
    local text, why = json_encode(value, false, false, not is_usual and settings or nil)
    if text then return text end
    if not is_safe then raise(why) end
    return nil, why
  end
  -- These do not change what can be read: they accept only their current values.
  local function fixed(setting, fixed_value)
    return function(value)
      if value ~= nil and value ~= fixed_value then
        raise(name .. "." .. setting .. "(" .. tostring(value) .. ") is not supported: only " .. tostring(fixed_value))
      end
      return fixed_value
    end
  end
  return closed(name, {
    _NAME = "cjson", _VERSION = "2.1.0.11", null = null, array_mt = array_mt, empty_array_mt = array_mt,
    empty_array = setmetatable({}, array_mt),
    new = function() return instance(name, is_safe) end,
    decode = function(text)
      local value, why = decode(text)
      if why == nil then return value end
      if not is_safe then raise(why) end
      return nil, why
    end,
    encode = write,
    encode_empty_table_as_object = function(value)
      if value ~= nil then
        -- `"on"` and `"off"` are true and false to cjson, too.
        if value == "on" or value == "off" then value = value == "on" end
        set("empty_is_array", not flag_of(value, "encode_empty_table_as_object"))
      end
      return not settings.empty_is_array
    end,
    encode_escape_forward_slash = function(value)
      if value ~= nil then set("escapes_slash", flag_of(value, "encode_escape_forward_slash")) end
      return settings.escapes_slash
    end,
    encode_sparse_array = function(convert, ratio, safe)
      if convert ~= nil then set("sparse_is_object", flag_of(convert, "encode_sparse_array")) end
      if ratio ~= nil then set("sparse_ratio", number_of(ratio, "encode_sparse_array", 0, 2 ^ 31 - 1)) end
      if safe ~= nil then set("sparse_safe", number_of(safe, "encode_sparse_array", 0, 2 ^ 31 - 1)) end
      return settings.sparse_is_object, settings.sparse_ratio, settings.sparse_safe
    end,
    encode_max_depth = function(value)
      if value ~= nil then set("depth_max", number_of(value, "encode_max_depth", 1, S.json_depth_max)) end
      return settings.depth_max
    end,
    encode_number_precision = function(value)
      if value ~= nil then set("digits", number_of(value, "encode_number_precision", 1, S.json_digits_max)) end
      return settings.digits
    end,
    encode_invalid_numbers = function(value)
      if value ~= nil then
        local number = INVALID[value]
        if not number then raise("bad argument to 'encode_invalid_numbers': true, false or \"null\" expected") end
        set("invalid", number)
      end
      if settings.invalid == 2 then return "null" end
      return settings.invalid == 1
    end,
    encode_keep_buffer = function() return true end,
    encode_skip_unsupported_value_types = fixed("encode_skip_unsupported_value_types", false),
    decode_array_with_array_mt = function(value)
      if value == false then
        raise(name .. ".decode_array_with_array_mt(false) is not supported: arrays always have it, so that they stay arrays")
      end
      return true
    end,
    decode_invalid_numbers = fixed("decode_invalid_numbers", false),
    decode_max_depth = function(value)
      if value ~= nil then number_of(value, "decode_max_depth", 127, 1000) end
      return 127
    end,
  })
end

S.modules["cjson"], S.modules["cjson.safe"] = instance("cjson", false), instance("cjson.safe", true)
