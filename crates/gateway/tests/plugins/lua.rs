//! Functions in Lua as a client and a node see them: the examples of APISIX's documentation, waiting, and functions that do not
//! end.

use crate::shared::reflect;
use crate::shared::reflect::{ask, asked, gateway, reflecting};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stillgate_testkit::{ACCEPT_TEXT, BufferedSocket, Gateway, Message, ReservedPort, Upstream, eventually, scrape};

const LABELS: &str = r#""labels": {"key": "test_a6_route_labels"}, "#;

/// A route with one function, by its phase.
fn route(uri: &str, labels: &str, plugin: &str, phase: &str, source: &str) -> String {
    let source = serde_json::to_string(source).expect("a text");
    format!(
        "  - {{\"id\": \"{}\", \"uri\": \"{uri}\", {labels}\"upstream_id\": \"node\", \"plugins\": {{\"{plugin}\": {{\"phase\": \"{phase}\", \"functions\": [{source}]}}}}}}\n",
        uri.trim_start_matches('/').replace(['/', ':', '*'], "-"),
    )
}

pub(crate) fn pre(uri: &str, phase: &str, source: &str) -> String {
    route(uri, LABELS, "serverless-pre-function", phase, source)
}

fn started(routes: &[String]) -> (Upstream, Gateway) {
    let node = reflecting();
    let gateway = gateway(node.addr(), &format!("routes:\n{}", routes.concat()));
    (node, gateway)
}

pub(crate) fn text(response: &Message) -> &str {
    std::str::from_utf8(&response.body).expect("text")
}

#[track_caller]
fn get(gateway: &Gateway, target: &str) -> Message {
    ask(&mut gateway.client(), &format!("GET {target}"), &[])
}

/// A node may read arguments and cookies in any case, as nginx does, so a function that refuses them must see them all.
#[test]
fn arguments_cookies_and_the_path_are_nginxs() {
    let guard = "return function() if ngx.var.arg_admin or ngx.var.cookie_Admin then return ngx.exit(403) end ngx.say(ngx.var.arg_f, ' ', ngx.var.uri) end";
    let copied = "return function() ngx.arg[1] = (ngx.var.arg_F or 'none') .. ' ' .. (ngx.var.cookie_sid or 'none') ngx.arg[2] = true end";
    let set = "return function() ngx.req.set_uri(ngx.var.uri .. '%20x') ngx.req.set_header('X-Uri', ngx.var.uri) end";
    let (_node, gateway) = started(&[
        pre("/guard/*", "access", guard),
        route("/body/*", "", "serverless-post-function", "body_filter", copied),
        pre("/set/*", "access", set),
        pre(
            "/vars/*",
            "access",
            "return function(conf, ctx) ngx.say(tostring(ctx.var.arg_admin), ctx.var.arg_f, tostring(ctx.var.cookie_admin)) end",
        ),
    ]);
    let with = |target: &str, cookie: &str| {
        ask(&mut gateway.client(), &format!("GET {target}"), &[&format!("Cookie: {cookie}")])
    };
    for target in ["/guard/x?admin=1", "/guard/x?Admin=1", "/guard/x?a=b&ADMIN="] {
        assert_eq!(with(target, "a=b").head.status(), 403, "{target}");
    }
    for cookie in ["admin=1", "ADMIN=1", "a=b;Admin = 1"] {
        assert_eq!(with("/guard/x", cookie).head.status(), 403, "{cookie}");
    }
    let passing = with("/guard/a%20b%2Fc?f=%2e%2E+x", "a=b");
    assert_eq!((passing.head.status(), text(&passing)), (200, "%2e%2E+x /guard/a b/c\n"));
    assert_eq!(text(&with("/body/x?f=%20", "SID=%31")), "%20 %31");
    assert_eq!(text(&with("/vars/x?Admin=1&f=%2E", "Admin=1")), "nil.nil\n");
    let set = with("/set/a%20b%25?c=%20", "a=b");
    assert_eq!(asked(&set).start, "GET /set/a%20b%25%2520x?c=%20 HTTP/1.1");
    assert_eq!(asked(&set).get("x-uri"), Some("/set/a b%%20x"));
}

