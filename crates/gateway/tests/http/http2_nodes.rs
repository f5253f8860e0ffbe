//! Nodes that speak HTTP/2: their requests, and what becomes of their responses, or of missing ones.

use crate::shared::STILLGATE;
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, code, get_fields, kind};
use stillgate_testkit::{BufferedSocket, Client, Gateway, Setup, Upstream, eventually, payload, run_tool, sha256};

/// A gateway in front of another that speaks both versions, in front of an echo.
fn chain() -> (Upstream, Gateway, Gateway) {
    let upstream = Upstream::echo();
    let inner = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let outer = Gateway::start(STILLGATE, &Setup::to(inner.addr()).upstream("http2: true"));
    (upstream, inner, outer)
}

fn outer_of(node: &Upstream) -> Gateway {
    Gateway::start(STILLGATE, &Setup::to(node.addr()).upstream("http2: true"))
}

fn accept(node: &Upstream, settings: &[(u16, u32)]) -> Http2 {
    let connection: BufferedSocket = node.accept();
    Http2::accept(connection.stream().try_clone().expect("a second handle"), settings)
}

/// HTTP/1.1 and HTTP/2 clients alike.
#[test]
fn all_combinations_pass_bodies() {
    let (_upstream, _inner, outer) = chain();
    let body = payload(9, 2 * 1024 * 1024);
    let file = outer.dir().join("upload");
    std::fs::write(&file, &body).expect("write the file to upload");
    let back = outer.dir().join("back");
    let (path, back) = (file.display().to_string(), back.display().to_string());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for target in ["/?echo", "/?echo&chunked", "/?echo&close"] {
            let chunked = if version == "--http1.1" { "Transfer-Encoding: chunked" } else { "Content-Length:" };
            for more in [&[][..], &["-H", chunked], &["-H", "Expect: 100-continue"]] {
                let url = format!("http://{}{target}", outer.addr());
                let common = ["-sS", "--max-time", "300", "--noproxy", "*", version, "-T", &path, "-o", &back, &url];
                let output = run_tool("curl", "curl", &[&common[..], more].concat());
                assert!(output.status.success(), "{version} {target}: {}", String::from_utf8_lossy(&output.stderr));
                assert_eq!(sha256(&std::fs::read(&back).expect("what came back")), sha256(&body), "{version} {target}");
            }
        }
    }
    let mut client = outer.client();
    for status in [204, 304, 404] {
        assert_eq!(client.get(&format!("/?status={status}")).head.status(), status);
    }
    let head = client.request("HEAD", "/?size=1234", b"");
    assert_eq!(head.head.get("content-length"), Some("1234"));
    assert_eq!(client.get("/?size=5&chunked").body.len(), 5);
}

#[test]
fn requests_share_a_connection() {
    let (_upstream, inner, outer) = chain();
    let connections = || inner.status()["connections"]["total"].as_u64().expect("a number");
    let before = connections();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(outer.get("/?delay=300").head.status(), 200));
        }
    });
    assert_eq!(outer.get("/").head.status(), 200);
    assert_eq!(connections() - before, 1, "one connection for 20 requests, though they all came when there was none");
}

#[test]
fn the_node_sees_a_request_of_http_2() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut client = Client::connect(gateway.addr()).into_connection();
    client.send("POST /a?b HTTP/1.1\r\nHost: h.example\r\nTE: trailers\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 3\r\n\r\nabc");
    let mut peer = accept(&node, &[]);
    let head = peer.until(|frame| frame.kind == kind::HEADERS);
    let text = String::from_utf8_lossy(&head.payload).into_owned();
    assert!(!text.contains("x-hop"), "{text}");
    let data = peer.until(|frame| frame.kind == kind::DATA);
    assert_eq!((&data.payload[..], data.flags & END_STREAM), (&b"abc"[..], END_STREAM));
    peer.send_head(head.stream, &[(":status", "103"), ("link", "</a>")], 0);
    peer.send_head(head.stream, &[(":status", "200"), ("x-a", "1")], 0);
    peer.send(kind::DATA, 0, head.stream, b"ok");
    peer.send_head(head.stream, &[("x-sum", "7"), ("content-length", "9")], END_STREAM);
    let interim = client.read_head().expect("an interim response");
    assert_eq!((interim.status(), interim.get("link")), (103, Some("</a>")));
    let response = client.read_head().expect("the response");
    assert_eq!(
        (response.status(), response.get("x-a"), response.get("transfer-encoding")),
        (200, Some("1"), Some("chunked"))
    );
    assert_eq!(client.read_exactly(22).expect("the body"), b"2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n");
}

