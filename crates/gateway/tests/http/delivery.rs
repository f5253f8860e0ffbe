//! Messages arrive whole, however they are split and however slow either side is.

use crate::shared::STILLGATE;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use stillgate_testkit::{Client, Delivery, Framing, Gateway, Setup, Upstream, eventually, payload, sha256};

/// Bytes that one side sends while the other does not read.
const PENDING_BYTES: usize = 100 * 1024 * 1024;

/// The bodies of [`PENDING_BYTES`] repeat this many bytes.
const BLOCK_BYTES: usize = 1024 * 1024;

/// Growth of the gateway while [`PENDING_BYTES`] wait: buffers of 64 KiB and the allocator's slack.
const GROWTH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes that may leave the sender: the kernel's buffers of two loopback connections.
const IN_FLIGHT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// If so many looks at a counter find the same value, it no longer changes.
const LOOKS_UNTIL_STILL: usize = 100;

#[test]
fn requests_in_any_pieces() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let requests: [&[u8]; 3] = [
        b"POST /?echo HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nhello\r\nworld",
        b"POST /?echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7;x=y\r\nhello\r\n\r\n05\r\nworld\r\n0\r\nX: y\r\n\r\n",
        b"\r\nPOST /?echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 12\r\n\r\nhello\r\nworld",
    ];
    for request in requests {
        for how in Delivery::ALL {
            // Twice, so that where one message ends and the next begins is cut too.
            let mut client = gateway.client();
            client.deliver(&[request, request].concat(), how);
            for _ in 0..2 {
                assert_eq!(client.expect_response("POST").body, b"hello\r\nworld", "{how:?}");
            }
        }
    }
}

#[test]
fn responses_in_any_pieces() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let responses: [(&[u8], Framing); 3] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello\r\nworld", Framing::Length),
        (
            b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7;x=y\r\nhello\r\n\r\n05\r\nworld\r\n0\r\nX: y\r\n\r\n",
            Framing::Chunked,
        ),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello\r\nworld", Framing::Chunked),
    ];
    for (response, framing) in responses {
        for how in Delivery::ALL {
            let mut client = gateway.client();
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let mut node = Client::from_connection(upstream.accept());
            node.expect_request();
            node.deliver(response, how);
            drop(node);
            let response = client.expect_response("GET");
            assert_eq!((response.framing, &response.body[..]), (framing, &b"hello\r\nworld"[..]), "{how:?}");
            client.expect_close();
        }
    }
}

/// A node that sends interim responses without end never comes to an answer.
#[test]
fn interim_responses_to_a_request_are_bounded() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for (interims, status) in [(100, 200), (101, 502)] {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let mut node = Client::from_connection(upstream.accept());
        node.expect_request();
        let interim = "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n";
        node.send(&(interim.repeat(interims) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), status, "{interims}");
    }
}

