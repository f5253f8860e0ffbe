-- Expressions that have to give the same here and in nginx's Lua module, run by both as they are.

local huge = string.rep("abcdefgh", 16384)
local all = ""
for byte = 0, 255 do all = all .. string.char(byte) end
local bad = "\255\254\0é\128"
local null = ngx.null

local cases = {
  -- Texts
  "ngx.encode_base64('')", "ngx.encode_base64(nil)", "ngx.encode_base64(12.5)", "ngx.encode_base64(true)",
  "ngx.encode_base64(bad)", "ngx.encode_base64('ab', true)", "#ngx.encode_base64(huge)",
  "ngx.decode_base64('YWI=')", "ngx.decode_base64('YWI')", "ngx.decode_base64('%%')", "ngx.decode_base64('')",
  "ngx.decode_base64(nil)", "ngx.decode_base64(12)", "ngx.decode_base64(ngx.encode_base64(bad)) == bad",
  "ngx.md5('')", "ngx.md5(nil)", "ngx.md5(17)", "ngx.md5(bad)", "ngx.md5(huge)", "ngx.md5_bin('a')", "ngx.sha1_bin(bad)",
  "ngx.sha1_bin(nil)", "ngx.hmac_sha1('key', 'text')", "ngx.hmac_sha1(bad, huge)", "ngx.hmac_sha1('', '')",
  "ngx.crc32_short('hello')", "ngx.crc32_long('hello')", "ngx.crc32_short(huge)", "ngx.crc32_short('')",
  "ngx.escape_uri('')", "ngx.escape_uri('a b&c=d/e?f#g~h-i_j.k!l\\'(m)*n')", "ngx.escape_uri(bad)", "ngx.escape_uri(12)",
  "ngx.escape_uri(nil)", "ngx.escape_uri('a/b?c', 0)", "#ngx.escape_uri(huge)",
  "ngx.escape_uri(all:sub(1, 64))", "ngx.escape_uri(all:sub(65, 128))", "ngx.escape_uri(all:sub(129))",
  "ngx.escape_uri(all:sub(1, 64), 0)", "ngx.escape_uri(all:sub(65, 128), 0)", "ngx.escape_uri(all:sub(129), 0)",
  "ngx.escape_uri('a b', 1)", "ngx.escape_uri('a b', 2)", "ngx.unescape_uri(ngx.escape_uri(all)) == all",
  "ngx.decode_base64(ngx.encode_base64(all)) == all", "ngx.encode_args({ [all:sub(33, 64)] = all:sub(65, 96) })",
  "ngx.unescape_uri('a%20b+c')", "ngx.unescape_uri('%zz%4')", "ngx.unescape_uri('%C3%A9%00')", "ngx.unescape_uri(nil)",
  "ngx.unescape_uri('')", "ngx.unescape_uri('%')",
  "ngx.encode_args({ a = 1 })", "ngx.encode_args({ a = true })", "ngx.encode_args({ a = false })", "ngx.encode_args({})",
  "ngx.encode_args({ ['a b'] = 'c&d' })", "ngx.encode_args({ a = { 'x', 'y', true } })", "ngx.encode_args({ a = '' })",
  "ngx.encode_args({ a = bad })",
  "ngx.decode_args('a=1&b=2')", "ngx.decode_args('a&b=&=c&d=%20+')", "ngx.decode_args('')", "ngx.decode_args('a=1&a=2&a')",
  "ngx.decode_args('a=1&b=2', 1)", "ngx.decode_args('a=%FF')",
  -- Time
  "ngx.http_time(0)", "ngx.http_time(1547178289)", "ngx.cookie_time(1547178289)", "type(ngx.now())", "type(ngx.time())",
  "#ngx.utctime()", "#ngx.localtime()", "#ngx.today()",
  -- Patterns
  "string.find('hello', 'l')", "string.find('hello', '')", "string.find('hello', '', 10)", "string.match('abc', '()', 10)", "string.find('abc', '$', 9)", "string.find('abc', 'c', 1e9)",
  "string.find('abc', 'a', -10)", "string.find('abc', '', 4)", "string.find('a+b', '+', 1, true)",
  "string.find('a.b', '%.')", "string.find('hello', 'xyz')", "string.find('hello', 'l', -1)", "string.find('', '')",
  "string.find(nil, 'a')", "string.find('a', nil)", "string.find(123, 2)", "string.find(bad, '\\254')", "string.find(huge, 'hab')",
  "string.match('key = value', '^(%w+)%s*=%s*(%w+)$')", "string.match('2024-01-02', '(%d+)-(%d+)-(%d+)')",
  "string.match('  trim  ', '^%s*(.-)%s*$')", "string.match('abc', '()b()')", "string.match('[[x]]', '%[%[(.-)%]%]')",
  "string.match('f(a(b)c)d', '%b()')", "string.match('THE (quick) fox', '%f[%a]%a+%f[%A]')", "string.match('a', '(')",
  "string.match('a', '[a')", "string.match('a', '%')", "string.match('x-1', '[%w-]+')", "string.match('aaa', 'a-', 2)",
  "string.match(bad, '[\\128-\\255]+')", "string.match('a\\0b', 'a%zb')",
  "string.gsub('hello world', 'o', '0')", "string.gsub('hello', '', '-')", "string.gsub('abc', '%w', '%0%0', 2)",
  "string.gsub('hello', 'l', { l = 'L' })", "string.gsub('hello', 'l', function() return false end)",
  "string.gsub('a b', '(%w) (%w)', '%2 %1')", "string.gsub('a', 'a', '%2')", "string.gsub('a', 'a', true)",
  "string.gsub('abc', 'b', '%%')", "select(2, string.gsub(huge, 'a', 'b'))",
  "(function() local t = {} for k, v in string.gmatch('a=1,b=2', '(%w)=(%w)') do t[#t + 1] = k .. v end return t end)()",
  "(function() local n = 0 for _ in string.gmatch('abc', '') do n = n + 1 end return n end)()",
  "string.rep('ab', 3)", "string.rep('x', 0)", "string.rep('x', -1)", "string.rep('', 100)",
  "string.format('%5.2f|%d|%s|%q|%x', 3.14159, 42, 'x', 'a\\nb', 255)", "string.format('%s', nil)", "string.format('%d', 'x')",
  "string.byte('abc', 1, -1)", "string.byte('')", "string.char()", "string.reverse('abc')", "string.upper('aé')", "string.sub('abc', -2)",
  "string.sub('abc', 0)", "string.sub('abc', 2, 1)", "#huge",
  -- Numbers
  "tostring(0.1)", "tostring(1e15)", "tostring(1e100)", "tostring(-0)", "tostring(1/0)", "tostring(2^53)", "tonumber('0x10')",
  "tonumber(' 12 ')", "tonumber('1e2')", "tonumber('12a')", "tonumber('z', 36)", "tonumber('')", "tonumber(nil)", "1 / 3",
  "bit.band(0xff, 0x0f)", "bit.bxor(1, 3)", "bit.lshift(1, 31)", "bit.tohex(255)", "math.floor(-1.5)", "math.huge",
  -- Tables
  "table.concat({ 1, 'a', 2.5 }, ',')", "table.concat({})", "table.concat({ true })", "#{ 1, 2, nil, 4 } >= 2", "unpack({ 1, 2 })",
  "select('#', nil, nil)", "next({})", "rawequal(null, ngx.null)", "tostring(null)", "type(null)", "pcall(error)", "pcall(error, nil)",
  "select(2, pcall(error, { 1 }))", "xpcall(function() error('x', 0) end, function(why) return why .. '!' end)",
  -- Regular expressions
  "ngx.re.match('hello 123', '[0-9]+')", "ngx.re.match('hello', 'x')", "ngx.re.match('a1b2', '([a-z])([0-9])', 'jo')",
  "ngx.re.match('key=v', '(?<k>\\\\w+)=(?<v>\\\\w+)')", "ngx.re.match('AbC', 'abc', 'i')", "ngx.re.match('', '')",
  "ngx.re.match('ab', '(a)|(b)')", "ngx.re.match('a\\nb', 'a.b', 's')", "ngx.re.match('x', '(')",
  "ngx.re.find('hello 123', '[0-9]+')", "ngx.re.find('hello', 'x')", "ngx.re.find('ab12', '([a-z])([0-9])', '', nil, 2)",
  "ngx.re.gsub('a1b2', '[0-9]', 'x')", "ngx.re.gsub('a1b2', '([a-z])([0-9])', '$2$1')", "ngx.re.gsub('abc', 'b', '$$')",
  "ngx.re.gsub('abc', 'b', function(m) return '<' .. m[0] .. '>' end)", "ngx.re.sub('aaa', 'a', 'b')", "ngx.re.gsub('', 'a', 'b')",
  "ngx.re.gsub('a.b', '\\\\.', '-')", "ngx.re.gsub('abc', '(b)', '${1}1')",
  "(function() local t = {} for m in ngx.re.gmatch('a1b2', '([a-z])([0-9])') do t[#t + 1] = m[1] .. m[2] end return t end)()",
  -- The request
  "ngx.req.get_method()", "ngx.req.http_version()", "ngx.req.get_uri_args()", "ngx.req.get_uri_args(1)",
  "ngx.req.get_headers()['X-One']", "ngx.req.get_headers()['x_one']", "ngx.req.get_headers()['X-Two']", "ngx.req.get_headers()['none']",
  "ngx.req.get_headers().x_one", "ngx.var.arg_a", "ngx.var.arg_none", "ngx.var.http_x_one", "ngx.var.http_none", "ngx.var.request_method",
  "ngx.var.uri", "ngx.var.args", "ngx.var.request_uri", "ngx.var.scheme", "ngx.var.cookie_c", "ngx.var.cookie_none", "ngx.var.is_args",
  "ngx.var.remote_addr", "ngx.var.host", "ngx.var.server_protocol", "ngx.var.no_such_variable", "ngx.var[nil]",
  "(function() ngx.req.set_header('X-New', 'v') return ngx.req.get_headers()['X-New'] end)()",
  "(function() ngx.req.set_header('X-New', { 'a', 'b' }) return ngx.req.get_headers()['X-New'] end)()",
  "(function() ngx.req.set_header('X-New', 17) return ngx.req.get_headers()['X-New'] end)()",
  "(function() ngx.req.clear_header('X-New') return ngx.req.get_headers()['X-New'] end)()",
  "(function() ngx.req.set_header('X-One', nil) return ngx.req.get_headers()['X-One'] end)()",
  "(function() ngx.header['X-Answer'] = 'v' return ngx.header['X-Answer'], ngx.header.x_answer end)()",
  "(function() ngx.header['X-Answer'] = { 'a', 'b' } return ngx.header['X-Answer'] end)()",
  "(function() ngx.header['X-Answer'] = nil return ngx.header['X-Answer'] end)()",
  "(function() ngx.header['X-Answer'] = 12 return ngx.header['X-Answer'] end)()",
  "(function() ngx.ctx.kept = { 1 } return ngx.ctx.kept[1], ngx.ctx.none end)()",
  -- Dictionaries
  "(function() local d = ngx.shared.oracle return d:set('a', 1), d:get('a'), d:incr('a', 2), d:get('none') end)()",
  "(function() local d = ngx.shared.oracle return d:add('a', 1), d:replace('none', 1), d:incr('none', 1) end)()",
  "(function() local d = ngx.shared.oracle return d:set('t', true), d:get('t'), d:set('s', bad), d:get('s') == bad end)()",
  "(function() local d = ngx.shared.oracle return d:incr('new', 1, 5), d:delete('new'), d:get('new') end)()",
  "(function() local d = ngx.shared.oracle return d:ttl('none'), d:expire('none', 1) end)()",
  "(function() local d = ngx.shared.oracle d:set('n', 1) d:set('n', nil) return d:get('n') end)()",
}

