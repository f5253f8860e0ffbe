//! The API of functions, case by case.

use crate::fake::{Fake, answer, program, run_with, told};
use stillgate_lua::Context;

/// Checks the values of expressions, as texts.
#[track_caller]
pub(crate) fn check(cases: &[(&str, &str)]) {
    for (expression, expected) in cases {
        let outcome = answer(&format!("ngx.print(core.json.stably_encode({{ {expression} }}))"));
        let text: String =
            outcome.strip_prefix("200 ").map_or(outcome.clone(), |text| serde_json::from_str(text).unwrap());
        assert_eq!(&text, expected, "{expression}");
    }
}

#[test]
fn strings_are_lua_s() {
    check(&[
        ("('hello'):find('l')", "[3,3]"),
        ("('hello'):find('xyz')", "{}"),
        ("('hello'):find('')", "[1,0]"),
        ("('hello'):find('', 10)", "[6,5]"),
        ("('hello'):find('', 6)", "[6,5]"),
        ("('a+b'):find('+', 1, true)", "[2,2]"),
        ("('hello'):find('l', -2)", "[4,4]"),
        ("('hello'):find('(l)(l)')", "[3,4,\"l\",\"l\"]"),
        ("('key=v'):match('(%w+)=(%w+)')", "[\"key\",\"v\"]"),
        ("('abc'):match('()b()')", "[2,3]"),
        ("('2024'):match('%d+')", "[\"2024\"]"),
        ("string.match(1234, '23')", "[\"23\"]"),
        ("('hello world'):gsub('o', '0')", "[\"hell0 w0rld\",2]"),
        ("('hello world'):gsub('(%w+)', '<%1>')", "[\"<hello> <world>\",2]"),
        ("('hello'):gsub('', '-')", "[\"-h-e-l-l-o-\",6]"),
        ("('hello'):gsub('l', '%%')", "[\"he%%o\",2]"),
        ("('hello'):gsub('l', { l = 'L' })", "[\"heLLo\",2]"),
        ("('hello'):gsub('l', function() end, 1)", "[\"hello\",1]"),
        ("('abc'):gsub('%w', '%0%0', 2)", "[\"aabbc\",2]"),
        ("('aaa'):gsub('^a', 'b')", "[\"baa\",1]"),
        ("('x'):rep(3)", "[\"xxx\"]"),
        ("('%5.1f|%s'):format(3.14159, 'x')", "[\"  3.1|x\"]"),
        (
            "(function() local t = {} for k, v in ('a=1,b=2'):gmatch('(%w)=(%w)') do t[#t + 1] = k .. v end return t end)()",
            "[[\"a1\",\"b2\"]]",
        ),
        ("(function() local n = 0 for _ in ('abc'):gmatch('') do n = n + 1 end return n end)()", "[4]"),
        ("core.string.find('a.b', '.')", "[2,2]"),
        ("core.string.has_prefix('abc', 'ab'), core.string.has_suffix('abc', 'bc')", "[true,true]"),
        ("core.string.rfind_char('a/b/c', '/')", "[4]"),
        ("core.string.upper('a')", "[\"A\"]"),
    ]);
}

#[test]
fn encodings() {
    check(&[
        ("ngx.encode_base64('hello')", "[\"aGVsbG8=\"]"),
        ("ngx.encode_base64('hello', true)", "[\"aGVsbG8\"]"),
        ("ngx.encode_base64(nil), ngx.encode_base64(12)", "[\"\",\"MTI=\"]"),
        ("ngx.decode_base64('aGVsbG8=')", "[\"hello\"]"),
        ("tostring(ngx.decode_base64('*'))", "[\"nil\"]"),
        (
            "require('ngx.base64').encode_base64url('??>'), require('ngx.base64').decode_base64url('Pz8-')",
            "[\"Pz8-\",\"??>\"]",
        ),
        ("ngx.escape_uri('a b/ä')", "[\"a%20b%2F%C3%A4\"]"),
        ("ngx.escape_uri('/a b?x', 0)", "[\"\\/a%20b%3Fx\"]"),
        ("ngx.unescape_uri('a%20b+c%zz')", "[\"a b c%zz\"]"),
        ("ngx.encode_args({ b = 'x y', a = { 1, true } })", "[\"a=1&a&b=x%20y\"]"),
        ("ngx.decode_args('a=1&b&a=%20')", "[{\"a\":[\"1\",\" \"],\"b\":true}]"),
        ("ngx.md5('hello')", "[\"5d41402abc4b2a76b9719d911017c592\"]"),
        ("ngx.encode_base64(ngx.hmac_sha1('key', 'text'))", "[\"Np4pWetJRQM4shJ0j3fY3tdIR7s=\"]"),
        ("ngx.encode_base64(ngx.sha1_bin('hello'))", "[\"qvTGHdzF6KLavt4PO0gs2a6pQ00=\"]"),
        ("ngx.crc32_short('hello')", "[907060870]"),
        ("ngx.time(), ngx.now()", "[1795220833,1795220833.25]"),
        ("ngx.utctime(), ngx.http_time(0)", "[\"2026-11-21 00:27:13\",\"Thu, 01 Jan 1970 00:00:00 GMT\"]"),
    ]);
}

