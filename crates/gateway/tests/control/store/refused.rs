//! Resources that APISIX accepts and we refuse: each by the API, with its reason. The reasons are in
//! docs/differences-from-apisix.md.

use super::stage::Stage;
use serde_json::{Value as Json, json};

/// A resource, its content, and words of the reason.
struct RefusedResource(&'static str, Json, &'static [&'static str]);

/// A route with one plugin.
fn with(plugin: &str, conf: Json) -> Json {
    json!({ "uri": "/1", "upstream": { "nodes": { "127.0.0.1:9": 1 } }, "plugins": { plugin: conf } })
}

/// A route with one more key.
fn route(key: &str, value: Json) -> Json {
    let mut route = json!({ "uri": "/1", "upstream": { "nodes": { "127.0.0.1:9": 1 } } });
    route[key] = value;
    route
}

fn upstream(key: &str, value: Json) -> Json {
    let mut upstream = json!({ "nodes": { "127.0.0.1:9": 1 } });
    upstream[key] = value;
    upstream
}

/// Missing features.
fn missing() -> Vec<RefusedResource> {
    let counts = json!({ "count": 1, "time_window": 1, "policy": "redis", "redis_host": "127.0.0.1" });
    let conns = json!({ "conn": 1, "burst": 0, "default_conn_delay": 1, "key": "remote_addr", "policy": "redis" });
    vec![
        RefusedResource("routes/1", route("script", json!("return 1")), &["script"]),
        RefusedResource("routes/1", with("ext-plugin-pre-req", json!({})), &["ext-plugin-pre-req"]),
        RefusedResource(
            "routes/1",
            with("grpc-transcode", json!({ "proto_id": "1", "service": "s", "method": "m" })),
            &["grpc-transcode"],
        ),
        RefusedResource("routes/1", with("no-such-plugin", json!({})), &["no-such-plugin"]),
        RefusedResource("routes/1", with("limit-count", counts), &["policy", "local"]),
        RefusedResource("routes/1", with("limit-conn", conns), &["policy", "local"]),
        RefusedResource("upstreams/1", json!({ "service_name": "a", "discovery_type": "dns" }), &["discovery_type"]),
    ]
}

/// Settings that would have another effect than is meant, or none.
fn unsafe_ones() -> Vec<RefusedResource> {
    vec![
        RefusedResource("routes/1", route("vars", json!([["no_such_variable", "==", "1"]])), &["no_such_variable"]),
        RefusedResource("routes/1", route("vars", json!([["graphql_name", "==", "a"]])), &["graphql_name"]),
        RefusedResource("routes/1", route("vars", json!([["post_arg_a", "==", "1"]])), &["post_arg_a"]),
        RefusedResource("routes/1", route("uri", json!("/a/*/b/**")), &["'*'"]),
        RefusedResource("routes/1", route("remote_addrs", json!(["10.0.0.0/33"])), &["10.0.0.0/33"]),
        RefusedResource("routes/1", with("csrf", json!({ "key": "" })), &["key"]),
        RefusedResource(
            "routes/1",
            with("response-rewrite", json!({ "headers": { "set": { "X-A": "a\r\nX-B: b" } } })),
            &["X-A"],
        ),
        RefusedResource("routes/1", with("proxy-rewrite", json!({ "uri": "/a?b=\u{0}" })), &["uri"]),
        RefusedResource("routes/1", with("key-auth", json!({ "hide_credentials": "yes" })), &["hide_credentials"]),
        RefusedResource("routes/1", with("key-auth", json!({ "header": "$secret://vault/none/a" })), &["vault/none"]),
        RefusedResource(
            "consumers/j",
            json!({ "username": "j", "plugins": { "jwt-auth": { "key": "k", "algorithm": "HS384" } } }),
            &["secret"],
        ),
        RefusedResource(
            "consumers/j",
            json!({ "username": "j", "plugins": { "key-auth": { "key": "$env://NO_SUCH_VARIABLE" } } }),
            &["NO_SUCH_VARIABLE"],
        ),
        RefusedResource("upstreams/1", upstream("nodes", json!({ "127.0.0.1:70000": 1 })), &["70000"]),
        RefusedResource(
            "upstreams/1",
            upstream("timeout", json!({ "connect": 0, "send": 1, "read": 1 })),
            &["timeout", "connect"],
        ),
    ]
}

#[test]
fn what_apisix_accepts_and_we_refuse_has_its_reason() {
    let stage = Stage::start();
    let mut wrong = Vec::new();
    for RefusedResource(resource, document, words) in missing().into_iter().chain(unsafe_ones()) {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/{resource}"), &document.to_string());
        let reason = answer.json()["error_msg"].as_str().unwrap_or_default().to_owned();
        if answer.status != 400 || !words.iter().all(|word| reason.contains(word)) {
            wrong.push(format!("{resource} {document}: {} {reason:?}", answer.status));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(stage.admin.revision(), 0, "nothing was stored");
}
