//! Modules that plugins of files require, and `apisix.plugin`.

use crate::fake::{Fake, program, run_with, told};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use stillgate_lua::{Context, Module, PHASES, Program, run_part};

fn check(_: &Json, value: Json) -> Result<Json, String> {
    Ok(value)
}

fn module(file: &str, text: &str, requires: &[(&str, &Arc<Module>)]) -> Arc<Module> {
    let requires = requires.iter().map(|(name, module)| (name.to_string(), Arc::clone(module))).collect();
    Module::with(file.to_owned(), text.to_owned(), requires, Arc::new(json!({"own": {"pool": 5}})))
}

/// The text of a plugin with these lines before its table, and this body of `access`.
fn plugin(lines: &str, access: &str) -> String {
    format!(
        "{lines}\nreturn {{ name = 'own', version = 1, priority = 1, schema = {{}}, access = function(conf, ctx) {access} end }}"
    )
}

fn run(module: &Arc<Module>, fake: &mut Fake) -> String {
    let program = Program::of_module("route".to_owned(), module.clone(), json!({"b": 1, "a": [true]}));
    run_again(&program, fake)
}

fn run_again(program: &Arc<Program>, fake: &mut Fake) -> String {
    let access = PHASES.iter().position(|phase| *phase == "access").unwrap();
    told(run_part(program, access, fake, &mut Context::default()))
}

#[test]
fn a_plugin_requires_modules_beside_it() {
    let text = module("text.lua", "local name = ... return { shout = function(t) return name .. t:upper() end }", &[]);
    let util = module(
        "util.lua",
        "local text, calls = require('lib.text'), 0
         return { hello = function(who) calls = calls + 1 return text.shout(who) .. calls .. tostring(shared) end }",
        &[("lib.text", &text)],
    );
    let access = "local late = require('late') return 200, util.hello('x') .. tostring(late) .. type(require('cjson'))";
    let late = module("late.lua", "shared = 'of late'", &[]);
    let own = module("own.lua", &plugin("local util = require('util')", access), &[("util", &util), ("late", &late)]);
    assert!(own.has_plugin(check).unwrap() && !util.has_plugin(check).unwrap());
    own.describe(check).unwrap();
    assert_eq!(run(&own, &mut Fake::default()), "200 \"lib.textX1niltruetable\"");
    // One version of a module is loaded once on a worker, however often it is required; another version is separate.
    let other = plugin("local util = require('helpers')", "return 200, util.hello('y')");
    let other = module("other.lua", &other, &[("helpers", &util)]);
    assert_eq!(run(&other, &mut Fake::default()), "200 \"lib.textY2nil\"");
    let next = module("util.lua", "return { hello = function(who) return 'next ' .. who end }", &[]);
    let next =
        module("own.lua", &plugin("local util = require('util')", "return 200, util.hello('z')"), &[("util", &next)]);
    assert_eq!(run(&next, &mut Fake::default()), "200 \"next z\"");
    assert_eq!(run(&other, &mut Fake::default()), "200 \"lib.textY3nil\"");
}

#[test]
fn what_is_not_beside_a_plugin_is_named() {
    let own = module("own.lua", &plugin("", "require('util')"), &[]);
    assert_eq!(
        run(&own, &mut Fake::default()),
        "error: own.lua:2: the module 'util' is not supported; docs/lua.md lists what is"
    );
    let broken = module("broken.lua", "\nlocal a = nil\nreturn a.b", &[]);
    let own = module("own.lua", &plugin("", "return 200, require('broken')"), &[("broken", &broken)]);
    // Also if it is required late.
    assert_eq!(own.describe(check).unwrap_err(), "broken.lua:3: attempt to index local 'a' (a nil value)");
    assert_eq!(run(&own, &mut Fake::default()), "error: route: broken.lua:3: attempt to index local 'a' (a nil value)");
    let endless = module("endless.lua", "while true do end", &[]);
    let own = module("own.lua", &plugin("pcall(require, 'endless')", ""), &[("endless", &endless)]);
    assert!(own.describe(check).unwrap_err().contains("ran for more than 50 ms"));
}

