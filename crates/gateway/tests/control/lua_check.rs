//! `stillgate lua check`: its exit codes, and its output for the examples in `docs/jit-health`.

use std::path::PathBuf;
use std::process::Command;

fn examples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/jit-health")
}

/// The exit code, and the whole output.
fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_stillgate"))
        .current_dir(examples())
        .args(["lua", "check"])
        .args(arguments)
        .output()
        .expect("the command runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

#[track_caller]
fn finds(file: &str, expected: &str) {
    let (code, text) = check(&[file, "--requests", "requests.txt"]);
    assert!(code == Some(1) && text.lines().any(|line| line.starts_with(expected)), "{code:?}\n{text}");
}

#[track_caller]
fn is_good(file: &str) {
    let (code, text) = check(&[file, "--requests", "requests.txt"]);
    assert!(code == Some(0) && text.starts_with(&format!("{file}: good (")), "{code:?}\n{text}");
}

#[test]
fn the_planted_regressions_are_found_and_the_mended_ones_pass() {
    finds("closure.lua", "closure.lua:11: the bytecode is not compiled: FNEW (a function is made here); make it once");
    is_good("closure_mended.lua");
    finds(
        "stitch.lua",
        "stitch.lua:8: core.json.encode is not compiled, so each call leaves machine code, 5.0 times a request",
    );
    is_good("stitch_mended.lua");
    finds("shape.lua", "shape.lua:8: a table that is both list and map is made; keep what is a list");
    is_good("shape_mended.lua");
}

#[test]
fn what_is_found_is_json_too_and_logs_are_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, out) = (folder.path().join("access.log"), folder.path().join("out.json"));
    std::fs::write(
        &log,
        "{\"request_method\":\"GET\",\"request_uri\":\"/a?b=c\",\"host\":\"h\",\"http_x_key\":\"k\"}\nno request\n",
    )
    .expect("write a log");
    let function = folder.path().join("replayed.lua");
    std::fs::write(&function, "return function(conf)\n  if ngx.var.http_x_key ~= conf.key or ngx.var.arg_b ~= 'c' then error('no') end\n  ngx.header['X-A'] = ngx.var.host\nend\n")
        .expect("write a function");
    let arguments = [
        function.to_str().unwrap(),
        "--replay",
        log.to_str().unwrap(),
        "--conf",
        "{\"key\":\"k\"}",
        "--json",
        out.to_str().unwrap(),
    ];
    let (code, text) = check(&arguments);
    assert_eq!(code, Some(0), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).expect("it is written")).expect("JSON");
    assert_eq!(json["findings"], serde_json::json!([]));
    assert!(json["lines_compiled"].as_u64() > Some(1), "{json}");
}

#[test]
fn instructions_of_a_request_are_held_against_a_figure() {
    let folder = tempfile::tempdir().expect("a folder");
    let function = folder.path().join("small.lua");
    std::fs::write(&function, "return function()\n  ngx.header['X-A'] = ngx.var.host\nend\n")
        .expect("write a function");
    let out = folder.path().join("out.json");
    let (file, out) = (function.to_str().unwrap(), out.to_str().unwrap());
    // A figure that it is below is a unit test's: counting takes seconds.
    let (code, text) = check(&[file, "--requests", "requests.txt", "--instructions", "500", "--json", out]);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(out).expect("it is written")).expect("JSON");
    let found = json["instructions_per_request"].as_u64().expect("a number");
    assert!(found > 500, "{json}");
    let more = format!("{file}: {found} instructions a request, more than 500");
    assert_eq!((code, text.contains(&more)), (Some(1), true), "{text}");
}

#[test]
fn all_phases_of_a_plugin_s_file_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tenant.lua");
    let write = |log: &str| {
        let text = format!(
            "local core = require('apisix.core')
local _M = {{ version = 1, priority = 1, name = 'tenant', schema = {{ type = 'object',
  properties = {{ header = {{ type = 'string', default = 'X-Tenant' }} }} }} }}
function _M.check_schema(conf) return core.schema.check(_M.schema, conf) end
function _M.rewrite(conf, ctx)
  ctx.tenant = core.request.header(ctx, conf.header) or ctx.var.host
end
function _M.header_filter(conf, ctx)
  core.response.set_header(conf.header, ctx.tenant)
end
function _M.body_filter(conf, ctx)
  if ngx.arg[2] then ngx.arg[1] = ngx.arg[1] .. ctx.tenant end
end
function _M.log(conf, ctx)
  {log}
end
return _M
"
        );
        std::fs::write(&file, text).expect("write a plugin");
    };
    let file = file.to_str().unwrap();
    write("local kept = ctx.tenant .. ngx.var.uri");
    let (code, text) = check(&[file, "--requests", "requests.txt"]);
    assert_eq!((code, text.contains(": good (")), (Some(0), true), "{text}");
    write("local made = function() return ctx.tenant end ctx.again = made()");
    let (code, text) = check(&[file, "--requests", "requests.txt"]);
    assert_eq!((code, text.contains("tenant.lua:15: the bytecode is not compiled: FNEW")), (Some(1), true), "{text}");
    let (code, text) = check(&[file, "--requests", "requests.txt", "--conf", "{\"header\": 1}"]);
    assert_eq!((code, text.contains("--conf: ")), (Some(2), true), "{text}");
}

#[test]
fn a_plugin_is_checked_with_the_modules_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tenant.lua");
    let text = "local names = require('lib.names')
return { version = 1, priority = 1, name = 'tenant', schema = { type = 'object' },
  rewrite = function(conf, ctx) ngx.req.set_header(names.header, ctx.var.host) end }";
    std::fs::write(&file, text).expect("write a plugin");
    let check = || check(&[file.to_str().unwrap(), "--requests", "requests.txt"]);
    let (code, text) = check();
    assert_eq!((code, text.contains(":1: the module 'lib.names' is not supported")), (Some(2), true), "{text}");
    std::fs::create_dir(folder.path().join("lib")).expect("a folder");
    std::fs::write(folder.path().join("lib/names.lua"), "return { header = 'X-Tenant' }").expect("write a module");
    let (code, text) = check();
    assert_eq!((code, text.contains(": good (")), (Some(0), true), "{text}");
}

#[test]
fn nothing_is_proven_where_nothing_is_compiled() {
    let folder = tempfile::tempdir().expect("a folder");
    let function = folder.path().join("empty.lua");
    std::fs::write(&function, "return function() ngx.exit(204) end").expect("write a function");
    let function = function.to_str().unwrap();
    let (code, text) = check(&["missing.lua", "--requests", "requests.txt"]);
    assert_eq!((code, text.contains("cannot read missing.lua")), (Some(2), true), "{text}");
    let (code, text) = check(&[function, "--requests", "closure.lua"]);
    assert_eq!((code, text.contains("closure.lua:1: a method and a URL are needed")), (Some(2), true), "{text}");
    let (code, text) = check(&[function, "--requests", "requests.txt", "--conf", "{"]);
    assert_eq!((code, text.contains("--conf: ")), (Some(2), true), "{text}");
    std::fs::write(function, "return function() error('no') end").expect("write a function");
    let (code, text) = check(&[function, "--requests", "requests.txt"]);
    assert_eq!((code, text.contains(":1: no")), (Some(2), true), "{text}");
    // A function that is never called has no line that could be compiled.
    std::fs::write(function, "return setmetatable and print").expect("write a function");
    let (code, text) = check(&[function, "--requests", "requests.txt"]);
    assert_eq!((code, text.contains("not proven, as nothing of it was compiled")), (Some(3), true), "{text}");
}
