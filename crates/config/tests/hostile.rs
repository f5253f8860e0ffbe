//! Input that is wrong, or meant to do harm: each is refused quickly, with a message that says where and why.
//!
//! `UPDATE_EXPECT=1 cargo test` rewrites what is expected; read the difference.

#![allow(clippy::unwrap_used)]

use expect_test::{Expect, expect};
use std::time::{Duration, Instant};
use stillgate_config::load;

/// Far above what any of the inputs needs, far below what an exponential one would take.
const PATIENCE: Duration = Duration::from_secs(10);

#[track_caller]
fn check(text: impl AsRef<[u8]>, want: Expect) {
    let environment = |name: &str| match name {
        "HUGE" => Some("x".repeat(60_000)),
        _ => None,
    };
    let start = Instant::now();
    let errors = load(text, &environment).expect_err("this must be refused").to_string();
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    for line in errors.lines() {
        assert!(line.len() < 2000, "a message of {} bytes", line.len());
    }
    want.assert_eq(&errors);
}

/// Nine levels of ten aliases each: 10^9 scalars.
fn billion_laughs() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    text
}

/// Each list holds the one before: as deep as there are lines.
fn nested_aliases() -> String {
    let mut text = "a0: &a0 []\n".to_owned();
    for level in 1..10_000 {
        text += &format!("a{level}: &a{level} [*a{}]\n", level - 1);
    }
    text
}

#[test]
fn not_yaml() {
    check("routes: [\n", expect![[]]);
    check("routes: {a: b\n", expect![[]]);
    check("routes:\n\t- uri: /a\n", expect![[]]);
    check("routes: \"unclosed\n", expect![[]]);
    check("a: b: c\n", expect![[]]);
    check("- a\nb: c\n", expect![[]]);
    check("routes: []\n  bad: indent\n", expect![[]]);
    check("@routes: []\n", expect![[]]);
    check("routes: *nowhere\n", expect![[]]);
    check("routes: !!bad!tag []\n", expect![[]]);
    check("%YAML 9.9\n---\nroutes: []\n", expect![[]]);
    check("routes: []]\n", expect![[]]);
    check("routes: \"\\q\"\n", expect![[]]);
    check("a\0b: c\n", expect![[]]);
}

#[test]
fn not_text() {
    check(b"routes: \xff\n", expect![[]]);
    check(b"routes: []\n# caf\xe9 \n", expect![[]]);
    check(b"\xff\xfer\0o\0u\0", expect![[]]);
    check(b"routes:\n- uri: \xc3\xa9\xc3\n", expect![[]]);
}

#[test]
fn nothing_in_it() {
    check("", expect![[]]);
    check("\n\n", expect![[]]);
    check("# only a comment\n#END\n", expect![[]]);
    check("---\n", expect![[]]);
    check("~\n", expect![[]]);
    check("\u{feff}", expect![[]]);
    check("[]\n", expect![[]]);
    check("text\n", expect![[]]);
    check("42\n", expect![[]]);
    check("- uri: /a\n", expect![[]]);
}

#[test]
fn documents_tags_and_merge_keys() {
    check("---\nroutes: []\n---\nroutes: []\n", expect![[]]);
    check("routes: []\n...\n---\n{}\n", expect![[]]);
    check("routes: !!seq []\n", expect![[]]);
    check("routes: !include other.yaml\n", expect![[]]);
    check("gateway: {workers: !!int \"4\"}\n", expect![[]]);
    check("gateway: {log: &l {level: info}}\nroutes:\n- <<: *l\n  uri: /a\n", expect![[]]);
    check("? [a, b]\n: c\n", expect![[]]);
    check("? {a: b}\n: c\n", expect![[]]);
    check("~: a\n", expect![[]]);
    check("1: a\n", expect![[]]);
    check("true: a\n", expect![[]]);
}

#[test]
fn duplicate_keys() {
    check("routes: []\nroutes: []\n", expect![[]]);
    check("gateway: {workers: 1, workers: 2}\n", expect![[]]);
    check("routes: []\n\"routes\": []\n", expect![[]]);
    check("upstreams: [{id: a, nodes: {\"a:1\": 1, \"a:1\": 2}}]\n", expect![[]]);
    check("upstreams: [{id: a, nodes: {a: 1, \"a:80\": 2}}]\n", expect![[]]);
    check("gateway:\n  limits: {}\n  log: {}\n  limits: {headers: 5, headers: 6}\n", expect![[]]);
}

