//! Answers of the gateway itself to `HEAD`: what `GET` would get, without the body (RFC 9110 section 9.3.2).

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use stillgate_testkit::http2::{END_STREAM, Http2, NO_DYNAMIC_TABLE, StreamEnd};
use stillgate_testkit::{BufferedSocket, Gateway, Head, MessageError, Setup, Upstream, eventually};

/// All that comes before the end of the connection.
#[track_caller]
fn answer(addr: SocketAddr, request: &str) -> (Head, Vec<u8>) {
    let mut client = BufferedSocket::new(TcpStream::connect(addr).expect("connect"));
    client.send(request);
    client.half_close();
    let bytes = match client.read_to_end() {
        // Where nothing of the request is read the end is a reset.
        Ok(bytes) | Err(MessageError::Reset(bytes)) => bytes,
        Err(broken) => panic!("{request:.80}: {broken:?}"),
    };
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("a whole head") + 4;
    (Head::parse(&bytes[..end]).expect("a head"), bytes[end..].to_vec())
}

/// `rest`: of the request, behind its method.
#[track_caller]
fn check(addr: SocketAddr, rest: &str, status: u16) {
    let (of_get, body) = answer(addr, &format!("GET {rest}"));
    assert_eq!((of_get.status(), body.is_empty()), (status, false), "GET {rest:.80}");
    let (of_head, body) = answer(addr, &format!("HEAD {rest}"));
    assert_eq!(String::from_utf8_lossy(&body), "", "HEAD {rest:.80}");
    let told = |head: &Head| (head.status(), head.get("content-length").map(str::to_owned));
    assert_eq!(told(&of_head), told(&of_get), "HEAD {rest:.80}");
}

#[test]
fn it_has_no_body_whatever_was_wrong() {
    let upstream = Upstream::refusing();
    let setup = Setup::resources(format!(
        "upstreams:\n- {{id: none, nodes: {{}}}}\n- {{id: gone, nodes: {{\"{}\": 1}}}}\nroutes:\n\
         - {{id: none, uri: /none, upstream_id: none}}\n- {{id: gone, uri: /gone, upstream_id: gone}}\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup);
    let long = "a".repeat(1 << 20);
    for (rest, status) in [
        ("/ HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("/none HTTP/1.1\r\nHost: a\r\n\r\n", 503),
        ("/gone HTTP/1.1\r\nHost: a\r\n\r\n", 502),
        ("/%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("/ HTTP/1.1\r\n\r\n", 400),
        ("/ HTTP/1.1\r\nHost: a..b\r\n\r\n", 400),
        ("/ HTTP/1.1\r\nHost: a\r\nno field\r\n\r\n", 400),
        ("/ HTTP/1.1\nHost: a\n\n", 400),
        ("/a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("nothing HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        ("/none HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n", 400),
        ("/ HTTP/7.0\r\nHost: a\r\n\r\n", 505),
        (&format!("/{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (&format!("/ HTTP/1.1\r\nHost: a\r\nA: {long}\r\n\r\n"), 431),
    ] {
        check(gateway.addr(), rest, status);
    }
}

#[test]
fn nor_where_it_comes_before_the_head_has() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {head: 300ms}");
    let gateway = Gateway::start(STILLGATE, &setup);
    for (sent, is_empty) in [("GET / HTTP/1.1\r\nHost: a\r\n", false), ("HEAD / HTTP/1.1\r\nHost: a\r\n", true)] {
        let mut client = gateway.client();
        client.send(sent);
        let bytes = client.read_to_end().expect("an orderly end");
        assert!(bytes.starts_with(b"HTTP/1.1 408 "), "{}", bytes.escape_ascii());
        assert_eq!(bytes.ends_with(b"\r\n\r\n"), is_empty, "{}", bytes.escape_ascii());
    }
}

#[test]
fn nor_where_no_request_is_read() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let dir = authority.dir().display();
    let tls = Setup::resources(format!(
        "ssls: [{{id: shop, cert: \"{dir}/shop.pem\", key: \"{dir}/shop.key\", snis: [shop.example.com]}}]\nroutes: []\n"
    ));
    let gateway = Gateway::start(STILLGATE, &tls.listener("tls: true"));
    check(gateway.addr(), "/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);

    let full = Setup::to(upstream.addr()).gateway("limits: {connections_per_worker: 1}");
    let gateway = Gateway::start(STILLGATE, &full);
    let mut only = gateway.client();
    assert_eq!(only.get("/").head.status(), 200);
    let (of_get, body) = answer(gateway.addr(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((of_get.status(), body.is_empty()), (503, false));
    // The gateway waits a moment for the method, and this process may be delayed for longer.
    eventually("an answer without a body", || {
        let (of_head, body) = answer(gateway.addr(), "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((of_head.status(), of_head.get("content-length")), (503, of_get.get("content-length")));
        body.is_empty()
    });
    // A client that sends nothing gets the answer, too.
    assert_eq!(gateway.client().expect_response("GET").head.status(), 503);
}

#[test]
fn nor_over_http2() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let dir = authority.dir().display();
    let setup = Setup::resources(format!(
        "ssls: [{{id: shop, cert: \"{dir}/shop.pem\", key: \"{dir}/shop.key\", snis: [shop.example.com]}}]\n\
         upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: r, uri: /known, upstream_id: u}}]\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup.listener("tls: true"));
    let mut stream = authority.connect(gateway.addr(), "shop.example.com", &["h2"]);
    stream.flush().expect("the handshake");
    let mut http2 = Http2::begin_with(stream, &[NO_DYNAMIC_TABLE]);
    let long = format!("/{}", "a".repeat(9_000));
    for (index, (host, path)) in [("a", "/"), ("a..b", "/known"), ("a", &long)].into_iter().enumerate() {
        for (at, method) in ["GET", "HEAD"].into_iter().enumerate() {
            let stream = (4 * index + 2 * at) as u32 + 1;
            let fields = [(":method", method), (":scheme", "https"), (":authority", host), (":path", path)];
            http2.send_head(stream, &fields, END_STREAM);
            let (heads, body, end) = http2.finish(stream);
            assert_eq!((heads.len(), end), (1, StreamEnd::Whole), "{method} {host} {path:.20}");
            assert!(heads[0].status() >= 400);
            assert_eq!(body.is_empty(), method == "HEAD", "{method} {host} {path:.20}");
        }
    }
}