#[test]
fn json_is_cjson_s() {
    check(&[
        ("{}, { 1, 2 }, { a = 1 }, ngx.null", "[{},[1,2],{\"a\":1},null]"),
        ("core.json.decode('{\"a\":[],\"b\":null,\"c\":1.5}')", "[{\"a\":[],\"b\":null,\"c\":1.5}]"),
        ("core.json.encode(setmetatable({}, core.json.array_mt))", "[\"[]\"]"),
        ("select(2, core.json.decode('{')) ~= nil", "[true]"),
        ("tostring(core.json.decode(nil))", "[\"nil\"]"),
        ("pcall(require('cjson').decode, '{') == false", "[true]"),
        ("require('cjson.safe').encode({ x = print }) == nil", "[true]"),
        ("core.json.encode({ b = 1, a = { c = '/\\n\"' } }, true) ~= nil", "[true]"),
        (
            "core.json.stably_encode({ b = 1, a = { c = '/' } })",
            "[\"{\\\"a\\\":{\\\"c\\\":\\\"\\\\\\/\\\"},\\\"b\\\":1}\"]",
        ),
        ("tostring(core.json.delay_encode({ 1 }))", "[\"[1]\"]"),
        ("core.json.encode(1 / 0) == nil", "[true]"),
        ("(function() local t = {} t.t = t return core.json.encode(t) == nil end)()", "[true]"),
    ]);
}

#[test]
fn the_path_is_decoded() {
    let check = |path: &'static str, expected: &str| {
        let mut fake = Fake { path: path.as_bytes(), ..Fake::default() };
        let source = "return function() ngx.print(ngx.var.uri, ' ', ngx.var.document_uri) end";
        let found = run_with(&program(&[source]), &mut fake, &mut Context::default());
        assert_eq!(found, format!("200 {:?}", format!("{expected} {expected}")), "{path}");
    };
    check("/", "/");
    check("/hello/", "/hello/");
    check("/a%20b+c%3Fd", "/a b+c?d");
    check("/%C3%A4%2520%zz%", "/ä%20%zz%");
    check("/a%2F%2Fb/..%2F%2e%2E%2Fc", "/c");
    check("/a/..%2F..%2F..", "/");
    check("/a/b%2F.", "/a/b/");
    check("/a/...%2Fb", "/a/.../b");
}

/// As nginx has them: names in any case, values as they came.
#[test]
fn raw_arguments_and_cookies() {
    let check = |target: &str, cookies: &[&str], name: &str, expected: Option<&str>| {
        let mut fake = Fake { target: target.as_bytes().to_vec(), ..Fake::default() };
        fake.request.extend(cookies.iter().map(|line| ("Cookie".to_owned(), line.as_bytes().to_vec())));
        let text = format!("return function() ngx.print(ngx.var['{name}'] or 'nil') end");
        let found = run_with(&program(&[&text]), &mut fake, &mut Context::default());
        assert_eq!(found, format!("200 {:?}", expected.unwrap_or("nil")), "{target} {cookies:?} {name}");
    };
    let argument = |target: &str, name: &str, expected: Option<&str>| check(target, &[], name, expected);
    argument("/a?admin=1", "arg_admin", Some("1"));
    argument("/a?Admin=1", "arg_admin", Some("1"));
    argument("/a?admin=1", "ARG_Admin", Some("1"));
    argument("/a?f=%2e%2E+x%00", "arg_f", Some("%2e%2E+x%00"));
    argument("/a?b=2&a=1&A=3", "arg_a", Some("1"));
    argument("/a?xa=2&a=", "arg_a", Some(""));
    argument("/a?a=b=c&d", "arg_a", Some("b=c"));
    argument("/a?&&a=1&", "arg_a", Some("1"));
    argument("/a?a-b=1", "arg_a-b", Some("1"));
    argument("/a?a.b%=1", "arg_a.b%", Some("1"));
    argument("/a?x=1;a=1", "arg_a", None);
    argument("/a?a", "arg_a", None);
    argument("/a?%61=1", "arg_a", None);
    argument("/a?a%3d1", "arg_a", None);
    argument("/a?ab=1", "arg_a", None);
    argument("/a?=1", "arg_", None);
    argument("/a?", "arg_a", None);
    argument("/a", "arg_a", None);
    let cookie = |lines: &[&str], name: &str, expected: Option<&str>| check("/", lines, name, expected);
    cookie(&["admin=1"], "cookie_admin", Some("1"));
    cookie(&["Admin=1"], "cookie_aDMIN", Some("1"));
    cookie(&["a=1; admin=%31 ;b=2"], "cookie_admin", Some("%31 "));
    cookie(&["a=1;admin = 2"], "cookie_admin", Some("2"));
    cookie(&["a=1", "b=2; A=3"], "cookie_a", Some("1"));
    cookie(&["b=2", "a=3"], "cookie_a", Some("3"));
    cookie(&["a=\"x; b=1\""], "cookie_b", Some("1\""));
    cookie(&["a="], "cookie_a", Some(""));
    cookie(&["a=b=c"], "cookie_a", Some("b=c"));
    cookie(&["a=1,b=2"], "cookie_b", Some("2"));
    cookie(&["b=1,c=2; d=3"], "cookie_b", Some("1,c=2"));
    cookie(&["a", "a;a=1"], "cookie_a", Some("1"));
    cookie(&["a=1,admin=1"], "cookie_admin", Some("1"));
    cookie(&["admin"], "cookie_admin", None);
    cookie(&["xadmin=1; adminx=1"], "cookie_admin", None);
    cookie(&["=1"], "cookie_", None);
    cookie(&[], "cookie_a", None);
}

