-- `table.sort` in Lua: LuaJIT's own is a function of C, which cannot be interrupted when it runs for too long, and in which
-- functions cannot wait. It compares the same elements as LuaJIT's, in the same order: equal elements, and inconsistent orders,
-- give the same result.

local S = ...
local raise, metatable_of = S.raise, S.metatable_of
local type, rawget, rawset, floor = type, rawget, rawset, math.floor

-- `<` if it is not an error. That is checked here, since an error of the operator would name a line of this file.
local function compare(a, b)
  local kind, other = type(a), type(b)
  if kind == "cdata" or other == "cdata" then return a < b end
  local one, two = metatable_of(a), metatable_of(b)
  local less = one and rawget(one, "__lt")
  if less ~= nil and two and rawget(two, "__lt") == less then return a < b end
  if kind == other then raise("attempt to compare two " .. kind .. " values") end
  raise("attempt to compare " .. kind .. " with " .. other)
end

local function less(a, b)
  local kind = type(a)
  if kind == type(b) and (kind == "number" or kind == "string") then return a < b end
  return compare(a, b)
end

local function swap(list, at, to)
  local value = rawget(list, at)
  rawset(list, at, rawget(list, to))
  rawset(list, to, value)
end

-- Quicksort with the median of three as pivot.
local function sort(list, first, last, is_less)
  while first < last do
    if is_less(rawget(list, last), rawget(list, first)) then swap(list, first, last) end
    if last - first == 1 then return end
    local middle = floor((first + last) / 2)
    if is_less(rawget(list, middle), rawget(list, first)) then
      swap(list, middle, first)
    elseif is_less(rawget(list, last), rawget(list, middle)) then
      swap(list, middle, last)
    end
    if last - first == 2 then return end
    local pivot = rawget(list, middle)
    swap(list, middle, last - 1)
    -- Elements left of `low`, and at it, are not greater than the pivot, and those right of `high`, and at it, are not less.
    local low, high = first, last - 1
    while true do
      low = low + 1
      while is_less(rawget(list, low), pivot) do
        if low >= last then raise("invalid order function for sorting") end
        low = low + 1
      end
      high = high - 1
      while is_less(pivot, rawget(list, high)) do
        if high <= first then raise("invalid order function for sorting") end
        high = high - 1
      end
      if high < low then break end
      swap(list, low, high)
    end
    swap(list, last - 1, low)
    -- The smaller half by another call, so that the depth is limited; the larger one by the next turn.
    if low - first < last - low then
      sort(list, first, low - 1, is_less)
      first = low + 1
    else
      sort(list, low + 1, last, is_less)
      last = low - 1
    end
  end
end

function table.sort(...)
  local list, is_less = ...
  if type(list) ~= "table" then
    local got = select("#", ...) == 0 and "no value" or type(list)
    raise("bad argument #1 to 'sort' (table expected, got " .. got .. ")")
  end
  if is_less ~= nil and type(is_less) ~= "function" then
    raise("bad argument #2 to 'sort' (function expected, got " .. type(is_less) .. ")")
  end
  sort(list, 1, #list, is_less or less)
end
