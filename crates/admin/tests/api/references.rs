//! References between resources: no kind of write leaves a dangling one.

use crate::client::Client;
use serde_json::{Value as Json, json};
use stillgate_admin::WriteError;

/// A document, and another one that names it.
fn cases() -> Vec<(&'static str, &'static str, Json)> {
    let split = |to: Json| json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [{ "weight": 1 }, to] }] } });
    let client_certificate = json!({ "tls": { "client_cert_id": "c" } });
    let several = json!({ "auth_plugins": [{ "key-auth": {} }, { "jwt-auth": { "anonymous_consumer": "jack" } }] });
    vec![
        ("upstreams/u", "routes/1", json!({ "upstream_id": "u" })),
        ("upstreams/7", "services/1", json!({ "upstream_id": 7 })),
        ("upstreams/u", "stream_routes/1", json!({ "upstream_id": "u" })),
        ("upstreams/u", "consumer_groups/1", json!({ "plugins": split(json!({ "upstream_id": "u" })) })),
        ("upstreams/u", "routes/1", json!({ "plugins": { "device-gateway": { "upstream_id": "u" } } })),
        ("services/s", "routes/1", json!({ "service_id": "s" })),
        ("services/s", "stream_routes/1", json!({ "service_id": "s" })),
        ("plugin_configs/p", "routes/1", json!({ "plugin_config_id": "p" })),
        ("consumer_groups/g", "consumers/rose", json!({ "username": "rose", "group_id": "g" })),
        ("stream_routes/t", "stream_routes/1", json!({ "protocol": { "superior_id": "t" } })),
        ("protos/7", "plugin_configs/1", json!({ "plugins": { "grpc-transcode": { "proto_id": 7 } } })),
        ("ssls/c", "upstreams/1", client_certificate.clone()),
        ("ssls/c", "routes/1", json!({ "upstream": client_certificate })),
        ("ssls/c", "services/1", json!({ "upstream": client_certificate })),
        ("ssls/c", "global_rules/1", json!({ "plugins": split(json!({ "upstream": client_certificate })) })),
        ("consumers/jack", "routes/1", json!({ "plugins": { "key-auth": { "anonymous_consumer": "jack" } } })),
        ("consumers/jack", "services/1", json!({ "plugins": { "hmac-auth": { "anonymous_consumer": "jack" } } })),
        ("consumers/jack", "plugin_configs/1", json!({ "plugins": { "multi-auth": several } })),
        ("secrets/vault/1", "routes/1", json!({ "plugins": { "csrf": { "key": "$secret://vault/1/a/b" } } })),
        ("secrets/vault/1", "ssls/1", json!({ "cert": "c", "key": "$SECRET://vault/1/a/key" })),
        (
            "secrets/vault/1",
            "consumers/rose/credentials/c",
            json!({ "plugins": { "key-auth": { "key": "$secret://vault/1/a/b" } } }),
        ),
    ]
}

fn stored(cases: &[(&str, &Json)]) -> Client {
    let client = Client::admin();
    cases.iter().for_each(|(key, document)| client.memory.put(key, document));
    client
}

fn document_of(key: &str) -> Json {
    match key.strip_prefix("consumers/") {
        Some(name) => json!({ "username": name }),
        None => json!({ "uri": "/x" }),
    }
}

