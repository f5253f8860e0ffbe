//! HTTP/2 nodes that delay us, end in the middle, or send more than they may: the cost, and who pays it.

use crate::hostile_node::ClientResult::{BadGateway, GatewayTimeout, Whole};
use crate::hostile_node::{Bench, GROWTH_BYTES_MAX, begin, seen};
use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_STREAM, Http2, code, kind};
use stillgate_testkit::{Gateway, PATIENCE, Setup, Upstream, eventually, payload};

const GET: &str = "GET /bad HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_node_that_opens_no_window_is_given_up() {
    let bench = Bench::new(", timeout: {send: 300ms, read: 5s}");
    let mut client = bench.gateway.client();
    client.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n");
    client.send(payload(1, 100_000));
    let mut peer = Http2::accept(bench.node.accept().stream().try_clone().expect("a handle"), &[(4, 0)]);
    peer.until(|frame| frame.kind == kind::HEADERS);
    assert_eq!(seen(&mut client, "POST"), GatewayTimeout);
    // Its stream is reset; the connection, which others may use, goes on.
    assert_eq!(peer.until(|frame| frame.kind == kind::RST_STREAM).code(), code::CANCEL);
    assert_eq!(bench.gateway.get("/good").head.status(), 200);
    bench.await_rest();
}

/// The socket is full, so not even a reset gets through.
#[test]
fn a_node_that_reads_nothing_is_given_up() {
    const UPLOAD_BYTES: usize = 32 * 1024 * 1024;
    let bench = Bench::new(", timeout: {send: 300ms, read: 5s}");
    let rss = bench.gateway.rss();
    let mut client = bench.gateway.client();
    client.send(format!("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n"));
    let mut peer = Http2::accept(bench.node.accept().stream().try_clone().expect("a handle"), &[(4, 0x7fff_ffff)]);
    peer.send(kind::WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
    let body = payload(1, UPLOAD_BYTES);
    std::thread::scope(|scope| {
        let stream = client.stream().try_clone().expect("a handle");
        // It ends when the gateway does not take any more.
        scope.spawn(move || (&stream).write_all(&body));
        assert_eq!(seen(&mut client, "POST"), GatewayTimeout);
        assert_eq!(bench.gateway.get("/good").head.status(), 200);
        let _ = client.stream().shutdown(std::net::Shutdown::Both);
    });
    let grown = bench.gateway.rss().saturating_sub(rss);
    assert!(grown < GROWTH_BYTES_MAX / 4, "{grown} bytes more");
    bench.await_rest();
    drop(peer);
}

/// A node that sends on though its window is used up must not fill our memory while the client reads nothing.
#[test]
fn more_than_the_window_ends_the_stream_or_the_connection() {
    let bench = Bench::new("");
    let rss = bench.gateway.rss();
    let mut client = bench.gateway.client();
    client.send(GET);
    let mut peer = bench.accept();
    let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    begin(&mut peer, stream);
    let head = client.read_head().expect("a head");
    for _ in 0..4_000 {
        peer.send(kind::DATA, 0, stream, &[7; 16 * 1024]);
    }
    // Where all of it comes at once the connection's window is used up as well.
    const FLOW_CONTROL_ERROR: u32 = 3;
    let end = std::iter::from_fn(|| peer.next_frame())
        .find(|frame| matches!(frame.kind, kind::RST_STREAM | kind::GOAWAY))
        .map(|frame| frame.code());
    assert!(matches!(end, None | Some(FLOW_CONTROL_ERROR)), "{end:?}");
    let grown = bench.gateway.rss().saturating_sub(rss);
    assert!(grown < GROWTH_BYTES_MAX / 4, "{grown} bytes more");
    assert!(client.read_response_body(head, "GET").is_err());
    bench.await_rest();
}

/// Heads have no flow control: while a client reads nothing, a node that keeps sending interim responses must not fill our memory.
#[test]
fn unread_interim_responses_close_the_connection() {
    const INTERIMS: usize = 20_000;
    let bench = Bench::new("");
    let begin = |count: usize, last: &str| {
        let client = bench.gateway.client();
        socket2::SockRef::from(client.stream()).set_recv_buffer_size(2048).expect("a small buffer");
        let requests = "GET /good?size=5000 HTTP/1.1\r\nHost: h\r\n\r\n".repeat(count) + last;
        let mut sending = client.stream().try_clone().expect("a handle");
        std::thread::spawn(move || drop(sending.write_all(requests.as_bytes())));
        client
    };
    // As many answers as fill the sockets, so that the last request's interim responses cannot be written.
    let full = begin(10_000, "");
    let mut count = 0;
    eventually("the sockets to be full", || {
        let before = std::mem::replace(&mut count, bench.good.requests());
        std::thread::sleep(Duration::from_millis(200));
        count > 0 && before == count
    });
    drop(full);
    let rss = bench.gateway.rss();
    let client = begin(count - 2, GET);
    let mut peer = bench.accept();
    let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    let value = "v".repeat(8_000);
    for _ in 0..INTERIMS {
        // The connection may have ended.
        peer.send_head(stream, &[(":status", "103"), ("link", &value)], 0);
    }
    let grown = bench.gateway.rss().saturating_sub(rss);
    assert!(grown < GROWTH_BYTES_MAX / 4, "{grown} bytes more");
    drop(client);
    bench.await_rest();
}

/// More full connections than a request looks at: it does not wait for them, and what is free again is used.
#[test]
fn a_request_finds_room_however_many_connections_are_full() {
    const CONNECTIONS: usize = 10;
    const STREAMS_AT_ONCE: (u16, u32) = (3, 1);
    let bench = Bench::new("");
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = bench.gateway.client();
        client.send(GET);
        let stream = bench.node.accept().stream().try_clone().expect("a handle");
        let mut peer = Http2::accept(stream, &[STREAMS_AT_ONCE]);
        let (mut stream, mut knows) = (None, false);
        while stream.is_none() || !knows {
            let frame = peer.until(|frame| matches!(frame.kind, kind::HEADERS | kind::SETTINGS));
            match frame.kind {
                kind::HEADERS => stream = Some(frame.stream),
                _ => knows |= frame.flags & END_STREAM != 0,
            }
        }
        held.push((client, peer, stream.expect("it is there")));
    }
    assert_eq!(bench.gateway.status()["requests"]["in_flight"], CONNECTIONS);
    for (client, peer, stream) in &mut held {
        peer.send_head(*stream, &[(":status", "204")], END_STREAM);
        assert_eq!(seen(client, "GET"), Whole);
    }
    let (client, peer, _) = held.last_mut().expect("one");
    for _ in 0..3 {
        client.send(GET);
        let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
        peer.send_head(stream, &[(":status", "204")], END_STREAM);
        assert_eq!(seen(client, "GET"), Whole);
    }
    assert!(bench.node.try_accept().is_none(), "no further connection");
    bench.await_rest();
}