/// In HTTP/1.1 trailers cannot follow a body with a length: a client that accepts them gets chunks instead, any other the length.
#[test]
fn trailers_of_a_body_with_a_length_reach_who_takes_them() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut client = Client::connect(gateway.addr()).into_connection();
    let mut peer = None;
    for (te, body) in [("TE: trailers\r\n", "2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n"), ("", "ok")] {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{te}\r\n"));
        let peer: &mut Http2 = peer.get_or_insert_with(|| accept(&node, &[]));
        let head = peer.until(|frame| frame.kind == kind::HEADERS);
        peer.send_head(head.stream, &[(":status", "200"), ("content-length", "2")], 0);
        peer.send(kind::DATA, 0, head.stream, b"ok");
        peer.send_head(head.stream, &[("x-sum", "7")], END_STREAM);
        let response = client.read_head().expect("the response");
        assert_eq!(response.get("content-length"), te.is_empty().then_some("2"), "{te}");
        assert_eq!(client.read_exactly(body.len()).expect("the body"), body.as_bytes());
    }
}

/// What a node has not looked at is sent again, whatever the method.
#[test]
fn unseen_requests_are_tried_again() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let post = |gateway: &Gateway| {
        let mut client = gateway.client().into_connection();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        client
    };
    let mut client = post(&gateway);
    let mut first = accept(&node, &[]);
    let head = first.until(|frame| frame.kind == kind::HEADERS);
    first.send(kind::RST_STREAM, 0, head.stream, &code::REFUSED_STREAM.to_be_bytes());
    let mut second = accept(&node, &[]);
    let head = second.until(|frame| frame.kind == kind::HEADERS);
    second.send_head(head.stream, &[(":status", "204")], END_STREAM);
    assert_eq!(client.expect_response("POST").head.status(), 204);

    // The youngest connection is used next; it announces its end, without having seen the request.
    let mut client = post(&gateway);
    second.until(|frame| frame.kind == kind::HEADERS && frame.stream > head.stream);
    let last = head.stream.to_be_bytes();
    second.send(kind::GOAWAY, 0, 0, &[&last[..], &code::NO_ERROR.to_be_bytes()].concat());
    let mut third = accept(&node, &[]);
    let head = third.until(|frame| frame.kind == kind::HEADERS);
    third.send_head(head.stream, &[(":status", "204")], END_STREAM);
    assert_eq!(client.expect_response("POST").head.status(), 204);
}

#[test]
fn a_reset_is_not_a_whole_response() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut peer = None;
    for (begun, code) in [(false, code::INTERNAL_ERROR), (true, code::INTERNAL_ERROR), (true, code::CANCEL)] {
        let mut client = Http2::connect(gateway.addr());
        client.send_head(1, &[&get_fields("/")[1..], &[(":method", "POST")]].concat(), END_STREAM);
        let peer = peer.get_or_insert_with(|| accept(&node, &[]));
        let head = peer.until(|frame| frame.kind == kind::HEADERS);
        if begun {
            peer.send_head(head.stream, &[(":status", "200")], 0);
            peer.send(kind::DATA, 0, head.stream, b"beginning");
            client.until(|frame| frame.kind == kind::DATA);
        }
        peer.send(kind::RST_STREAM, 0, head.stream, &code.to_be_bytes());
        let (heads, _, end) = client.finish(1);
        match begun {
            true => assert_eq!(end, StreamEnd::Reset(code::INTERNAL_ERROR)),
            false => assert_eq!((heads.len(), end), (1, StreamEnd::Whole), "502"),
        }
    }
}