#[test]
fn requests_are_read() {
    check(&[
        ("ngx.var.host, ngx.var.remote_addr, tostring(ngx.var.nothing)", "[\"h.example\",\"192.0.2.7\",\"nil\"]"),
        ("ctx.var.uri, ctx.var.host", "[\"\\/hello\",\"h.example\"]"),
        ("ngx.req.get_method(), ngx.req.http_version()", "[\"GET\",1.1]"),
        (
            "ngx.req.get_headers()['X-A'], ngx.req.get_headers().x_a, ngx.req.get_headers()['x-two']",
            "[\"1\",\"1\",[\"a\",\"b\"]]",
        ),
        ("core.request.header(ctx, 'x-two'), tostring(core.request.header(ctx, 'none'))", "[\"a\",\"nil\"]"),
        ("core.request.headers(ctx).host", "[\"h.example\"]"),
        ("ngx.req.get_uri_args()", "[{\"flag\":true,\"name\":\"Rose M\",\"x\":[\"1\",\"2\"]}]"),
        ("core.request.get_uri_args(ctx).name", "[\"Rose M\"]"),
        ("core.request.get_body()", "[\"{\\\"a\\\":[1,2]}\"]"),
        ("select(2, core.request.get_body(3))", "[\"request size 11 is greater than the maximum size 3 allowed\"]"),
        ("core.request.get_json_request_body_table()", "[{\"a\":[1,2]}]"),
        (
            "core.request.get_remote_client_ip(ctx), core.request.get_host(ctx), core.request.get_scheme(ctx)",
            "[\"192.0.2.7\",\"h.example\",\"http\"]",
        ),
        ("ctx.curr_req_matched._path, ctx.curr_req_matched.id", "[\"\\/hello\\/:id\",\"17\"]"),
        ("ctx.matched_route.value.labels", "[{\"key\":\"v\"}]"),
        ("ngx.get_phase(), ngx.status, ngx.headers_sent", "[\"access\",0,false]"),
        ("ngx.req.start_time(), ngx.req.is_internal(), ngx.req.get_body_file() == nil", "[1795220833.25,false,true]"),
        ("ngx.req.get_query_args(1)", "[{\"name\":\"Rose M\"},\"truncated\"]"),
        ("ngx.req.get_post_args()", "[{\"{\\\"a\\\":[1,2]}\":true}]"),
        ("core.request.get_post_args(ctx)", "[{\"{\\\"a\\\":[1,2]}\":true}]"),
        (
            "core.request.get_request_body_table(ctx, 'application/json'), core.request.get_method(), core.request.get_http_version()",
            "[{\"a\":[1,2]},\"GET\",1.1]",
        ),
        ("core.request.get_path(ctx), core.request.get_ip(ctx)", "[\"\\/hello\",\"192.0.2.7\"]"),
        // Values that this request does not have.
        (
            "tostring(core.request.get_port(ctx)), tostring(core.request.get_remote_client_port(ctx)), tostring(core.response.get_upstream_status(ctx))",
            "[\"nil\",\"nil\",\"nil\"]",
        ),
        (
            "tostring(ctx.route_id), tostring(ctx.service_id), tostring(ctx.consumer_name), tostring(ctx.matched_service)",
            "[\"nil\",\"nil\",\"nil\",\"nil\"]",
        ),
    ]);
}

/// The changes of a request, field by field.
#[track_caller]
fn changed(phase: &'static str, body: &str) -> Fake {
    let mut fake = Fake { phase, ..Fake::default() };
    let source = format!("return function(conf, ctx) local core = require('apisix.core') {body} end");
    assert_eq!(run_with(&program(&[&source]), &mut fake, &mut Context::default()), "done", "{body}");
    fake
}

fn lines(fields: &[(String, Vec<u8>)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value))).collect()
}

