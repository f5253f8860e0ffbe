//! `api-breaker` through the binary: while a node fails, the plugin answers in its place, and it is found again.

use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, gateway, reflecting, route, setup};
use std::time::{Duration, Instant};
use stillgate_testkit::{Gateway, eventually};

#[test]
fn a_node_that_fails_is_answered_for_and_found_again() {
    let node = reflecting();
    let plugins = r#"{"api-breaker": {"break_response_code": 599, "break_response_body": "later", "break_response_headers": [{"key": "X-Why", "value": "broken $request_method"}], "unhealthy": {"http_statuses": [500, 503], "failures": 2}, "healthy": {"successes": 1}}}"#;
    let routes = format!("routes:\n{}", route("/*", plugins));
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

/// As in APISIX, the status of the node counts, and not that of an answer of the gateway's own.
#[test]
fn answers_of_the_gateway_itself_are_not_failures_of_the_node() {
    let node = reflecting();
    let breaker =
        r#""api-breaker": {"break_response_code": 599, "unhealthy": {"http_statuses": [500, 502], "failures": 2}}"#;
    let raising = "return function(conf, ctx) if ngx.arg[1] and ngx.arg[1]:find('zzz') then error('x') end end";
    let lua =
        format!(r#"{{{breaker}, "serverless-post-function": {{"phase": "body_filter", "functions": ["{raising}"]}}}}"#);
    let json =
        format!(r#"{{{breaker}, "body-transformer": {{"response": {{"input_format": "json", "template": "x"}}}}}}"#);
    let routes = [("/lua", &lua), ("/json", &json)].map(|(uri, plugins)| route(uri, plugins)).concat();
    let mut gateway = gateway(node.addr(), &format!("routes:\n{routes}"));
    let status = |target: &str| gateway.get(target).head.status();
    for _ in 0..3 {
        assert_eq!([status("/lua?zzz"), status("/json?status=404")], [502; 2]);
    }
    assert_eq!([status("/lua"), status("/json")], [200, 502]);
    // A failure of the node counts, whatever becomes of its response.
    assert_eq!(["/json?status=500", "/json?status=500", "/json"].map(status), [502, 502, 599]);
    gateway.assert_healthy();
}

/// A field of the plugin's answer is not left out where the request makes it invalid.
#[test]
fn an_answer_with_a_control_character_is_refused() {
    let node = reflecting();
    let plugins = r#"{"api-breaker": {"break_response_code": 599, "break_response_body": "later", "break_response_headers": [{"key": "X-Doc", "value": "$uri_param_id"}], "unhealthy": {"failures": 1}}}"#;
    let mut gateway = gateway(node.addr(), &format!("routes:\n{}", route("/doc/:id", plugins)));
    let status = |target: &str| gateway.get(target).head.status();
    assert_eq!(["/doc/a?status=500", "/doc/a%0ab?status=500"].map(status), [500; 2]);
    assert_eq!(["/doc/a", "/doc/a%0ab"].map(status), [599, 500]);
    gateway.assert_healthy();
}
