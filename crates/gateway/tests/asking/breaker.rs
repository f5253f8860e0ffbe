//! `api-breaker` through the binary: a node that fails is answered for, with the plugin's own answer, and found again.

use crate::reflect::{STILLGATE, ask, reflecting, setup};
use std::time::{Duration, Instant};
use stillgate_testkit::{Gateway, eventually};

#[test]
fn a_node_that_fails_is_answered_for_and_found_again() {
    let node = reflecting();
    let plugins = r#"{"api-breaker": {"break_response_code": 599, "break_response_body": "later", "break_response_headers": [{"key": "X-Why", "value": "broken $request_method"}], "unhealthy": {"http_statuses": [500, 503], "failures": 2}, "healthy": {"successes": 1}}}"#;
    let routes = format!("routes:\n{}", crate::reflect::route("/*", plugins));
    let mut gateway = Gateway::start(STILLGATE, &setup(node.addr(), &routes));
    let mut client = gateway.client();
    let mut get = |target: &str| ask(&mut client, &format!("GET {target}"), &[]);
    assert_eq!([get("/a?status=500"), get("/a?status=404")].map(|answer| answer.head.status()), [500, 404]);
    let begin = Instant::now();
    assert_eq!(get("/a?status=503").head.status(), 503);
    let answer = get("/a");
    assert_eq!((answer.head.status(), &answer.body[..]), (599, &b"later"[..]));
    assert_eq!((answer.head.get("x-why"), answer.head.get("x-node")), (Some("broken GET"), None));
    // Other paths are other states.
    assert_eq!(get("/b").head.status(), 200);
    eventually("the node to be asked again", || get("/a").head.status() == 200);
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    // It has healed: one failure is one again.
    assert_eq!([get("/a?status=500"), get("/a")].map(|answer| answer.head.status()), [500, 200]);
    gateway.assert_healthy();
}
