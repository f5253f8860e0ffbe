//! `real-ip`, observed through `ip-restriction` after it.

use super::verdict;
use crate::harness::{plugins, refusal};
use expect_test::expect;

/// Whether the request counts as one from 10.9.8.7.
fn is_named(keys: &str, client: &str, fields: &str) -> bool {
    let yaml = format!("{{real-ip: {keys}, ip-restriction: {{whitelist: [10.9.8.7]}}}}");
    let plugins = plugins(&yaml).expect("a good configuration").asked_by(client);
    verdict(&plugins, format!("GET /?realip=10.9.8.7:99 HTTP/1.1\nHost: h.example\n{fields}").trim_end()) == "passes"
}

#[test]
fn an_address_is_taken_from_where_it_is_said_to_be() {
    for (keys, fields) in [
        ("{source: arg_realip}", ""),
        ("{source: http_x_real_ip}", "X-Real-IP: 10.9.8.7"),
        ("{source: http_x_real_ip}", "X-Real-IP: ::ffff:10.9.8.7"),
        ("{source: http_x_real_ip}", "X-Real-IP: [::ffff:10.9.8.7]:80"),
        ("{source: http_x_forwarded_for}", "X-Forwarded-For: 1.1.1.1\nX-Forwarded-For: 2.2.2.2, 10.9.8.7"),
        (
            "{source: http_x_forwarded_for, trusted_addresses: [192.0.2.0/24], recursive: true}",
            "X-Forwarded-For: 1.1.1.1, 10.9.8.7, 192.0.2.9",
        ),
    ] {
        assert!(is_named(keys, "192.0.2.7", fields), "{keys} {fields}");
    }
}

#[test]
fn what_is_not_an_address_changes_nothing() {
    for (keys, fields) in [
        ("{source: http_x_real_ip}", ""),
        ("{source: http_x_real_ip}", "X-Real-IP: x"),
        ("{source: http_x_real_ip}", "X-Real-IP: 10.9.8.7:0"),
        ("{source: http_x_real_ip}", "X-Real-IP: 10.9.8.7:99999"),
        ("{source: http_x_real_ip}", "X-Real-IP: 10.9.8.7, 1.1.1.1"),
        ("{source: http_x_forwarded_for}", "X-Forwarded-For: 10.9.8.7, unknown"),
        ("{source: http_x_forwarded_for}", "X-Forwarded-For: 10.9.8.7, 1.1.1.1"),
        (
            "{source: http_x_forwarded_for, trusted_addresses: [10.0.0.0/8, 192.0.2.0/24], recursive: true}",
            "X-Forwarded-For: unknown, 10.9.8.7",
        ),
    ] {
        assert!(is_named(keys, "10.9.8.7", fields) || fields.contains("1.1.1.1"), "{keys} {fields}");
        assert!(!is_named(keys, "192.0.2.7", fields), "{keys} {fields}");
    }
}

#[test]
fn those_who_are_not_trusted_are_not_believed() {
    let keys = "{source: http_x_real_ip, trusted_addresses: [127.0.0.0/8, \"::1\"]}";
    for (client, expected) in [("127.0.0.9", true), ("::1", true), ("192.0.2.7", false), ("::2", false)] {
        assert_eq!(is_named(keys, client, "X-Real-IP: 10.9.8.7"), expected, "{client}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "real-ip: {}",
        "real-ip: {source: ''}",
        "real-ip: {source: no_such}",
        "real-ip: {source: uri, trusted_addresses: [x]}",
    ]
    .into_iter()
    .map(refusal)
    .collect();
    expect![[r#"
        1:10: real-ip: the key "source" is missing; add it
        1:19: real-ip.source: an empty name
        accepted
        1:44: real-ip.trusted_addresses[0]: expected an IP address or network, found "x"; write it like "10.1.2.3", "10.0.0.0/8" or "fd00::/8"
    "#]].assert_eq(&all);
}