#[test]
fn examples_of_apisix_s_documentation_run_unchanged() {
    let default = "return function(conf, ctx)\n  local core = require(\"apisix.core\")\n  local uri_args = core.request.get_uri_args(ctx)\n  if not uri_args.name then\n    uri_args.name = \"world\"\n    core.request.set_uri_args(ctx, uri_args)\n  end\nend";
    let matched = "return function(conf, ctx) ngx.log(ngx.ERR, \"match uri \", ctx.curr_req_matched and ctx.curr_req_matched._path); end";
    let registered = "return function() local core = require \"apisix.core\" core.ctx.register_var(\"a6_route_labels\", function(ctx) local route = ctx.matched_route and ctx.matched_route.value if route and route.labels then return route.labels end return nil end); end";
    let shown = registered.replace("end); end", "end) core.response.exit(200, ctx.var.a6_route_labels) end");
    let shown = shown.replace("return function()", "return function(conf, ctx)");
    let removed = "return function(conf, ctx)\n  local core = require(\"apisix.core\")\n  local body = core.response.hold_body_chunk(ctx)\n  if not body then\n    return\n  end\n  ngx.arg[1] = body:gsub('X%-Gone: [^\\n]*\\n', '')\nend";
    let (_node, gateway) = started(&[
        pre("/default", "rewrite", default),
        pre("/anything", "rewrite", matched),
        pre("/register", "rewrite", registered),
        pre("/labels", "access", &shown),
        route("/removed", "", "serverless-post-function", "body_filter", removed),
        pre(
            "/users/:id",
            "access",
            "return function(conf, ctx) ngx.say(ctx.curr_req_matched._path, ' ', ctx.curr_req_matched.id) end",
        ),
    ]);
    assert_eq!(asked(&get(&gateway, "/default")).start, "GET /default?name=world HTTP/1.1");
    assert_eq!(asked(&get(&gateway, "/default?name=a&b=c")).start, "GET /default?name=a&b=c HTTP/1.1");
    assert_eq!(get(&gateway, "/anything").head.status(), 200);
    eventually("the message in the log", || gateway.log().contains("match uri /anything"));
    assert_eq!(get(&gateway, "/register").head.status(), 200);
    assert_eq!(text(&get(&gateway, "/labels")), "{\"key\":\"test_a6_route_labels\"}\n");
    let response = ask(&mut gateway.client(), "GET /removed", &["X-Gone: 1", "X-Stays: 2"]);
    assert!(!text(&response).contains("X-Gone") && text(&response).contains("X-Stays: 2"), "{response:?}");
    assert_eq!(text(&get(&gateway, "/users/17")), "/users/:id 17\n");
}

/// How long a function may block its worker, with the time until that is noticed, and some for the requests themselves in a debug
/// build.
const BLOCKED_MAX: Duration = Duration::from_millis(120);

/// How often each function is tried at most, for one that is fast enough.
const BLOCKED_TRIES: usize = 8;

/// The thread of the only worker.
fn worker(gateway: &Gateway) -> i32 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", gateway.pid())).expect("it runs");
    let mut numbers = threads.map(|thread| thread.expect("a thread").path());
    let is_worker = |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "worker-0\n");
    let path = numbers.find(is_worker).expect("a worker");
    path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number")
}

/// CPU time of a thread.
fn cpu_time(pid: u32, thread: i32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).expect("it runs");
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number"))
}