-- What a value is, without the addresses of tables.
local function show(value)
  local kind = type(value)
  if value == null then return "null" end
  if kind == "string" then
    if #value > 200 then return #value .. ":" .. ngx.md5(value) end
    return '"' .. (value:gsub("[^%w%p ]", function(char) return string.format("\\%03d", char:byte()) end)) .. '"'
  elseif kind == "number" then
    return string.format("%.14g", value)
  elseif kind == "table" then
    local parts = {}
    for key, inner in pairs(value) do parts[#parts + 1] = show(key) .. "=" .. show(inner) end
    table.sort(parts)
    return "{" .. table.concat(parts, ",") .. "}"
  end
  return kind == "nil" and "nil" or kind == "boolean" and tostring(value) or kind
end

local function told(ok, ...)
  -- The words of an error are one's own.
  if not ok then return "error" end
  local parts = {}
  for at = 1, select("#", ...) do parts[at] = show((select(at, ...))) end
  return table.concat(parts, " ")
end

local lines = {}
for _, case in ipairs(cases) do
  local chunk = assert(loadstring("local huge, bad, null, all = ... return " .. case))
  lines[#lines + 1] = case:gsub("\n", " ") .. " -> " .. told(pcall(chunk, huge, bad, null, all))
end
ngx.print(table.concat(lines, "\n"))