/// Requests that the node has not seen are sent to it again; those that it has seen are served to their end.
#[test]
fn an_announced_end_in_the_midst_loses_nothing() {
    let bench = Bench::new("");
    let mut clients = [bench.gateway.client(), bench.gateway.client()];
    clients[0].send(GET);
    let mut peer = bench.accept();
    let first = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    begin(&mut peer, first);
    clients[1].send(GET);
    let second = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    assert!(second > first);
    // Lowering what was announced is how a node ends (RFC 9113 section 6.8).
    for last in [0x7fff_ffff, first] {
        peer.send(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code::NO_ERROR.to_be_bytes()].concat());
    }
    let mut next = bench.accept();
    let again = next.until(|frame| frame.kind == kind::HEADERS).stream;
    next.send_head(again, &[(":status", "204")], END_STREAM);
    assert_eq!(seen(&mut clients[1], "GET"), Whole);
    peer.send(kind::DATA, END_STREAM, first, b"end");
    assert_eq!(seen(&mut clients[0], "GET"), Whole);
    // With a fault instead, the requests in progress fail; it is not known what the node has done with them.
    for begun in [false, true] {
        let mut client = bench.gateway.client();
        client.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        let stream = next.until(|frame| frame.kind == kind::HEADERS).stream;
        if begun {
            begin(&mut next, stream);
            client.read_head().expect("a head");
        }
        next.send(kind::GOAWAY, 0, 0, &[stream.to_be_bytes(), code::INTERNAL_ERROR.to_be_bytes()].concat());
        drop(next);
        match begun {
            false => assert_eq!(seen(&mut client, "POST"), BadGateway),
            true => assert!(client.read_to_end().is_ok_and(|rest| !rest.ends_with(b"0\r\n\r\n"))),
        }
        client = bench.gateway.client();
        client.send(GET);
        next = bench.accept();
        let head = next.until(|frame| frame.kind == kind::HEADERS);
        next.send_head(head.stream, &[(":status", "204")], END_STREAM);
        assert_eq!(seen(&mut client, "GET"), Whole);
    }
    drop(next);
    bench.await_rest();
}

