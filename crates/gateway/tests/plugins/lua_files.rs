//! Plugins in Lua from files: their place in chains, their errors, and changes under load.

use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, asked, reflecting, route, setup, try_ask};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_testkit::{Gateway, Message, Setup, Upstream, eventually, pause_between_requests};

/// A plugin that reports its version in each phase, and its configuration.
fn version(number: u32) -> String {
    format!(
        r#"
local core = require("apisix.core")
local number = {number}
shared = number
local _M = {{
  version = 0.1, priority = 3000, name = "own",
  schema = {{
    type = "object",
    properties = {{ word = {{ type = "string", default = "hello" }}, status = {{ type = "integer", minimum = 200 }} }},
  }},
}}
function _M.check_schema(conf) return core.schema.check(_M.schema, conf) end
function _M.rewrite(conf, ctx)
  ctx.number = number
  core.request.set_header(ctx, "X-Rewrite", number .. conf.word .. shared)
end
function _M.access(conf, ctx)
  if conf.status then return conf.status, {{ message = conf.word }} end
  if core.request.header(ctx, "X-Slow") then ngx.sleep(0.02) end
  core.request.set_header(ctx, "X-Access", number .. tostring(ctx.number) .. shared)
end
function _M.header_filter(conf, ctx)
  core.response.set_header("X-Filter", number .. tostring(ctx.number) .. shared)
  core.response.clear_header_as_body_modified()
end
function _M.body_filter(conf, ctx)
  if ngx.arg[2] then ngx.arg[1] = (ngx.arg[1] or "") .. "body " .. number .. tostring(ctx.number) .. shared end
end
function _M.log(conf, ctx) core.log.error("logged ", ctx.var.uri, " ", number, tostring(ctx.number), conf.word) end
return _M
"#
    )
}

/// A folder of plugins.
pub(crate) struct Plugins(tempfile::TempDir);

impl Plugins {
    pub(crate) fn new(files: &[(&str, &str)]) -> Plugins {
        let plugins = Plugins(tempfile::tempdir().expect("a folder"));
        files.iter().for_each(|(name, text)| plugins.write(name, text));
        plugins
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Puts a file in place at once, as editors do.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let (new, file) = (self.path().join(".new"), self.path().join(name));
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(&new, text).expect("write");
        std::fs::rename(new, file).expect("in place");
    }

    fn setup(&self, node: &Upstream, resources: &str) -> Setup {
        setup(node.addr(), resources).gateway(&format!("workers: 2\nlua: {{path: {}}}", self.path().display()))
    }
}

fn get(gateway: &Gateway, target: &str) -> Message {
    ask(&mut gateway.client(), &format!("GET {target}"), &[])
}

fn text(response: &Message) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// The errors of `stillgate check` about a configuration that it refuses.
#[track_caller]
pub(crate) fn refused(plugins: &Plugins, resources: &str, expected: &[&str]) {
    let file = plugins.path().join("stillgate.yaml");
    let listen = "listeners: [{address: \"127.0.0.1:0\"}]";
    let gateway = format!("gateway: {{lua: {{path: [{}]}}, {listen}}}\n", plugins.path().display());
    let node = "upstreams:\n  - {\"id\": \"node\", \"nodes\": {\"127.0.0.1:1\": 1}}\n";
    std::fs::write(&file, format!("{gateway}{node}{resources}")).expect("write");
    let output = Command::new(STILLGATE).args(["check", "--offline"]).arg(&file).output().expect("it runs");
    let told = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    assert_eq!(output.status.code(), Some(1), "{told}");
    for part in expected {
        assert!(told.contains(part), "{part:?} is missing:\n{told}");
    }
}