#[test]
fn requests_are_changed() {
    let of = |body: &str| changed("access", body);
    let fake = of(
        "ngx.req.set_header('X-A', 2) ngx.req.clear_header('x-two') core.request.set_header(ctx, 'X-B', 'b') core.request.add_header(ctx, 'X-B', 'c') ngx.req.set_header('X-L', { 'l', 'm' })",
    );
    assert_eq!(lines(&fake.request), "Host: h.example\nX-A: 2\nX-B: b\nX-B: c\nX-L: l\nX-L: m\n");
    assert_eq!(of("ngx.req.set_uri_args({ a = 1 })").target, b"/hello?a=1");
    let set_uri = |path: &str, expected: &str| {
        let found = of(&format!("ngx.req.set_uri({path})")).target;
        assert_eq!(String::from_utf8(found).unwrap(), format!("{expected}?name=Rose%20M&x=1&x=2&flag"), "{path}");
    };
    set_uri("'/a b'", "/a%20b");
    set_uri("'/a%20b'", "/a%2520b");
    set_uri("'/a?b=c#d'", "/a%3Fb=c%23d");
    set_uri("'/\\195\\164\\t'", "/%C3%A4%09");
    set_uri("'/a\\n', false, true", "/a%0A");
    set_uri("'/a+b:c@d;e'", "/a+b:c@d;e");
    // What is read back is what was set.
    assert_eq!(answer("ngx.req.set_uri('/a %2F/../b+c') ngx.print(ngx.var.uri)"), "200 \"/a %2F/../b+c\"");
    assert_eq!(answer("ngx.req.set_uri('')"), "error: test:1: attempt to use zero-length uri");
    assert_eq!(
        answer("ngx.req.set_uri(nil)"),
        "error: test:1: bad argument #1 to 'set_uri' (string expected, got nil)"
    );
    assert_eq!(
        answer("ngx.req.set_uri('/a\\nb')"),
        "error: test:1: unsafe byte \"0x0a\" in uri (maybe you want to set the 'binary' argument?)"
    );
    assert_eq!(of("ctx.var.upstream_uri = '/server_port'").target, b"/server_port");
    let named = "local args = core.request.get_uri_args(ctx) args.name, args.x, args.flag = 'world', nil, nil core.request.set_uri_args(ctx, args)";
    assert_eq!(of(named).target, b"/hello?name=world");
    assert_eq!(of("ngx.req.set_body_data('new') ngx.req.discard_body()").body.unwrap(), b"new");
    assert_eq!(of("ngx.req.set_method(ngx.HTTP_POST)").method, "POST");
    assert_eq!(answer("ngx.req.set_method('POST')"), "error: test:1: unsupported HTTP method: POST");
    let outcome = answer("ngx.var.nothing = 1");
    assert_eq!(outcome, "error: test:1: variable \"nothing\" not found for writing; ctx.var takes any name");
    assert_eq!(answer("ngx.req.set_header('X-A', 'a\\nb')"), "error: test:1: a line break");
    let outcome = answer("ngx.req.set_header('X-A', {{}})");
    assert!(outcome.starts_with("error: test:1: a header value has to be a text"), "{outcome}");
}

#[test]
fn responses_are_changed() {
    let fake = changed(
        "header_filter",
        "ngx.header.content_type = 'a/b' ngx.header['X-A'] = { '1', '2' } ngx.header.x_gone = nil core.response.set_header('X-B', 5, 'X-C', 'c') core.response.add_header('X-C', 'd') ngx.status = 404",
    );
    assert_eq!(lines(&fake.response), "content-type: a/b\nX-A: 1\nX-A: 2\nX-B: 5\nX-C: c\nX-C: d\n");
    assert_eq!(fake.status, Some(404));
    let source = "return function() ngx.say('x') end";
    let mut fake = Fake { phase: "header_filter", ..Fake::default() };
    let outcome = run_with(&program(&[source]), &mut fake, &mut Context::default());
    assert_eq!(outcome, "error: test:1: API disabled in the context of header_filter: ngx.say");
}

#[test]
fn bodies_are_changed_piece_by_piece() {
    let program = program(&[
        "return function(conf, ctx) local core = require('apisix.core') local body = core.response.hold_body_chunk(ctx) if not body then return end ngx.arg[1] = body:upper() end",
    ]);
    let mut context = Context::default();
    let mut out = Vec::new();
    for (piece, is_last) in [("ab", false), ("c", false), ("", true)] {
        let mut fake = Fake { phase: "body_filter", piece: Some((piece.into(), is_last)), ..Fake::default() };
        assert_eq!(run_with(&program, &mut fake, &mut context), "done");
        out.extend(fake.piece.unwrap().0);
    }
    assert_eq!(out, b"ABC");
}

#[test]
fn messages_say_where_they_are_from() {
    let fake = changed(
        "access",
        "ngx.log(ngx.ERR, 'a', 1, nil, true) core.log.warn('b ', { } ~= nil) core.log.info('not written') print('nor this')",
    );
    assert_eq!(fake.log.into_inner(), ["Error test:1: a1niltrue", "Warn test:1: b true"]);
}

