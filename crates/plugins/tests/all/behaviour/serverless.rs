//! `serverless-pre-function` and `serverless-post-function`

use super::{harness, run};
use expect_test::{Expect, expect};
use harness::{OK, plugins, refusal};
use std::fmt::Write;

const GET: &str = "GET /anything?b=1 HTTP/1.1\nHost: h\nUser-Agent: curl\n\n";

/// A plugin with one function.
fn function(plugin: &str, phase: &str, source: &str) -> String {
    let source = serde_json::to_string(source).unwrap();
    format!("{plugin}: {{\"phase\": \"{phase}\", \"functions\": [{source}]}}")
}

fn pre(phase: &str, source: &str) -> String {
    function("serverless-pre-function", phase, source)
}

/// The outcome of a request and its response, and the log.
fn check(config: &str, request: &str, expected: Expect) {
    let (plugins, server) = plugins(config).unwrap_or_else(|why| panic!("{why}")).logging().answered_by(&[]);
    let mut out = plugins.run(request, OK);
    for line in &*server.warned.borrow() {
        writeln!(out, "log: {line}").unwrap();
    }
    expected.assert_eq(&out);
}

/// The examples of APISIX's documentation, verbatim.
#[test]
fn examples_of_the_documentation_log_around_a_phase() {
    let config = "{serverless-pre-function: {phase: rewrite, functions: ['return function() ngx.log(ngx.ERR, \"serverless pre function\"); end']}, serverless-post-function: {phase: rewrite, functions: ['return function(conf, ctx) ngx.log(ngx.ERR, \"match uri \", ctx.curr_req_matched and ctx.curr_req_matched._path); end']}}";
    // Without a route; `tests/plugins/lua.rs` of the gateway has one.
    check(
        config,
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-pre-function: Error route "r", serverless-pre-function:1: serverless pre function
        log: serverless-post-function: Error route "r", serverless-post-function:1: match uri nil
    "#]],
    );
}

