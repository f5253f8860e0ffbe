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

/// What becomes of requests, one after the other.
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
        expect![[""]],
    );
    check(
        "device-gateway: {id: $http_x_device, protocol: raw}",
        &[handshake("/", "X-Device: a b/../%41\nSec-WebSocket-Protocol: mqtt, stillgate.v1\n")],
        expect![[""]],
    );
}

#[test]
fn what_is_no_handshake_is_refused() {
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
        expect![[""]],
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
    expect![[""]].assert_eq(&text);
}
