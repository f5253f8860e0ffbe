//! Functions in Lua as their authors know them from OpenResty and APISIX: after the head of a response, before it, and functions
//! that run later.

use crate::lua::{pre, text};
use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, asked, gateway, reflecting, setup};
use stillgate_testkit::{Gateway, Message, Upstream, eventually};

/// A route with plugins in JSON, in which `LUA` is a function.
fn with(uri: &str, plugins: &str, source: &str) -> String {
    let plugins = plugins.replace("LUA", &serde_json::to_string(source).expect("a text"));
    format!(
        "  - {{\"id\": \"{}\", \"uri\": \"{uri}\", \"upstream_id\": \"node\", \"labels\": {{\"team\": \"blue\"}}, \"plugins\": {plugins}}}\n",
        &uri[1..]
    )
}

/// A route with a function for bodies that runs behind all others.
fn body_filter(uri: &str, source: &str) -> String {
    with(uri, r#"{"serverless-post-function": {"phase": "body_filter", "functions": [LUA]}}"#, source)
}

#[track_caller]
fn get(gateway: &Gateway, target: &str, lines: &[&str]) -> Message {
    ask(&mut gateway.client(), &format!("GET {target}"), lines)
}

const MASK: &str = r#"return function(conf, ctx)
  if not (ngx.header["Content-Type"] or ""):find("application/json", 1, true) then return end
  local b = require("apisix.core").response.hold_body_chunk(ctx)
  if b then ngx.arg[1] = ngx.re.gsub(b, "[0-9]", "*", "jo") end
end"#;

#[test]
fn functions_of_bodies_see_both_heads() {
    let mocked = r#"{"mocking": {"response_example": "{\"card\":\"4000-1234\"}", "content_type": "application/json"}, "serverless-post-function": {"phase": "body_filter", "functions": [LUA]}}"#;
    // It is first in its phase, and still sees what a later plugin does to the head.
    let first = r#"{"serverless-pre-function": {"phase": "body_filter", "functions": [LUA]}, "response-rewrite": {"status_code": 203, "headers": {"set": {"Content-Type": "application/json"}}}}"#;
    let all = r#"return function(conf, ctx)
  local core = require("apisix.core")
  local b = core.response.hold_body_chunk(ctx)
  if not b then return end
  local route = ctx.matched_route and ctx.matched_route.value
  ngx.arg[1] = table.concat({
    ngx.status, ngx.header["X-Node"], ngx.header.content_type, table.concat(ngx.header["X-Twice"], "+"), tostring(ngx.header["X-None"]),
    ngx.resp.get_headers()["x-node"], ngx.req.get_headers()["X-Asked"], core.request.header(ctx, "X-Asked"),
    core.request.headers(ctx)["x-asked"], ngx.var.http_x_asked, ctx.var.uri, ngx.var.uri, ctx.var.arg_a, ngx.var.request_uri,
    core.request.get_uri_args(ctx).a, ctx.var.remote_addr, core.request.get_ip(ctx), ngx.req.get_method(), ctx.route_id,
    route.labels.team, ctx.curr_req_matched._path, tostring(ctx.var.http_x_other), ngx.var.status, ctx.var["cookie_c"],
    tostring(#ctx.var.request_id), ngx.get_phase(), ngx.var.proxy_add_x_forwarded_for, tostring(ctx.var.upstream_status),
    tostring(ctx.var.nothing), ctx.var["sent_http_x_node"],
  }, " ")
end"#;
    let rewritten = r#"{"proxy-rewrite": {"uri": "/other", "headers": {"set": {"X-Asked": "set"}}}, "serverless-post-function": {"phase": "body_filter", "functions": [LUA]}}"#;
    let dynamic = "return function(conf, ctx) local name = 'host' ngx.arg[1] = ctx.var[name] .. tostring((pcall(function() local other = 'args' return ctx.var[other] end))) ngx.arg[2] = true end";
    let changing = "return function(conf, ctx) local ok, why = pcall(function() ngx.header['X-Late'] = '1' end) ngx.arg[1] = why ngx.arg[2] = true end";
    let node = reflecting();
    let routes = [
        with("/mask", mocked, MASK),
        with("/first", first, MASK),
        body_filter("/node", MASK),
        body_filter("/all", all),
        with("/rewritten", rewritten, all),
        body_filter("/dynamic", dynamic),
        body_filter("/changing", changing),
    ];
    let gateway = gateway(node.addr(), &format!("routes:\n{}", routes.concat()));
    assert_eq!(text(&get(&gateway, "/mask", &[])).trim_end(), r#"{"card":"****-****"}"#);
    let first = get(&gateway, "/first", &["X-Card: 4000-1234"]);
    assert!(first.head.status() == 203 && text(&first).contains("X-Card: ****-****"), "{first:?}");
    assert!(text(&get(&gateway, "/node", &["X-Card: 4000-1234"])).contains("X-Card: 4000-1234"), "no JSON");
    let asked = ["X-Asked: 1", "Cookie: c=d"];
    assert_eq!(
        text(&get(&gateway, "/all?a=b", &asked)),
        "200 here text/plain a+b nil here 1 1 1 1 /all /all b /all?a=b b 127.0.0.1 127.0.0.1 GET all blue /all nil 200 d 32 \
         body_filter 127.0.0.1 200 nil here"
    );
    let seen = text(&get(&gateway, "/rewritten?a=b", &asked)).to_owned();
    assert!(seen.contains(" set set set set /rewritten /other b /rewritten?a=b "), "{seen}");
    assert_eq!(text(&get(&gateway, "/dynamic", &[])), "h.examplefalse");
    assert!(text(&get(&gateway, "/changing", &[])).contains("cannot be changed in the phase body_filter"));
}

#[test]
fn a_function_may_end_a_body() {
    let upper = "return function(conf, ctx) local b = require('apisix.core').response.hold_body_chunk(ctx) if not b then return end ngx.arg[1] = b:upper() ngx.arg[2] = true end";
    let cut = "return function() ngx.arg[1] = 'first' ngx.arg[2] = true end";
    let long = "return function() ngx.arg[1] = ngx.arg[1]:sub(1, 3) ngx.arg[2] = #ngx.arg[1] > 0 end";
    let node = Upstream::echo();
    let routes = [body_filter("/upper", upper), body_filter("/cut", cut), body_filter("/long", long)];
    let mut gateway = Gateway::start(STILLGATE, &setup(node.addr(), &format!("routes:\n{}", routes.concat())));
    for target in [
        "/cut?size=0",
        "/cut?size=10",
        "/cut?size=300000",
        "/cut?size=300000&chunked",
        "/cut?size=300000&chunked&piece=500",
    ] {
        let mut client = gateway.client();
        for _ in 0..2 {
            // The connection goes on: the message is whole.
            assert_eq!(text(&ask(&mut client, &format!("GET {target}"), &[])), "first", "{target}");
        }
    }
    assert_eq!(text(&get(&gateway, "/upper?size=0", &[])), "");
    assert_eq!(get(&gateway, "/long?size=200000", &[]).body.len(), 3);
    gateway.assert_healthy();
}

#[test]
fn variables_that_a_log_has_are_there_before_the_response() {
    let set = r#"return function(conf, ctx)
  for _, name in ipairs({ "request_id", "msec", "time_local", "time_iso8601", "hostname", "pid", "request", "proxy_add_x_forwarded_for" }) do
    ngx.req.set_header("X-Var-" .. name:gsub("_", "-"), ngx.var[name])
  end
  ngx.req.set_header("X-Again", ctx.var.request_id)
end"#;
    let rewritten =
        r#"{"proxy-rewrite": {"uri": "/uri"}, "serverless-post-function": {"phase": "access", "functions": [LUA]}}"#;
    let path = "return function(conf, ctx) ngx.req.set_header('X-Path', ngx.var.uri .. ' ' .. ctx.var.uri .. ' ' .. ngx.var.request_uri) end";
    let node = reflecting();
    let routes = [pre("/set", "rewrite", set), with("/path", rewritten, path)];
    let resources = format!("routes:\n{}", routes.concat());
    let keys = "access_log: {path: \"{dir}/access.log\", format: json, fields: [{id: request_id}, {uri: uri}]}";
    let gateway = Gateway::start(STILLGATE, &setup(node.addr(), &resources).gateway(keys));
    let head = asked(&get(&gateway, "/set", &["X-Forwarded-For: 9.9.9.9"]));
    let value = |name: &str| head.get(&format!("X-Var-{name}")).unwrap_or_else(|| panic!("{name}: {head:?}"));
    let id = value("request-id");
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && head.get("x-again") == Some(id));
    assert!(value("msec").split_once('.').is_some_and(|(seconds, _)| seconds.parse::<u64>().is_ok()));
    assert!(value("time-local").ends_with(" +0000") && value("time-iso8601").contains('T'));
    assert!(!value("hostname").is_empty() && value("pid") == gateway.pid().to_string());
    assert_eq!(value("request"), "GET /set HTTP/1.1");
    assert_eq!(value("proxy-add-x-forwarded-for"), head.get("x-forwarded-for").expect("it is always there"));
    let log = || std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    eventually("the line with the same id", || log().contains(id));
    assert_eq!(asked(&get(&gateway, "/path?a=b", &[])).get("x-path"), Some("/uri /path /path?a=b"));
    // The line is as in nginx's own log.
    eventually("the line", || log().contains("\"uri\":\"/uri\""));
}

#[test]
fn a_timer_runs_when_its_request_is_over() {
    let told = Upstream::echo();
    let source = format!(
        r#"return function(conf, ctx)
  local ok, err = ngx.timer.at(0, function(premature, uri)
    local res, err = require("resty.http").new():request_uri("http://{}/told?" .. uri, {{ method = "POST", body = "a" }})
    ngx.log(ngx.ERR, "timer ", tostring(premature), " ", res and res.status, " ", err)
    ngx.timer.at(0, function() ngx.log(ngx.ERR, "second ", pcall(function() return ngx.var.uri end)) end)
  end, ctx.var.uri)
  if not ok then ngx.log(ngx.ERR, err) end
end"#,
        told.addr()
    );
    let endless = "return function() ngx.timer.at(0, function() while true do end end) end";
    let node = reflecting();
    let gateway =
        gateway(node.addr(), &format!("routes:\n{}{}", pre("/log", "log", &source), pre("/endless", "log", endless)));
    assert_eq!(get(&gateway, "/log", &[]).head.status(), 200);
    eventually("the call", || told.seen().iter().any(|start| start.contains("/told?/log")));
    eventually("the message", || gateway.log().contains("timer false 200 nil"));
    eventually("the second timer", || {
        gateway.log().contains("second false") && gateway.log().contains("there is no request in a timer")
    });
    assert_eq!(get(&gateway, "/endless", &[]).head.status(), 200);
    eventually("it to be stopped", || gateway.log().contains("it ran for more than 50 ms of CPU time and was stopped"));
    assert_eq!(get(&gateway, "/log", &[]).head.status(), 200);
}

/// Timers that are due at once run one after the other, and requests are served between them.
#[test]
fn requests_are_served_between_timers() {
    let endless = "return function() for _ = 1, 40 do ngx.timer.at(0, function() while true do end end) end end";
    let node = reflecting();
    let gateway = gateway(node.addr(), &format!("routes:\n{}", pre("/endless", "log", endless)));
    let stopped = || gateway.log().matches("it ran for more than 50 ms of CPU time and was stopped").count();
    assert_eq!(get(&gateway, "/endless", &[]).head.status(), 200);
    eventually("the first timer", || stopped() > 0);
    assert_eq!(get(&gateway, "/other", &[]).head.status(), 404);
    assert!(stopped() < 40, "all timers ran before a request was served");
    eventually("all timers", || stopped() == 40);
}

/// What the functions of one client hold while they wait leaves memory to those of others, and to what functions keep.
#[test]
fn functions_that_wait_leave_memory_to_other_clients() {
    let holding = "return function() ngx.req.read_body() local held = require('cjson').decode(ngx.req.get_body_data()) ngx.sleep(4) ngx.req.set_header('X-Held', #held) end";
    let counting = "local n = 0 return function() n = n + 1 ngx.say(n, ' ', #string.rep('a', 100000)) end";
    let node = reflecting();
    let routes = format!("routes:\n{}{}", pre("/hold", "access", holding), pre("/count", "access", counting));
    let setup = setup(node.addr(), &routes).gateway("trusted_proxies: [127.0.0.1]");
    let gateway = Gateway::start(STILLGATE, &setup);
    let of_client = |client: u8| format!("X-Forwarded-For: 192.0.2.{client}");
    let count = || text(&ask(&mut gateway.client(), "GET /count", &[&of_client(2)])).trim_end().to_owned();
    assert_eq!(count(), "1 100000");

    // Some 3 MB each while they are held.
    let body = format!("[{}1]", "{},".repeat(40_000));
    let mut holders: Vec<_> = (0..40).map(|_| gateway.client()).collect();
    for holder in &mut holders {
        let head =
            format!("POST /hold HTTP/1.1\r\nHost: h\r\n{}\r\nContent-Length: {}\r\n\r\n", of_client(1), body.len());
        holder.send([head.as_bytes(), body.as_bytes()].concat());
    }
    let full = || gateway.log().contains("functions that wait for one client hold as much memory as they may");
    eventually("a client with as much as it may have", full);
    assert_eq!(count(), "2 100000");
    let mut statuses: Vec<u16> =
        holders.iter_mut().map(|holder| holder.expect_response("POST").head.status()).collect();
    statuses.sort_unstable();
    statuses.dedup();
    assert_eq!(statuses, [200, 503]);
    // The VM was not replaced, and the client may hold again.
    assert_eq!(count(), "3 100000");
    let holder = &mut holders[0];
    holder.send(
        format!("POST /hold HTTP/1.1\r\nHost: h\r\n{}\r\nContent-Length: 5\r\n\r\n[1,2]", of_client(1)).into_bytes(),
    );
    assert_eq!(holder.expect_response("POST").head.status(), 200);
}

/// A function that waits again and again is counted once, and what it has dropped does not count while the VM has room.
#[test]
fn functions_that_hold_little_wait_as_often_as_they_like() {
    let again = "return function() ngx.req.read_body() local held = require('cjson').decode(ngx.req.get_body_data()) for _ = 1, 4 do ngx.sleep(0.2) end ngx.say(#held) end";
    let dropping = "return function() ngx.req.read_body() local held = #require('cjson').decode(ngx.req.get_body_data()) ngx.sleep(1) ngx.say(held) end";
    let node = reflecting();
    let routes = format!("routes:\n{}{}", pre("/again", "access", again), pre("/dropping", "access", dropping));
    let gateway = gateway(node.addr(), &routes);
    for (uri, clients, items) in [("/again", 5, 40_000), ("/dropping", 60, 20_000)] {
        let body = format!("[{}1]", "{},".repeat(items));
        let mut holders: Vec<_> = (0..clients).map(|_| gateway.client()).collect();
        for holder in &mut holders {
            let head = format!("POST {uri} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
            holder.send([head.as_bytes(), body.as_bytes()].concat());
        }
        for holder in &mut holders {
            assert_eq!(text(&holder.expect_response("POST")).trim_end(), (items + 1).to_string(), "{uri}");
        }
    }
}
