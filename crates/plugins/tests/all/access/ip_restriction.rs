//! `ip-restriction`.

use super::verdict;
use crate::harness::{plugins, refusal};
use expect_test::expect;

const GET: &str = "GET / HTTP/1.1\nHost: h.example";

fn check(keys: &str, client: &str, expected: &str) {
    let plugins = plugins(&format!("ip-restriction: {keys}")).expect("a good configuration").asked_by(client);
    assert_eq!(verdict(&plugins, GET), expected, "{keys} {client}");
}

const REFUSED: &str = r#"403 "{\"message\":\"Your IP address is not allowed\"}\n""#;

#[test]
fn a_whitelist_lets_in_what_is_in_it() {
    let keys = r#"{whitelist: [192.0.2.7, 10.0.0.0/8, "2001:db8::/32"]}"#;
    for client in ["192.0.2.7", "10.255.255.255", "2001:db8:ffff::1", "::ffff:10.0.0.1", "::ffff:c000:207"] {
        check(keys, client, "passes");
    }
    for client in ["192.0.2.8", "11.0.0.0", "9.255.255.255", "2001:db9::", "::1", "::a00:1", "64:ff9b::a00:1"] {
        check(keys, client, REFUSED);
    }
}

#[test]
fn a_blacklist_keeps_out_what_is_in_it() {
    let keys = r#"{blacklist: [192.0.2.0/30, "fe80::/10"]}"#;
    for client in ["192.0.2.0", "192.0.2.3", "::ffff:192.0.2.1", "fe80::1", "febf:ffff::"] {
        check(keys, client, REFUSED);
    }
    for client in ["192.0.2.4", "192.0.1.255", "fec0::", "::"] {
        check(keys, client, "passes");
    }
}

#[test]
fn a_network_is_its_prefix_whatever_its_other_bits_are() {
    check("{blacklist: [10.1.2.3/8]}", "10.9.9.9", REFUSED);
    check("{blacklist: [\"2001:db8::1/32\"]}", "2001:db8:9::9", REFUSED);
    check("{blacklist: [0.0.0.0/0]}", "255.255.255.255", REFUSED);
    check("{blacklist: [0.0.0.0/0]}", "::1", "passes");
    check("{blacklist: [\"::/0\"]}", "::1", REFUSED);
    // A network of mapped addresses is a network of IPv4.
    check("{blacklist: [\"::ffff:10.0.0.0/104\"]}", "10.0.0.1", REFUSED);
    check("{blacklist: [\"::ffff:10.0.0.1\"]}", "10.0.0.1", REFUSED);
}

#[test]
fn status_and_message_can_be_changed() {
    let keys = r#"{whitelist: [127.0.0.1], message: "no \"way\" /", response_code: 404}"#;
    check(keys, "192.0.2.7", r#"404 "{\"message\":\"no \\\"way\\\" /\"}\n""#);
}

#[test]
fn bad_configurations_are_refused() {
    let long = format!("ip-restriction: {{whitelist: [::1], message: {}}}", "m".repeat(1025));
    let all: String = [
        "ip-restriction: {}",
        "ip-restriction: {whitelist: [127.0.0.1], blacklist: [127.0.0.1]}",
        "ip-restriction: {whitelist: []}",
        "ip-restriction: {whitelist: [10.0.0.0/33]}",
        "ip-restriction: {whitelist: [\"fe80::1%eth0\"]}",
        "ip-restriction: {whitelist: [010.0.0.1]}",
        "ip-restriction: {whitelist: [a.example]}",
        "ip-restriction: {whitelist: [10.0.0.1-10.0.0.9]}",
        "ip-restriction: {blacklist: 10.0.0.1}",
        "ip-restriction: {blacklist: [10.0.0.1], response_code: 401}",
        "ip-restriction: {blacklist: [10.0.0.1], message: \"\"}",
        "ip-restriction: {blacklist: [10.0.0.1], allowlist: []}",
        &long,
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:17: ip-restriction: there is no list; add whitelist or blacklist
        1:17: ip-restriction: `whitelist` and `blacklist` cannot be combined; keep one of the two
        1:29: ip-restriction.whitelist: an empty list; name at least one, or remove the key
        1:30: ip-restriction.whitelist[0]: expected an IP address or network, found "10.0.0.0/33"; write it like "10.1.2.3", "10.0.0.0/8" or "fd00::/8"
        1:30: ip-restriction.whitelist[0]: expected an IP address or network, found "fe80::1%eth0"; write it like "10.1.2.3", "10.0.0.0/8" or "fd00::/8"
        1:30: ip-restriction.whitelist[0]: expected an IP address or network, found "010.0.0.1"; write it like "10.1.2.3", "10.0.0.0/8" or "fd00::/8"
        1:30: ip-restriction.whitelist[0]: expected an IP address or network, found "a.example"; write it like "10.1.2.3", "10.0.0.0/8" or "fd00::/8"
        1:30: ip-restriction.whitelist[0]: expected an IP address or network, found "10.0.0.1-10.0.0.9"; write it like "10.1.2.3", "10.0.0.0/8" or "fd00::/8"
        1:29: ip-restriction.blacklist: expected a list, found a text
        1:56: ip-restriction.response_code: expected a whole number from 403 to 404, found the number 401
        1:50: ip-restriction.message: a message has from 1 to 1024 characters
        1:41: ip-restriction.allowlist: unknown key "allowlist"; known keys: whitelist, blacklist, message, response_code
        1:45: ip-restriction.message: a message has from 1 to 1024 characters
    "#]].assert_eq(&all);
}