#[test]
fn examples_of_the_documentation_set_a_default_argument() {
    let source = "return function(conf, ctx) local core = require(\"apisix.core\"); local uri_args = core.request.get_uri_args(ctx); if not uri_args.name then uri_args.name = \"world\"; core.request.set_uri_args(ctx, uri_args); end end";
    check(
        &pre("rewrite", source),
        GET,
        expect![[r#"
        > GET /anything?b=1&name=world
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
}

#[test]
fn examples_of_the_documentation_remove_a_field_of_a_body() {
    let config = format!(
        "{{{}, {}}}",
        pre(
            "header_filter",
            "return function(conf, ctx)\n  local core = require(\"apisix.core\")\n  core.response.clear_header_as_body_modified()\nend"
        ),
        function(
            "serverless-post-function",
            "body_filter",
            "return function(conf, ctx)\n  local cjson = require(\"cjson\")\n  local core = require(\"apisix.core\")\n  local body = core.response.hold_body_chunk(ctx)\n  if not body then\n    return\n  end\n  body = cjson.decode(body)\n  body.origin = nil\n  body = cjson.encode(body)\n  ngx.arg[1] = body\nend"
        ),
    );
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nETag: \"a\"\r\nContent-Length: 33\r\n\r\n";
    let plugins = plugins(&config).unwrap();
    let whole = plugins.exchange(GET, head, &[b"{\"origin\":\"172.19.0.1\",\"url\":\"u\"}"]);
    expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: application/json
        < Content-Length: 33
        < "{\"url\":\"u\"}"
    "#]]
    .assert_eq(&whole);
    let pieces: Vec<&[u8]> = b"{\"origin\":\"172.19.0.1\",\"url\":\"u\"}".chunks(1).collect();
    assert_eq!(plugins.exchange(GET, head, &pieces), whole);
}

#[test]
fn examples_of_the_documentation_register_a_variable() {
    let source = "return function() local core = require \"apisix.core\" core.ctx.register_var(\"a6_route_labels\", function(ctx) local route = ctx.matched_route and ctx.matched_route.value if route and route.labels then return route.labels end return nil end); end";
    check(
        &pre("rewrite", source),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
}

/// APISIX's own tests.
#[test]
fn functions_of_apisix_s_tests() {
    let exits = "return function() ngx.log(ngx.ERR, 'serverless post function'); ngx.exit(201); end";
    check(
        &function("serverless-post-function", "access", exits),
        GET,
        expect![[r#"
        > serverless-post-function answers
        < 201
        < ""
        log: serverless-post-function: Error route "r", serverless-post-function:1: serverless post function
    "#]],
    );
    let redirects = "return function() if ngx.var.scheme == \"http\" and ngx.var.host == \"h.example\" then ngx.header[\"Location\"] = \"https://foo.com\" .. ngx.var.request_uri; ngx.exit(ngx.HTTP_MOVED_PERMANENTLY); end; end";
    check(
        &pre("access", redirects),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 301
        < Location: https://foo.com/anything?b=1
        < "<html>\r\n<head><title>301 Moved Permanently</title></head>\r\n<body>\r\n<center><h1>301 Moved Permanently</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
    let rewrites = "return function(conf, ctx) ngx.log(ngx.WARN, 'default phase: ', conf.phase); ctx.var.upstream_uri = '/server_port' end";
    check(
        &function("serverless-post-function", "access", rewrites),
        GET,
        expect![[r#"
        > GET /server_port
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-post-function: Warn route "r", serverless-post-function:1: default phase: access
    "#]],
    );
    let counts =
        "local count = 1; return function() count = count + 1;ngx.log(ngx.ERR, 'serverless pre function:', count); end";
    check(
        &pre("log", counts),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-pre-function: Error route "r", serverless-pre-function:1: serverless pre function:2
    "#]],
    );
}

#[test]
fn functions_run_one_after_the_other_and_answer() {
    let two = "serverless-pre-function: {phase: rewrite, functions: [\"return function() ngx.log(ngx.ERR, 'one'); end\", \"return function() ngx.log(ngx.ERR, 'two'); end\"]}";
    check(
        two,
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-pre-function: Error route "r", serverless-pre-function[1]:1: one
        log: serverless-pre-function: Error route "r", serverless-pre-function[2]:1: two
    "#]],
    );
    let forbids = "return function(conf, ctx) ngx.exit(403) end";
    check(
        &pre("before_proxy", forbids),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 403
        < "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>\r\n<center><h1>403 Forbidden</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
    let answers = "return function(conf, ctx) local core = require(\"apisix.core\"); core.response.exit(200, core.request.headers(ctx)['user-agent']); end";
    check(
        &pre("access", answers),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 200
        < "curl"
    "#]],
    );
    let returns = "return function() return 401, {message = 'no'} end";
    check(
        &pre("access", returns),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 401
        < "{\"message\":\"no\"}\n"
    "#]],
    );
}

#[test]
fn requests_and_responses_are_changed() {
    let request = "return function(conf, ctx) ngx.req.set_header('X-A', ngx.var.http_user_agent) ngx.req.clear_header('User-Agent') ngx.req.set_header('Host', 'node.example') ngx.req.set_uri('/new') ngx.req.set_method(ngx.HTTP_POST) ngx.req.set_body_data('body') ngx.header['X-Response'] = { 'a', 'b' } end";
    check(
        &pre("rewrite", request),
        GET,
        expect![[r#"
        > POST /new?b=1
        > host of the node: node.example
        > Host: h
        > X-A: curl
        < 200
        < Content-Type: text/plain
        < X-Response: a
        < X-Response: b
        < "hello world\n"
    "#]],
    );
    let response =
        "return function() ngx.status = 404 ngx.header.content_type = 'a/b' ngx.header['X-A'] = ngx.var.uri end";
    check(
        &pre("header_filter", response),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 404
        < content-type: a/b
        < X-A: /anything
        < "hello world\n"
    "#]],
    );
    let upper = "return function() ngx.arg[1] = ngx.arg[1]:upper() end";
    check(
        &pre("body_filter", upper),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "HELLO WORLD\n"
    "#]],
    );
}

#[test]
fn a_request_s_table_is_there_in_all_phases() {
    let config = format!(
        "{{{}, {}}}",
        pre("access", "return function(conf, ctx) ctx.a = 1 ngx.ctx.b = 2 ctx.var.c = 3 end"),
        function(
            "serverless-post-function",
            "log",
            "return function(conf, ctx) ngx.log(ngx.ERR, ctx.a, ngx.ctx.b, ctx.var.c, ' ', ngx.status) end"
        ),
    );
    check(
        &config,
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-post-function: Error route "r", serverless-post-function:1: 123 200
    "#]],
    );
}

#[test]
fn functions_wait() {
    let config = pre("access", "return function() ngx.sleep(0.1) ngx.say('later') end");
    let (plugins, server) = plugins(&config).unwrap().answered_by(&[]);
    expect![[r#"
        > serverless-pre-function answers
        < 200
        < "later\n"
    "#]]
    .assert_eq(&plugins.run(GET, OK));
    assert_eq!(*server.slept.borrow(), [std::time::Duration::from_millis(100)]);
    let post = "POST / HTTP/1.1\nHost: h\nContent-Type: application/json\nContent-Length: 7\n\n{\"a\":1}";
    let reads = "return function() local core = require('apisix.core') local body = core.json.decode(core.request.get_body()) body.b = 2 ngx.req.set_body_data(core.json.stably_encode(body)) end";
    let plugins = harness::plugins(&pre("access", reads)).unwrap();
    assert_eq!(plugins.body_of_request(post), "{\"a\":1,\"b\":2}");
}

#[test]
fn a_function_that_fails_costs_its_request_a_500() {
    const FAILING: &str = "return function()\n error('no') end";
    check(
        &pre("rewrite", FAILING),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 500
        < "<html>\r\n<head><title>500 Internal Server Error</title></head>\r\n<body>\r\n<center><h1>500 Internal Server Error</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:2: no
    "#]],
    );
    check(
        &pre("header_filter", FAILING),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 500
        < Content-Type: text/html; charset=utf-8
        < "<html>\r\n<head><title>500 Internal Server Error</title></head>\r\n<body>\r\n<center><h1>500 Internal Server Error</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:2: no
    "#]],
    );
    check(
        &pre("body_filter", FAILING),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 502, since a function of a plugin has failed
        log: serverless-pre-function failed: route "r", serverless-pre-function:2: no
    "#]],
    );
    check(
        &pre("log", FAILING),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:2: no
    "#]],
    );
}

#[test]
fn what_cannot_be_done_is_said() {
    check(
        &pre("access", "return function() while true do end end"),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 500
        < "<html>\r\n<head><title>500 Internal Server Error</title></head>\r\n<body>\r\n<center><h1>500 Internal Server Error</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:1: it ran for more than 50 ms of CPU time and was stopped
    "#]],
    );
    check(
        &pre("access", "return function() ngx.req.set_header('Content-Length', 1) end"),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 500
        < "<html>\r\n<head><title>500 Internal Server Error</title></head>\r\n<body>\r\n<center><h1>500 Internal Server Error</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:1: "Content-Length": this field frames the message or belongs to one connection; the gateway sets it
    "#]],
    );
    check(
        &pre("access", "return function() require('resty.mysql') end"),
        GET,
        expect![[r#"
        > serverless-pre-function answers
        < 500
        < "<html>\r\n<head><title>500 Internal Server Error</title></head>\r\n<body>\r\n<center><h1>500 Internal Server Error</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:1: the module 'resty.mysql' is not supported; docs/lua.md lists what is
    "#]],
    );
    check(
        &pre("log", "return function() ngx.header['X-A'] = 1 end"),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 200
        < Content-Type: text/plain
        < "hello world\n"
        log: serverless-pre-function failed: route "r", serverless-pre-function:1: the response was sent: its header cannot be changed in the phase log
    "#]],
    );
    check(
        &pre("body_filter", "return function() local name = 'args' ngx.arg[1] = ngx.var[name] end"),
        GET,
        expect![[r#"
        > GET /anything?b=1
        > Host: h
        > User-Agent: curl
        < 502, since a function of a plugin has failed
        log: serverless-pre-function failed: route "r", serverless-pre-function:1: args: in the phase body_filter there are the variables that the functions' text names as ctx.var.NAME; read it in header_filter and keep it in ctx
    "#]],
    );
}

#[test]
fn schemas_are_checked() {
    let config = "serverless-pre-function: {functions: [\"return function() local core = require('apisix.core') local value = { name = 'a' } local ok, why = core.schema.check({ type = 'object', properties = { name = { type = 'string' }, size = { type = 'integer', default = 5 } }, required = { 'name' } }, value) local bad, reason = core.schema.check({ type = 'string' }, 1) ngx.say(tostring(ok), ' ', value.size, ' ', tostring(bad), ' ', reason) end\"]}";
    expect![[r#"
        > serverless-pre-function answers
        < 200
        < "true 5 false wrong type: expected string, got number\n"
    "#]]
    .assert_eq(&run(config, GET, OK));
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "serverless-pre-function: {}",
        "serverless-pre-function: {functions: []}",
        "serverless-pre-function: {functions: ['local a = 123;']}",
        "serverless-pre-function: {functions: [a]}",
        "serverless-pre-function: {functions: ['return function() end', 'error(\"no\")']}",
        "serverless-pre-function: {phase: balancer, functions: ['return function() end']}",
        "serverless-post-function: {functions: ['while true do end']}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:26: serverless-pre-function: the key "functions" is missing; add it
        1:38: serverless-pre-function.functions: an empty list; name at least one, or remove the key
        1:39: serverless-pre-function.functions[0]: only accept Lua function, the input code type is nil
        1:39: serverless-pre-function.functions[0]: failed to loadstring: [string "a"]:1: '=' expected near '<eof>'
        1:64: serverless-pre-function.functions[1]: pcall error: [string "error("no")"]:1: no
        1:34: serverless-pre-function.phase: expected rewrite, access, header_filter, body_filter, log or before_proxy, found the text "balancer"
        1:40: serverless-post-function.functions[0]: pcall error: it ran for more than 50 ms of CPU time and was stopped
    "#]].assert_eq(&text);
}

/// Each is run when it is checked, and a check may take 50 ms.
#[test]
fn a_plugin_has_a_bound_of_functions() {
    let with = |count: usize| {
        let functions = vec!["return function() end"; count];
        serde_json::json!({"serverless-pre-function": {"functions": functions}}).to_string()
    };
    assert!(plugins(&with(64)).is_ok());
    let refused = refusal(&with(65));
    assert!(refused.contains("65 functions; a plugin has at most 64"), "{refused}");
}
