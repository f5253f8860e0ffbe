//! `referer-restriction`.

use super::outcome;
use crate::harness::refusal;
use expect_test::expect;

fn check(keys: &str, lines: &str, expected: &str) {
    let request = format!("GET / HTTP/1.1\nHost: h.example\n{lines}");
    assert_eq!(outcome(&format!("referer-restriction: {keys}"), request.trim_end()), expected, "{keys} {lines}");
}

const REFUSED: &str = r#"403 "{\"message\":\"Your referer host is not allowed\"}\n""#;

#[test]
fn a_whitelist_lets_in_pages_of_its_hosts() {
    let keys = "{whitelist: [a.example, \"*.b.example\"]}";
    for referer in ["http://a.example/", "https://A.EXAMPLE:8443/x?y", "//x.b.example", "http://x.y.b.example?z"] {
        check(keys, &format!("Referer: {referer}"), "passes");
    }
    let bad = ["http://b.example/", "http://xa.example/", "http://a.example.evil.example/", "a.example", "", "\u{ff}"];
    for referer in bad {
        check(keys, &format!("Referer: {referer}"), REFUSED);
    }
    check(keys, "", REFUSED);
    // The first of several lines counts.
    check(keys, "Referer: http://a.example/\nReferer: http://evil.example/", "passes");
    check(keys, "Referer: http://evil.example/\nReferer: http://a.example/", REFUSED);
}

#[test]
fn a_blacklist_keeps_out_pages_of_its_hosts() {
    let keys = "{blacklist: [Evil.example, \"*.evil.example\"], message: no}";
    for referer in [
        "http://evil.example/",
        "http://EVIL.example/",
        "http://x.evil.EXAMPLE/",
        "HTTP://evil.example/",
        "https://evil.example./a",
        "http://shop.example@evil.example/",
        "http://u:p@x.evil.example:8080/?q",
        "http://evil.example\\@shop.example/",
        "http:\\\\evil.example",
        "http://%65vil.example/",
    ] {
        check(keys, &format!("Referer: {referer}"), r#"403 "{\"message\":\"no\"}\n""#);
    }
    for referer in ["http://notevil.example/", "http://a.example/?http://evil.example/"] {
        check(keys, &format!("Referer: {referer}"), "passes");
    }
}

#[test]
fn what_has_no_referer_can_be_let_in() {
    for (list, bypass, expected) in [
        ("whitelist", "true", "passes"),
        ("whitelist", "false", REFUSED),
        ("blacklist", "true", "passes"),
        ("blacklist", "false", REFUSED),
    ] {
        let keys = format!("{{{list}: [a.example], bypass_missing: {bypass}}}");
        for lines in ["", "Referer: about:client", "Referer: http://b example/"] {
            check(&keys, lines, expected);
        }
    }
}

/// An invalid port makes the field invalid, which `bypass_missing` admits, but does not hide a host.
#[test]
fn a_port_hides_no_host() {
    for port in ["x", "80x", "80:90", "80:b.example"] {
        let line = format!("Referer: http://bad.example:{port}/");
        for (keys, expected) in [
            ("{blacklist: [bad.example], bypass_missing: true}", REFUSED),
            ("{blacklist: [other.example], bypass_missing: true}", "passes"),
            ("{blacklist: [other.example]}", REFUSED),
            ("{whitelist: [other.example], bypass_missing: true}", REFUSED),
            ("{whitelist: [bad.example], bypass_missing: true}", "passes"),
            ("{whitelist: [bad.example]}", REFUSED),
        ] {
            check(keys, &line, expected);
        }
    }
}

#[test]
fn a_dot_at_the_end_of_a_listed_host_does_not_count() {
    check("{blacklist: [Evil.example.]}", "Referer: http://evil.example/", REFUSED);
    check("{whitelist: [\"*.b.example.\"]}", "Referer: http://a.b.example./", "passes");
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "referer-restriction: {}",
        "referer-restriction: {bypass_missing: true}",
        "referer-restriction: {whitelist: [a.example], blacklist: [b.example]}",
        "referer-restriction: {whitelist: []}",
        "referer-restriction: {whitelist: [\"*\"]}",
        "referer-restriction: {whitelist: [\"a.*.example\"]}",
        "referer-restriction: {whitelist: [\"http://a.example\"]}",
        "referer-restriction: {whitelist: [a.example], bypass_missing: 1}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:22: referer-restriction: there is no list; add whitelist or blacklist
        1:22: referer-restriction: there is no list; add whitelist or blacklist
        1:22: referer-restriction: `whitelist` and `blacklist` cannot be combined; keep one of the two
        1:34: referer-restriction.whitelist: an empty list; name at least one, or remove the key
        1:35: referer-restriction.whitelist[0]: "*" is not a host name; write it like "a.example", or like "*.example" for all names with that suffix
        1:35: referer-restriction.whitelist[0]: "a.*.example" is not a host name; write it like "a.example", or like "*.example" for all names with that suffix
        1:35: referer-restriction.whitelist[0]: "http://a.example" is not a host name; write it like "a.example", or like "*.example" for all names with that suffix
        1:63: referer-restriction.bypass_missing: expected true or false, found the number 1
    "#]].assert_eq(&all);
}
