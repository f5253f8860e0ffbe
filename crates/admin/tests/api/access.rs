//! Keys, sessions and forgery over HTTP.

use crate::client::{Client, text};
use crate::control::Memory;
use expect_test::expect;
use serde_json::Value as Json;
use std::time::Duration;
use stillgate_door::{Access, Hosts, Role, loopback};

#[tokio::test(start_paused = true)]
async fn keys() {
    let client = Client::of(Memory::at_revision(10));
    let transcript = client
        .transcript(&[
            "GET /apisix/admin/routes",
            "GET /apisix/admin/routes | X-API-KEY: wrong",
            "GET /apisix/admin/routes | X-API-KEY: ci-secret",
            "GET /apisix/admin/routes?api_key=ci-secret",
            "GET /apisix/admin/routes?api_key=wrong | X-API-KEY: ci-secret",
            "GET /apisix/admin/routes | Cookie: a=b; x_api_key=ci-secret",
            r#"PUT /apisix/admin/routes/1 | X-API-KEY: tv-secret {"uri": "/a"}"#,
            r#"POST /v1/batch | X-API-KEY: tv-secret []"#,
            r#"POST /v1/rollback | X-API-KEY: tv-secret {"to": 1}"#,
            r#"DELETE /apisix/admin/routes/1 | X-API-KEY: tv-secret"#,
            r#"PUT /apisix/admin/configs | X-API-KEY: tv-secret | X-Digest: 1 {}"#,
            r#"POST /apisix/admin/schema/validate/routes {}"#,
            "GET /v1/upstreams",
            "GET /v1/upstreams | X-API-KEY: tv-secret",
            "GET /v1/health",
            "GET /v1/status | X-API-KEY: wrong",
        ])
        .await;
    expect![[r#"
        > GET /apisix/admin/routes
        401 {"error_msg":"failed to check token","description":"missing apikey"} (connection: close)
        > GET /apisix/admin/routes | X-API-KEY: wrong
        401 {"error_msg":"failed to check token","description":"wrong apikey"} (connection: close)
        > GET /apisix/admin/routes | X-API-KEY: ci-secret
        200 {"total":0,"list":[]}
        > GET /apisix/admin/routes?api_key=ci-secret
        200 {"total":0,"list":[]}
        > GET /apisix/admin/routes?api_key=wrong | X-API-KEY: ci-secret
        401 {"error_msg":"failed to check token","description":"wrong apikey"} (connection: close)
        > GET /apisix/admin/routes | Cookie: a=b; x_api_key=ci-secret
        200 {"total":0,"list":[]}
        > PUT /apisix/admin/routes/1 | X-API-KEY: tv-secret {"uri": "/a"}
        401 {"error_msg":"failed to check token","description":"invalid method for role viewer"} (connection: close)
        > POST /v1/batch | X-API-KEY: tv-secret []
        401 {"error_msg":"failed to check token","description":"invalid method for role viewer"} (connection: close)
        > POST /v1/rollback | X-API-KEY: tv-secret {"to": 1}
        401 {"error_msg":"failed to check token","description":"invalid method for role viewer"} (connection: close)
        > DELETE /apisix/admin/routes/1 | X-API-KEY: tv-secret
        401 {"error_msg":"failed to check token","description":"invalid method for role viewer"} (connection: close)
        > PUT /apisix/admin/configs | X-API-KEY: tv-secret | X-Digest: 1 {}
        401 {"error_msg":"failed to check token","description":"invalid method for role viewer"} (connection: close)
        > POST /apisix/admin/schema/validate/routes {}
        401 {"error_msg":"failed to check token","description":"missing apikey"} (connection: close)
        > GET /v1/upstreams
        401 {"error_msg":"failed to check token","description":"missing apikey"} (connection: close)
        > GET /v1/upstreams | X-API-KEY: tv-secret
        200 upstreams
        > GET /v1/health
        200 health
        > GET /v1/status | X-API-KEY: wrong
        200 status
    "#]]
    .assert_eq(&transcript);
    let (status, index) = client.ask("GET /").await;
    assert_eq!((status, index.starts_with("200 GET / ")), (200, true), "{index}");
    assert!(index.contains("GET /v1/upstreams ") && index.contains("A page of the gateway"), "{index}");
}

#[tokio::test]
async fn hosts_and_origins() {
    let client = Client::of(Memory::at_revision(10));
    let transcript = client
        .transcript(&[
            "GET / | Host: evil.example",
            "GET /apisix/admin/routes | Host: evil.example | X-API-KEY: ci-secret",
            "GET /apisix/admin/routes/1 | Sec-Fetch-Site: cross-site | Cookie: x_api_key=ci-secret",
            r#"PUT /apisix/admin/routes/1 | Origin: http://evil.example | Cookie: x_api_key=ci-secret {"uri": "/a"}"#,
            r#"PUT /apisix/admin/routes/1 | Origin: http://127.0.0.1:9180 | Cookie: x_api_key=ci-secret {"uri": "/a"}"#,
        ])
        .await;
    expect![[r#"
        > GET / | Host: evil.example
        403 {"error_msg":"the host \"evil.example\" is not accepted, as a protection against DNS rebinding; use 127.0.0.1 or localhost, or add the name to gateway.admin.hosts"} (connection: close)
        > GET /apisix/admin/routes | Host: evil.example | X-API-KEY: ci-secret
        200 {"total":0,"list":[]}
        > GET /apisix/admin/routes/1 | Sec-Fetch-Site: cross-site | Cookie: x_api_key=ci-secret
        404 {"message":"Key not found"}
        > PUT /apisix/admin/routes/1 | Origin: http://evil.example | Cookie: x_api_key=ci-secret {"uri": "/a"}
        403 {"error_msg":"this request came from a page of another origin; with a cookie, only the dashboard may write"} (connection: close)
        > PUT /apisix/admin/routes/1 | Origin: http://127.0.0.1:9180 | Cookie: x_api_key=ci-secret {"uri": "/a"}
        201 {"key":"/apisix/routes/1","value":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
    "#]].assert_eq(&transcript);
}

#[tokio::test]
async fn without_a_key_loopback_reads_with_masks() {
    let hosts = Hosts::new("gateway.admin.hosts", []);
    let access = Access {
        section: "gateway.admin",
        keys: Vec::new(),
        allow: loopback(),
        hosts,
        is_loopback_reader: true,
        is_loopback_writer: false,
    };
    let client = Client::with_access(Memory::at_revision(10), access);
    client.memory.put(
        "consumers/jack",
        &serde_json::json!({ "username": "jack", "plugins": { "key-auth": { "key": "plain" } } }),
    );
    let transcript = client
        .transcript(&[
            "GET /apisix/admin/consumers/jack",
            "GET /apisix/admin/consumers/jack | X-API-KEY: anything",
            "GET /apisix/admin/consumers/jack | Host: evil.example",
            r#"PUT /apisix/admin/consumers {"username": "jack"}"#,
            r#"PUT /apisix/admin/consumers | X-API-KEY: {"username": "jack"}"#,
        ])
        .await;
    expect![[r#"
        > GET /apisix/admin/consumers/jack
        200 {"key":"/apisix/consumers/jack","value":{"username":"jack","plugins":{"key-auth":{"key":"********"}}},"createdIndex":11,"modifiedIndex":11} (etag: "11")
        > GET /apisix/admin/consumers/jack | X-API-KEY: anything
        200 {"key":"/apisix/consumers/jack","value":{"username":"jack","plugins":{"key-auth":{"key":"********"}}},"createdIndex":11,"modifiedIndex":11} (etag: "11")
        > GET /apisix/admin/consumers/jack | Host: evil.example
        403 {"error_msg":"the host \"evil.example\" is not accepted, as a protection against DNS rebinding; use 127.0.0.1 or localhost, or add the name to gateway.admin.hosts"} (connection: close)
        > PUT /apisix/admin/consumers {"username": "jack"}
        401 {"error_msg":"failed to check token","description":"missing apikey"} (connection: close)
        > PUT /apisix/admin/consumers | X-API-KEY: {"username": "jack"}
        401 {"error_msg":"failed to check token","description":"missing apikey"} (connection: close)
    "#]].assert_eq(&transcript);
    let remote = client.from("192.0.2.1");
    assert_eq!(remote.ask("GET /v1/health").await.0, 403);
}

/// A key would not help: resources come from a file.
#[tokio::test]
async fn without_a_key_a_write_where_nothing_is_written_is_not_implemented() {
    let access = |keys: Vec<_>| Access {
        section: "gateway.admin",
        is_loopback_reader: keys.is_empty(),
        is_loopback_writer: false,
        keys,
        allow: loopback(),
        hosts: Hosts::new("gateway.admin.hosts", []),
    };
    let file = || {
        let mut memory = Memory::at_revision(10);
        memory.is_file = true;
        memory
    };
    let client = Client::with_access(file(), access(Vec::new()));
    for (expected, requests) in [
        (
            501,
            &[
                r#"PUT /apisix/admin/routes/1 {"uri": "/a"}"#,
                r#"PUT /apisix/admin/routes/1 | X-API-KEY: any {"uri": "/a"}"#,
                r#"POST /apisix/admin/routes/ {"uri": "/a"}"#,
                "PATCH /apisix/admin/routes/1/uri \"/b\"",
                "DELETE /apisix/admin/consumers/jack/credentials/1",
                "PUT /apisix/admin/configs {}",
                "POST /v1/batch []",
                r#"POST /v1/rollback {"to": 1}"#,
            ][..],
        ),
        // Requests that do not write resources are refused as before, and so are callers that may not even read.
        (401, &["POST /apisix/admin/configs/validate {}", "POST /v1/store/backup", "PUT /apisix/admin/plugins/reload"]),
        (403, &[r#"POST /v1/session | Host: evil.example {"key": "x"}"#]),
    ] {
        for request in requests {
            assert_eq!(client.ask(request).await.0, expected, "{request}");
        }
    }
    let request = r#"PUT /apisix/admin/routes/1 {"uri": "/a"}"#;
    assert!(client.ask(request).await.1.contains("the resources come from a file"));
    assert_eq!(client.from("192.0.2.1").ask(request).await.0, 403);
    // If keys are configured, a caller without one gets no information; and if resources can be written, the missing key is the
    // reason.
    assert_eq!(Client::with_access(file(), access(crate::client::keys())).ask(request).await.0, 401);
    assert_eq!(Client::with_access(Memory::at_revision(10), access(Vec::new())).ask(request).await.0, 401);
}

#[tokio::test]
async fn the_allowed_networks_change_with_the_configuration() {
    let client = Client::admin().from("192.0.2.1");
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 403);
    client.access.send_modify(|access| access.allow.push("192.0.2.0/24".parse().unwrap()));
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 200);
    assert_eq!(client.ask("GET /v1/health | X-API-KEY: ").await.0, 401);
}

/// The cookie and the CSRF token of a response that opened a session.
async fn opened(response: axum::http::Response<axum::body::Body>) -> (String, String) {
    assert_eq!(response.status(), 201);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let json: Json = serde_json::from_str(&text(response).await).unwrap();
    (cookie.split(';').next().unwrap().to_owned(), json["csrf"].as_str().unwrap().to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_session() {
    let client = Client::of(Memory::at_revision(10));
    assert_eq!(client.ask("GET /v1/session").await.0, 401);
    assert_eq!(client.ask(r#"POST /v1/session {"key": "wrong"}"#).await.0, 401);
    assert_eq!(client.ask(r#"POST /v1/session {"key": 1}"#).await.0, 400);
    assert_eq!(client.ask(r#"POST /v1/session | Origin: http://evil.example {"key": "ci-secret"}"#).await.0, 403);
    assert_eq!(client.ask(r#"POST /v1/session | Host: evil.example {"key": "ci-secret"}"#).await.0, 403);
    let (cookie, csrf) = opened(client.send("POST", "/v1/session", &[], r#"{"key": "ci-secret"}"#).await).await;
    let client = client.with("cookie", &cookie);
    let put = "PUT /apisix/admin/routes/1 | Origin: http://127.0.0.1:9180";
    let body = r#"{"uri": "/a"}"#;
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 200);
    assert_eq!(client.ask(&format!("{put} {body}")).await.0, 403, "no token");
    assert_eq!(client.ask(&format!("{put} | X-CSRF-Token: {} {body}", "0".repeat(64))).await.0, 403, "another token");
    let foreign = "PUT /apisix/admin/routes/1 | Origin: http://127.0.0.1:9181";
    assert_eq!(client.ask(&format!("{foreign} | X-CSRF-Token: {csrf} {body}")).await.0, 403, "another origin");
    assert_eq!(client.ask(&format!("{put} | X-CSRF-Token: {csrf} {body}")).await.0, 201);
    let (_, shown) = client.ask("GET /v1/session").await;
    assert!(shown.contains(&csrf) && shown.contains("\"name\":\"ci\",\"role\":\"admin\""), "{shown}");
    // When the key changes, its sessions end.
    client.access.send_modify(|access| access.keys.retain(|key| key.name != "ci"));
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 401);
    client.access.send_modify(|access| access.keys = crate::client::keys());
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 200);
    assert_eq!(client.ask("DELETE /v1/session").await.0, 403, "signing out is a write, too");
    assert_eq!(client.ask(&format!("DELETE /v1/session | X-CSRF-Token: {csrf}")).await.0, 204);
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 401);
}

#[tokio::test(start_paused = true)]
async fn a_viewers_session_and_the_end_of_sessions() {
    let client = Client::of(Memory::at_revision(10));
    let headers = [("x-api-key", "tv-secret")];
    let (cookie, csrf) = opened(client.send("POST", "/v1/session", &headers, "").await).await;
    let client = client.with("cookie", &cookie);
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 200);
    assert_eq!(
        client.ask(&format!(r#"PUT /apisix/admin/routes/1 | X-CSRF-Token: {csrf} {{"uri": "/a"}}"#)).await.0,
        401
    );
    tokio::time::advance(Duration::from_secs(12 * 3600 + 1)).await;
    assert_eq!(client.ask("GET /apisix/admin/routes").await.0, 401);
}

#[tokio::test(start_paused = true)]
async fn who_opens_many_sessions_ends_only_his_own() {
    let client = Client::of(Memory::at_revision(10));
    let open = async |key: &str| opened(client.send("POST", "/v1/session", &[("x-api-key", key)], "").await).await.0;
    let admin = open("ci-secret").await;
    let first = open("tv-secret").await;
    let mut last = String::new();
    for _ in 0..300 {
        tokio::time::advance(Duration::from_millis(1)).await;
        last = open("tv-secret").await;
    }
    for (cookie, expected) in [(admin, 200), (first, 401), (last, 200)] {
        let asked = Client::ask(&client, &format!("GET /apisix/admin/routes | cookie: {cookie}")).await;
        assert_eq!(asked.0, expected, "{}", asked.1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_token_works_once() {
    let client = Client::of(Memory::at_revision(10));
    let token = client.guard.sign_in_token("demo", Role::Admin, Duration::from_secs(600));
    let body = format!(r#"{{"token": "{token}"}}"#);
    let (cookie, csrf) = opened(client.send("POST", "/v1/session", &[], body.clone()).await).await;
    assert_eq!(client.ask(&format!("POST /v1/session {body}")).await.0, 401);
    let client = client.with("cookie", &cookie);
    assert_eq!(
        client.ask(&format!(r#"PUT /apisix/admin/routes/1 | X-CSRF-Token: {csrf} {{"uri": "/a"}}"#)).await.0,
        201
    );
    let old = client.guard.sign_in_token("demo", Role::Admin, Duration::from_secs(600));
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(client.ask(&format!(r#"POST /v1/session | X-CSRF-Token: {csrf} {{"token": "{old}"}}"#)).await.0, 401);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_wrong_keys() {
    let client = Client::of(Memory::at_revision(10));
    let start = tokio::time::Instant::now();
    for n in 0..10_000 {
        assert_eq!(client.ask(&format!("GET /apisix/admin/routes | X-API-KEY: guess-{n}")).await.0, 401);
    }
    assert_eq!(client.guard.wrong_keys(), 10_000);
    let taken = start.elapsed();
    assert!(taken > Duration::from_secs(10_000 * 2), "guessing is slow: {taken:?}");
    let before = tokio::time::Instant::now();
    assert_eq!(client.ask("GET /apisix/admin/routes | X-API-KEY: ci-secret").await.0, 200);
    assert!(before.elapsed() < Duration::from_millis(10), "the right key does not wait");
}
