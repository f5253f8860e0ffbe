//! gRPC-Web through the gateway to a server of Python's grpcio. The client is curl, with Python that parses its output.

use crate::grpc_peer::{python, server};
use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, kind};
use stillgate_testkit::{Gateway, Setup, Upstream, require_tool};

/// What is called over HTTP/2, too. If an answer does not wait for the request's body, curl 7.88 reports an error there, or waits
/// for ever.
const OVER_HTTP2: [&str; 2] = ["unary_calls", "streams"];

#[track_caller]
fn client(gateway: &Gateway, what: &str) {
    require_tool("curl", "curl");
    let versions = if OVER_HTTP2.contains(&what) { &["1.1", "2"][..] } else { &["1.1"] };
    for version in versions {
        let address = gateway.addr().to_string();
        let output = python("web_client.py", &[&address, version, what]).output().expect("run Python");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out == "good\n", "{what} over {version}: {out}{err}\n{}", gateway.log());
    }
}

fn gateway_to(node: SocketAddr) -> Gateway {
    Gateway::start(STILLGATE, &Setup::to(node).upstream("scheme: grpc"))
}

/// A call as it comes over HTTP/1.1.
fn call(content_type: &str, fields: &str, body: &str) -> String {
    format!(
        "POST /test.Echo/Unary HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn calls_and_streams_pass_in_both_forms() {
    let server = server();
    let gateway = gateway_to(server.port.addr());
    for what in ["unary_calls", "streams", "errors", "bad_base64"] {
        client(&gateway, what);
    }
}

#[test]
fn the_gateway_answers_calls_in_their_own_form() {
    let refusing = Upstream::refusing();
    client(&gateway_to(refusing.addr()), "no_node");
    let gateway = Gateway::start(STILLGATE, &Setup::to(refusing.addr()).route("uri: /other"));
    client(&gateway, "no_route");
    // Over HTTP/2 as well: 200, and nothing but the head.
    for (content_type, status) in [("application/grpc-web-text", 200), ("application/json", 404)] {
        let mut client = Http2::connect(gateway.addr());
        let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Echo/Unary"), (":authority", "h")];
        client.send_head(1, &[&fields[..], &[("content-type", content_type)]].concat(), END_STREAM);
        let (heads, body, end) = client.finish(1);
        assert_eq!((heads[0].status(), body.is_empty(), end), (status, status == 200, StreamEnd::Whole));
    }
}

#[test]
fn only_errors_take_the_form_of_a_call() {
    let refusing = Upstream::refusing();
    let plugins = [
        ("redirect: {uri: /elsewhere, ret_code: 301}", 301, "text/html; charset=utf-8", "Location: /elsewhere\r\n"),
        ("mocking: {response_example: hello, content_type: text/plain}", 200, "text/plain", "\r\n\r\nhello"),
        (
            "mocking: {response_example: hello, response_status: 403}",
            200,
            "application/grpc-web+proto",
            "grpc-status: 7\r\n",
        ),
    ];
    for (plugin, status, content_type, part) in plugins {
        let gateway = Gateway::start(
            STILLGATE,
            &Setup::to(refusing.addr()).route("uri: /*").route(&format!("plugins: {{{plugin}}}")),
        );
        let mut client = gateway.client();
        client.send(call("application/grpc-web", "Connection: close\r\n", ""));
        let answer = String::from_utf8(client.read_to_end().unwrap()).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains(part), "{plugin}: {answer}");
        assert_eq!(answer.matches("Content-Type: ").count(), 1, "{answer}");
        assert!(answer.contains(&format!("Content-Type: {content_type}\r\n")), "{answer}");
    }
}

#[test]
fn the_deadline_of_a_call_is_kept_over_http1_too() {
    let silent = Upstream::bind();
    let gateway = gateway_to(silent.addr());
    // Measured from before the connection: the gateway's clock cannot be behind that.
    let began = Instant::now();
    let mut client = gateway.client();
    client.send(call("application/grpc-web-text", "grpc-timeout: 400m\r\n", "AAAAAAA="));
    let answer = client.expect_response("POST");
    // The deadline may come early by a tick of the gateway's clock.
    assert!(began.elapsed() >= Duration::from_millis(350));
    assert_eq!((answer.head.status(), answer.head.get("grpc-status"), answer.body.len()), (200, Some("4"), 0));
    assert_eq!(answer.head.get("content-type"), Some("application/grpc-web-text+proto"));
}

/// A node's stream, as it comes: the first message does not wait for the second, nor for the trailers.
#[test]
fn messages_are_passed_on_as_they_come() {
    let upstream = Upstream::bind();
    let gateway = gateway_to(upstream.addr());
    let mut client = gateway.client();
    client.send(call("application/grpc-web-text", "", "AAAAAAA="));
    let mut node = Http2::accept(upstream.accept().stream().try_clone().expect("a second handle"), &[]);
    node.until(|frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0 && frame.payload == [0; 5]);
    node.send_head(1, &[(":status", "200"), ("content-type", "application/grpc")], 0);
    node.send(kind::DATA, 0, 1, b"\0\0\0\0\x01a");
    let head = client.read_head().expect("a head");
    assert_eq!(head.get("content-type"), Some("application/grpc-web-text+proto"));
    let mut read = |text: &str| assert_eq!(client.read_exactly(text.len()).expect("a part"), text.as_bytes());
    read("8\r\nAAAAAAFh\r\n");
    node.send(kind::DATA, 0, 1, b"\0\0\0\0\x00");
    read("8\r\nAAAAAAA=\r\n");
    node.send_head(1, &[("grpc-status", "0"), ("x-last", "1")], END_STREAM);
    // 0x80, a length of 27, `grpc-status: 0`, `x-last: 1`
    read("2c\r\ngAAAABtncnBjLXN0YXR1czogMA0KeC1sYXN0OiAxDQo=\r\n0\r\n\r\n");
}

