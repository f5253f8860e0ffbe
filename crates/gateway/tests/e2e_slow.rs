//! `GET /v1/slow`: the slowest requests with where their time went, switched on and off by a reload.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use serde_json::Value as Json;
use std::thread;
use std::time::Duration;
use stillgate_testkit::{Client, Connection, Gateway, Setup, Upstream, eventually};

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");

/// How long the node takes. Far more than everything else.
const SLOW: Duration = Duration::from_millis(800);

fn slow(gateway: &Gateway) -> (u16, Json) {
    page(gateway, "/v1/slow")
}

fn page(gateway: &Gateway, path: &str) -> (u16, Json) {
    let answer = Client::connect(gateway.admin_addr()).get(path);
    (answer.head.status(), serde_json::from_slice(&answer.body).unwrap())
}

/// The one with this path, as soon as it is there.
fn told(gateway: &Gateway, path: &str) -> Json {
    let mut found = Json::Null;
    eventually(&format!("{path} to be told"), || {
        let (_, told) = slow(gateway);
        let minutes = told["minutes"].as_array().unwrap().clone();
        let all = minutes.iter().flat_map(|minute| minute["requests"].as_array().unwrap().clone());
        found = all.into_iter().find(|request| request["path"] == path).unwrap_or_default();
        !found.is_null()
    });
    found
}

fn ask(gateway: &Gateway, target: &str) -> Client {
    let mut client = gateway.client();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
    client
}

fn answer(node: &mut Connection) {
    node.expect_request();
    thread::sleep(SLOW);
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
}

#[test]
fn slow_requests_are_told_with_their_cause_while_that_is_switched_on() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).upstream("limits: {requests: 1, queue: 4, queue_timeout: 60s}\nretries: 0");
    let on = setup.clone().gateway("debug: {slow: true}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let (status, said) = slow(&gateway);
    assert!(status == 404 && said["error_msg"].as_str().unwrap().contains("set gateway.debug.slow"), "{said}");
    gateway.reload(&on);
    assert_eq!(slow(&gateway).0, 200);

    // The first waits for the node, the second for the first.
    let mut first = ask(&gateway, "/first?token=secret");
    let mut node = upstream.accept();
    let mut second = ask(&gateway, "/second");
    eventually("it to wait", || page(&gateway, "/v1/upstreams").1["upstreams"][0]["requests_waiting"] == 1);
    answer(&mut node);
    assert_eq!(first.expect_response("GET").head.status(), 204);
    node.expect_request();
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(second.expect_response("GET").head.status(), 200);

    let first = told(&gateway, "/first");
    assert_eq!((&first["cause"], &first["status"], &first["method"]), (&"node".into(), &204.into(), &"GET".into()));
    assert_eq!((&first["worker"], &first["node"]), (&0.into(), &upstream.addr().to_string().into()));
    assert!(!first.to_string().contains("secret"), "{first}");
    let ms = |of: &Json, name: &str| of[name].as_f64().unwrap();
    let slow_ms = SLOW.as_secs_f64() * 1000.0;
    assert!(ms(&first, "node_ms") >= slow_ms && ms(&first, "took_ms") >= ms(&first, "node_ms"), "{first}");
    let second = told(&gateway, "/second");
    assert_eq!(second["cause"], "queue", "{second}");
    assert!(
        ms(&second, "queued_ms") > slow_ms / 2.0 && ms(&second, "before_ms") >= ms(&second, "queued_ms"),
        "{second}"
    );

    gateway.reload(&setup);
    assert_eq!(slow(&gateway).0, 404);
}
