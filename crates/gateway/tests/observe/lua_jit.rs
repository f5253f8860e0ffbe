//! `GET /v1/lua/jit`, its metrics and its page in the dashboard: a running gateway's functions in Lua, and how LuaJIT has compiled
//! them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use crate::shared::dashboard::chromium::{DESK, Page};
use crate::shared::dashboard::{KEY, admin, sign_in};
use crate::shared::reflect::{reflecting, setup};
use serde_json::Value as Json;
use stillgate_testkit::{ACCEPT_TEXT, Gateway, ReservedPort, Upstream, eventually, scrape};

/// LuaJIT begins to compile after some hundred calls.
const REQUESTS: usize = 1_500;
/// It tries again at random after a recording that it gave up, so now and then it needs some thousands.
const REQUESTS_MAX: usize = 60_000;

fn route(id: &str, source: &str) -> String {
    let source = serde_json::to_string(source).unwrap();
    format!(
        "  - {{\"id\": \"{id}\", \"uri\": \"/{id}\", \"upstream_id\": \"node\", \"plugins\": {{\"serverless-pre-function\": {{\"phase\": \"access\", \"functions\": [{source}]}}}}}}\n"
    )
}

/// A gateway whose functions are warm, which is as far as LuaJIT gets with them, and its node.
fn warm(metrics: &ReservedPort) -> (Gateway, Upstream) {
    let node = reflecting();
    let closure = include_str!("../../../../docs/jit-health/closure.lua");
    let mended = include_str!("../../../../docs/jit-health/closure_mended.lua");
    let stitch = include_str!("../../../../docs/jit-health/stitch.lua");
    let routes = [route("closure", closure), route("mended", mended), route("stitch", stitch)];
    let setup = setup(node.addr(), &format!("routes:\n{}", routes.concat()))
        .admin(&format!("keys: [{{name: admin, key: {KEY}, role: admin}}]"))
        .gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let mut sent = 0;
    while !is_warm(&gateway) {
        assert!(sent < REQUESTS_MAX, "{:#}", health(&gateway));
        for path in ["closure", "mended", "stitch"] {
            for _ in 0..REQUESTS {
                client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n"));
                assert_eq!(client.expect_response("GET").head.status(), 200, "{path}");
            }
        }
        sent += REQUESTS;
    }
    (gateway, node)
}

fn is_warm(gateway: &Gateway) -> bool {
    let health = health(gateway);
    let is = |name: &str, line: u64, state: &str| {
        let mut sources = health["sources"].as_array().unwrap().iter();
        let source = sources.find(|source| source["source"].as_str().unwrap().contains(name));
        let lines = source.map_or(&[][..], |source| source["lines"].as_array().unwrap());
        lines.iter().any(|found| found["line"] == line && found["state"] == state)
    };
    let is_fnew = |abort: &Json| abort["instruction"] == "FNEW";
    is("mended", 15, "compiled")
        && is("stitch", 8, "stitched")
        && health["aborts"].as_array().unwrap().iter().any(is_fnew)
}

fn health(gateway: &Gateway) -> Json {
    let (status, health) = admin(gateway, "GET", "/v1/lua/jit", &Json::Null);
    assert_eq!(status, 200);
    health
}

fn source<'a>(health: &'a Json, name: &str) -> &'a Json {
    let sources = health["sources"].as_array().unwrap();
    sources.iter().find(|source| source["source"].as_str().unwrap().contains(name)).unwrap()
}

/// The state of the function that begins in a line.
fn state(source: &Json, line: u64) -> &str {
    let functions = source["functions"].as_array().unwrap();
    functions.iter().find(|function| function["first_line"] == line).unwrap()["state"].as_str().unwrap()
}

#[test]
fn what_luajit_has_made_of_functions_is_reported() {
    let metrics = ReservedPort::new();
    let (gateway, _node) = warm(&metrics);
    let health = health(&gateway);
    let closure = source(&health, "closure");
    assert!(closure["text"].as_str().unwrap().contains("each_field(function(name, value)"), "{health}");
    // It takes LuaJIT a hundred thousand requests to give up for good.
    assert!(["interpreted", "blacklisted"].contains(&state(closure, 9)), "{health:#}");
    assert_eq!(state(source(&health, "mended"), 14), "compiled", "{health:#}");
    assert_eq!(state(source(&health, "stitch"), 5), "stitched", "{health:#}");
    let lines = source(&health, "stitch")["lines"].as_array().unwrap().clone();
    let line = lines.iter().find(|line| line["line"] == 8).unwrap();
    assert_eq!((&line["state"], &line["calls"][0]), (&"stitched".into(), &"core.json.encode".into()));
    let aborts = health["aborts"].as_array().unwrap();
    let abort = aborts.iter().find(|abort| abort["instruction"] == "FNEW").unwrap();
    assert_eq!((&abort["line"], &abort["reason"]), (&11.into(), &"bytecode".into()));
    let worker = &health["workers"][0];
    assert!(worker["machine_code_bytes"].as_u64() > Some(0), "{health:#}");
    let memory = ["memory_bytes", "memory_bytes_max"].map(|key| worker[key].as_u64().unwrap());
    assert!(memory[0] > 100_000 && memory[0] < memory[1] && memory[1] == 64 << 20, "{worker}");
    assert_eq!((&worker["generation"], &worker["is_compiling"]), (&1.into(), &true.into()), "{worker}");

    let has = |line: &str| {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        text.lines().any(|found| found.starts_with(line) && !found.ends_with(" 0"))
    };
    for line in [
        "stillgate_lua_traces_total ",
        "stillgate_lua_aborts_total{reason=\"bytecode\"} ",
        "stillgate_lua_machine_code_bytes ",
        "stillgate_lua_functions{state=\"compiled\"} ",
        "stillgate_lua_functions{state=\"stitched\"} 1",
    ] {
        eventually(line, || has(line));
    }
}

