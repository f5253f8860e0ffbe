//! What receivers of logs and spans get of a request whose key is hidden: they are not nodes, and do not need it.

use crate::auth::consumers::consumers;
use crate::harness::{OK, plugins};
use expect_test::{Expect, expect};

const METADATA: &str = "collector: {address: \"127.0.0.1:1\"}";

/// The entries of a request for a target, one a line.
fn entries(config: &str, target: &str) -> String {
    let known = consumers(&[("jack", &[], "key-auth: {key: sesame}")]);
    let (plugins, sent) = plugins(config).expect("a good configuration").with_consumers(known).recording();
    let plugins = plugins.with_metadata("opentelemetry", METADATA).expect("a collector");
    let outcome = plugins.run(&format!("GET {target} HTTP/1.1\nHost: h\n\n"), OK);
    assert!(outcome.contains("X-Consumer-Username: jack"), "{outcome}");
    sent.take().join("\n")
}

#[test]
fn a_hidden_key_is_in_no_entry_and_in_no_span() {
    let receivers = [
        "http-logger: {uri: \"http://a\"}",
        "opentelemetry: {sampler: {name: always_on}}",
        "zipkin: {endpoint: \"http://a\", sample_ratio: 1}",
    ];
    for receiver in receivers {
        let sent = entries(&format!("key-auth: {{hide_credentials: true}}\n{receiver}"), "/a?x=1&apikey=sesame&y=2");
        assert!(sent.contains("/a?x=1&y=2") && !sent.contains("sesame"), "{sent}");
        // Without `hide_credentials` all of them get what the client has sent.
        let sent = entries(&format!("key-auth: {{}}\n{receiver}"), "/a?x=1&apikey=sesame&y=2");
        assert!(sent.contains("/a?x=1&apikey=sesame&y=2"), "{sent}");
    }
}

/// `$request_uri` is what the client has sent, as in nginx; the others follow changes of the query, as in APISIX.
#[test]
fn variables_of_entries_are_those_of_the_request() {
    let format = "http-logger: {uri: \"http://a\", log_format: {a: $args, k: $arg_apikey, x: $arg_x, i: $is_args, u: $request_uri}}";
    let check = |target: &str, expected: Expect| {
        expected.assert_eq(&(entries(&format!("key-auth: {{hide_credentials: true}}\n{format}"), target) + "\n"));
    };
    check(
        "/a?x=1&apikey=sesame",
        expect![[r#"
            {"a":"x=1","x":"1","i":"?","u":"/a?x=1&apikey=sesame","route_id":"no-matched"}
        "#]],
    );
    check(
        "/a?apikey=sesame",
        expect![[r#"
            {"a":"","i":"","u":"/a?apikey=sesame","route_id":"no-matched"}
        "#]],
    );
}

#[test]
fn the_target_of_an_entry_is_the_clients_also_behind_a_rewrite() {
    let config = "key-auth: {hide_credentials: true}\nproxy-rewrite: {uri: /new}\nhttp-logger: {uri: \"http://a\"}";
    let sent = entries(config, "/a?apikey=sesame&x=1");
    expect![[r#"
        {"request":{"url":"http://h.example:40000/a?x=1","uri":"/a?x=1","method":"GET","headers":{"host":"h","x-consumer-username":"jack"},"querystring":{"x":"1"}
    "#]]
    .assert_eq(&(sent[..sent.find(",\"size\"").expect("a size")].to_owned() + "\n"));
}
