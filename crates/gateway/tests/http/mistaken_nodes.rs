//! Nodes that speak another protocol than the gateway uses: the log says which, and what to change.

use crate::shared::STILLGATE;
use stillgate_testkit::http2::{encode_frame, kind};
use stillgate_testkit::{BufferedSocket, Gateway, Setup, Upstream, eventually};

#[track_caller]
fn check(upstream: &str, node: impl Fn(&mut BufferedSocket) + Send + Sync + 'static, hint: &str) {
    let node = Upstream::serve(node);
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).upstream(upstream).upstream("retries: 0"));
    let answer = gateway.get("/");
    assert_eq!(answer.head.status(), 502);
    // It is nothing for clients.
    assert!(!String::from_utf8_lossy(&answer.body).contains("seems"), "{answer:?}");
    eventually(&format!("{hint} in {}", gateway.log()), || gateway.log().contains(hint));
}

/// A TLS server's answer to anything else: `unexpected_message`.
fn alert(connection: &mut BufferedSocket) {
    let _ = connection.read_exactly(1);
    let _ = connection.try_send([21, 3, 1, 0, 2, 2, 10]);
    // Closing with bytes unread would be a reset, which may come before the gateway has sent all of its request.
    let _ = connection.read_to_end();
}

#[test]
fn tls() {
    check("scheme: http", alert, "it seems to speak TLS: write `scheme: https`");
    check("http2: true", alert, "it seems to speak TLS: write `scheme: https`");
}

#[test]
fn http1_only() {
    let answer = |connection: &mut BufferedSocket| {
        let _ = connection.read_exactly(1);
        let _ = connection.try_send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = connection.read_to_end();
    };
    check("scheme: grpc", answer, "it seems to speak HTTP/1.1 only: remove `http2`");
}

#[test]
fn http2_only() {
    let answer = |connection: &mut BufferedSocket| {
        let _ = connection.read_head();
        let _ = connection.try_send(encode_frame(kind::SETTINGS, 0, 0, &[]));
        let _ = connection.try_send(encode_frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 1]));
    };
    check("scheme: http", answer, "it seems to speak HTTP/2 only: write `http2: true`");
}
