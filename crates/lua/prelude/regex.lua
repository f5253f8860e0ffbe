-- `ngx.re`, on the `regex` crate.

local S = ...
local ask, search, op, closed, raise, ngx = S.ask, S.search, S.operations, S.closed, S.raise, S.ngx
local type, tostring, tonumber, pairs, rawset = type, tostring, tonumber, pairs, rawset
local sub, byte, gsub, gmatch, concat, bor = string.sub, string.byte, string.gsub, string.gmatch, table.concat, bit.bor

local function plain(value) return type(value) == "string" and value or tostring(value == nil and "" or value) end

local bits = { i = 1, m = 2, s = 4, x = 8, u = 16, a = 32, d = 0, j = 0, o = 0, D = 0, J = 0, U = 16 }
local known_options, known_options_count = {}, 0

local function options_of(options)
  if not options then return 0 end
  local known = known_options[options]
  if known then return known end
  local value = 0
  for at = 1, #options do
    local char = sub(options, at, at)
    local one = bits[char]
    if not one then raise("unknown flag \"" .. char .. "\" (flags \"" .. options .. "\")") end
    value = bor(value, one)
  end
  if known_options_count >= 512 then known_options, known_options_count = {}, 0 end
  known_options_count = known_options_count + 1
  known_options[options] = value
  return value
end

local group_names, group_names_count = {}, 0

-- The names of a pattern's groups by their numbers; `false`: it has none.
local function names_of(pattern, options)
  local key = options .. ":" .. pattern
  local names = group_names[key]
  if names == nil then
    names = false
    for number, name in gmatch(ask(op.regex_names, pattern, "", options), "(%d+) ([^\n]+)") do
      names = names or {}
      names[tonumber(number)] = name
    end
    if group_names_count >= 512 then group_names, group_names_count = {}, 0 end
    group_names_count = group_names_count + 1
    group_names[key] = names
  end
  return names
end

-- Fills `groups` with the matches; a group that has not matched is `false`.
local function fill(groups, text, places, count, pattern, options)
  for at = 0, count - 1 do
    local from = places[2 * at]
    groups[at] = from ~= -1 and sub(text, from, places[2 * at + 1])
  end
  local names = names_of(pattern, options)
  if names then
    for number, name in pairs(names) do groups[name] = groups[number] end
  end
  return groups
end

local regex_op, whole_op = op.regex, op.regex_whole

local function re_search(text, pattern, options, from)
  return search(regex_op, text, pattern, from * 64 + options)
end

-- The match without groups, which cost more than the match.
local function re_search_whole(text, pattern, options, from)
  return search(whole_op, text, pattern, from * 64 + options)
end

local UNBUILT = "are not supported"

-- The reason why nothing was searched, unless the pattern needs a feature of PCRE that the engines lack: that is an error.
local function failed(why)
  if sub(why, -#UNBUILT) == UNBUILT then raise(why) end
  return why
end

local function re_match(text, pattern, options, position, groups)
  text, options = plain(text), options_of(options)
  local from = position and position.pos and position.pos - 1 or 0
  local count, places, why = re_search(text, pattern, options, from)
  if not count then
    if why then return nil, failed(why) end
    return nil
  end
  local behind, found = places[1] + 1, fill({}, text, places, count, pattern, options)
  -- Tables of the function may run arbitrary code, which may call the gateway again: `places` is invalid from here on.
  if position then position.pos = behind end
  if not groups then return found end
  for key, value in pairs(found) do groups[key] = value end
  return groups
end

local function re_find(text, pattern, options, position, group)
  text, options = plain(text), options_of(options)
  local from = position and position.pos and position.pos - 1 or 0
  group = group or 0
  local search_for = group == 0 and re_search_whole or re_search
  local count, places, why = search_for(text, pattern, options, from)
  if not count then
    if why then return nil, nil, failed(why) end
    return nil
  end
  if group >= count then return nil, nil, "nth out of bound" end
  local behind, first, last = places[1] + 1, places[2 * group], places[2 * group + 1]
  if position then position.pos = behind end
  if first == -1 then return nil, nil end
  return first, last
end

local function re_gmatch(text, pattern, options)
  text, options = plain(text), options_of(options)
  local from = 0
  local _, _, why = re_search_whole("", pattern, options, 0)
  if why then return nil, failed(why) end
  return function()
    if from > #text then return nil end
    local count, places, why = re_search(text, pattern, options, from)
    if not count then
      from = #text + 1
      if why then return nil, failed(why) end
      return nil
    end
    from = places[1] >= places[0] and places[1] or places[1] + 1
    return fill({}, text, places, count, pattern, options)
  end
end

-- `$1`, `${1}`, `$0` and `$$` in a replacement.
local function template(replacement, groups)
  return (gsub(replacement, "%$([%d{%$]%d*}?)", function(mark)
    if byte(mark) == 36 then return "$" .. sub(mark, 2) end
    local number = tonumber((gsub(mark, "[{}]", "")))
    if not number then raise("attempting to use an invalid capture") end
    return groups[number] or ""
  end))
end

local function substituted(text, pattern, replacement, options, most)
  text, options = plain(text), options_of(options)
  local kind = type(replacement)
  if kind == "number" then replacement, kind = tostring(replacement), "string" end
  if kind ~= "string" and kind ~= "function" then
    raise("bad argument #3 (string or function expected, got " .. kind .. ")")
  end
  local is_plain = kind == "string" and not search(op.find, replacement, "$", 1)
  local search_for = is_plain and re_search_whole or re_search
  local out, number, done, place, from = {}, 0, 0, 0, 0
  while from <= #text and done < most do
    local count, places, why = search_for(text, pattern, options, from)
    if why then return nil, nil, failed(why) end
    if not count then break end
    local first, last = places[0], places[1]
    out[number + 1] = sub(text, place + 1, first - 1)
    if is_plain then
      out[number + 2] = replacement
    else
      local groups = fill({}, text, places, count, pattern, options)
      out[number + 2] = kind == "function" and tostring(replacement(groups)) or template(replacement, groups)
    end
    number, done, place = number + 2, done + 1, last
    from = last >= first and last or last + 1
  end
  out[number + 1] = sub(text, place + 1)
  return concat(out), done
end

rawset(ngx, "re", closed("ngx.re", {
  match = re_match,
  find = re_find,
  gmatch = re_gmatch,
  gsub = function(text, pattern, replacement, options)
    return substituted(text, pattern, replacement, options, 1 / 0)
  end,
  sub = function(text, pattern, replacement, options) return substituted(text, pattern, replacement, options, 1) end,
}))

S.modules["ngx.re"] = ngx.re
