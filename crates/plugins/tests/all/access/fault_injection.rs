//! `fault-injection`. Time passes at once here; the end-to-end tests check the delay.

use super::{outcome, verdict};
use crate::harness::{plugins, refusal};
use expect_test::expect;

fn check(keys: &str, target: &str, expected: &str) {
    let request = format!("GET {target} HTTP/1.1\nHost: h.example\nX-A: of header");
    assert_eq!(outcome(&format!("fault-injection: {keys}"), &request), expected, "{keys} {target}");
}

#[test]
fn an_answer_has_status_body_and_fields() {
    check("{abort: {http_status: 418}}", "/", r#"418 """#);
    check("{abort: {http_status: 200, body: \"\"}}", "/", r#"200 """#);
    check(
        "{abort: {http_status: 503, body: \"$uri of $http_x_a, $arg_b, \\\\$x\", headers: {X-One: \"1 $remote_addr\", x-two: 2}}}",
        "/a?b=c",
        r#"503 X-One: 1 192.0.2.7 x-two: 2 "/a of of header, c, $x""#,
    );
    check("{abort: {http_status: 200, body: x, headers: {X: $uri}}}", "/a%20b", r#"200 X: /a b "x""#);
    // The decoded path has a byte that would split a header.
    let request = "GET /%0a HTTP/1.1\nHost: h.example";
    let split = outcome("fault-injection: {abort: {http_status: 200, body: x, headers: {X: $uri}}}", request);
    assert!(split.starts_with("500 \"<html>"), "{split}");
}

#[test]
fn a_delay_goes_before_the_answer_and_before_the_node() {
    check("{delay: {duration: 0.5}}", "/", "passes");
    check("{delay: {duration: 0}}", "/", "passes");
    check("{delay: {duration: 1.5}, abort: {http_status: 400, body: later}}", "/", r#"400 "later""#);
}

#[test]
fn conditions_are_lists_of_which_one_must_hold() {
    let keys = r#"{abort: {http_status: 403, body: no, vars: [[[arg_a, "==", "1"], [arg_b, "==", "2"]], [[http_x_a, "~~", "^x"]]]}}"#;
    check(keys, "/?a=1&b=2", r#"403 "no""#);
    for target in ["/", "/?a=1", "/?b=2"] {
        check(keys, target, "passes");
    }
    // No list holds, since there is none.
    check("{abort: {http_status: 403, vars: []}}", "/", "passes");
    // A delay for other requests does not prevent an answer.
    check(
        r#"{abort: {http_status: 403, body: no}, delay: {duration: 9, vars: [[[arg_a, "==", "1"]]]}}"#,
        "/",
        r#"403 "no""#,
    );
}

#[test]
fn a_percentage_is_a_share_of_the_requests() {
    for (percentage, expected) in [(0, 0..=0), (100, 1000..=1000), (30, 200..=400)] {
        let yaml = format!("fault-injection: {{abort: {{http_status: 403, percentage: {percentage}}}}}");
        let plugins = plugins(&yaml).unwrap();
        let hits = (0..1000).filter(|_| verdict(&plugins, "GET / HTTP/1.1\nHost: h") != "passes").count();
        assert!(expected.contains(&hits), "{percentage}: {hits}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "fault-injection: {}",
        "fault-injection: {abort: {}}",
        "fault-injection: {abort: {http_status: 100}}",
        "fault-injection: {abort: {http_status: 600}}",
        "fault-injection: {abort: {http_status: 200, percentage: 101}}",
        "fault-injection: {abort: {http_status: 200, headers: {}}}",
        "fault-injection: {abort: {http_status: 200, headers: {\"a:b\": x}}}",
        "fault-injection: {abort: {http_status: 200, headers: {Content-Length: 7}}}",
        "fault-injection: {abort: {http_status: 200, headers: {X: \"a\\nb\"}}}",
        "fault-injection: {abort: {http_status: 200, headers: {X: $nothing}}}",
        "fault-injection: {abort: {http_status: 200, body: $nothing}}",
        "fault-injection: {abort: {http_status: 200, vars: [[[nothing, \"==\", 1]]]}}",
        "fault-injection: {delay: {}}",
        "fault-injection: {delay: {duration: -1}}",
        "fault-injection: {delay: {duration: 3601}}",
        "fault-injection: {delay: {duration: .nan}}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:18: fault-injection: there is nothing to inject; add abort or delay
        1:26: fault-injection.abort: the key "http_status" is missing; add it
        1:40: fault-injection.abort.http_status: expected a whole number from 200 to 599, found the number 100
        1:40: fault-injection.abort.http_status: expected a whole number from 200 to 599, found the number 600
        1:57: fault-injection.abort.percentage: expected a whole number from 0 to 100, found the number 101
        1:54: fault-injection.abort.headers: expected a map of header fields, found an empty map
        1:55: fault-injection.abort.headers["a:b"]: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        1:55: fault-injection.abort.headers.Content-Length: this field frames the message or belongs to one connection; the gateway sets it
        1:58: fault-injection.abort.headers.X: a header value cannot hold control characters such as line breaks
        accepted
        accepted
        1:54: fault-injection.abort.vars[0][0][0]: "nothing": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        1:26: fault-injection.delay: the key "duration" is missing; add it
        1:37: fault-injection.delay.duration: expected a number from 0 to 3600, found the number -1
        1:37: fault-injection.delay.duration: expected a number from 0 to 3600, found the number 3601
        1:37: fault-injection.delay.duration: the number .nan is out of range; write it in quotes to compare it as text
        1:37: fault-injection.delay.duration: the number .nan is out of range; write it in quotes to compare it as text
        1:37: fault-injection.delay.duration: expected a number from 0 to 3600, found the number .nan
    "#]].assert_eq(&all);
}