#[test]
fn a_function_without_end_costs_its_request_a_500_and_no_other() {
    let (metrics, node) = (ReservedPort::new(), reflecting());
    let routes = [
        pre("/endless", "access", "return function() while true do end end"),
        pre("/kept", "access", "return function() while true do pcall(function() while true do end end) end end"),
        // Few large texts: the pages of memory take CPU time, which has a bound as well.
        pre(
            "/memory",
            "access",
            "return function() local t = {} while true do t[#t + 1] = ('x'):rep(8e6 + #t) end end",
        ),
        pre("/deep", "access", "return function() local function deep() return 1 + deep() end deep() end"),
        pre("/huge", "access", "return function() return ('x'):rep(2 ^ 30) end"),
        pre("/pattern", "access", "return function() local _ = (('a'):rep(5000)):find('a-a-a-a-a-a-a-a-b') end"),
        pre(
            "/regex",
            "access",
            "return function() error(select(2, ngx.re.match(('ab'):rep(500000), '(?:(a|ab)(c|bcd)?(b*))+'))) end",
        ),
        pre("/header", "header_filter", "return function() error('no') end"),
        pre("/good", "access", "return function() ngx.say('good') end"),
    ];
    let setup = reflect::setup(node.addr(), &format!("routes:\n{}", routes.concat()))
        .gateway(&format!("workers: 1\nmetrics: {{address: \"{}\"}}", metrics.addr()));
    let mut gateway = Gateway::start(crate::shared::STILLGATE, &setup);
    let worker = worker(&gateway);
    let used = || cpu_time(gateway.pid(), worker);
    let stopped = "it ran for more than 50 ms of CPU time and was stopped";
    let failing = [
        ("endless", stopped),
        ("kept", stopped),
        ("memory", "a worker's functions have 64 MiB of memory"),
        ("deep", "stack overflow"),
        ("huge", "string.rep: a text of more than 8388608 bytes"),
        ("pattern", "pattern too complex"),
        ("regex", "the pattern is too complex for 1000000 bytes"),
        ("header", "no"),
    ];
    let mut asked = 0;
    let is_named = |(path, why): &(&str, &str)| {
        let log = gateway.log().replace("\\\"", "\"");
        let named = format!("route \"{path}\", serverless-pre-function");
        log.lines().any(|line| line.contains(&named) && line.contains(why))
    };
    for failure in &failing {
        let path = failure.0;
        let mut took = Duration::MAX;
        // Other processes' effects on the caches and on the core's frequency make one of them slow, and hardly each.
        for _ in 0..BLOCKED_TRIES {
            let before = used();
            let response = get(&gateway, &format!("/{path}"));
            // All that the worker's other requests have waited for is in this, whatever else the machine does.
            took = took.min(used() - before);
            asked += 1;
            assert_eq!(response.head.status(), 500, "{path}: {response:?}");
            assert_eq!(text(&get(&gateway, "/good")), "good\n", "after {path}");
            // A busy machine may take the time of a run before its memory.
            if took < BLOCKED_MAX && is_named(failure) {
                break;
            }
        }
        assert!(took < BLOCKED_MAX, "{path}: {took:?}");
    }
    eventually("each failure is counted and named", || {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        let counted = format!("stillgate_plugin_failures_total{{plugin=\"serverless-pre-function\"}} {asked}");
        text.lines().any(|line| line == counted) && failing.iter().all(is_named)
    });
    gateway.assert_healthy();
}

#[test]
fn functions_wait_while_others_are_served() {
    let (_node, gateway) = started(&[
        pre(
            "/sleep",
            "access",
            "return function(conf, ctx) ctx.kept = ngx.var.arg_n ngx.sleep(0.5) ngx.say(ctx.kept) end",
        ),
        pre("/body", "access", "return function() ngx.req.read_body() ngx.say(ngx.req.get_body_data()) end"),
        pre("/good", "access", "return function() ngx.say('good') end"),
    ]);
    let began = Instant::now();
    let mut sleeping: Vec<_> = (0..4)
        .map(|n| {
            let mut client = gateway.client();
            client.send(format!("GET /sleep?n={n} HTTP/1.1\r\nHost: h\r\n\r\n"));
            client
        })
        .collect();
    assert_eq!(text(&get(&gateway, "/good")), "good\n");
    for (n, client) in sleeping.iter_mut().enumerate() {
        assert_eq!(text(&client.read_response("GET").expect("a response")), format!("{n}\n"));
    }
    assert!(began.elapsed() >= Duration::from_millis(500));
    let mut client = gateway.client();
    client.send("POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n");
    client.send("text");
    assert_eq!(text(&client.read_response("POST").expect("a response")), "text\n");
}

/// A route whose `response-rewrite` has a function before it.
fn preceded(uri: &str, source: &str) -> String {
    let source = serde_json::to_string(source).expect("a text");
    reflect::route(
        uri,
        &format!(
            r#"{{"response-rewrite": {{"headers": {{"set": {{"X-Ran": "yes"}}}}, "_meta": {{"pre_function": {source}}}}}, "proxy-rewrite": {{"headers": {{"set": {{"X-Set": "$arg_a"}}}}, "_meta": {{"pre_function": {source}}}}}}}"#
        ),
    )
}