#[test]
fn regular_expressions() {
    check(&[
        ("ngx.re.match('hello, 1234', '([0-9])[0-9]+')", "[{\"0\":\"1234\",\"1\":\"1\"}]"),
        ("ngx.re.match('hello', '(?<first>h)(x)?')", "[{\"0\":\"h\",\"1\":\"h\",\"2\":false,\"first\":\"h\"}]"),
        ("tostring(ngx.re.match('hello', 'HELLO'))", "[\"nil\"]"),
        ("ngx.re.match('hello', 'HELLO', 'ijo')[0]", "[\"hello\"]"),
        ("ngx.re.find('hello, 1234', '([0-9]+)', 'jo')", "[8,11]"),
        ("ngx.re.find('hello, 1234', '([0-9])([0-9]+)', 'jo', nil, 2)", "[9,11]"),
        ("ngx.re.gsub('hello, world', '([a-z])[a-z]+', '[$0,$1]', 'i')", "[\"[hello,h], [world,w]\",2]"),
        ("ngx.re.gsub('hello', 'l', function(m) return m[0]:upper() end)", "[\"heLLo\",2]"),
        ("ngx.re.sub('hello', 'l', '${0}$$')", "[\"hel$lo\",1]"),
        ("ngx.re.gsub('abc', '', '-')", "[\"-a-b-c-\",4]"),
        // The function's own table searches again, for more groups, while it is filled.
        (
            "(function() local t = setmetatable({}, { __newindex = function(t, k, v) ngx.re.match(('x'):rep(200), ('(x)'):rep(100)) rawset(t, k, v) end }) ngx.re.match('ab', '(a)(b)', '', nil, t) return t[0] .. t[1] .. t[2] end)()",
            "[\"abab\"]",
        ),
        (
            "(function() local t = {} for m in ngx.re.gmatch('a1b2', '[a-z]([0-9])') do t[#t + 1] = m[1] end return t end)()",
            "[[\"1\",\"2\"]]",
        ),
        (
            "(function() local at = { pos = 3 } local m = ngx.re.match('aXaX', 'X', 'jo', at) return m[0], at.pos end)()",
            "[\"X\",5]",
        ),
        ("select(2, ngx.re.match('a', '(')) ~= nil", "[true]"),
    ]);
}

#[test]
fn tables_and_caches() {
    check(&[
        ("core.table.insert_tail({ 1 }, 2, 3)", "[3]"),
        ("core.table.try_read_attr({ a = { b = 1 } }, 'a', 'b'), core.table.nkeys({ a = 1, 2 })", "[1,2]"),
        ("core.table.merge({ a = { b = 1 } }, { a = { c = 2 } })", "[{\"a\":{\"b\":1,\"c\":2}}]"),
        ("core.table.deepcopy({ a = { 1 } }), core.table.array_find({ 'x', 'y' }, 'y')", "[{\"a\":[1]},2]"),
        (
            "(function() local made, cache = 0, core.lrucache.new({ count = 2, ttl = 10 }) local function make() made = made + 1 return made end for _, key in ipairs({ 'a', 'a', 'b', 'a', 'c' }) do cache(key, nil, make) end return made, cache('a', 'v2', make) end)()",
            "[3,4]",
        ),
        (
            "(function() local cache = require('resty.lrucache').new(2) cache:set('a', 1) cache:delete('b') return cache:get('a'), tostring(cache:get('b')) end)()",
            "[1,\"nil\"]",
        ),
        (
            "(function() local d = ngx.shared.of_this_test d:set('a', 'x') local n = d:incr('n', 1, 0) return d:get('a'), n, d:get('n'), tostring(d:get('z')), d:add('a', 1), tostring(d:set('b', false)), d:get('b') end)()",
            "[\"x\",1,1,\"nil\",false,\"true\",false]",
        ),
        (
            "(function() local d = ngx.shared.of_this_test d:set('e', 'x', math.huge) d:set('f', 'y', 1e300) d:expire('f', math.huge) return d:get('e'), d:get('f'), d:ttl('f') > 1e9, d:incr('g', 1, 0, math.huge), d:get('g') end)()",
            "[\"x\",\"y\",true,1,1]",
        ),
    ]);
}

