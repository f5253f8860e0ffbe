//! Plugins in files: their descriptions, what is refused, and how their phases run.

use crate::fake::{Fake, run_with_part, told};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use stillgate_lua::{Context, Module, PHASES, Program, run_part};

const GOOD: &str = r#"
local core = require("apisix.core")
local started, calls = 0, 0
local _M = {
  version = 0.1,
  priority = 77,
  name = "own",
  schema = { type = "object", properties = { greeting = { type = "string" }, deep = { type = "object" } }, required = { "greeting" } },
}
function _M.init() started = started + 1 end
function _M.check_schema(conf, schema_type)
  local ok, why = core.schema.check(_M.schema, conf)
  if not ok then return false, why end
  if conf.greeting == "bad" then return false, "no bad words" end
  conf.length = #conf.greeting
  return true
end
function _M.rewrite(conf, ctx)
  calls = calls + 1
  ctx.seen = conf.greeting
  core.request.set_header(ctx, "X-Own", conf.greeting .. conf.length .. started .. calls)
end
function _M.access(conf, ctx) return 401, { message = ctx.seen } end
function _M.header_filter(conf, ctx) core.response.set_header("X-Seen", ctx.seen) end
function _M.log(conf, ctx) core.log.warn("seen ", ctx.seen) end
return _M
"#;

fn module(text: &str) -> Arc<Module> {
    Module::new("own.lua".to_owned(), text.to_owned())
}

/// Accepts every value with a greeting, and adds a default.
fn check(schema: &Json, mut value: Json) -> Result<Json, String> {
    assert_eq!(schema["required"], json!(["greeting"]));
    if !value["greeting"].is_string() {
        return Err("property \"greeting\" is required".to_owned());
    }
    if value["deep"].is_object() {
        value["deep"]["filled"] = json!(true);
    }
    Ok(value)
}

fn part(phase: &str) -> usize {
    PHASES.iter().position(|of| *of == phase).unwrap()
}

#[test]
fn a_file_says_what_its_plugin_is() {
    let described = module(GOOD).describe(check).unwrap();
    assert_eq!((described.name.as_str(), described.priority, described.checks), ("own", 77, true));
    assert_eq!(described.schema["properties"]["greeting"], json!({"type": "string"}));
    assert_eq!(described.phases, ["rewrite", "access", "header_filter", "log"].map(part));
    let with = |line: &str| GOOD.replace("return _M\n", &format!("{line}\nreturn _M\n"));
    let described = module(&with("_M.destroy = function() end _M.api = function() end")).describe(check).unwrap();
    assert_eq!(described.unused, ["destroy", "api"]);
    for (text, expected) in [
        ("return {", "own.lua:1: unexpected symbol"),
        ("\nlocal a = nil\nreturn a.b", "own.lua:3: attempt to index local 'a' (a nil value)"),
        ("return 17", "own.lua: it returns no table of a plugin, but number"),
        ("while true do end", "own.lua:1: it ran for more than 50 ms"),
        ("local socket = require('socket')", "own.lua:1: the module 'socket' is not supported"),
        ("io.open('/etc/passwd')", "own.lua:1: io.open is closed"),
        (&with("_M.name = nil"), "own.lua: name is missing"),
        (&with("_M.priority = nil"), "own.lua: priority is missing"),
        (&with("_M.priority = 1.5"), "own.lua: priority is not a 32-bit integer"),
        (&with("_M.priority = 'high'"), "priority is not a number"),
        (&with("_M.version = nil"), "own.lua: version is missing"),
        (&with("_M.schema = nil"), "own.lua: schema is missing"),
        (&with("_M.log = 1"), "own.lua: log is not a function, but number"),
        (&with("_M.type = 'auth'"), "own.lua: plugins that authenticate"),
        (&with("_M.consumer_schema = {}"), "own.lua: plugins that authenticate"),
    ] {
        let why = module(text).describe(check).unwrap_err();
        assert!(why.contains(expected), "{expected}\n{why}");
    }
}

