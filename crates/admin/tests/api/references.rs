//! References between resources: no kind of write leaves a dangling one.

use crate::client::Client;
use serde_json::{Value as Json, json};
use std::sync::atomic::Ordering::Relaxed;
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

/// A batch of many writes, of which each has a check of its own, is checked for the state after all of them.
#[tokio::test]
async fn many_writes_are_checked_together() {
    const MANY: usize = 300;
    let client = Client::admin();
    client.memory.writes_max.store(1000, Relaxed);
    let put =
        |path: String, body: Json| json!({ "method": "PUT", "path": format!("/apisix/admin/{path}"), "body": body });
    let delete = |path: String| json!({ "method": "DELETE", "path": format!("/apisix/admin/{path}") });
    let consumer = |name: String, key: usize| {
        put(
            format!("consumers/{name}"),
            json!({ "username": name, "plugins": { "key-auth": { "key": format!("key-{key}") } } }),
        )
    };
    let route = |id: usize, upstream: usize| {
        put(format!("routes/{id}"), json!({ "uri": format!("/{id}"), "upstream_id": format!("u{upstream}") }))
    };
    let upstream = |id: usize| put(format!("upstreams/u{id}"), json!({ "nodes": {} }));
    let ask = async |operations: &[Json]| client.ask(&format!("POST /v1/batch {}", json!(operations))).await;

    // Routes come before their upstreams here.
    let mut all: Vec<Json> = (0..MANY).map(|id| route(id, id)).collect();
    all.extend((0..MANY).map(upstream));
    all.extend((0..MANY).map(|id| consumer(format!("c{id}"), id)));
    let (status, answer) = ask(&all).await;
    assert_eq!(status, 200, "{answer}");

    // Swapped keys and renamed consumers are not duplicates.
    let mut moved = vec![consumer("c0".to_owned(), 1), consumer("c1".to_owned(), 0)];
    moved.extend((2..MANY).flat_map(|id| [delete(format!("consumers/c{id}")), consumer(format!("d{id}"), id)]));
    let (status, answer) = ask(&moved).await;
    assert_eq!(status, 200, "{answer}");
    let mut taken = vec![consumer("c0".to_owned(), 0)];
    taken.extend((1000..1000 + MANY).map(|id| consumer(format!("e{id}"), id)));
    let (status, answer) = ask(&taken).await;
    assert!(status == 400 && answer.contains("operation 0: duplicate key found with consumer: c1"), "{answer}");
    let twice: Vec<Json> = (0..2).map(|id| consumer(format!("f{id}"), 5000)).collect();
    let (status, answer) = ask(&twice).await;
    assert!(status == 400 && answer.contains("operation 1: duplicate key found with consumer: f0"), "{answer}");

    // What a route that stays names is not deleted; the operation is named.
    let gone: Vec<Json> = (0..MANY).rev().map(|id| delete(format!("upstreams/u{id}"))).collect();
    let mut all_but_one: Vec<Json> = (1..MANY).map(|id| delete(format!("routes/{id}"))).collect();
    all_but_one.extend(gone.clone());
    let (status, answer) = ask(&all_but_one).await;
    let operation = all_but_one.len() - 1;
    assert!(status == 400 && answer.contains("is still using it"), "{answer}");
    assert!(answer.contains(&format!("\"operation\":{operation}}}")), "{answer}");
    assert!(client.memory.get("routes/7").is_some(), "nothing is made");
    // By force it is, also for a route of the same batch.
    let mut forced = vec![route(0, 0)];
    forced.extend(gone.iter().map(|operation| {
        let path = operation["path"].as_str().unwrap();
        json!({ "method": "DELETE", "path": format!("{path}?force=true") })
    }));
    let (status, answer) = ask(&forced).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = ask(&[route(1, 1)]).await;
    assert!(
        status == 400 && answer.contains("operation 0: failed to fetch upstream info by upstream id [u1]"),
        "{answer}"
    );
}

/// Each gets an id of its own, and ids that others have are left out, in time that grows with their number.
#[tokio::test]
async fn many_posts_get_ids_of_their_own() {
    const MANY: usize = 5_000;
    let client = Client::admin();
    client.memory.writes_max.store(MANY, Relaxed);
    client.memory.put(&format!("routes/{:020}", 15), &json!({ "uri": "/" }));
    let post =
        |id: usize| json!({ "method": "POST", "path": "/apisix/admin/routes", "body": { "uri": format!("/{id}") } });
    let all: Vec<Json> = (0..MANY).map(post).collect();
    let (status, answer) = client.ask(&format!("POST /v1/batch {}", json!(all))).await;
    assert_eq!(status, 200, "{}", &answer[..200]);
    assert_eq!(client.memory.get(&format!("routes/{:020}", 15)).unwrap()["uri"], "/");
    let last = client.memory.get(&format!("routes/{:020}", 12 + MANY)).unwrap();
    assert_eq!(last["uri"], format!("/{}", MANY - 1));
}

/// Another client's write between check and commit is noticed, however many writes a batch has.
#[tokio::test]
async fn many_writes_notice_another_write() {
    let client = Client::admin();
    client.memory.writes_max.store(1000, Relaxed);
    for id in 0..40 {
        client.memory.put(&format!("upstreams/u{id}"), &json!({ "nodes": {} }));
        client.memory.put(&format!("consumers/c{id}"), &json!({ "username": format!("c{id}") }));
    }
    let delete = |path: String| json!({ "method": "DELETE", "path": format!("/apisix/admin/{path}") });
    let upstreams: Vec<Json> = (0..40).map(|id| delete(format!("upstreams/u{id}"))).collect();
    *client.memory.overtaking.lock().unwrap() = Some(("routes/1", json!({ "uri": "/", "upstream_id": "u39" })));
    let (status, answer) = client.ask(&format!("POST /v1/batch {}", json!(upstreams))).await;
    assert!(status == 400 && answer.contains("operation 39") && answer.contains("is still using it"), "{answer}");
    // A credential goes with its consumer.
    let consumers: Vec<Json> = (0..40).map(|id| delete(format!("consumers/c{id}"))).collect();
    *client.memory.overtaking.lock().unwrap() = Some(("consumers/c39/credentials/late", json!({ "plugins": {} })));
    let (status, answer) = client.ask(&format!("POST /v1/batch {}", json!(consumers))).await;
    assert_eq!(status, 200, "{answer}");
    assert!(client.memory.get("consumers/c39/credentials/late").is_none());
}

/// A document can refer to itself if it was there before.
#[tokio::test]
async fn a_new_document_cannot_refer_to_itself() {
    let body = r#"{"protocol": {"name": "x", "superior_id": "1"}}"#;
    let client = Client::admin();
    assert_eq!(client.ask(&format!("PUT /apisix/admin/stream_routes/1 {body}")).await.0, 400);
}
