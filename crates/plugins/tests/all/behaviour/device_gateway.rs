//! `device-gateway`

use super::{harness, run};
use expect_test::expect;
use harness::{OK, refusal};

/// The handshake of RFC 6455 section 1.3, with further lines.
fn handshake(target: &str, further: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\nHost: h\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n{further}\n"
    )
}

/// The outcomes of requests, one after the other.
fn check(config: &str, requests: &[String], expected: expect_test::Expect) {
    let last = |request: &String| {
        let transcript = run(config, request, OK);
        let lines: Vec<&str> = transcript.lines().filter(|line| line.starts_with("< ")).collect();
        format!("{}\n", lines.join("\n"))
    };
    expected.assert_eq(&requests.iter().map(last).collect::<String>());
}

#[test]
fn a_handshake_becomes_a_device() {
    check(
        "device-gateway: {id: $arg_device, labels: {model: $arg_model, fixed: one}}",
        &[
            handshake("/?device=lamp&model=m1", ""),
            handshake("/?device=lamp", "Sec-WebSocket-Protocol: other, stillgate.v1+cbor, stillgate.v1\n"),
        ],
        expect![[r#"
            < 101
            < "(the device \"lamp\" with [(\"model\", \"m1\"), (\"fixed\", \"one\")] in Json as None, s3pPLMBiTxaQ9kYGzzhZRbK+xOo=)"
            < 101
            < "(the device \"lamp\" with [(\"model\", \"\"), (\"fixed\", \"one\")] in Cbor as Some(\"stillgate.v1+cbor\"), s3pPLMBiTxaQ9kYGzzhZRbK+xOo=)"
        "#]],
    );
    check(
        "device-gateway: {id: $http_x_device, protocol: raw}",
        &[handshake("/", "X-Device: a b/../%41\nSec-WebSocket-Protocol: mqtt, stillgate.v1\n")],
        expect![[r#"
            < 101
            < "(the device \"a b/../%41\" with [] in Raw as Some(\"mqtt\"), s3pPLMBiTxaQ9kYGzzhZRbK+xOo=)"
        "#]],
    );
}

#[test]
fn what_is_not_a_handshake_is_refused() {
    let whole = handshake("/?device=lamp", "");
    check(
        "device-gateway: {id: $arg_device}",
        &[
            "GET / HTTP/1.1\nHost: h\n\n".to_owned(),
            whole.replace("GET", "POST"),
            whole.replace("websocket\n", "h2c\n"),
            whole.replace("Version: 13", "Version: 8"),
            whole.replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhl"),
            handshake("/", ""),
            handshake(&format!("/?device={}", "x".repeat(257)), ""),
            handshake("/?device=lamp", "Sec-WebSocket-Protocol: other\n"),
        ],
        expect![[r#"
            < 400
            < "{\"error_msg\":\"only devices come here, by a handshake of WebSocket\"}\n"
            < 400
            < "{\"error_msg\":\"only devices come here, by a handshake of WebSocket\"}\n"
            < 400
            < "{\"error_msg\":\"only devices come here, by a handshake of WebSocket\"}\n"
            < 426
            < Sec-WebSocket-Version: 13
            < "{\"error_msg\":\"the version of WebSocket is 13\"}\n"
            < 400
            < "{\"error_msg\":\"Sec-WebSocket-Key must be base64 of 16 bytes\"}\n"
            < 400
            < "{\"error_msg\":\"the request gives no id of a device: 1 to 256 bytes of UTF-8 without control characters\"}\n"
            < 400
            < "{\"error_msg\":\"the request gives no id of a device: 1 to 256 bytes of UTF-8 without control characters\"}\n"
            < 400
            < "{\"error_msg\":\"offer the subprotocol stillgate.v1 or stillgate.v1+cbor, or none\"}\n"
        "#]],
    );
}

#[test]
fn keys_that_make_no_sense_are_refused() {
    let all = [
        "device-gateway: {}",
        "device-gateway: {id: $nothing}",
        "device-gateway: {id: $arg_a, protocol: mqtt, duplicate: both, queue_policy: drop}",
        "device-gateway: {id: $arg_a, ping_interval: 1ms, resume: 2h, connects_per_second: 0}",
        "device-gateway: {id: $arg_a, labels: [a]}",
        "device-gateway: {id: $arg_a, on_event: {uri: events}}",
        "device-gateway: {id: $arg_a, on_event: {upstream_id: gone}}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:17: device-gateway: the key "id" is missing; add it
        1:22: device-gateway.id: "nothing": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        1:40: device-gateway.protocol: expected json, cbor or raw, found the text "mqtt"
        1:57: device-gateway.duplicate: expected replace or refuse, found the text "both"
        1:77: device-gateway.queue_policy: expected refuse, drop_oldest or latest, found the text "drop"
        1:45: device-gateway.ping_interval: expected a duration from 100ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "1ms"
        1:58: device-gateway.resume: expected a duration from 0s to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "2h"
        1:83: device-gateway.connects_per_second: expected a whole number from 1 to 1000000, found the number 0
        1:38: device-gateway.labels: expected a map of names and texts, found a list
        1:40: device-gateway.on_event: the key "upstream_id" is missing; add it
        1:46: device-gateway.on_event.uri: "events" is not a path; begin with '/'
        1:54: device-gateway.on_event.upstream_id: there is no upstream with the id "gone"
    "#]].assert_eq(&text);
}