#[test]
fn the_rest_of_the_tables_and_times() {
    check(&[
        (
            "core.table.isempty({}), core.table.isempty({ 1 }), core.table.isarray({ 1, 2 }), core.table.isarray({ a = 1 })",
            "[true,false,true,false]",
        ),
        (
            "core.table.deep_eq({ a = { 1 } }, { a = { 1 } }), core.table.deep_eq({ a = 1 }, { a = 1, b = 2 })",
            "[true,false]",
        ),
        (
            "core.table.clone({ a = 1 }), #core.table.keys({ a = 1, b = 2 }), core.table.set({}, 'a', 'b')",
            "[{\"a\":1},2,2]",
        ),
        (
            "(function() local t = require('table.new')(4, 0) t[1] = 'a' local n = #t require('table.clear')(t) return n, #t end)()",
            "[1,0]",
        ),
        ("core.json.encode_with_keys_sorted({ b = 1, a = 2 })", "[\"{\\\"a\\\":2,\\\"b\\\":1}\"]"),
        (
            "require('cjson').encode(require('cjson').empty_array), require('cjson.safe').decode('{') == nil",
            "[\"[]\",true]",
        ),
        ("ngx.today(), #ngx.localtime(), ngx.utctime()", "[\"2026-11-21\",19,\"2026-11-21 00:27:13\"]"),
        ("ngx.cookie_time(0), ngx.http_time(0)", "[\"Thu, 01-Jan-70 00:00:00 GMT\",\"Thu, 01 Jan 1970 00:00:00 GMT\"]"),
        ("#ngx.md5_bin('a'), ngx.update_time() == nil, ngx.flush()", "[16,true,1]"),
        (
            "(function() local d = ngx.shared.flushed d:set('a', 1) d:flush_all() return tostring(d:get('a')), d:flush_expired() end)()",
            "[\"nil\",0]",
        ),
        ("core.lrucache.plugin_ctx_id(ctx, 'x') == core.lrucache.plugin_ctx_id(ctx, 'x')", "[true]"),
        ("core.response.set_response_source(ctx, 'nginx') == nil, ctx.route_id == nil", "[true,true]"),
    ]);
    assert_eq!(answer("ngx.redirect('/there')"), "302 nothing");
    assert!(answer("ngx.redirect('/there', 200)").starts_with("error: test:1: only ngx.HTTP_MOVED_TEMPORARILY"));
}

/// Calls every function of `ngx` and `apisix.core` with every invalid argument in each of three places.
#[test]
fn wrong_arguments_are_errors_of_the_function() {
    // These end the function or wait, and two take a function that they call.
    let others =
        "{ exit = true, redirect = true, sleep = true, read_body = true, run_worker_thread = true, delay_exec = true }";
    let reached = "local found = {} \
         local function visit(name, members, depth) for member, value in pairs(members) do \
           if type(value) == 'function' and not (OTHERS)[member] then found[#found + 1] = { name .. member, value } \
           elseif type(value) == 'table' and depth > 0 and type(member) == 'string' then visit(name .. member .. '.', value, depth - 1) end end end \
         visit('ngx.', ngx, 2) visit('core.', core, 2) visit('shared:', getmetatable(ngx.shared.wrong).__index or {}, 0) \
         table.sort(found, function(a, b) return a[1] < b[1] end) "
        .replace("OTHERS", others);
    let outcome = answer(&format!("{reached} ngx.print(#found)"));
    let count: usize =
        outcome.trim_start_matches("200 ").trim_matches('"').parse().unwrap_or_else(|_| panic!("{outcome}"));
    assert!(count > 110, "{count} functions");
    let wrong = "{ nil, true, -1, 0.5, 1 / 0, 0 / 0, 2 ^ 53, '', '\\255\\254\\0', ('x'):rep(1e5), {}, { {} }, function() end, ngx.null }";
    for at in 1..=count {
        let body = format!(
            "{reached} local name, call = found[{at}][1], found[{at}][2] local wrong = {wrong} ngx.log(ngx.ERR, name) \
             for one = 1, 14 do for place = 1, 3 do local list = {{ 'a', 'b', 'c' }} list[place] = wrong[one] \
               pcall(call, list[1], list[2], list[3]) end end \
             ngx.print('through')"
        );
        let source = format!("return function(conf, ctx) local core = require('apisix.core') {body} end");
        // A busy machine may stop it for its time.
        let (outcome, name) = (0..100)
            .map(|_| {
                let mut fake = Fake::default();
                let outcome = run_with(&program(&[&source]), &mut fake, &mut Context::default());
                (outcome, fake.log.borrow().first().cloned().unwrap_or_default())
            })
            .find(|(outcome, _)| !outcome.contains("ran for more than 50 ms"))
            .expect("it needs less than 50 ms once");
        assert!(outcome.starts_with("200 ") && outcome.ends_with("through\""), "{at} {name}: {outcome}");
    }
}

#[test]
fn variables_of_functions_are_registered() {
    let body = "core.ctx.register_var('a6_labels', function(ctx) local route = ctx.matched_route and ctx.matched_route.value return route and route.labels end) ngx.say(core.json.encode(ctx.var.a6_labels))";
    assert_eq!(answer(body), "200 \"{\\\"key\\\":\\\"v\\\"}\\n\"");
}