#[test]
fn more_requests_than_a_node_allows_take_another_connection() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut one = gateway.client().into_connection();
    one.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut first = accept(&node, &[(3, 1)]);
    let head = first.until(|frame| frame.kind == kind::HEADERS);
    // The settings are known when they are acknowledged.
    first.until(|frame| frame.kind == kind::SETTINGS && frame.flags == END_STREAM);
    let mut other = gateway.client().into_connection();
    other.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut second = accept(&node, &[(3, 1)]);
    let other_head = second.until(|frame| frame.kind == kind::HEADERS);
    second.send_head(other_head.stream, &[(":status", "204")], END_STREAM);
    first.send_head(head.stream, &[(":status", "204")], END_STREAM);
    assert_eq!(other.expect_response("GET").head.status(), 204);
    assert_eq!(one.expect_response("GET").head.status(), 204);
}

#[test]
fn what_is_not_http_2_is_a_bad_gateway() {
    let node = Upstream::serve(|connection| {
        let _ = connection.try_send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = connection.read_to_end();
    });
    let gateway = outer_of(&node);
    assert_eq!(gateway.get("/").head.status(), 502);
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut client = gateway.client().into_connection();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut peer = accept(&node, &[]);
    let head = peer.until(|frame| frame.kind == kind::HEADERS);
    peer.send_head(head.stream, &[(":status", "200"), ("connection", "close")], END_STREAM);
    // Tried again, as it is idempotent and nothing of a response came that means anything.
    drop(peer);
    let _ = client.read_head();
    drop(client);
    eventually("nothing in flight", || gateway.status()["requests"]["in_flight"] == 0);
}

/// A client of HTTP/1.1 that leaves ends its stream, and no other.
#[test]
fn a_client_that_leaves_resets_its_stream_only() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut leaving = gateway.client().into_connection();
    leaving.send("GET /leaving HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut peer = accept(&node, &[]);
    let first = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    let mut staying = gateway.client().into_connection();
    staying.send("GET /staying HTTP/1.1\r\nHost: h\r\n\r\n");
    let second = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    leaving.reset();
    let reset = peer.until(|frame| frame.kind == kind::RST_STREAM);
    assert_eq!((reset.stream, reset.code()), (first, code::CANCEL));
    peer.send_head(second, &[(":status", "204")], END_STREAM);
    assert_eq!(staying.expect_response("GET").head.status(), 204);
}

/// Once again on a new connection, and no more than that.
#[test]
fn a_node_that_looks_at_no_request_fails_it() {
    let node = Upstream::bind();
    let gateway = outer_of(&node);
    let mut client = gateway.client().into_connection();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut peers = Vec::new();
    for _ in 0..2 {
        let mut peer = accept(&node, &[]);
        let head = peer.until(|frame| frame.kind == kind::HEADERS);
        peer.send(kind::RST_STREAM, 0, head.stream, &code::REFUSED_STREAM.to_be_bytes());
        peers.push(peer);
    }
    assert_eq!(client.expect_response("GET").head.status(), 502);
    assert_eq!(node.connections(), 2);
}

/// Otherwise a broken path to the node would go unnoticed.
#[test]
fn a_connection_on_which_a_node_was_silent_takes_no_further_request() {
    let node = Upstream::bind();
    let setup = Setup::resources(format!(
        "upstreams: [{{id: u, http2: true, retries: 0, nodes: {{\"{}\": 1}}}}]\nroutes:\n  \
         - {{id: first, uri: /first, upstream_id: u, timeout: {{read: 300ms}}}}\n  - {{id: second, uri: /second, upstream_id: u}}\n",
        node.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client().into_connection();
    client.send("GET /first HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut silent = accept(&node, &[]);
    silent.until(|frame| frame.kind == kind::HEADERS);
    assert_eq!(client.expect_response("GET").head.status(), 504);
    client.send("GET /second HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut next = accept(&node, &[]);
    let head = next.until(|frame| frame.kind == kind::HEADERS);
    next.send_head(head.stream, &[(":status", "204")], END_STREAM);
    assert_eq!(client.expect_response("GET").head.status(), 204);
}