#[test]
fn its_own_check_sees_a_configuration_and_may_add_to_it() {
    let module = module(GOOD);
    let checked = |conf| module.check_conf(&conf, check);
    assert_eq!(
        checked(json!({"greeting": "hi", "deep": {"list": []}})),
        Ok(json!({"greeting": "hi", "deep": {"list": [], "filled": true}, "length": 2}))
    );
    assert_eq!(checked(json!({})), Err("property \"greeting\" is required".to_owned()));
    assert_eq!(checked(json!({"greeting": "bad"})), Err("no bad words".to_owned()));
}

#[test]
fn phases_share_a_context_and_a_file_what_it_keeps() {
    let module = module(GOOD);
    let programs = ["hi", "hello"].map(|greeting| {
        let conf = json!({"greeting": greeting, "length": greeting.len()});
        Program::of_module("route \"r\"".to_owned(), module.clone(), conf)
    });
    let (mut fake, mut context) = (Fake { phase: "rewrite", ..Fake::default() }, Context::default());
    let mut run = |program: &Arc<Program>, phase: &'static str, fake: &mut Fake| {
        fake.phase = phase;
        told(run_part(program, part(phase), fake, &mut context))
    };
    assert_eq!(run(&programs[0], "rewrite", &mut fake), "done");
    assert_eq!(fake.request.last().unwrap(), &("X-Own".to_owned(), b"hi211".to_vec()));
    assert_eq!(run(&programs[0], "access", &mut fake), "401 \"{\\\"message\\\":\\\"hi\\\"}\\n\"");
    assert_eq!(run(&programs[0], "header_filter", &mut fake), "done");
    assert_eq!(fake.response, [("X-Seen".to_owned(), b"hi".to_vec())]);
    assert_eq!(run(&programs[1], "rewrite", &mut fake), "done");
    assert_eq!(
        fake.request.last().unwrap(),
        &("X-Own".to_owned(), b"hello512".to_vec()),
        "init ran once, calls are counted"
    );
    assert_eq!(run(&programs[1], "log", &mut fake), "done");
    assert!(fake.log.borrow()[0].ends_with("own.lua:25: seen hello"), "{:?}", fake.log);
}

#[test]
fn two_versions_share_no_globals() {
    let text = |version: u8| {
        format!(
            "kept = {version}\nreturn {{ name = 'own', version = 1, priority = 1, schema = {{}}, access = function() return 200, kept .. tostring(_G.kept) end }}"
        )
    };
    let programs = [1, 2].map(|version| {
        Program::of_module("route".to_owned(), Module::new("own.lua".to_owned(), text(version)), json!({}))
    });
    for (at, expected) in [(0, "200 \"11\""), (1, "200 \"22\""), (0, "200 \"11\"")] {
        let mut fake = Fake::default();
        let outcome = run_part(&programs[at], part("access"), &mut fake, &mut Context::default());
        assert_eq!(told(outcome), expected);
    }
}

#[test]
fn a_request_sees_the_variables_of_its_own_version() {
    let text = |version: u8| {
        format!(
            "require('apisix.core').ctx.register_var('own_version', function() return {version} end)
             if {version} == 2 then require('apisix.core').ctx.register_var('own_new', function() return 'new' end) end
             return {{ name = 'own', version = 1, priority = 1, schema = {{}}, access = function(conf, ctx)
                return 200, ctx.var.own_version .. tostring(ctx.var.own_new)
             end }}"
        )
    };
    let version =
        |number: u8| Program::of_module("route".to_owned(), Module::new("own.lua".to_owned(), text(number)), json!({}));
    let run = |program: &Arc<Program>, phase: &str| {
        told(run_part(program, part(phase), &mut Fake::default(), &mut Context::default()))
    };
    let (old, new) = (version(1), version(2));
    for (program, expected) in [(&old, "200 \"1nil\""), (&new, "200 \"2new\""), (&old, "200 \"1nil\"")] {
        assert_eq!(run(program, "access"), expected);
    }
    // Others see the last registration.
    let other = crate::fake::program(&["return function(conf, ctx) ngx.say(ctx.var.own_version, ctx.var.own_new) end"]);
    assert_eq!(crate::fake::run_with(&other, &mut Fake::default(), &mut Context::default()), "200 \"2new\\n\"");
}

