//! Modules that plugins of files require, and the functions of `apisix.plugin`: from files and configuration, and as both change.

use crate::lua_files::{Plugins, refused};
use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, reflecting, route, setup};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

/// A plugin that answers with what this expression gives.
fn plugin(name: &str, lines: &str, expression: &str) -> String {
    format!(
        "{lines}
         return {{ version = 1, priority = 1, name = '{name}', schema = {{ type = 'object' }},
           access = function(conf, ctx) return 200, {expression} end }}"
    )
}

fn with(plugins: &Plugins, node: &Upstream, keys: &str, resources: &str) -> Setup {
    setup(node.addr(), resources).gateway(&format!("workers: 1\nlua: {{path: {}{keys}}}", plugins.path().display()))
}

fn get(gateway: &Gateway, target: &str) -> String {
    let response = ask(&mut gateway.client(), &format!("GET {target}"), &[]);
    format!("{} {}", response.head.status(), String::from_utf8_lossy(&response.body))
}

#[test]
fn modules_beside_a_plugin_are_read_and_reloaded_with_it() {
    let greet = |word: &str| format!("return {{ greet = function(who) return '{word} ' .. who end }}");
    let plugins = Plugins::new(&[
        ("own.lua", &plugin("own", "local greet = require('lib.greet')", "greet.greet('you')")),
        ("other.lua", &plugin("other", "calls = 0", "(function() calls = calls + 1 return 'other' .. calls end)()")),
        ("deep.lua", &plugin("deep", "local a = require \"apisix.plugins.lib.all\"", "a")),
        ("lib/greet.lua", &greet("hello")),
        ("lib/all/init.lua", "return require('util') .. ' of all'"),
        ("util.lua", "return 'util'"),
        // A module that no plugin requires is not run.
        ("lib/broken.lua", "return {"),
        (".hidden/broken.lua", "return {"),
    ]);
    let node = reflecting();
    let routes = [route("/own", "{\"own\": {}}"), route("/other", "{\"other\": {}}"), route("/deep", "{\"deep\": {}}")];
    let setup = with(&plugins, &node, "", &format!("routes:\n{}", routes.concat()));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(get(&gateway, "/own"), "200 hello you");
    assert_eq!(get(&gateway, "/deep"), "200 util of all");
    assert_eq!(get(&gateway, "/other"), "200 other1");
    plugins.write("lib/greet.lua", &greet("good day"));
    eventually("the next version", || get(&gateway, "/own") == "200 good day you");
    // The others keep their variables.
    assert_eq!(get(&gateway, "/other"), "200 other2");
    plugins.write("lib/greet.lua", "local a = nil\nreturn a.b");
    let last_error = || gateway.status()["config"]["last_error"].to_string();
    eventually("the error", || last_error().contains("greet.lua:2: attempt to index local 'a'"));
    assert_eq!(get(&gateway, "/own"), "200 good day you");
    plugins.write("lib/greet.lua", &greet("bye"));
    eventually("the mended version", || get(&gateway, "/own") == "200 bye you");
    // A folder and a module that did not exist before.
    plugins.write("new/word.lua", "return 'new'");
    plugins.write("own.lua", &plugin("own", "local word = require('new.word')", "word"));
    eventually("the new module", || get(&gateway, "/own") == "200 new");
    plugins.write("new/word.lua", "return 'newer'");
    eventually("its change", || get(&gateway, "/own") == "200 newer");
    gateway.assert_healthy();
}

#[test]
fn what_is_not_beside_a_plugin_cannot_be_required() {
    let resources = format!("routes:\n{}", route("/a", "{\"own\": {}}"));
    let outside = tempfile::tempdir().expect("a folder");
    std::fs::write(outside.path().join("secret.lua"), "return 'secret'").expect("write");
    let outside_name = outside.path().file_name().expect("a name").to_string_lossy().into_owned();
    let required = |name: &str| plugin("own", &format!("local value = require('{name}')"), "value");
    for name in ["secret", "..secret", &format!("../{outside_name}/secret"), &format!("..{outside_name}.secret")] {
        refused(
            &Plugins::new(&[("own.lua", &required(name))]),
            &resources,
            &["own.lua:1: the module", "is not supported"],
        );
    }
    // A link to a folder is not followed.
    let plugins = Plugins::new(&[("own.lua", &required("link.secret"))]);
    std::os::unix::fs::symlink(outside.path(), plugins.path().join("link")).expect("a link");
    refused(&plugins, &resources, &["the module 'link.secret' is not supported"]);
    let circle = [("own.lua", &*required("a")), ("a.lua", "return require('b')"), ("b.lua", "return require('a')")];
    refused(&Plugins::new(&circle), &resources, &["it is required by a module that it requires"]);
    // A file that no other file requires is meant as a plugin.
    let good = plugin("own", "", "''");
    refused(
        &Plugins::new(&[("own.lua", &good), ("util.lua", "return {}")]),
        &resources,
        &["util.lua: name is missing"],
    );
}

#[test]
fn plugins_ask_for_their_metadata_and_attributes() {
    const OWN: &str = r#"
local core, plugin = require("apisix.core"), require("apisix.plugin")
local schema = { type = "object", properties = { word = { type = "string", default = "none" } }, required = { "list" } }
local at_init
local _M = { version = 1, priority = 1, name = "own", schema = { type = "object" }, metadata_schema = schema }
function _M.init() at_init = plugin.plugin_attr("own").pool end
function _M.check_schema(conf, kind)
  if kind == core.schema.TYPE_METADATA then return core.schema.check(schema, conf) end
  return core.schema.check(_M.schema, conf)
end
local function told()
  local item = plugin.plugin_metadata("own")
  return item and item.value.word .. #item.value.list or "nothing"
end
function _M.access(conf, ctx)
  return 200, at_init .. told() .. tostring(plugin.plugin_metadata("other")) .. plugin.conf_version(conf)
end
function _M.header_filter(conf, ctx) core.response.set_header("X-Own", told()) end
function _M.body_filter(conf, ctx) if ngx.arg[2] then ngx.arg[1] = (ngx.arg[1] or "") .. " " .. told() end end
return _M
"#;
    let plugins = Plugins::new(&[("own.lua", OWN)]);
    let node = reflecting();
    let resources = |metadata: &str| format!("{metadata}routes:\n{}", route("/own", "{\"own\": {}}"));
    let setup = |pool: u32, metadata: &str| {
        let keys = format!(", plugin_attr: {{own: {{pool: {pool}}}}}");
        with(&plugins, &node, &keys, &resources(metadata))
    };
    let mut gateway = Gateway::start(STILLGATE, &setup(5, ""));
    let version = "2745614147";
    assert_eq!(get(&gateway, "/own"), format!("200 5nothingnil{version} nothing"));
    gateway.write_config(&setup(5, "plugin_metadata: [{\"id\": \"own\", \"list\": [1, 2]}]\n"));
    eventually("the metadata", || get(&gateway, "/own") == format!("200 5none2nil{version} none2"));
    gateway.write_config(&setup(6, "plugin_metadata: [{\"id\": \"own\", \"word\": \"w\", \"list\": []}]\n"));
    eventually("both changed", || get(&gateway, "/own") == format!("200 6w0nil{version} w0"));
    let response = ask(&mut gateway.client(), "GET /own", &[]);
    assert_eq!(response.head.get("x-own"), Some("w0"));
    gateway.assert_healthy();
    let lacking = resources("plugin_metadata: [{\"id\": \"own\"}]\n");
    refused(&plugins, &lacking, &["plugin_metadata[0]", "list"]);
}
