//! gRPC through the gateway, with a client and a server of Python's grpcio.

mod grpc_peer;

use grpc_peer::{Server, python, server};
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, kind};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");

#[track_caller]
fn client(gateway: &Gateway, what: &str) {
    let output = python("client.py", &[&gateway.addr().to_string(), what]).output().expect("run Python");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == "good\n", "{what}: {out}{err}\n{}", gateway.log());
}

fn gateway_to(server: &Server) -> Gateway {
    Gateway::start(STILLGATE, &Setup::to(server.port.addr()).upstream("scheme: grpc"))
}

#[test]
fn all_four_kinds_of_calls_pass() {
    let server = server();
    let gateway = gateway_to(&server);
    for what in ["unary_calls", "streams", "errors", "many", "cancel"] {
        client(&gateway, what);
    }
    eventually("nothing in flight", || gateway.status()["requests"]["in_flight"] == 0);
}

#[test]
fn the_gateway_answers_calls_in_their_own_form() {
    let refusing = Upstream::refusing();
    let gateway = Gateway::start(STILLGATE, &Setup::to(refusing.addr()).upstream("scheme: grpc"));
    client(&gateway, "no_node");
    let gateway = Gateway::start(STILLGATE, &Setup::to(refusing.addr()).route("uri: /other"));
    client(&gateway, "no_route");
}

#[test]
fn the_deadline_of_a_call_is_kept() {
    let silent = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(silent.addr()).upstream("scheme: grpc"));
    // From before there was a connection: the gateway's clock cannot be behind that.
    let began = Instant::now();
    let mut client = Http2::connect(gateway.addr());
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/test.Echo/Unary"),
        (":authority", "h"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "400m"),
    ];
    client.send_head(1, &fields, 0);
    client.send(kind::DATA, END_STREAM, 1, &[0, 0, 0, 0, 0]);
    let (heads, body, end) = client.finish(1);
    // But for a tick of the gateway's clock.
    assert!(began.elapsed() >= Duration::from_millis(350));
    assert_eq!((heads.len(), heads[0].status(), body.len(), end), (1, 200, 0, StreamEnd::Whole));
    // `grpc-status: 4` as a literal: h2 does not shorten one digit by Huffman's code.
    let block = &heads[0].payload;
    assert!(block.windows(2).any(|window| window == [1, b'4'] || window == [0x81, 0x6b]), "{block:?}");
}
