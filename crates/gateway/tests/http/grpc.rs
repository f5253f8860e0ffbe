//! gRPC through the gateway, with a client and a server of Python's grpcio.

use crate::grpc_peer::{Server, python, server, server_with};
use crate::shared::STILLGATE;
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, kind};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

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

/// The trailers with the status pass whatever a filter makes of the messages before them.
#[test]
fn calls_pass_a_filter_of_bodies() {
    let server = server();
    let route = "plugins: {serverless-post-function: {phase: body_filter, functions: [\"return function() end\"]}}";
    let gateway = Gateway::start(STILLGATE, &Setup::to(server.port.addr()).upstream("scheme: grpc").route(route));
    for what in ["unary_calls", "streams", "errors"] {
        client(&gateway, what);
    }
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
    // Time in plugins counts, too: in one that waits, in one that waits for the body, and after a wait.
    let function = |code: &str| {
        format!(
            "plugins: {{serverless-pre-function: {{phase: access, functions: [\"return function() {code} end\"]}}}}"
        )
    };
    let routes = [
        String::new(),
        "plugins: {fault-injection: {delay: {duration: 3}}}".to_owned(),
        function("ngx.sleep(3)"),
        function("ngx.sleep(0.2)"),
    ];
    for route in routes {
        let setup = Setup::to(silent.addr()).upstream("scheme: grpc").route(&route);
        call_until_deadline(&Gateway::start(STILLGATE, &setup), END_STREAM);
    }
    let setup = Setup::to(silent.addr()).upstream("scheme: grpc").route(&function("ngx.req.read_body()"));
    call_until_deadline(&Gateway::start(STILLGATE, &setup), 0);
}

/// Makes a call with a deadline of 400 ms to a node that is silent. `flags`: of the body's frame.
#[track_caller]
fn call_until_deadline(gateway: &Gateway, flags: u8) {
    // Measured from before the connection: the gateway's clock cannot be behind that.
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
    client.send(kind::DATA, flags, 1, &[0, 0, 0, 0, 0]);
    let (heads, body, end) = client.finish(1);
    // The deadline may come early by a tick of the gateway's clock. Plugins wait for 3 s.
    let took = began.elapsed();
    assert!((Duration::from_millis(350)..Duration::from_millis(2500)).contains(&took), "{took:?}");
    assert_eq!((heads.len(), heads[0].status(), body.len(), end), (1, 200, 0, StreamEnd::Whole));
    // `grpc-status: 4` as a literal: h2 does not shorten one digit by Huffman's code.
    let block = &heads[0].payload;
    assert!(block.windows(2).any(|window| window == [1, b'4'] || window == [0x81, 0x6b]), "{block:?}");
}

/// A mirror gets a copy of each call but the largest, whether it speaks TLS or not; calls that send as they receive go on.
#[test]
fn calls_are_mirrored() {
    let node = server();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let made = rcgen::generate_simple_self_signed(["mirror.test".to_owned()]).expect("a certificate");
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (key, certificate) =
        (file("key.pem", made.signing_key.serialize_pem()), file("certificate.pem", made.cert.pem()));
    for (scheme, mirror) in [("grpc", server()), ("grpcs", server_with(&[&key, &certificate]))] {
        let gateway = Gateway::start(
            STILLGATE,
            &Setup::resources(format!(
                "upstreams: [{{id: node, scheme: grpc, nodes: {{\"{}\": 1}}}}]\n\
                 routes: [{{id: all, uri: /*, upstream_id: node, plugins: {{proxy-mirror: {{host: \"{scheme}://{}\"}}}}}}]\n",
                node.port.addr(),
                mirror.port.addr()
            )),
        );
        client(&gateway, "unary_calls");
        client(&gateway, "streams");
        let sorted = |mut calls: Vec<usize>| {
            calls.sort_unstable();
            calls
        };
        eventually("the copies", || sorted(mirror.unary_calls()) == [0, 1, 1000]);
    }
}
