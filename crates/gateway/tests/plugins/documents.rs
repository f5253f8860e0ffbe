//! The parts of a route's, service's and consumer's documents that plugins receive.

use crate::shared::reflect::{ask, gateway, reflecting};
use std::sync::mpsc;
use stillgate_testkit::Upstream;

/// A double of the agent that allows everything, and passes on its requests.
#[test]
fn opa_gets_documents_of_route_service_and_consumer() {
    let (tell, told) = mpsc::sync_channel(16);
    let agent = Upstream::serve(move |connection| {
        while let Ok(request) = connection.read_request() {
            tell.send(request.body).expect("the test waits for it");
            let decision = "{\"result\":{\"allow\":true}}";
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", decision.len());
            if connection.try_send(head + decision).is_err() {
                return;
            }
        }
    });
    let agent = format!("host: \"http://{}\", policy: p", agent.addr());
    let node = reflecting();
    let mut gateway = gateway(
        node.addr(),
        &format!(
            "consumers:\n  - {{username: jack, group_id: g, labels: {{team: a}}, plugins: {{key-auth: {{key: planted}}}}}}\n\
         consumer_groups:\n  - {{id: g, plugins: {{}}}}\n\
         services:\n  - {{id: s, desc: of the service, upstream: {{nodes: {{\"127.0.0.1:1\": 1}}}}, plugins: {{opa: {{{agent}, \
         with_route: true, with_service: true, with_consumer: true}}}}}}\n\
         routes:\n  - {{id: r, uri: /r, service_id: s, labels: {{a: b}}, upstream_id: node, plugins: {{key-auth: {{}}}}}}\n\
         \x20 - {{id: plain, uri: /plain, upstream_id: node, plugins: {{opa: {{{agent}}}}}}}\n"
        ),
    );
    let input = |start: &str, lines: &[&str]| {
        assert_eq!(ask(&mut gateway.client(), start, lines).head.status(), 200);
        let body = told.recv().expect("it was asked");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        body["input"].clone()
    };
    let seen = input("GET /r", &["apikey: planted"]);
    assert_eq!(
        seen["route"],
        serde_json::json!({
            "id": "r", "uri": "/r", "service_id": "s", "labels": {"a": "b"}, "upstream_id": "node", "plugins": {"key-auth": {}}
        })
    );
    assert_eq!((&seen["service"]["desc"], seen["service"].get("upstream")), (&"of the service".into(), None));
    assert_eq!(
        seen["consumer"],
        serde_json::json!({
            "username": "jack", "consumer_name": "jack", "group_id": "g", "credential_id": null, "labels": {"team": "a"}
        })
    );
    let seen = input("GET /plain", &[]);
    assert!(["route", "service", "consumer"].iter().all(|key| seen.get(key).is_none()), "{seen}");
    gateway.assert_healthy();
}