#[test]
fn a_function_runs_before_each_phase_of_its_plugin() {
    let at = "ctx.seen = (ctx.seen or '') .. ' ' .. ngx.get_phase()";
    let (_node, mut gateway) = started(&[
        preceded(
            "/seen",
            &format!(
                "return function(conf, ctx) {at} if ngx.get_phase() == 'header_filter' then ngx.header['X-Seen'] = ctx.seen .. ' ' .. conf.headers.set['X-Ran'] end end"
            ),
        ),
        preceded("/waits", "return function() if ngx.get_phase() ~= 'header_filter' then ngx.sleep(0.05) end end"),
        preceded("/answers", "return function(conf, ctx) require('apisix.core').response.exit(418, 'tea') end"),
        preceded("/fails", "return function() error('no') end"),
        preceded("/endless", "return function() while true do end end"),
        preceded("/late", "return function() if ngx.get_phase() == 'header_filter' then while true do end end end"),
    ]);
    let response = get(&gateway, "/seen?a=b");
    assert_eq!(response.head.get("x-seen"), Some("rewrite header_filter yes"), "{response:?}");
    assert_eq!((response.head.get("x-ran"), asked(&response).get("x-set")), (Some("yes"), Some("b")), "{response:?}");
    let began = Instant::now();
    assert_eq!(asked(&get(&gateway, "/waits?a=c")).get("x-set"), Some("c"));
    assert!(began.elapsed() >= Duration::from_millis(50));
    let response = get(&gateway, "/answers");
    assert_eq!((response.head.status(), text(&response)), (418, "tea"));
    // As in APISIX, the plugin runs; the error is in the log.
    let response = get(&gateway, "/fails?a=d");
    assert_eq!((response.head.get("x-ran"), asked(&response).get("x-set")), (Some("yes"), Some("d")), "{response:?}");
    for path in ["/endless", "/late"] {
        assert_eq!(get(&gateway, path).head.status(), 500, "{path}");
    }
    eventually("the failures in the log", || {
        let log = gateway.log().replace('\\', "");
        log.contains("route \"r-fails\", pre_function of response-rewrite:1: no")
            && log.contains("route \"r-endless\", pre_function of proxy-rewrite:1: it ran for more than 50 ms")
    });
    gateway.assert_healthy();
}

/// A route that answers with its id, and its function.
fn filtered(id: &str, uri: &str, priority: i32, source: &str) -> String {
    let source = serde_json::to_string(source).expect("a text");
    format!(
        "  - {{\"id\": \"{id}\", \"uri\": \"{uri}\", \"priority\": {priority}, \"upstream_id\": \"node\", \"filter_func\": {source}, \"plugins\": {{\"mocking\": {{\"response_example\": \"{id}\", \"content_type\": \"text/plain\", \"with_mock_header\": false}}}}}}\n"
    )
}

#[test]
fn a_route_s_function_decides_among_candidates() {
    let (_node, mut gateway) = started(&[
        // The example of APISIX's documentation.
        filtered("json", "/a", 9, "function(vars) return vars.arg_name == \"json\" end"),
        filtered(
            "field",
            "/a",
            8,
            "function(vars) return ngx.req.get_headers()['X-Kind'] == 'b' and vars.http_x_kind == 'b' end",
        ),
        filtered("fails", "/a", 7, "function(vars) if vars.arg_fails then error('no') end end"),
        filtered("endless", "/a", 6, "function(vars) if vars.arg_endless then while true do end end return nil end"),
        filtered(
            "writes",
            "/a",
            5,
            "function(vars) if vars.arg_writes then ngx.req.set_header('A', 'b') end return false end",
        ),
        filtered("exits", "/a", 4, "function(vars) if vars.arg_exits then ngx.exit(200) end return false end"),
        filtered(
            "rest",
            "/*",
            0,
            "function(vars) ngx.log(ngx.ERR, 'asked for ', vars.uri) return vars.uri ~= '/none' end",
        ),
    ]);
    let told = |target: &str, lines: &[&str]| {
        let response = ask(&mut gateway.client(), &format!("GET {target}"), lines);
        (response.head.status(), text(&response).trim().to_owned())
    };
    let is = |target: &str, lines: &[&str], id: &str| assert_eq!(told(target, lines), (200, id.to_owned()), "{target}");
    is("/a?name=json", &[], "json");
    is("/a?name=json", &["X-Kind: b"], "json");
    is("/a?name=xml", &["X-Kind: b"], "field");
    // A route cache may not keep what functions have decided.
    for _ in 0..3 {
        is("/a", &[], "rest");
        is("/a?name=json", &[], "json");
    }
    // No other route answers where a function fails: what makes it fail may come from the client.
    for query in ["fails", "endless", "writes", "exits"] {
        let (status, body) = told(&format!("/a?{query}=1"), &[]);
        assert_eq!(status, 500, "{query}");
        assert!(body.contains("the filter_func of a route failed"), "{query}: {body}");
        is(&format!("/a?{query}=1&name=json"), &[], "json");
    }
    assert_eq!(told("/none", &[]).0, 404);
    eventually("what functions say and how they fail in the log", || {
        let log = gateway.log().replace('\\', "");
        let failures = [
            "asked for /none",
            "route \"fails\", filter_func:1: no",
            "route \"endless\", filter_func:1: it ran for more than 50 ms",
            "the request cannot be changed in filter_func",
        ];
        failures.iter().all(|part| log.contains(part))
    });
    gateway.assert_healthy();
}

