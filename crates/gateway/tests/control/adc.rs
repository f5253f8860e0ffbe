//! The requests of ADC (API7's declarative CLI) to the Admin API of a running gateway: `sync`, `diff`, `dump`.
//!
//! ADC itself is not run: its releases are binaries and containers, and the npm registry has no package `@api7/adc`. The
//! requests are those of its backends `apisix` and `apisix-standalone`, read in their sources: which paths, in which order,
//! with which bodies, and what they need of the answers.

use crate::transfer::{KEY, Site};
use serde_json::{Value as Json, json};
use std::net::TcpStream;
use stillgate_testkit::{BufferedSocket, Upstream};

/// Status and JSON of an answer; null without a body.
fn ask(site: &Site, request: &str, body: &Json, digest: Option<&str>) -> (u16, Json) {
    let mut connection = BufferedSocket::new(TcpStream::connect(site.gateway.admin_addr()).expect("connect"));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let digest = digest.map(|digest| format!("X-Digest: {digest}\r\n")).unwrap_or_default();
    let length = body.len();
    connection.send(format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-API-KEY: {KEY}\r\n{digest}\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    let method = request.split(' ').next().unwrap_or_default();
    let response = connection.expect_response(if method == "HEAD" { "HEAD" } else { "GET" });
    (response.head.status(), serde_json::from_slice(&response.body).unwrap_or_default())
}

fn list(site: &Site, collection: &str) -> Vec<Json> {
    let (status, body) = ask(site, &format!("GET /apisix/admin/{collection}"), &Json::Null, None);
    assert_eq!(status, 200, "{collection}: {body}");
    // ADC maps over `list`, so it must be one, even if it is empty.
    body["list"].as_array().unwrap_or_else(|| panic!("{collection}: {body}")).clone()
}

/// A service as ADC writes it: its upstream is a resource of its own with the same id, and labels are texts.
fn service(node: &Upstream) -> [(&'static str, Json); 8] {
    let (host, port) = (node.addr().ip().to_string(), node.addr().port());
    [
        (
            "upstreams/7c9",
            json!({"name": "shop", "type": "roundrobin", "scheme": "http", "pass_host": "pass", "labels": {"__ADC_UPSTREAM_SERVICE_ID": "7c9"},
                "nodes": [{"host": host, "port": port, "weight": 100, "priority": 0}], "timeout": {"connect": 60, "send": 60, "read": 60}}),
        ),
        (
            "services/7c9",
            json!({"name": "shop", "desc": "a shop", "labels": {"tags": "[\"a\",\"b\"]"}, "upstream_id": "7c9", "plugins": {}}),
        ),
        (
            "routes/a1b",
            json!({"name": "orders", "uris": ["/orders/*"], "methods": ["GET"], "priority": 0, "status": 1, "service_id": "7c9",
                "plugins": {"key-auth": {}}, "enable_websocket": false}),
        ),
        ("consumers/jack", json!({"username": "jack", "desc": "a person", "plugins": {}})),
        ("consumers/jack/credentials/c0f", json!({"name": "phone", "plugins": {"key-auth": {"key": "jacks-key"}}})),
        ("global_rules/request-id", json!({"plugins": {"request-id": {"header_name": "X-Request-Id"}}})),
        ("plugin_metadata/http-logger", json!({"log_format": {"host": "$host"}})),
        ("consumer_groups/9ab", json!({"labels": {"ADC_NAME": "gold"}, "plugins": {}})),
    ]
}

#[test]
fn the_backend_for_apisix_syncs_and_dumps() {
    let (site, node) = (Site::new(), Upstream::echo());
    // The version: without one, ADC assumes the newest.
    assert_eq!(ask(&site, "GET /apisix/admin/routes", &Json::Null, None).0, 200);
    for collection in [
        "services",
        "routes",
        "upstreams",
        "ssls",
        "consumers",
        "plugin_configs",
        "global_rules",
        "plugin_metadata",
        "stream_routes",
    ] {
        assert_eq!(list(&site, collection), [Json::Null; 0], "{collection}");
    }
    let resources = service(&node);
    for expected in [201, 200] {
        for (path, body) in &resources {
            let (status, answer) = ask(&site, &format!("PUT /apisix/admin/{path}"), body, None);
            assert_eq!(status, expected, "{path}: {answer}");
        }
    }
    let mut client = BufferedSocket::new(TcpStream::connect(site.gateway.addr()).expect("connect"));
    client.send("GET /orders/1 HTTP/1.1\r\nHost: shop\r\napikey: jacks-key\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 200);

    let (status, credentials) = ask(&site, "GET /apisix/admin/consumers/jack/credentials", &Json::Null, None);
    assert_eq!((status, &credentials["list"][0]["value"]["plugins"]["key-auth"]["key"]), (200, &json!("jacks-key")));
    assert_eq!(list(&site, "consumers").len(), 1, "credentials are not consumers");
    assert_eq!(list(&site, "plugin_metadata")[0]["key"], "/apisix/plugin_metadata/http-logger");
    // `diff` relies on these: the written fields come back.
    let route = &list(&site, "routes")[0]["value"];
    for (field, value) in resources[2].1.as_object().expect("an object") {
        assert_eq!(&route[field], value, "{field}");
    }
    // Services are deleted before their upstreams.
    for path in [
        "routes/a1b",
        "services/7c9",
        "upstreams/7c9",
        "consumers/jack/credentials/c0f",
        "consumers/jack",
        "global_rules/request-id",
        "plugin_metadata/http-logger",
        "consumer_groups/9ab",
    ] {
        let (status, answer) = ask(&site, &format!("DELETE /apisix/admin/{path}"), &Json::Null, None);
        assert_eq!(status, 200, "{path}: {answer}");
    }
    let (status, _) = ask(&site, "GET /apisix/admin/consumers/jack/credentials", &Json::Null, None);
    assert_eq!(status, 404);
}

#[test]
fn the_backend_without_etcd_replaces_everything_at_once() {
    let (site, node) = (Site::new(), Upstream::echo());
    assert_eq!(ask(&site, "HEAD /apisix/admin", &Json::Null, None).0, 200);
    let (status, mut whole) = ask(&site, "GET /apisix/admin/configs", &Json::Null, None);
    assert_eq!(status, 200);
    let route = |n: usize| json!({"modifiedIndex": 1, "id": format!("r{n}"), "name": format!("r{n}"), "uris": [format!("/{n}")], "service_id": "s", "status": 1});
    let nodes = json!([{"host": node.addr().ip().to_string(), "port": node.addr().port(), "weight": 1}]);
    whole["services"] =
        json!([{"modifiedIndex": 1, "id": "s", "name": "s", "upstream": {"type": "roundrobin", "nodes": nodes}}]);
    // Many more than fit in a transaction: it is still one change.
    whole["routes"] = (0..2_000).map(route).collect();
    whole["consumers"] = json!([
        {"modifiedIndex": 1, "username": "jack"},
        {"modifiedIndex": 1, "id": "jack/credentials/c", "name": "c", "plugins": {"key-auth": {"key": "k"}}},
    ]);
    for kind in ["services", "routes", "consumers"] {
        whole[format!("{kind}_conf_version")] = 1.into();
    }
    let revision = |site: &Site| site.gateway.status()["revision"].clone();
    let before = revision(&site).as_u64().unwrap_or_default();
    let (status, answer) = ask(&site, "PUT /apisix/admin/configs", &whole, Some("first"));
    assert_eq!(status, 202, "{answer}");
    assert_eq!(revision(&site), before + 1);
    assert_eq!(site.gateway.get("/1999").head.status(), 200);

    let (_, dumped) = ask(&site, "GET /apisix/admin/configs", &Json::Null, None);
    assert_eq!(dumped["X-Digest"], "first");
    assert_eq!(dumped["routes"].as_array().map(Vec::len), Some(2_000));
    assert_eq!(dumped["consumers"][1]["id"], "jack/credentials/c");
    // A repeated request changes nothing; without its resources, everything goes.
    assert_eq!(ask(&site, "PUT /apisix/admin/configs", &whole, Some("first")).0, 204);
    let mut empty = dumped;
    for kind in ["services", "routes", "consumers"] {
        empty[kind] = json!([]);
        let version = empty[format!("{kind}_conf_version")].as_u64().unwrap_or_default();
        empty[format!("{kind}_conf_version")] = (version + 1).into();
    }
    assert_eq!(ask(&site, "PUT /apisix/admin/configs", &empty, Some("second")).0, 202);
    assert_eq!(site.gateway.get("/1999").head.status(), 404);
}
