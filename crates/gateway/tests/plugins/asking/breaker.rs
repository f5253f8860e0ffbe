//! `api-breaker` through the binary: while a node fails, the plugin answers in its place, and it is found again.

use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, reflecting, setup};
use std::time::{Duration, Instant};
use stillgate_testkit::{Gateway, eventually};

#[test]
fn a_node_that_fails_is_answered_for_and_found_again() {
    let node = reflecting();
    let plugins = r#"{"api-breaker": {"break_response_code": 599, "break_response_body": "later", "break_response_headers": [{"key": "X-Why", "value": "broken $request_method"}], "unhealthy": {"http_statuses": [500, 503], "failures": 2}, "healthy": {"successes": 1}}}"#;
    let routes = format!("routes:\n{}", crate::shared::reflect::route("/*", plugins));
    let mut gateway = Gateway::start(STILLGATE, &setup(node.addr(), &routes));
    let mut client = gateway.client();
    let mut get = |target: &str| ask(&mut client, &format!("GET {target}"), &[]);
    // Where the machine stalls for as long as the node is answered for, another path has to show it.
    let (mut tried, mut found) = (0, None);
    eventually("the node to be answered for", || {
        tried += 1;
        let path = format!("/a{tried}");
        let failing = ["500", "404"].map(|status| get(&format!("{path}?status={status}")).head.status());
        assert_eq!(failing, [500, 404]);
        let begin = Instant::now();
        assert_eq!(get(&format!("{path}?status=503")).head.status(), 503);
        let answer = get(&path);
        let is_answered_for = answer.head.status() == 599;
        assert!(is_answered_for || begin.elapsed() >= Duration::from_secs(2), "{answer:?}");
        found = Some((path, begin, answer));
        is_answered_for
    });
    let (path, begin, answer) = found.expect("the loop above ends with one");
    assert_eq!(&answer.body[..], b"later");
    assert_eq!((answer.head.get("x-why"), answer.head.get("x-node")), (Some("broken GET"), None));
    // Other paths are other states.
    assert_eq!(get("/b").head.status(), 200);
    eventually("the node to be asked again", || get(&path).head.status() == 200);
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    // It has healed: one failure is one again.
    let failing = format!("{path}?status=500");
    assert_eq!([get(&failing), get(&path)].map(|answer| answer.head.status()), [500, 200]);
    gateway.assert_healthy();
}