#[test]
fn modules_are_found_by_their_names_on_other_threads() {
    let util = module("lib/util.lua", "return { double = function(n) return 2 * n end }", &[]);
    let own = module("own.lua", &plugin("", ""), &[("lib.util", &util)]);
    assert!(own.find("own").is_some() && own.find("nothing").is_none());
    assert!(Arc::ptr_eq(&own.find("util").unwrap(), &util));
}

#[test]
fn attributes_are_there_from_the_beginning() {
    let lines = "local plugin = require('apisix.plugin')
        local at_load, at_init, of_own = plugin.plugin_attr('own').pool, nil, nil";
    let text = format!(
        "{lines}
        local _M = {{ name = 'own', version = 1, priority = 1, schema = {{}} }}
        function _M.init() at_init, of_own = plugin.plugin_attr('own').pool, _M.attr.pool end
        function _M.access() return 200, at_load .. at_init .. of_own .. tostring(plugin.plugin_attr('other')) end
        return _M"
    );
    assert_eq!(run(&module("own.lua", &text, &[]), &mut Fake::default()), "200 \"555nil\"");
    let elsewhere = program(&["return function() local attr = require('apisix.plugin').plugin_attr('own') end"]);
    assert_eq!(
        run_with(&elsewhere, &mut Fake::default(), &mut Context::default()),
        "error: test:1: apisix.plugin.plugin_attr exists for plugins in files only"
    );
}

#[test]
fn metadata_are_those_of_the_request() {
    let access = "local item = plugin.plugin_metadata('own')
        if not item then return 404 end
        cached = cached or item
        return 200, item.modifiedIndex .. require('cjson').encode(item.value) .. tostring(cached == item)";
    let own = module("own.lua", &plugin("local plugin = require('apisix.plugin')", access), &[]);
    let program = Program::of_module("route".to_owned(), own, json!({}));
    let mut fake = Fake::default();
    for (metadata, expected) in [
        (None, "404 nothing"),
        (Some((7, json!({"list": []}))), "200 \"7{\\\"list\\\":[]}true\""),
        (Some((7, json!({"list": []}))), "200 \"7{\\\"list\\\":[]}true\""),
        (Some((9_007_199_254_740_991, json!({"a": 1}))), "200 \"9.007199254741e+15{\\\"a\\\":1}false\""),
        (None, "404 nothing"),
    ] {
        fake.metadata = metadata;
        assert_eq!(run_again(&program, &mut fake), expected);
    }
    fake.metadata = Some((1, json!({})));
    for (body, expected) in [
        ("p.plugin_metadata('own').created", "plugin_metadata(...).created is not supported"),
        ("p.plugin_metadata()", "bad argument #1 to 'plugin_metadata' (string expected, got nil)"),
        ("p.get('own')", "apisix.plugin.get is not supported"),
        ("p.plugins", "apisix.plugin.plugins is not supported"),
    ] {
        let source = format!("return function() local p = require('apisix.plugin') local value = {body} end");
        let told = run_with(&program_of(&source), &mut fake, &mut Context::default());
        assert!(told.contains(expected), "{body}: {told}");
    }
}

fn program_of(source: &str) -> Arc<Program> {
    program(&[source])
}

#[test]
fn a_configuration_has_a_version() {
    let access = "local v = require('apisix.plugin').conf_version
        return 200, v(conf) .. ' ' .. conf._version .. ' ' .. v({ a = { true }, b = 1 }) .. ' ' .. v({})";
    // CRC-32 of `{"a":[true],"b":1}` and of `{}`, by zlib.
    let expected = "200 \"2867063827 2867063827 2867063827 2745614147\"";
    assert_eq!(run(&module("own.lua", &plugin("", access), &[]), &mut Fake::default()), expected);
}