#[test]
fn a_plugin_of_a_file_takes_part_in_chains() {
    const OTHER: &str = r#"
return {
  version = 1, priority = -4000, name = "own-last", schema = { type = "object" },
  access = function(conf, ctx) ngx.req.set_header("X-Order", (ngx.req.get_headers()["X-Order"] or "") .. "last") end,
}"#;
    let first = OTHER.replace("own-last", "own-first").replace("-4000", "9000").replace("\"last\"", "\"first\"");
    let plugins =
        Plugins::new(&[("own.lua", &version(1)), ("last.lua", OTHER), ("first.lua", &first), ("notes.txt", "-")]);
    let node = reflecting();
    let both = r#""own-last": {}, "own-first": {}"#;
    let routes = [
        route("/phases", r#"{"own": {"word": "hi"}}"#),
        route("/answer", r#"{"own": {"status": 403}}"#),
        route("/error", r#"{"own": {"status": 403, "_meta": {"error_response": {"own": "words"}}}}"#),
        route("/filter", r#"{"own": {"status": 403, "_meta": {"filter": [["arg_run", "==", "1"]]}}}"#),
        route("/disabled", r#"{"own": {"status": 403, "_meta": {"disable": true}}}"#),
        route("/order", &format!("{{{both}}}")),
        route("/turned", r#"{"own-last": {"_meta": {"priority": 9999}}, "own-first": {}}"#),
        route(
            "/pre",
            r#"{"own": {"_meta": {"pre_function": "return function(conf, ctx) ngx.req.set_header('X-Pre', conf._meta and 'yes') end"}}}"#,
        ),
        route("/consumer", r#"{"key-auth": {}}"#),
        "  - {\"id\": \"by-config\", \"uri\": \"/config\", \"upstream_id\": \"node\", \"plugin_config_id\": \"p\"}\n"
            .to_owned(),
        "  - {\"id\": \"by-service\", \"uri\": \"/service\", \"service_id\": \"s\"}\n".to_owned(),
    ];
    let resources = format!(
        "plugin_configs: [{{\"id\": \"p\", \"plugins\": {{\"own\": {{\"word\": \"config\"}}}}}}]\n\
         services: [{{\"id\": \"s\", \"upstream_id\": \"node\", \"plugins\": {{\"own\": {{\"word\": \"service\"}}}}}}]\n\
         consumers: [{{\"username\": \"jack\", \"plugins\": {{\"key-auth\": {{\"key\": \"k\"}}, \"own\": {{\"status\": 402}}}}}}]\n\
         global_rules: [{{\"id\": \"g\", \"plugins\": {{\"own-first\": {{\"_meta\": {{\"filter\": [[\"arg_global\", \"==\", \"1\"]]}}}}}}}}]\n\
         routes:\n{}",
        routes.concat()
    );
    let mut gateway = Gateway::start(STILLGATE, &plugins.setup(&node, &resources));
    let response = get(&gateway, "/phases");
    let at_node = asked(&response);
    assert_eq!((at_node.get("x-rewrite"), at_node.get("x-access")), (Some("1hi1"), Some("111")), "{response:?}");
    assert_eq!(response.head.get("x-filter"), Some("111"), "{response:?}");
    assert!(text(&response).ends_with("body 111"), "{response:?}");
    eventually("the phase log", || gateway.log().contains("logged /phases 11hi"));
    let response = get(&gateway, "/answer");
    assert_eq!(
        (response.head.status(), text(&response)),
        (403, "{\"message\":\"hello\"}\nbody 111".to_owned()),
        "the default is filled in"
    );
    assert!(text(&get(&gateway, "/error")).starts_with("{\"own\":\"words\"}"));
    assert_eq!(get(&gateway, "/filter").head.status(), 200);
    assert_eq!(get(&gateway, "/filter?run=1").head.status(), 403);
    assert_eq!(get(&gateway, "/disabled").head.status(), 200);
    assert_eq!(asked(&get(&gateway, "/order")).get("x-order"), Some("firstlast"));
    assert_eq!(asked(&get(&gateway, "/turned")).get("x-order"), Some("lastfirst"));
    assert_eq!(asked(&get(&gateway, "/disabled?global=1")).get("x-order"), Some("first"));
    assert_eq!(asked(&get(&gateway, "/pre")).get("x-pre"), Some("yes"));
    assert_eq!(asked(&get(&gateway, "/config")).get("x-rewrite"), Some("1config1"));
    assert_eq!(asked(&get(&gateway, "/service")).get("x-rewrite"), Some("1service1"));
    let response = ask(&mut gateway.client(), "GET /consumer", &["apikey: k"]);
    assert_eq!(response.head.status(), 402, "{response:?}");
    gateway.assert_healthy();
}

#[test]
fn what_is_wrong_with_a_plugin_is_said_with_its_place() {
    let good = version(1);
    let plugins = |files: &[(&str, &str)]| Plugins::new(files);
    let resources = format!("routes:\n{}", route("/a", "{\"own\": {}}"));
    let own = |conf: &str| format!("routes:\n{}", route("/a", &format!("{{\"own\": {conf}}}")));
    refused(&plugins(&[]), &resources, &["routes[0].plugins.own", "there is no plugin \"own\""]);
    refused(
        &plugins(&[("own.lua", "\nreturn {")]),
        &resources,
        &["gateway.lua.path", "own.lua:2: unexpected symbol", ":1:"],
    );
    refused(&plugins(&[("own.lua", "return {}")]), &resources, &["own.lua: name is missing"]);
    let auth = good.replace("\"own\"", "\"key-auth\"");
    refused(&plugins(&[("own.lua", &auth)]), &resources, &["own.lua", "\"key-auth\" is built in"]);
    let unbuilt = good.replace("\"own\"", "\"ext-plugin-pre-req\"");
    refused(&plugins(&[("own.lua", &unbuilt)]), &resources, &["own.lua", "\"ext-plugin-pre-req\" is built in"]);
    let odd = good.replace("\"own\"", "\"own plugin\"");
    refused(&plugins(&[("own.lua", &odd)]), &resources, &["a plugin cannot be named \"own plugin\""]);
    let schema = good.replace("type = \"object\",", "type = \"objects\",");
    refused(&plugins(&[("own.lua", &schema)]), &resources, &["own.lua: the schema cannot be used"]);
    refused(&plugins(&[("a.lua", &good), ("b.lua", &good)]), &resources, &["b.lua: another file has a plugin \"own\""]);
    let good = plugins(&[("own.lua", &good)]);
    refused(&good, &own(r#"{"status": 7}"#), &["routes[0].plugins.own", "status", "200"]);
    refused(&good, &own(r#"{"word": 7}"#), &["routes[0].plugins.own", "word", "string"]);
    let near = format!("routes:\n{}", route("/a", "{\"ownn\": {}}"));
    refused(&good, &near, &["there is no plugin \"ownn\"", "own"]);
    let metadata = format!("plugin_metadata: [{{\"id\": \"own\"}}]\n{}", own("{}"));
    refused(&good, &metadata, &["the plugin own has no metadata"]);
}

/// Checks that everything in one response is of one version, and returns that.
fn version_of(response: &Message) -> u32 {
    let node = asked(response);
    let tail = text(response);
    let body = tail.rsplit("body ").next().expect("the last piece");
    let rewrite = node.get("x-rewrite").expect("rewrite ran");
    let number = rewrite.split_once("hello").expect("the default").0;
    let thrice = number.repeat(3);
    assert_eq!(rewrite, format!("{number}hello{number}"));
    let seen = [node.get("x-access"), response.head.get("x-filter"), Some(body)];
    assert_eq!(seen, [Some(&*thrice); 3], "{response:?}");
    number.parse().expect("a number")
}

#[test]
fn no_request_sees_half_of_two_versions() {
    const CLIENTS: usize = 6;
    const VERSIONS: u32 = 12;
    // All have the same number of digits, so that a repeated number can be recognised.
    let number = |version: u32| 100 + version;
    let plugins = Plugins::new(&[("own.lua", &version(number(0)))]);
    let node = reflecting();
    let resources = format!("routes:\n{}", route("/a", "{\"own\": {}}"));
    let mut gateway = Gateway::start(STILLGATE, &plugins.setup(&node, &resources));
    let is_over = AtomicBool::new(false);
    let seen: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (gateway, is_over) = (&gateway, &is_over);
                scope.spawn(move || {
                    let mut connection = gateway.client();
                    let mut seen = Vec::new();
                    // Half of them wait in the middle of the chain, while versions change.
                    let lines: &[&str] = if client % 2 == 0 { &["X-Slow: 1"] } else { &[] };
                    while !is_over.load(Ordering::Relaxed) {
                        let response = try_ask(&mut connection, "GET /a", lines).expect("no request fails");
                        seen.push(version_of(&response));
                        pause_between_requests();
                    }
                    seen
                })
            })
            .collect();
        for at in 1..VERSIONS {
            plugins.write("own.lua", &version(number(at)));
            let is_served = || version_of(&get(&gateway, "/a")) == number(at);
            eventually("the next version", || is_served() && is_served());
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    for seen in &seen {
        assert!(seen.is_sorted(), "a version came back: {seen:?}");
        assert!(seen.first() < seen.last(), "{seen:?}");
    }
    gateway.assert_healthy();
}

#[test]
fn a_broken_file_keeps_the_last_good_version() {
    let plugins = Plugins::new(&[("own.lua", &version(101))]);
    let node = reflecting();
    let resources = format!("routes:\n{}", route("/a", "{\"own\": {}}"));
    let mut gateway = Gateway::start(STILLGATE, &plugins.setup(&node, &resources));
    let last_error = || gateway.status()["config"]["last_error"].to_string();
    for (text, expected) in [
        ("\n\nreturn {", "own.lua:3: unexpected symbol"),
        (
            "return { name = 'other', version = 1, priority = 1, schema = {}, access = function() end }",
            "there is no plugin",
        ),
        ("error('at load')", "own.lua:1: at load"),
    ] {
        plugins.write("own.lua", text);
        eventually(&format!("{expected} in the status"), || last_error().contains(expected));
        eventually(&format!("{expected} in the log"), || gateway.log().contains(expected));
        assert_eq!(version_of(&get(&gateway, "/a")), 101);
    }
    std::fs::remove_file(plugins.path().join("own.lua")).expect("it is there");
    eventually("that it is gone in the status", || last_error().contains("there is no plugin"));
    assert_eq!(version_of(&get(&gateway, "/a")), 101);
    plugins.write("own.lua", &version(102));
    eventually("the mended file", || version_of(&get(&gateway, "/a")) == 102);
    eventually("no error any more", || last_error() == "null");
    // Another file in the folder, and a route that uses it.
    let more = "return { name = 'more', version = 1, priority = 1, schema = {}, access = function() return 418 end }";
    plugins.write("more.lua", more);
    let resources = format!("{resources}{}", route("/more", "{\"more\": {}}"));
    gateway.write_config(&plugins.setup(&node, &resources));
    eventually("the new plugin", || get(&gateway, "/more").head.status() == 418);
    assert_eq!(version_of(&get(&gateway, "/a")), 102);
    gateway.assert_healthy();
}

#[test]
fn resources_of_a_store_have_plugins_of_files() {
    const KEY: &str = "key-of-an-admin-0123456789";
    let plugins = Plugins::new(&[("own.lua", &version(101))]);
    let node = reflecting();
    let source = "config: {source: store, store: \"{dir}/config.redb\"}";
    let mut setup = plugins.setup(&node, "").gateway(source).admin(&format!("key: {KEY}"));
    setup.resources = Some(String::new());
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let admin = |method: &str, path: &str, body: &str| {
        let mut client = stillgate_testkit::BufferedSocket::new(
            std::net::TcpStream::connect(gateway.admin_addr()).expect("it listens"),
        );
        let length = body.len();
        client.send(format!(
            "{method} /apisix/admin/{path} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {KEY}\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        client.read_response(method).expect("an answer")
    };
    let with = |plugins: &str| {
        format!(r#"{{"uri": "/a", "upstream": {{"nodes": {{"{}": 1}}}}, "plugins": {plugins}}}"#, node.addr())
    };
    let response = admin("PUT", "routes/1", &with(r#"{"own": {"status": 7}}"#));
    assert_eq!(response.head.status(), 400, "{response:?}");
    let response = admin("PUT", "routes/1", &with(r#"{"own": {}}"#));
    assert_eq!(response.head.status(), 201, "{response:?}");
    eventually("the route", || get(&gateway, "/a").head.status() == 200);
    assert_eq!(version_of(&get(&gateway, "/a")), 101);
    assert!(text(&admin("GET", "plugins/list", "")).contains("\"own\""));
    let schema = text(&admin("GET", "schema/plugins/own", ""));
    assert!(schema.contains("\"minimum\":200"), "{schema}");
    plugins.write("own.lua", &version(102));
    eventually("the next version", || version_of(&get(&gateway, "/a")) == 102);
    plugins.write("own.lua", "return {");
    eventually("the error", || gateway.status()["config"]["last_error"].to_string().contains("own.lua:1: unexpected"));
    assert_eq!(version_of(&get(&gateway, "/a")), 102);
    // Changes of the store go on.
    admin("PUT", "routes/2", &with(r#"{"own": {"status": 418}}"#).replace("/a", "/b"));
    eventually("another route", || get(&gateway, "/b").head.status() == 418);
    gateway.assert_healthy();
}

#[test]
fn work_is_done_on_threads_that_serve_nobody() {
    const HEAVY: &str = r#"
return {
  version = 1, priority = 10, name = "heavy", schema = { type = "object" },
  spin = function(seconds)
    local ends, turns = os.clock() + seconds, 0
    while os.clock() < ends do turns = turns + 1 end
    return turns > 0
  end,
  access = function(conf, ctx)
    ngx.say(tostring((select(2, ngx.run_worker_thread("any", ngx.var.arg_module or "heavy", "spin", 0.3)))))
  end,
}"#;
    let plugins = Plugins::new(&[("heavy.lua", HEAVY), ("own.lua", &version(101))]);
    let node = reflecting();
    let resources = format!("routes:\n{}{}", route("/heavy", "{\"heavy\": {}}"), route("/a", "{\"own\": {}}"));
    let setup =
        setup(node.addr(), &resources).gateway(&format!("workers: 1\nlua: {{path: {}}}", plugins.path().display()));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut heavy = gateway.client();
    heavy.send("GET /heavy HTTP/1.1\r\nHost: h\r\n\r\n");
    // The only worker serves others meanwhile: more than one gets its answer before that one.
    let mut others = 0;
    std::thread::scope(|scope| {
        let heavy = scope.spawn(|| heavy.read_response("GET").expect("a response"));
        while !heavy.is_finished() {
            assert_eq!(version_of(&get(&gateway, "/a")), 101);
            others += 1;
        }
        assert_eq!(text(&heavy.join().expect("a response")), "true\n");
    });
    assert!(others > 2, "{others}");
    let told = text(&get(&gateway, "/heavy?module=own"));
    assert_eq!(told, "unknown module \"own\"; use the plugin's own file, or one that it requires\n");
    gateway.assert_healthy();
}