#[test]
fn many_pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    let requests: String =
        (0..300).map(|number| format!("GET /?size={number}&seed={number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.send(requests);
    for number in 0..300 {
        let response = client.expect_response("GET");
        assert_eq!(response.body, payload(number as u64, number), "response {number}");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn bodies_of_all_sizes_both_ways() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    let around = |size: usize| [size - 1, size, size + 1];
    let mut sizes = vec![0, 1, 2];
    for size in [4096, 16 * 1024, 32 * 1024, 64 * 1024, 128 * 1024, 1024 * 1024] {
        sizes.extend(around(size));
    }
    for size in sizes {
        for query in ["echo", "echo&chunked", "echo&piece=5000"] {
            let body = payload(size as u64, size);
            let response = client.request("POST", &format!("/?{query}"), &body);
            assert!(response.body == body, "{query}, {size} bytes: another body came back");
            assert_eq!(response.head.get("x-body-sha256"), Some(sha256(&body).as_str()));
        }
    }
}

#[test]
fn a_slow_client_bounds_memory() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let upstream = Upstream::serve(move |connection| {
        connection.expect_request();
        connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {PENDING_BYTES}\r\n\r\n"));
        let block = payload(1, BLOCK_BYTES);
        for piece in (0..PENDING_BYTES / BLOCK_BYTES).flat_map(|_| block.chunks(64 * 1024)) {
            connection.send(piece);
            counter.fetch_add(piece.len(), Ordering::SeqCst);
        }
        connection.expect_request();
    });
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let before = gateway.rss();
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    until_still(&sent);
    assert!(sent.load(Ordering::SeqCst) < IN_FLIGHT_BYTES_MAX, "the upstream was not held back");
    assert_grown_little(&gateway, before);
    client.read_head().expect("a response head");
    let block = payload(1, BLOCK_BYTES);
    for number in 0..PENDING_BYTES / BLOCK_BYTES {
        let read = client.read_exactly(BLOCK_BYTES).expect("the whole body");
        assert!(read == block, "block {number} differs");
    }
    assert_grown_little(&gateway, before);
}

#[test]
fn a_slow_upstream_bounds_memory() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let before = gateway.rss();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let mut client = gateway.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {PENDING_BYTES}\r\n\r\n"));
    let sender = thread::spawn(move || {
        let block = payload(1, BLOCK_BYTES);
        for piece in (0..PENDING_BYTES / BLOCK_BYTES).flat_map(|_| block.chunks(64 * 1024)) {
            client.send(piece);
            counter.fetch_add(piece.len(), Ordering::SeqCst);
        }
        client.expect_response("POST")
    });
    let mut node = upstream.accept();
    node.read_head().expect("a request head");
    until_still(&sent);
    assert!(sent.load(Ordering::SeqCst) < IN_FLIGHT_BYTES_MAX, "the client was not held back");
    assert_grown_little(&gateway, before);
    let block = payload(1, BLOCK_BYTES);
    for number in 0..PENDING_BYTES / BLOCK_BYTES {
        let read = node.read_exactly(BLOCK_BYTES).expect("the whole body");
        assert!(read == block, "block {number} differs");
    }
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(sender.join().expect("the sender got its response").body, b"ok");
    assert_grown_little(&gateway, before);
}

/// An upload whose response streams at the same time: neither direction may wait for the other.
#[test]
fn both_directions_at_once() {
    let upstream = Upstream::serve(|connection| {
        connection.read_head().expect("a request head");
        connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 8 * BLOCK_BYTES));
        for _ in 0..8 * BLOCK_BYTES / 65536 {
            let piece = connection.read_exactly(65536).expect("the request's body");
            connection.send(piece);
        }
    });
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    let twin = client.stream().try_clone().expect("duplicate a socket");
    let body = payload(9, 8 * BLOCK_BYTES);
    let sender = {
        let body = body.clone();
        thread::spawn(move || {
            let mut sending = stillgate_testkit::BufferedSocket::new(twin);
            sending.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
            sending.send(body);
        })
    };
    let response = client.expect_response("POST");
    assert!(response.body == body, "another body came back");
    sender.join().expect("all was sent");
}

/// A client that goes away in the middle of an upload takes the upstream's side with it.
#[test]
fn a_client_gone_in_its_body_ends_the_upstream_exchange() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for reset in [false, true] {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
        let mut node = upstream.accept();
        node.read_head().expect("a request head");
        if reset {
            client.into_connection().reset();
        } else {
            drop(client);
        }
        eventually("the upstream connection to be closed", || node.is_closed());
    }
}

/// A plain close looks like a half-close at first, but the client does not wait for the answer.
#[test]
fn a_client_gone_while_it_waits_ends_the_upstream_exchange() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    drop(client);
    eventually("the upstream connection to be closed", || node.is_closed());
}