#[test]
fn cjson_has_settings_of_its_own_for_each_instance() {
    check(&[
        ("require('cjson').encode({})", "[\"{}\"]"),
        (
            "(function() local c = require('cjson').new() c.encode_empty_table_as_object(false) return { c.encode({}), c.encode({a = {}}), require('cjson').encode({}) } end)()",
            "[[\"[]\",\"{\\\"a\\\":[]}\",\"{}\"]]",
        ),
        (
            "(function() local c = require('cjson.safe').new() c.encode_escape_forward_slash(false) return { c.encode('a/b'), core.json.encode('a/b') } end)()",
            "[[\"\\\"a\\/b\\\"\",\"\\\"a\\\\\\/b\\\"\"]]",
        ),
        (
            "(function() local c = require('cjson').new() c.encode_number_precision(3) return { c.encode({ 0.123456, 2 }), c.encode_number_precision() } end)()",
            "[[\"[0.123,2]\",3]]",
        ),
        (
            "(function() local c = require('cjson').new() c.encode_sparse_array(true, 1, 2) return { c.encode({ [9] = 9 }), select(2, c.encode_sparse_array()) } end)()",
            "[[\"{\\\"9\\\":9}\",1,2]]",
        ),
        (
            "(function() local c = require('cjson.safe').new() c.encode_max_depth(2) return { c.encode({ { 1 } }), tostring((c.encode({ { { 1 } } }))) } end)()",
            "[[\"[[1]]\",\"nil\"]]",
        ),
        (
            "(function() local c = require('cjson').new() c.encode_invalid_numbers('null') return { c.encode({ 0 / 0, 1 / 0 }), c.encode_invalid_numbers(true), c.encode({ -1 / 0 }) } end)()",
            "[[\"[null,null]\",true,\"[-Infinity]\"]]",
        ),
        ("(pcall(require('cjson').decode, '{'))", "[false]"),
        ("require('cjson').decode('[1,{\"a\":null}]')[2].a == ngx.null", "[true]"),
        ("core.json.decode('{\"a\":null,\"b\":[1]}', { null_as_nil = true })", "[{\"b\":[1]}]"),
    ]);
    for (setting, said) in [
        ("require('cjson').encode_max_depth(1000)", "a whole number from 1 to 200 expected"),
        ("require('cjson').encode_invalid_numbers('no')", "true, false or \"null\" expected"),
        ("require('cjson').decode_invalid_numbers(true)", "cjson.decode_invalid_numbers(true) is not supported"),
        ("require('cjson').encode_nothing(1)", "cjson.encode_nothing is not supported"),
    ] {
        assert!(answer(setting).contains(said), "{setting}: {}", answer(setting));
    }
}

#[test]
fn texts_with_variables_are_resolved() {
    check(&[
        ("core.utils.resolve_var('$uri-${ host }/$nothing.', ctx.var)", "[\"\\/hello-h.example\\/\",null,2]"),
        ("core.utils.resolve_var('plain', ctx.var)", "[\"plain\",null,0]"),
        ("core.utils.resolve_var('\\\\$uri $ ${} ${uri', ctx.var)", "[\"\\\\$uri $ ${} ${uri\",null,0]"),
        ("core.utils.resolve_var('${none ?? a b}-${host ?? c}', ctx.var)", "[\"a b-h.example\",null,2]"),
        ("core.utils.resolve_var('$uri', ctx.var, string.upper)", "[\"\\/HELLO\",null,1]"),
        ("core.utils.resolve_var('$a.b', { ['a.b'] = 1 })", "[\"1\",null,1]"),
        ("core.utils.resolve_var_with_captures('/$1-${2}\\\\$1$9', { 'a', 'b' })", "[\"\\/a-b\\\\$1\"]"),
        ("core.utils.uri_safe_encode('/a b?%')", "[\"\\/a%20b%3F%25\"]"),
        ("core.utils.escape_uri_control_chars('a\\r\\n?b')", "[\"a%0D%0A?b\"]"),
        ("core.utils.parse_addr('[::1]:80')", "[\"[::1]\",80]"),
        ("core.utils.parse_addr('a.b:81')", "[\"a.b\",81]"),
        ("core.utils.parse_addr('2001:db8::1')", "[\"2001:db8::1\"]"),
    ]);
    assert_eq!(answer("core.sleep(0.5)"), "slept 500ms, done");
    assert!(answer("core.utils.nothing()").contains("core.utils.nothing is not supported"));
}

