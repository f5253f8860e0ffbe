//! All resources as one document, as ADC uses it.

use crate::client::Client;
use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet, yield_now};

/// Far above the time that a request takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn check(client: &Client, lines: &[&str], expected: Expect) {
    expected.assert_eq(&client.transcript(lines).await);
}

async fn whole(client: &Client) -> Json {
    let (status, text) = client.ask("GET /apisix/admin/configs").await;
    assert_eq!(status, 200);
    serde_json::from_str(text.split_once(' ').unwrap().1.split(" (").next().unwrap()).unwrap()
}

#[tokio::test]
async fn what_was_put_is_there() {
    let client = Client::admin();
    check(
        &client,
        &[
            r#"PUT /apisix/admin/configs {"routes": []}"#,
            r#"PUT /apisix/admin/configs | X-Digest: 1"#,
            r#"PUT /apisix/admin/configs | X-Digest: 1 {abcd"#,
            r#"PUT /apisix/admin/configs | X-Digest: 1 {"routes": [{"id": "r1", "uri": "/r1", "modifiedIndex": 1}], "consumers": [{"username": "john_1"}, {"id": "john_1/credentials/john-a", "plugins": {"key-auth": {"key": "auth-a"}}}], "secrets": [{"id": "vault/1", "token": "t"}], "plugin_metadata": [{"id": "limit-count", "k": "v"}]}"#,
            r#"GET /apisix/admin/configs"#,
            r#"GET /apisix/admin/consumers/john_1/credentials/john-a"#,
            r#"PUT /apisix/admin/configs | X-Digest: 1 {}"#,
            r#"PUT /apisix/admin/configs?wait=1000 | X-Digest: 2 {"routes": [{"id": "r2", "uri": "/r2"}], "routes_conf_version": 100, "consumers_conf_version": 11}"#,
            r#"GET /apisix/admin/configs"#,
            r#"PUT /apisix/admin/configs | X-Digest: 3 {"routes_conf_version": 99}"#,
            r#"PUT /apisix/admin/configs | X-Digest: 3 {"routes_conf_version": "adc"}"#,
            r#"PUT /apisix/admin/configs | X-Digest: 3 {"routes": [{"id": "r1", "uri": 123}]}"#,
            r#"PUT /apisix/admin/configs | X-Digest: 3 {"routes": [{"id": "r1"}, {"id": "r1"}]}"#,
            r#"PUT /apisix/admin/configs | X-Digest: 3 {"secrets": [{"id": "1"}]}"#,
            r#"PUT /apisix/admin/configs | X-Digest: 3 {"routes": {"id": "r1"}}"#,
            r#"POST /apisix/admin/configs/validate {"routes": [{"id": "r1", "uri": 1}, {"uri": "/"}], "routes_conf_version": "x"}"#,
            r#"POST /apisix/admin/configs/validate {"routes": [{"id": "r1", "uri": "/"}]}"#,
            r#"POST /apisix/admin/configs/validate {"routes": [{"uri": "/"}, {"uri": "/"}], "services": [{}], "ssls": [{}], "stream_routes": [{}]}"#,
            r#"POST /apisix/admin/configs/validate {"global_rules": [{"plugins": {}}], "consumers": [{"username": "a"}, {"username": "a"}], "routes": [{"id": 3}, {"id": 3.0}, {"uri": 1}]}"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/configs {"routes": []}
            400 {"error_msg":"missing digest header"}
            > PUT /apisix/admin/configs | X-Digest: 1
            400 {"error_msg":"invalid request body: empty request body"}
            > PUT /apisix/admin/configs | X-Digest: 1 {abcd
            400 {"error_msg":"invalid request body: Expected object key string but found invalid token at character 2"}
            > PUT /apisix/admin/configs | X-Digest: 1 {"routes": [{"id": "r1", "uri": "/r1", "modifiedIndex": 1}], "consumers": [{"username": "john_1"}, {"id": "john_1/credentials/john-a", "plugins": {"key-auth": {"key": "auth-a"}}}], "secrets": [{"id": "vault/1", "token": "t"}], "plugin_metadata": [{"id": "limit-count", "k": "v"}]}
            202  (x-stillgate-generation: 1011) (x-digest: 1)
            > GET /apisix/admin/configs
            200 {"routes":[{"id":"r1","uri":"/r1","modifiedIndex":1}],"routes_conf_version":1,"services_conf_version":1,"upstreams_conf_version":1,"consumers":[{"username":"john_1"},{"id":"john_1/credentials/john-a","plugins":{"key-auth":{"key":"auth-a"}}}],"consumers_conf_version":1,"consumer_groups_conf_version":1,"plugin_configs_conf_version":1,"global_rules_conf_version":1,"plugin_metadata":[{"id":"limit-count","k":"v"}],"plugin_metadata_conf_version":1,"ssls_conf_version":1,"stream_routes_conf_version":1,"secrets":[{"id":"vault/1","token":"t"}],"secrets_conf_version":1,"protos_conf_version":1,"X-Last-Modified":NOW,"X-Digest":"1"} (x-digest: 1)
            > GET /apisix/admin/consumers/john_1/credentials/john-a
            200 {"key":"/apisix/consumers/john_1/credentials/john-a","value":{"id":"john-a","plugins":{"key-auth":{"key":"auth-a"}}},"createdIndex":11,"modifiedIndex":11} (etag: "11")
            > PUT /apisix/admin/configs | X-Digest: 1 {}
            204 
            > PUT /apisix/admin/configs?wait=1000 | X-Digest: 2 {"routes": [{"id": "r2", "uri": "/r2"}], "routes_conf_version": 100, "consumers_conf_version": 11}
            200  (x-stillgate-generation: 1012) (x-digest: 2)
            > GET /apisix/admin/configs
            200 {"routes":[{"id":"r2","uri":"/r2"}],"routes_conf_version":100,"services_conf_version":2,"upstreams_conf_version":2,"consumers_conf_version":11,"consumer_groups_conf_version":2,"plugin_configs_conf_version":2,"global_rules_conf_version":2,"plugin_metadata_conf_version":2,"ssls_conf_version":2,"stream_routes_conf_version":2,"secrets_conf_version":2,"protos_conf_version":2,"X-Last-Modified":NOW,"X-Digest":"2"} (x-digest: 2)
            > PUT /apisix/admin/configs | X-Digest: 3 {"routes_conf_version": 99}
            400 {"error_msg":"routes_conf_version must be greater than or equal to (100)"}
            > PUT /apisix/admin/configs | X-Digest: 3 {"routes_conf_version": "adc"}
            400 {"error_msg":"routes_conf_version must be a number"}
            > PUT /apisix/admin/configs | X-Digest: 3 {"routes": [{"id": "r1", "uri": 123}]}
            400 {"error_msg":"invalid routes at index 0, err: invalid configuration: property \"uri\" validation failed: wrong type: expected string, got number"}
            > PUT /apisix/admin/configs | X-Digest: 3 {"routes": [{"id": "r1"}, {"id": "r1"}]}
            400 {"error_msg":"found duplicate id r1 in routes"}
            > PUT /apisix/admin/configs | X-Digest: 3 {"secrets": [{"id": "1"}]}
            400 {"error_msg":"invalid secrets at index 0, err: invalid secret id: 1"}
            > PUT /apisix/admin/configs | X-Digest: 3 {"routes": {"id": "r1"}}
            400 {"error_msg":"routes must be an array"}
            > POST /apisix/admin/configs/validate {"routes": [{"id": "r1", "uri": 1}, {"uri": "/"}], "routes_conf_version": "x"}
            400 {"error_msg":"Configuration validation failed","errors":[{"resource_type":"routes","error":"routes_conf_version must be a number, got string"},{"resource_type":"routes","resource_id":"r1","index":0,"error":"invalid configuration: property \"uri\" validation failed: wrong type: expected string, got number"}]}
            > POST /apisix/admin/configs/validate {"routes": [{"id": "r1", "uri": "/"}]}
            200 
            > POST /apisix/admin/configs/validate {"routes": [{"uri": "/"}, {"uri": "/"}], "services": [{}], "ssls": [{}], "stream_routes": [{}]}
            200 
            > POST /apisix/admin/configs/validate {"global_rules": [{"plugins": {}}], "consumers": [{"username": "a"}, {"username": "a"}], "routes": [{"id": 3}, {"id": 3.0}, {"uri": 1}]}
            400 {"error_msg":"Configuration validation failed","errors":[{"resource_type":"routes","resource_id":3.0,"index":1,"error":"found duplicate id 3 in routes"},{"resource_type":"routes","resource_id":"","index":2,"error":"invalid configuration: property \"uri\" validation failed: wrong type: expected string, got number"},{"resource_type":"consumers","resource_id":"a","index":1,"error":"found duplicate username a in consumers"},{"resource_type":"global_rules","resource_id":"","index":0,"error":"property \"id\" is required"}]}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn others_may_write_between() {
    let client = Client::admin();
    let put = |digest: &str, body: Json| format!("PUT /apisix/admin/configs | X-Digest: {digest} {body}");
    let ssl = json!({
        "id": "1", "cert": "c", "key": "k", "certs": ["d"], "keys": ["l"], "snis": ["a.example"], "modifiedIndex": 3,
    });
    assert_eq!(client.ask(&put("a", json!({ "ssls": [ssl], "ssls_conf_version": 7 }))).await.0, 202);
    let first = whole(&client).await;
    assert_eq!((&first["X-Digest"], &first["ssls_conf_version"]), (&json!("a"), &json!(7)));
    let shown = json!({
        "id": "1", "cert": "c", "key": "********", "certs": ["d"], "keys": ["********"], "snis": ["a.example"],
        "modifiedIndex": 3,
    });
    assert_eq!(first["ssls"][0], shown);
    // A certificate that was read here has no key; the stored one is kept.
    let mut back = first.clone();
    back["ssls"][0]["snis"] = json!(["b.example"]);
    back["ssls_conf_version"] = json!(8);
    assert_eq!(client.ask(&put("b", back)).await.0, 202);
    assert_eq!(
        client.memory.get("ssls/1").unwrap(),
        json!({ "id": "1", "cert": "c", "key": "k", "certs": ["d"], "keys": ["l"], "snis": ["b.example"] })
    );
    // Another writer: the digest describes nothing that is stored now, and the version is new.
    client.memory.put("ssls/2", &json!({ "id": "2", "cert": "c", "key": "k" }));
    let third = whole(&client).await;
    assert!(third["X-Digest"].is_null());
    assert!(third["X-Last-Modified"].is_u64(), "without it ADC takes a gateway for empty");
    assert_eq!((&third["ssls"][0]["modifiedIndex"], &third["ssls"][1]["modifiedIndex"]), (&json!(3), &json!(13)));
    assert!(third["ssls_conf_version"].as_u64() > Some(8), "{third}");
    // Unchanged documents are not written.
    client.memory.put("routes/1", &json!({ "id": "1", "uri": "/a", "create_time": 1, "update_time": 2 }));
    let revision = |json: Json| json["routes_conf_version"].as_u64().unwrap();
    let before = revision(whole(&client).await);
    assert_eq!(client.ask(&put("c", json!({ "routes": [{ "id": "1", "uri": "/a" }] }))).await.0, 202);
    assert_eq!(client.memory.get("routes/1").unwrap()["update_time"], 2);
    assert_eq!(client.ask(&put("d", json!({ "routes": [{ "id": "1", "uri": "/b" }] }))).await.0, 202);
    let changed = client.memory.get("routes/1").unwrap();
    assert_eq!((&changed["create_time"], &changed["uri"]), (&json!(1), &json!("/b")));
    assert!(changed["update_time"].as_u64() > Some(1_700_000_000), "{changed}");
    assert_eq!(whole(&client).await["routes"], json!([{ "id": "1", "uri": "/b" }]), "without times, as in APISIX");
    assert_eq!(revision(whole(&client).await), before + 2);
    assert!(client.memory.get("ssls/1").is_none(), "what is not in the document is deleted");
}

#[tokio::test]
async fn a_replacement_may_have_more_documents_than_a_transaction() {
    let client = Client::admin();
    let routes: Vec<Json> = (1..=129).map(|n| json!({ "id": n, "uri": "/" })).collect();
    let (status, text) =
        client.ask(&format!("PUT /apisix/admin/configs | X-Digest: 1 {}", json!({ "routes": routes }))).await;
    assert_eq!(status, 202, "{text}");
    assert_eq!(whole(&client).await["routes"].as_array().map(Vec::len), Some(129));
    assert!(client.memory.get("routes/128").is_some());
}

#[tokio::test]
async fn a_digest_does_not_stand_for_what_another_client_wrote_meanwhile() {
    let client = Client::admin();
    *client.memory.overtaking.lock().unwrap() = Some(("routes/other", json!({ "uri": "/other" })));
    let put = r#"PUT /apisix/admin/configs | X-Digest: 1 {"routes": [{"id": "own", "uri": "/own"}]}"#;
    assert_eq!(client.ask(put).await.0, 202);
    let read = whole(&client).await;
    assert_eq!((read["routes"].as_array().map(Vec::len), &read["X-Digest"]), (Some(2), &Json::Null));
    assert_eq!(client.ask(put).await.0, 202, "it is put again");
    let read = whole(&client).await;
    assert_eq!(
        (&read["routes"][0]["id"], &read["routes"][1], &read["X-Digest"]),
        (&json!("own"), &Json::Null, &json!("1"))
    );
    assert_eq!(client.ask(put).await.0, 204);
}

#[tokio::test]
async fn a_misspelt_list_deletes_nothing() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "uri": "/1" }));
    for wrong in ["route", "Routes", "credentials", "x"] {
        let (status, answer) =
            client.ask(&format!("PUT /apisix/admin/configs | X-Digest: 1 {{\"{wrong}\": []}}")).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains(&format!("unknown key \\\"{wrong}\\\"")), "{answer}");
    }
    assert!(client.memory.get("routes/1").is_some());
    let mut read = whole(&client).await;
    read["plugins_conf_version"] = 3.into();
    let (status, answer) = client.ask(&format!("PUT /apisix/admin/configs | X-Digest: 1 {read}")).await;
    assert_eq!(status, 202, "what was read may be written: {answer}");
}

#[tokio::test]
async fn two_are_made_at_once() {
    let client = Rc::new(Client::admin());
    let memory = client.memory.clone();
    memory.is_gated.store(true, Relaxed);
    let (local, mut asking) = (LocalSet::new(), JoinSet::new());
    for _ in 0..8 {
        let client = client.clone();
        asking.spawn_local_on(async move { client.ask("GET /apisix/admin/configs").await.0 }, &local);
    }
    local.run_until(eventually(|| memory.readers.load(Relaxed) >= 2)).await;
    memory.is_gated.store(false, Relaxed);
    assert_eq!(local.run_until(asking.join_all()).await, [200; 8]);
    assert_eq!(memory.readers_at_once.load(Relaxed), 2);
}

async fn eventually(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it does not happen");
        yield_now().await;
    }
}