/// A response that breaks off is not whole for the client either.
#[test]
fn a_node_that_resets_cuts_the_response() {
    let upstream = Upstream::bind();
    let gateway = gateway_to(upstream.addr());
    let mut client = gateway.client();
    client.send(call("application/grpc-web", "", "\0\0\0\0\0"));
    let mut node = Http2::accept(upstream.accept().stream().try_clone().expect("a second handle"), &[]);
    node.until(|frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0);
    node.send_head(1, &[(":status", "200"), ("content-type", "application/grpc")], 0);
    node.send(kind::DATA, 0, 1, b"\0\0\0\0\x01a");
    client.read_head().expect("a head");
    node.send(kind::RST_STREAM, 0, 1, &2u32.to_be_bytes());
    assert!(client.read_to_end().is_ok_and(|rest| !rest.ends_with(b"0\r\n\r\n")) || client.is_closed());
}

/// A client of gRPC-Web must not take a response without a status for a whole one.
#[test]
fn a_response_without_a_status_gets_one() {
    let upstream = Upstream::bind();
    let gateway = gateway_to(upstream.addr());
    let mut client = gateway.client();
    client.send(call("application/grpc-web", "", "\0\0\0\0\0"));
    let mut node = Http2::accept(upstream.accept().stream().try_clone().expect("a second handle"), &[]);
    node.until(|frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0);
    node.send_head(1, &[(":status", "200"), ("content-type", "application/grpc")], 0);
    node.send(kind::DATA, END_STREAM, 1, b"\0\0\0\0\x01a");
    let answer = client.expect_response("POST");
    let status = b"grpc-status: 2\r\ngrpc-message: the node's response has no grpc-status\r\n";
    assert_eq!(answer.body, [b"\0\0\0\0\x01a\x80\0\0\0", &[status.len() as u8][..], status].concat());
    // A response with the status in its head needs no other status, nor an empty frame.
    client.send(call("application/grpc-web", "", "\0\0\0\0\0"));
    node.until(|frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0);
    node.send_head(3, &[(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")], 0);
    node.send(kind::DATA, END_STREAM, 3, b"\0\0\0\0\x01a");
    let answer = client.expect_response("POST");
    assert_eq!((answer.head.get("grpc-status"), &answer.body[..]), (Some("0"), &b"\0\0\0\0\x01a"[..]));
}

/// A response that is not gRPC, and an upstream that is not, are left unchanged.
#[test]
fn other_traffic_than_grpc_passes_as_it_is() {
    let upstream = Upstream::bind();
    let gateway = gateway_to(upstream.addr());
    let mut client = gateway.client();
    client.send(call("application/grpc-web", "", "\0\0\0\0\0"));
    let mut node = Http2::accept(upstream.accept().stream().try_clone().expect("a second handle"), &[]);
    node.until(|frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0);
    node.send_head(1, &[(":status", "404"), ("content-type", "text/html"), ("content-length", "2")], 0);
    node.send(kind::DATA, END_STREAM, 1, b"no");
    let answer = client.expect_response("POST");
    assert_eq!((answer.head.status(), answer.head.get("content-type")), (404, Some("text/html")));
    assert_eq!((answer.head.get("content-length"), &answer.body[..]), (Some("2"), &b"no"[..]));

    // The version of HTTP of the upstream does not matter.
    let origin = Upstream::bind();
    let inner = Gateway::start(STILLGATE, &Setup::to(origin.addr()));
    let outer = Gateway::start(STILLGATE, &Setup::to(inner.addr()).upstream("http2: true"));
    let mut client = outer.client();
    client.send(call("application/grpc-web-text+proto", "", "AAAA"));
    let mut node = origin.accept();
    let request = node.expect_request();
    assert_eq!(request.head.get("content-type"), Some("application/grpc-web-text+proto"));
    assert_eq!((request.head.get("te"), &request.body[..]), (None, &b"AAAA"[..]));
    node.send("HTTP/1.1 200 OK\r\nContent-Type: application/grpc-web-text\r\nContent-Length: 4\r\n\r\nBBBB");
    let answer = client.expect_response("POST");
    assert_eq!(answer.head.get("content-type"), Some("application/grpc-web-text"));
    assert_eq!(answer.body, b"BBBB");
}

/// A reload that changes the protocol towards the nodes does not keep connections that use the old one.
#[test]
fn a_change_of_the_scheme_takes_effect_at_once() {
    let server = server();
    let setup = Setup::to(server.port.addr());
    let gateway = Gateway::start(STILLGATE, &setup.clone().upstream("http2: true"));
    let mut client = gateway.client();
    client.send(call("application/grpc-web", "", "\0\0\0\0\0"));
    let answer = client.expect_response("POST");
    assert!(!answer.body.starts_with(&[0; 5]), "{answer:?}");
    gateway.reload(&setup.upstream("scheme: grpc"));
    client.send(call("application/grpc-web", "", "\0\0\0\0\0"));
    let answer = client.expect_response("POST");
    assert_eq!(answer.head.get("content-type"), Some("application/grpc-web+proto"));
    assert!(answer.body.starts_with(&[0; 5]) && answer.body[5] == 0x80, "{answer:?}");
}