#[tokio::test]
async fn what_is_named_is_not_deleted() {
    for (named, user, document) in cases() {
        let rose = json!({ "username": "rose" });
        let all = || stored(&[(named, &document_of(named)), ("consumers/rose", &rose), (user, &document)]);
        let path = format!("/apisix/admin/{named}");
        let batch = format!(r#"POST /v1/batch [{{"method": "DELETE", "path": "{path}"}}]"#);
        for line in [format!("DELETE {path}"), batch] {
            let client = all();
            let (status, answer) = client.ask(&line).await;
            assert!(status == 400 && answer.contains("is still using it"), "{line} beside {user}: {answer}");
            assert!(client.memory.get(named).is_some());
        }
        assert_eq!(all().ask(&format!("DELETE {path}?force=true")).await.0, 200);
        // Both can be deleted together.
        let both = format!(
            r#"POST /v1/batch [{{"method": "DELETE", "path": "/apisix/admin/{user}"}}, {{"method": "DELETE", "path": "{path}"}}]"#
        );
        assert_eq!(all().ask(&both).await.0, 200, "{both}");
        assert_eq!(stored(&[(named, &document_of(named))]).ask(&format!("DELETE {path}")).await.0, 200, "{path}");
    }
}

/// A replacement of everything omits a document that an unchanged one names.
#[tokio::test]
async fn a_replacement_of_everything_leaves_no_reference_to_nothing() {
    for (named, user, document) in cases() {
        let (Some((collection, _)), Some((users, _))) = (named.split_once('/'), user.split_once('/')) else { continue };
        if collection == users {
            continue;
        }
        let rose = json!({ "username": "rose" });
        let client = stored(&[(named, &document_of(named)), ("consumers/rose", &rose), (user, &document)]);
        let answer = client.ask("GET /apisix/admin/configs").await.1;
        let whole: Json = serde_json::from_str(answer.trim_start_matches("200 ")).unwrap();
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(collection);
        without.as_object_mut().unwrap().remove(&format!("{collection}_conf_version"));
        // The documents with the references stay unchanged.
        without[format!("{users}_conf_version")] = whole[format!("{users}_conf_version")].clone();
        for line in ["PUT /apisix/admin/configs | X-Digest: 1", "POST /apisix/admin/configs/validate"] {
            let (status, answer) = client.ask(&format!("{line} {without}")).await;
            assert!(status == 400 && answer.contains("is still using it"), "{line}: {named} of {user}: {answer}");
        }
        assert!(client.memory.get(named).is_some());
    }
    // A credential does not outlive its consumer.
    let client = stored(&[
        ("consumers/jack", &json!({ "username": "jack" })),
        ("consumers/jack/credentials/1", &json!({ "plugins": {} })),
    ]);
    let only =
        r#"PUT /apisix/admin/configs | X-Digest: 1 {"consumers": [{"id": "jack/credentials/1", "plugins": {}}]}"#;
    let (status, answer) = client.ask(only).await;
    assert!(status == 400 && answer.contains("consumer not found"), "{answer}");
}

#[tokio::test]
async fn what_is_named_has_to_be_there() {
    for (key, document, words) in [
        ("upstreams/1", json!({ "nodes": {}, "tls": { "client_cert_id": "c" } }), "ssl info by ssl id [c]"),
        ("routes/1", json!({ "uri": "/", "upstream": { "tls": { "client_cert_id": 7 } } }), "ssl id [7]"),
        (
            "routes/1",
            json!({ "uri": "/", "plugins": { "key-auth": { "anonymous_consumer": "no" } } }),
            "consumer info by consumer id [no]",
        ),
    ] {
        let (collection, id) = key.split_once('/').unwrap();
        let put = format!("PUT /apisix/admin/{key} {document}");
        let batch =
            format!(r#"POST /v1/batch [{{"method": "PUT", "path": "/apisix/admin/{key}", "body": {document}}}]"#);
        let mut item = document.clone();
        item["id"] = id.into();
        let whole = format!("PUT /apisix/admin/configs | X-Digest: 1 {}", json!({ collection: [item] }));
        let dry = format!("PUT /apisix/admin/{key}?dry_run=true {document}");
        for line in [put, batch, whole, dry] {
            let (status, answer) = Client::admin().ask(&line).await;
            assert!(status == 400 && answer.contains(words), "{line}: {answer}");
        }
    }
}

/// Each is refused by PUT, and so by the validation of the same body.
#[tokio::test]
async fn a_validation_finds_what_a_replacement_would() {
    let client = Client::admin();
    client.memory.put("upstreams/old", &json!({ "nodes": {} }));
    for body in [
        json!({ "routes": [{ "id": "1", "uri": "/", "upstream_id": "no" }] }),
        json!({ "routes": [{ "id": "1", "uri": "/", "upstream_id": "old" }] }),
        json!({ "consumers": [{ "username": "jack", "group_id": "no" }] }),
        json!({ "services": [{ "id": "1", "upstream": { "tls": { "client_cert_id": "no" } } }] }),
        json!({ "upstreams": [], "upstreams_conf_version": 1 }),
        json!({ "upstreams": null }),
        json!({ "upstreams_conf_version": null }),
        json!({ "routes": {} }),
        json!({ "routes": "x" }),
    ] {
        for line in ["PUT /apisix/admin/configs | X-Digest: 1", "POST /apisix/admin/configs/validate"] {
            let (status, answer) = client.ask(&format!("{line} {body}")).await;
            assert_eq!(status, 400, "{line} {body}: {answer}");
            assert!(!line.contains("validate") || answer.contains("\"errors\":[{"), "{answer}");
        }
        assert!(client.memory.get("upstreams/old").is_some(), "{body}");
    }
    // APISIX validates items without an id.
    for body in [json!({ "routes": [{ "uri": "/" }, { "uri": "/b" }] }), json!({})] {
        let (status, answer) = client.ask(&format!("POST /apisix/admin/configs/validate {body}")).await;
        assert_eq!(status, 200, "{answer}");
    }
    // Both find the errors that show when the whole is tried.
    *client.memory.refusal.lock().unwrap() = Some(WriteError::Invalid("the whole is wrong".to_owned()));
    let body = r#"{"routes": [{"id": "1", "uri": "/"}]}"#;
    let (status, answer) = client.ask(&format!("POST /apisix/admin/configs/validate {body}")).await;
    assert!(status == 400 && answer.contains("the whole is wrong"), "{answer}");
    assert!(client.memory.get("routes/1").is_none(), "nothing is written");
}