/// On a connection that the client keeps, it would be the response to its next request.
#[test]
fn a_body_where_none_may_be_does_not_reach_the_client() {
    const FORGED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    for (method, status, length) in [("GET", "204", None), ("GET", "304", None), ("HEAD", "200", Some("45"))] {
        let bench = Bench::new("");
        let mut client = bench.gateway.client();
        client.send(format!("{method} /bad HTTP/1.1\r\nHost: h\r\n\r\n"));
        let mut peer = bench.accept();
        let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
        let fields = [(":status", status), ("content-length", length.unwrap_or("0"))];
        peer.send_head(stream, &fields[..1 + length.iter().count()], 0);
        peer.send(kind::DATA, END_STREAM, stream, FORGED);
        let first = client.expect_response(method);
        assert!(first.head.status().to_string() == status || first.head.status() == 502, "{first:?}");
        if !first.head.connection_has("close") {
            client.send("GET /good?size=3 HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(client.expect_response("GET").body, payload(0, 3), "{method} {status}");
        }
        client.half_close();
        assert_eq!(client.read_to_end().expect("an orderly end"), b"", "{method} {status}");
    }
}

/// A switch of protocols does not exist in HTTP/2 (RFC 9113 section 8.6), whatever the client requested.
#[test]
fn a_switch_of_protocols_over_http_2_is_refused() {
    let bench = Bench::new("");
    let ask = "GET /bad HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
               Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let (seen, _) = bench.play(ask, |peer, stream| {
        peer.send_head(stream, &[(":status", "101"), ("upgrade", "websocket"), ("connection", "upgrade")], 0);
    });
    assert_eq!(seen, BadGateway);
    let (seen, _) = bench.play(ask, |peer, stream| peer.send_head(stream, &[(":status", "101")], 0));
    assert_eq!(seen, BadGateway);
    bench.await_rest();
}

#[test]
fn noise_after_the_handshake_is_a_bad_gateway() {
    let (authority, node, good) = (Authority::new(), Upstream::bind(), Upstream::echo());
    authority.issue("node", &["node.test"]);
    let ca = authority.path("ca.pem");
    let setup = Setup::resources(format!(
        "upstreams:\n  - {{id: bad, retries: 0, scheme: https, http2: true, pass_host: rewrite, \
         upstream_host: node.test, tls: {{ca: \"{ca}\"}}, nodes: {{\"{}\": 1}}}}\n  - {{id: good, nodes: {{\"{}\": 1}}}}\n\
         routes:\n  - {{id: good, uri: /good, upstream_id: good}}\n  - {{id: bad, uri: /bad, upstream_id: bad}}\n  \
         - {{id: silent, uri: /silent, upstream_id: bad, timeout: {{read: 400ms}}}}\n",
        node.addr(),
        good.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.get("/good").head.status(), 200);
    eventually("no client", || gateway.status()["connections"]["open"] == 0);
    let descriptors = gateway.fd_count();
    let silence = ("/silent", &b""[..], GatewayTimeout);
    let noise = payload(5, 50_000);
    for (path, bytes, expected) in [
        ("/bad", &b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..], BadGateway),
        ("/bad", &noise, BadGateway),
        ("/bad", &[0; 20_000], BadGateway),
        ("/bad", &[0xff; 9], BadGateway),
        silence,
    ] {
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let socket = node.accept().stream().try_clone().expect("a handle");
        let mut peer = authority.serve(socket, "node", &["h2"]);
        let mut preface = [0; 24];
        peer.read_exact(&mut preface).expect("a preface");
        assert!(preface.starts_with(b"PRI * HTTP/2.0"));
        let _ = peer.write_all(bytes);
        let _ = peer.flush();
        assert_eq!(seen(&mut client, "GET"), expected, "{}", bytes[..bytes.len().min(9)].escape_ascii());
        assert_eq!(gateway.get("/good").head.status(), 200);
    }
    eventually("its descriptors to be closed", || gateway.fd_count() <= descriptors);
}

/// Neither the frames nor the silence of a node delay requests to another on the same worker.
#[test]
fn others_are_served_meanwhile() {
    let bench = Bench::new(", timeout: {read: 5s}");
    let mut clients: Vec<_> = (0..20).map(|_| bench.gateway.client()).collect();
    for client in &mut clients {
        client.send(GET);
    }
    let mut peer = bench.accept();
    let streams: Vec<u32> =
        (0..clients.len()).map(|_| peer.until(|frame| frame.kind == kind::HEADERS).stream).collect();
    let (began, is_done) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It goes on as long as another client sends requests, and longer than that one waits for an answer.
            while !is_done.load(Ordering::Relaxed) && began.elapsed() < 4 * PATIENCE {
                for &stream in &streams {
                    peer.send_head(stream, &[(":status", "103"), ("link", "</a>")], 0);
                }
                peer.send(kind::PING, 0, 0, &[0; 8]);
            }
        });
        let mut client = bench.gateway.client();
        client.set_patience(3 * PATIENCE);
        let mut served = 0;
        while served < 10 || began.elapsed() < Duration::from_millis(500) {
            assert_eq!(client.get("/good").head.status(), 200);
            served += 1;
        }
        is_done.store(true, Ordering::Relaxed);
    });
    drop(clients);
    bench.await_rest();
}