#[test]
fn what_a_cache_keeps_for_a_configuration_is_of_that_configuration() {
    let text = "local core = require('apisix.core') local cache = core.lrucache.new({ count = 8 })
        return { name = 'own', version = 1, priority = 1, schema = {}, access = function(conf, ctx)
            return 200, core.lrucache.plugin_ctx(cache, ctx, nil, function() return conf.n end)
        end }";
    let module = Module::new("own.lua".to_owned(), text.to_owned());
    for n in 1..3 {
        let program = Program::of_module("route".to_owned(), module.clone(), json!({"n": n}));
        for _ in 0..2 {
            let mut fake = Fake::default();
            let outcome = run_part(&program, part("access"), &mut fake, &mut Context::default());
            assert_eq!(told(outcome), format!("200 \"{n}\""));
        }
    }
}

#[test]
fn another_thread_gets_copies_and_gives_copies() {
    let text = r#"
local kept = 0
return { name = 'own', version = 1, priority = 1, schema = {},
  echo = function(...) return ... end,
  count = function() kept = kept + 1 return kept end,
  fail = function() error('no') end,
  asks = function() return ngx.var.uri end,
  endless = function() while true do end end,
  gives = function() return function() end end,
  access = function(conf, ctx)
    kept = 100
    local function told(...) ngx.say(require('cjson').encode({ ... })) end
    told(ngx.run_worker_thread('pool', 'own', 'echo', 1.5, 'a\0b', true, false, { list = { 1, 2 } }, ''))
    told(select('#', ngx.run_worker_thread('pool', 'own', 'echo', nil, nil)))
    told((select(2, ngx.run_worker_thread('pool', 'own', 'echo', '\255\254'))) == '\255\254')
    told(ngx.run_worker_thread('pool', 'own', 'count'))
    told(ngx.run_worker_thread('pool', 'own', 'fail'))
    told(ngx.run_worker_thread('pool', 'own', 'asks'))
    told(ngx.run_worker_thread('pool', 'own', 'gives'))
    told(ngx.run_worker_thread('pool', 'own', 'none'))
    told(pcall(ngx.run_worker_thread, 'pool', 'own', 'echo', print))
    told(pcall(ngx.run_worker_thread, 'pool', 'own'))
    told(kept)
  end }"#;
    let module = Module::new("own.lua".to_owned(), text.to_owned());
    let program = Program::of_module("route".to_owned(), module.clone(), json!({}));
    let outcome = run_with_part(&program, part("access"), &mut Fake::default(), &mut Context::default());
    let body: String = serde_json::from_str(outcome.strip_prefix("200 ").expect(&outcome)).unwrap();
    let expected = [
        r#"[true,1.5,"a\u0000b",true,false,{"list":[1,2]},""]"#,
        "[3]",
        "[true]",
        "[true,1]",
        r#"[false,"own.lua:6: no"]"#,
        r#"[false,"own.lua:7: there is no request on this thread; give it what it needs as arguments"]"#,
        r#"[false,"a value of the type function cannot go to another thread"]"#,
        r#"[false,"own.lua: there is no function none"]"#,
        r#"[false,"own.lua:21: a value of the type function cannot go to another thread"]"#,
        r#"[false,"own.lua:22: bad argument to 'run_worker_thread' (the names of a thread pool, a module and a function expected)"]"#,
        "[100]",
    ];
    assert_eq!(body.lines().collect::<Vec<&str>>(), expected);
}