#[test]
fn what_is_not_there_is_named_and_never_nil() {
    check(&[
        ("('a'):rep(3, ',')", "[\"a,a,a\"]"),
        ("('a'):rep(1, ','), ('a'):rep(0, ','), ('a'):rep('2')", "[\"a\",\"\",\"aa\"]"),
        ("core.table.merge({ x = { 1, 2 } }, { x = { a = 3 } })", "[{\"x\":{\"a\":3}}]"),
        ("core.table.merge({ a = 1, b = 2 }, { a = ngx.null })", "[{\"b\":2}]"),
        (
            "core.table.merge({ a = { b = 1, c = 2 } }, { a = { c = 3, d = { 1 } } })",
            "[{\"a\":{\"b\":1,\"c\":3,\"d\":[1]}}]",
        ),
        ("core.table.merge({ a = { b = 1 } }, { a = {} })", "[{\"a\":{}}]"),
        (
            "core.table.pick({ a = 1, b = 2 }, { a = true }), core.table.set_eq({ a = 1 }, { a = 2 })",
            "[{\"a\":1},true]",
        ),
        (
            "(function() local t = { a = { b = {} } } local c = core.table.deepcopy(t, { shallows = { 'self.a.b' } }) return { c.a == t.a, c.a.b == t.a.b } end)()",
            "[[false,true]]",
        ),
        (
            "ctx.consumer.username, ctx.consumer.labels.team, tostring(ctx.consumer.group_id)",
            "[\"jack\",\"blue\",\"nil\"]",
        ),
        ("ngx.var.https, ngx.var.real_request_uri == nil", "[\"\",true]"),
        (
            "(function() local d = ngx.shared.flags d:set('k', 'v', 0, 7) d:set('n', 5, 0, 2 ^ 32 - 1) d:set('p', true) return { select('#', d:get('p')), { d:get('k') }, { d:get('n') }, { d:get_stale('k') } } end)()",
            "[[1,[\"v\",7],[5,4294967295],[\"v\",7,false]]]",
        ),
        (
            "(function() ngx.shared.flags:replace('k', 'w', 0, 9) ngx.shared.flags:incr('n', 1) return { { ngx.shared.flags:get('k') }, { ngx.shared.flags:get('n') } } end)()",
            "[[[\"w\",9],[6,4294967295]]]",
        ),
    ]);
    for (body, said) in [
        ("return ctx.consumer.auth_conf", "ctx.consumer.auth_conf is not supported"),
        ("return ctx.matched_upstream", "ctx.matched_upstream is not supported"),
        ("return ngx.var.connection", "the variable connection is not supported"),
        ("return ctx.var.bytes_sent", "the variable bytes_sent is known from header_filter on"),
        ("return ngx.var.graphql_name", "the variable graphql_name is not supported"),
        ("ngx.shared.flags:set('k', 1, 0, -1)", "flags are a whole number of 32 bits"),
        ("ngx.timer.every(1, print)", "ngx.timer.every is not supported"),
        ("ngx.timer.at(-1, print)", "invalid delay"),
        ("ngx.timer.at(1, 'x')", "bad argument #2 to 'at'"),
    ] {
        assert!(answer(body).contains(said), "{body}: {}", answer(body));
    }
    for body in
        ["ngx.req.get_headers()", "core.request.header(nil, 'a')", "local _ = ngx.status", "core.request.headers()"]
    {
        let source = format!("local core = require('apisix.core') {body} return function() end");
        let said = stillgate_lua::check(&source);
        assert!(said.as_ref().is_err_and(|why| why.contains("there is no request while")), "{body}: {said:?}");
    }
}

#[test]
fn a_body_may_be_ended_and_its_path_be_another() {
    let ended = |body: &str| {
        let mut fake = Fake { phase: "body_filter", piece: Some((b"abc".to_vec(), false)), ..Fake::default() };
        let source = format!("return function() {body} end");
        let outcome = run_with(&program(&[&source]), &mut fake, &mut Context::default());
        (outcome, fake.is_body_over)
    };
    assert_eq!(ended("ngx.arg[2] = true"), ("done".to_owned(), true));
    assert_eq!(ended("ngx.arg[2] = false"), ("done".to_owned(), false));
    assert_eq!(
        answer("ctx.var.upstream_uri = '/new?a=b' ngx.say(ngx.var.uri, ' ', ctx.var.uri, ' ', ngx.var.document_uri)"),
        "200 \"/new /hello /new\\n\""
    );
}

#[test]
fn timers_run_once_without_their_request() {
    let body = "local made = 'x' ngx.say(ngx.timer.at(1.5, function(premature, a, b) ngx.log(ngx.ERR, tostring(premature), a, tostring(b), made) ngx.sleep(1) ngx.log(ngx.ERR, 'later') end, 'a', nil) ~= nil) \
                ngx.timer.at(0, function() ngx.say('no') end) ngx.say(ngx.timer.at(0, print))";
    let (program, mut fake) = (program(&[&format!("return function(conf, ctx) {body} end")]), Fake::default());
    assert_eq!(run_with(&program, &mut fake, &mut Context::default()), "200 \"true\\nniltoo many pending timers\\n\"");
    let timers: Vec<u64> = fake.timers.iter().map(|(number, _)| *number).collect();
    assert_eq!(fake.timers.iter().map(|(_, delay)| *delay).collect::<Vec<_>>(), [1.5, 0.0, 0.0]);
    let run = |number| {
        let mut later = Fake { phase: "timer", ..Fake::default() };
        let mut context = Context::default();
        let mut outcome = stillgate_lua::run_timer(&program, number, &mut later, &mut context);
        while let stillgate_lua::RunOutcome::Wait(_, paused) = outcome {
            outcome = stillgate_lua::resume(paused, &mut later, &mut context);
        }
        (told(outcome), later.log.take())
    };
    assert_eq!(
        run(timers[0]),
        ("done".to_owned(), vec!["Error test:1: falseanilx".to_owned(), "Error test:1: later".to_owned()])
    );
    assert!(run(timers[0]).0.contains("used up the memory"), "once");
    assert!(run(timers[1]).0.contains("ngx.say"), "{}", run(timers[1]).0);
}