/// A client that has only shut its sending side still gets it, however long it takes.
#[test]
fn a_half_closed_client_waits_for_a_slow_upstream() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let mut client = gateway.client();
        client.send(format!("GET /?delay=1200&size=10 {version}\r\nHost: a\r\n\r\n"));
        client.half_close();
        let response = client.expect_response("GET");
        assert_eq!((response.head.status(), response.body), (200, payload(0, 10)), "{version}");
        client.expect_close();
    }
}

/// A client that goes while the response streams: the upstream must not go on sending for nothing.
#[test]
fn a_client_gone_in_the_response_ends_the_upstream_exchange() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    node.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    client.read_head().expect("a response head");
    client.into_connection().reset();
    eventually("the upstream connection to be closed", || node.is_closed());
    // The gateway goes on.
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 204);
    client.stream().shutdown(Shutdown::Both).expect("end a live socket");
}

/// Pipelined requests that cannot be served yet are not read.
#[test]
fn a_flood_of_pipelined_requests_bounds_memory() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let before = gateway.rss();
    let mut client = gateway.client();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let flood = thread::spawn(move || {
        let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2000);
        while counter.load(Ordering::SeqCst) < PENDING_BYTES && client.try_send(&requests).is_ok() {
            counter.fetch_add(requests.len(), Ordering::SeqCst);
        }
    });
    let mut node = upstream.accept();
    node.expect_request();
    until_still(&sent);
    assert!(sent.load(Ordering::SeqCst) < IN_FLIGHT_BYTES_MAX, "the client was not held back");
    assert_grown_little(&gateway, before);
    drop(gateway);
    flood.join().expect("the flood ends with the gateway");
}

/// An upstream may refuse a body without reading it, and then its refusal races with a reset.
#[test]
fn a_refusal_reaches_a_client_that_sends_first_and_reads_later() {
    let upstream = Upstream::serve(|connection| {
        connection.read_head().expect("a request head");
        connection.send("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
    });
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for size in [10, 10_000, 1_000_000, 10_000_000] {
        for chunked in [false, true] {
            let mut client = gateway.client();
            let framing =
                if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {size}") };
            let mut bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").into_bytes();
            if chunked {
                bytes.extend_from_slice(format!("{size:x}\r\n").as_bytes());
            }
            bytes.extend(payload(1, size));
            if chunked {
                bytes.extend_from_slice(b"\r\n0\r\n\r\n");
            }
            // The gateway may stop reading somewhere.
            let _ = client.try_send(&bytes);
            let response = client.expect_response("POST");
            assert_eq!(response.head.status(), 413, "{size} bytes, chunked: {chunked}");
        }
    }
}

/// Heads of every size up to the limit, with a body right behind them.
#[test]
fn heads_of_all_sizes() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("limits: {head_bytes: 32KiB, target_bytes: 16KiB, headers: 100}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let body = payload(2, 70_000);
    for size in (200..32 * 1024).step_by(1531).chain([32 * 1024 - 1]) {
        let start = format!("POST /?echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nX: ", body.len());
        let head = format!("{start}{}\r\n\r\n", "x".repeat(size - start.len() - 4));
        client.send([head.as_bytes(), &body].concat());
        let response = client.expect_response("POST");
        assert_eq!(response.head.status(), 200, "a head of {size} bytes");
        assert!(response.body == body, "a head of {size} bytes");
    }
    assert_eq!(upstream.faults(), [""; 0]);
}

fn until_still(counter: &AtomicUsize) {
    let (mut last, mut looks) = (0, 0);
    eventually("the sender to be held back", || {
        let now = counter.load(Ordering::SeqCst);
        looks = if now == last && now > 0 { looks + 1 } else { 0 };
        last = now;
        looks >= LOOKS_UNTIL_STILL
    });
}

#[track_caller]
fn assert_grown_little(gateway: &Gateway, before: usize) {
    let now = gateway.rss();
    assert!(now < before + GROWTH_BYTES_MAX, "{before} bytes resident before, {now} now");
}