/// The names and texts of what is loaded.
fn sources(gateway: &Gateway) -> Vec<(String, String)> {
    let all = health(gateway)["sources"].as_array().unwrap().clone();
    let text = |source: &Json, key: &str| source[key].as_str().unwrap().to_owned();
    all.iter().map(|source| (text(source, "source"), text(source, "text"))).collect()
}

#[test]
fn each_text_is_reported_by_itself_for_as_long_as_it_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = |name: &str| {
        format!(
            "return {{ name = '{name}', version = 1, priority = 1, schema = {{}}, access = function() ngx.say('{name}') end }}"
        )
    };
    let write = |at: &str, text: &str| {
        let file = folder.path().join(at);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    write("one/own.lua", &plugin("one"));
    write("two/own.lua", &plugin("two"));
    write("two/last.lua", &plugin("last"));
    let paths = ["one", "two"].map(|name| folder.path().join(name).display().to_string()).join(", ");
    let serverless =
        |name: &str| format!("{name}: {{phase: access, functions: [\"return function() ngx.ctx.a = '{name}' end\"]}}");
    let resources = format!(
        "routes:\n  - {{id: both, uri: /both, upstream_id: node, plugins: {{{}, {}}}}}\n  - {{id: own, uri: /own/one, plugins: {{one: {{}}}}}}\n  - {{id: two, uri: /own/two, plugins: {{two: {{}}}}}}\n",
        serverless("serverless-pre-function"),
        serverless("serverless-post-function")
    );
    let node = reflecting();
    let setup = setup(node.addr(), &resources)
        .admin(&format!("keys: [{{name: admin, key: {KEY}, role: admin}}]"))
        .gateway(&format!("workers: 1\nlua: {{path: [{paths}]}}"));
    let gateway = Gateway::start(STILLGATE, &setup);
    let get = |path: &str| {
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        client.expect_response("GET")
    };
    for path in ["/both", "/own/one", "/own/two"] {
        assert_eq!(get(path).head.status(), 200, "{path}");
    }
    let names = |gateway: &Gateway| -> Vec<String> { sources(gateway).into_iter().map(|(name, _)| name).collect() };
    let both = ["route \"both\", serverless-post-function", "route \"both\", serverless-pre-function"];
    let expected: Vec<&str> = ["one/own.lua"].into_iter().chain(both).chain(["two/own.lua"]).collect();
    assert_eq!(names(&gateway), expected);
    write("two/own.lua", &plugin("two").replace("say('two')", "say('new')"));
    eventually("the new text", || get("/own/two").body.starts_with(b"new"));
    assert_eq!(names(&gateway), expected);
    let (_, text) = sources(&gateway).pop().unwrap();
    assert!(text.contains("say('new')"), "{text}");
}

#[test]
fn the_page_marks_each_line_and_says_why() {
    let metrics = ReservedPort::new();
    let (gateway, _node) = warm(&metrics);
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/lua");
    page.until("document.querySelectorAll('.lua-source').length === 3");
    let mut line = |route: &str, number: u32| {
        let text = format!(
            "(() => {{ const list = [...document.querySelectorAll('.lua-source')].find((list) => list.ariaLabel.includes({route:?})); \
             const line = list.querySelector('[data-line=\"{number}\"]'); return [line.dataset.state, line.innerText].join(' '); }})()"
        );
        page.eval(&text).as_str().unwrap().to_owned()
    };
    assert!(line("mended", 15).starts_with("compiled "), "{}", line("mended", 15));
    let stitched = line("stitch", 8);
    assert!(stitched.starts_with("stitched ") && stitched.contains("core.json.encode is not compiled"), "{stitched}");
    let closure = line("closure", 11);
    let is_marked = closure.starts_with("interpreted ") || closure.starts_with("blacklisted ");
    assert!(is_marked && closure.contains("FNEW (a function is made here); make it once"), "{closure}");
    let facts = page.eval("document.querySelector('main').textContent").as_str().unwrap().to_owned();
    assert!(facts.contains("Memory by worker") && facts.contains("of 64 MiB"), "{facts}");
    assert!(
        facts.contains("no profile of functions in Lua yet") && health(&gateway)["last_profile"].is_null(),
        "{facts}"
    );
    page.assert_calm("the page of functions in Lua");
}