#[test]
fn aliases() {
    check("a: &a [*a]\n", expect![[]]);
    check("a: &a {b: *a}\n", expect![[]]);
    check(&billion_laughs(), expect![[]]);
    check(&nested_aliases(), expect![[]]);
    check("upstreams: [{id: &x a, nodes: {}}]\nroutes: [{uri: /a, upstream_id: *x, host: *x, methods: *x}]\n", expect![[]]);
}

#[test]
fn too_much() {
    check(&"[".repeat(1_000_000), expect![[]]);
    check(&format!("a: {}{}", "[".repeat(100), "]".repeat(100)), expect![[]]);
    check(&"- ".repeat(200), expect![[]]);
    check(&"a:\n".repeat(1), expect![[]]);
    check(&(0..100).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>(), expect![[]]);
    check(&format!("routes: {}\n", "x".repeat(1 << 20)), expect![[]]);
    check(&format!("{}: 1\n", "k".repeat(1 << 20)), expect![[]]);
    check(&format!("{}: 1\n", "k".repeat(1000)), expect![[]]);
    check(&format!("routes: \"{}\"\n", "${HUGE}".repeat(10)), expect![[]]);
    check(&"{".repeat(5000), expect![[]]);
    check(&"? ".repeat(5000), expect![[]]);
    check(&"&a ".repeat(1000), expect![[]]);
    check(&format!("gateway: {}\n", "-".repeat(60_000)), expect![[]]);
    check(&(0..250).map(|i| format!("k{i}: 1\n")).collect::<String>(), expect![[]]);
}

#[test]
fn numbers() {
    check("gateway: {workers: 99999999999999999999}\n", expect![[]]);
    check("gateway: {workers: .nan}\n", expect![[]]);
    check("gateway: {workers: -1}\n", expect![[]]);
    check("gateway: {workers: 1.0}\n", expect![[]]);
    check("gateway: {workers: 257}\n", expect![[]]);
    check("gateway: {workers: \"4\"}\n", expect![[]]);
    check("gateway: {workers: Auto}\n", expect![[]]);
    check("gateway: {timeouts: {head: .inf}}\n", expect![[]]);
    check("gateway: {timeouts: {head: 1e400}}\n", expect![[]]);
    check("gateway: {timeouts: {head: .5s}}\n", expect![[]]);
    check("gateway: {timeouts: {head: 5.s}}\n", expect![[]]);
    check("gateway: {timeouts: {head: 1.2.3s}}\n", expect![[]]);
    check("gateway: {timeouts: {head: 0x10s}}\n", expect![[]]);
    check("gateway: {timeouts: {head: -5s}}\n", expect![[]]);
    check("gateway: {timeouts: {head: 99999999999999999999h}}\n", expect![[]]);
    check("gateway: {timeouts: {head: 1M}}\n", expect![[]]);
    check("gateway: {limits: {head_bytes: 16kib}}\n", expect![[]]);
    check("gateway: {limits: {head_bytes: 16 KiB}}\n", expect![[]]);
    check("gateway: {limits: {head_bytes: 1.00001KiB}}\n", expect![[]]);
    check("gateway: {limits: {head_bytes: [16KiB]}}\n", expect![[]]);
    check("gateway: {limits: {head_bytes: }}\n", expect![[]]);
}

#[test]
fn positions() {
    check("gateway:\r\n  workers: x\r\n  server_header: y\r\n", expect![[]]);
    check("\u{feff}gateway: {workers: x}\n", expect![[]]);
    check("# ünï¢öde ☃\ngateway: {\"😀\": 1, workers: x}\n", expect![[]]);
    check("gateway:\n  workers:\n    x\n", expect![[]]);
    check("gateway:\n  workers: |\n    4\n", expect![[]]);
    check("gateway:\n  log:\n    level:\n  access_log:\n    path:\n", expect![[]]);
}
