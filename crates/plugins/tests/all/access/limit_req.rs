//! `limit-req`: admitted requests. Delays take no time here.

use super::verdict;
use crate::harness::{Plugins, plugins, refusal};
use expect_test::expect;
use std::sync::{Arc, OnceLock};
use stillgate_limits::Limits;
use stillgate_plugin_api::Worker;

fn limited(keys: &str, limits: &Arc<OnceLock<Arc<Limits>>>) -> Plugins {
    let mut plugins = plugins(&format!("limit-req: {keys}")).expect("a good configuration");
    plugins.worker = Worker::new(limits.clone());
    plugins.worker.set_now_ms(1_795_220_833_000);
    plugins
}

fn table() -> Arc<OnceLock<Arc<Limits>>> {
    Arc::new(OnceLock::from(Arc::new(Limits::create(64 << 10).unwrap())))
}

/// How many of so many requests at once pass.
fn passed(plugins: &Plugins, count: usize, lines: &str) -> usize {
    let request = format!("GET /?k=v HTTP/1.1\nHost: h.example\n{lines}");
    (0..count).filter(|_| verdict(plugins, request.trim_end()) == "passes").count()
}

fn later(plugins: &Plugins, ms: u64) {
    plugins.worker.set_now_ms(plugins.worker.now_ms() + ms);
}

#[test]
fn a_burst_passes_at_once_and_the_rate_from_then_on() {
    for nodelay in [false, true] {
        let plugins = limited(&format!("{{rate: 2, burst: 3, key: remote_addr, nodelay: {nodelay}}}"), &table());
        assert_eq!(passed(&plugins, 20, ""), 4);
        later(&plugins, 499);
        assert_eq!(passed(&plugins, 20, ""), 0);
        later(&plugins, 1);
        assert_eq!(passed(&plugins, 20, ""), 1);
        later(&plugins, 1500);
        assert_eq!(passed(&plugins, 20, ""), 3);
        // Through many epochs, after any pause.
        for _ in 0..100 {
            later(&plugins, 3000);
            assert_eq!(passed(&plugins, 20, ""), 4);
            later(&plugins, 250);
            assert_eq!(passed(&plugins, 20, ""), 0);
            later(&plugins, 250);
            assert_eq!(passed(&plugins, 20, ""), 1);
        }
    }
}

#[test]
fn each_key_has_a_bucket() {
    let plugins = limited("{rate: 1, burst: 0, key: http_x_user}", &table());
    for (lines, expected) in [("X-User: a", 1), ("X-User: b", 1), ("", 1), ("X-User: 192.0.2.7", 0), ("X-User: a", 0)] {
        assert_eq!(passed(&plugins, 3, lines), expected, "{lines}");
    }
    let plugins = limited("{rate: 1, burst: 0, key: $http_x_a $http_x_b, key_type: var_combination}", &table());
    for (lines, expected) in [("X-A: 1", 1), ("X-B: 1", 1), ("X-A: 1\nX-B: 1", 1), ("", 1), ("X-A: 1", 0), ("", 0)] {
        assert_eq!(passed(&plugins, 3, lines), expected, "{lines}");
    }
}

#[test]
fn the_same_configuration_has_the_same_buckets_and_another_has_others() {
    let table = table();
    let keys = "{rate: 1, burst: 1, key: remote_addr}";
    assert_eq!(passed(&limited(keys, &table), 5, ""), 2);
    assert_eq!(passed(&limited(keys, &table), 5, ""), 0, "read again");
    assert_eq!(passed(&limited("{rate: 1, burst: 2, key: remote_addr}", &table), 5, ""), 3);
}

#[test]
fn what_is_turned_away_is_answered() {
    let plugins = limited("{rate: 0.1, burst: 0, key: remote_addr, rejected_code: 429, rejected_msg: slow}", &table());
    let get = "GET / HTTP/1.1\nHost: h";
    assert_eq!(verdict(&plugins, get), "passes");
    assert_eq!(verdict(&plugins, get), r#"429 "{\"error_msg\":\"slow\"}\n""#);
    let plugins = limited("{rate: 0.1, burst: 0, key: remote_addr}", &table());
    assert_eq!(verdict(&plugins, get), "passes");
    assert!(verdict(&plugins, get).contains("503 Service Temporarily Unavailable"));
}

#[test]
fn without_a_table_nothing_passes_unless_it_may() {
    let get = "GET / HTTP/1.1\nHost: h";
    let keys = |more: &str| format!("{{rate: 1, burst: 1, key: remote_addr{more}}}");
    assert!(verdict(&limited(&keys(""), &Arc::default()), get).contains("500 Internal Server Error"));
    assert_eq!(verdict(&limited(&keys(", allow_degradation: true"), &Arc::default()), get), "passes");
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "limit-req: {}",
        "limit-req: {rate: 0, burst: 0, key: remote_addr}",
        "limit-req: {rate: 1e7, burst: -0.5, key: remote_addr}",
        "limit-req: {rate: 1, burst: 1, key: no_such_variable}",
        "limit-req: {rate: 1, burst: 1, key: $nothing, key_type: var_combination}",
        "limit-req: {rate: 1, burst: 1, key: remote_addr, key_type: constant}",
        "limit-req: {rate: 1, burst: 1, key: remote_addr, rejected_code: 199}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:12: limit-req: the key "rate" is missing; add it
        1:19: limit-req.rate: expected a number from 0.000001 to 1000000, found the number 0
        1:19: limit-req.rate: expected a number from 0.000001 to 1000000, found the number 1e7
        1:31: limit-req.burst: expected a number from 0 to 1000000, found the number -0.5
        1:37: limit-req.key: "no_such_variable": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        1:37: limit-req.key: "nothing": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        1:60: limit-req.key_type: expected var or var_combination, found the text "constant"
        1:65: limit-req.rejected_code: expected a whole number from 200 to 599, found the number 199
    "#]].assert_eq(&all);
}