/// More bytes than a function may be given.
fn answer_much(connection: &mut BufferedSocket) {
    while connection.read_request().is_ok() {
        let body = "x".repeat(2 << 20);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = connection.try_send([head, body].concat());
    }
}

#[test]
fn functions_ask_other_servers() {
    let peer = reflecting();
    let silent = Upstream::serve(|connection| while connection.read_request().is_ok() {});
    let large = Upstream::serve(answer_much);
    let call = |url: &str, params: &str, then: &str| {
        format!(
            "return function(conf, ctx) local http = require('resty.http').new() http:set_timeout(500) ctx.kept = ngx.var.arg_n local res, err = http:request_uri('{url}', {params}) {then} end"
        )
    };
    let base = format!("http://{}", peer.addr());
    let show = "ngx.say(res and res.status, ' ', err, ' ', ctx.kept) ngx.print(res and res.body or '')";
    let (_node, mut gateway) = started(&[
        pre("/get", "access", &call(&format!("{base}/a?status=404"), "nil", show)),
        pre(
            "/post",
            "rewrite",
            &call(
                &base,
                "{ method = 'POST', path = '/p', query = { q = 'a b' }, body = 'text', headers = { ['X-One'] = 1, ['X-Two'] = { 'a', 'b' }, Host = 'other.example', ['Content-Length'] = 99 }, keepalive = false }",
                "ngx.say(res.headers['x-node'], ' ', res.headers.X_Node, ' ', table.concat(res.headers['X-Twice'], ','), ' ', res.has_body, ' ', res:read_body() == res.body) ngx.print(res.body)",
            ),
        ),
        pre("/silent", "access", &call(&format!("http://{}/", silent.addr()), "nil", show)),
        pre("/large", "access", &call(&format!("http://{}/", large.addr()), "nil", show)),
        pre("/bad", "access", &call("ftp://h/", "nil", "ngx.say(res, ' ', err)")),
        pre("/split", "access", &call(&base, "{ headers = { A = 'b\\r\\nC: d' } }", "ngx.say(res, ' ', err)")),
        pre(
            "/endless",
            "access",
            "return function() local http = require('resty.http').new() while true do http:request_uri('bad', nil) end end",
        ),
        pre("/late", "header_filter", &call(&base, "nil", "")),
        pre(
            "/low",
            "access",
            &format!(
                "return function() local http = require('resty.http').new() assert(http:connect({{ scheme = 'http', host = '{}', port = {} }})) local res = http:request({{ path = '/low', headers = {{ A = 'b' }} }}) ngx.print(res:read_body()) http:set_keepalive() end",
                peer.addr().ip(),
                peer.addr().port()
            ),
        ),
        pre("/good", "access", "return function() ngx.say('good') end"),
    ]);
    let response = text(&get(&gateway, "/get?n=7")).to_owned();
    assert!(response.starts_with("404 nil 7\nGET /a?status=404 HTTP/1.1\n"), "{response}");
    let response = text(&get(&gateway, "/post")).to_owned();
    let (first, sent) = response.split_once('\n').expect("two lines");
    assert_eq!(first, "here here a,b true true");
    assert!(sent.starts_with("POST /p?q=a%20b HTTP/1.1\n") && sent.ends_with("\n\ntext"), "{sent}");
    for line in ["X-One: 1", "X-Two: a", "X-Two: b", "Host: other.example", "Content-Length: 4", "Connection: close"] {
        assert!(sent.contains(&format!("{line}\n")), "{line}: {sent}");
    }
    assert!(text(&get(&gateway, "/low")).starts_with("GET /low HTTP/1.1\n"));
    // While one request waits for its server, and another one loops for ever, others are served.
    let mut waiting = gateway.client();
    waiting.send("GET /silent?n=1 HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut endless = gateway.client();
    endless.send("GET /endless HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(text(&get(&gateway, "/good")), "good\n");
    assert_eq!(text(&waiting.read_response("GET").expect("a response")), "nil timeout 1\n");
    drop(endless);
    assert_eq!(text(&get(&gateway, "/large")), "nil its response is too large nil\n");
    assert!(text(&get(&gateway, "/bad")).contains("nil \"ftp://h/\" is not a URL"), "{:?}", get(&gateway, "/bad"));
    assert!(text(&get(&gateway, "/split")).starts_with("nil header \"A\": "), "{:?}", get(&gateway, "/split"));
    assert_eq!(get(&gateway, "/late").head.status(), 500);
    eventually("the reason in the log", || {
        gateway.log().contains("API disabled in the context of header_filter: resty.http")
    });
    eventually("all requests to end", || gateway.status()["requests"]["in_flight"] == 0);
    gateway.assert_healthy();
}
