//! Streams that share a connection of HTTP/2: progress or a stall of one of them does not affect the others.

use crate::hostile_node;
use crate::hostile_node::ClientResult::{BadGateway, Cut, GatewayTimeout, Whole};
use crate::hostile_node::{Bench, begin, seen};
use crate::shared::STILLGATE;
use crate::windows::WindowedConnection;
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, code, encode_frame, kind};
use stillgate_testkit::{Client, Gateway, PATIENCE, Setup, Upstream, eventually, payload};

const GET: &str = "GET /bad HTTP/1.1\r\nHost: h\r\n\r\n";
const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":authority", "h.example"), (":path", "/bad")];
/// SETTINGS_INITIAL_WINDOW_SIZE of a client that reads nothing.
const CLOSED: (u16, u32) = (4, 0);
/// More than the gateway takes of a body that is not read: one buffer, and one window on each side of it.
const FULL_BYTES: usize = 256 * 1024;
/// PADDED of DATA.
const PADDED: u8 = 8;

/// Two responses that have begun on one connection to a node.
struct SharedConnection {
    /// Opens no window for its own.
    slow: Http2,
    client: Client,
    node: WindowedConnection,
    /// The streams of the two, at the node.
    unread: u32,
    other: u32,
}

impl SharedConnection {
    fn begin(bench: &Bench) -> SharedConnection {
        let mut slow = Http2::connect_with(bench.gateway.addr(), &[CLOSED]);
        slow.get(1, "/bad");
        let mut node = WindowedConnection::new(bench.accept());
        let unread = node.until(|frame| frame.kind == kind::HEADERS).stream;
        node.peer.send_head(unread, &[(":status", "200")], 0);
        slow.until(|frame| frame.kind == kind::HEADERS);
        let mut client = bench.gateway.client();
        client.send(GET);
        let other = node.until(|frame| frame.kind == kind::HEADERS).stream;
        begin(&mut node.peer, other);
        SharedConnection { slow, client, node, unread, other }
    }
}

/// Many frames with little in them are what gRPC is made of.
#[test]
fn small_messages_to_a_client_that_reads_nothing_harm_no_other_client() {
    for frame_bytes in [1, 20, 300] {
        let bench = Bench::new("");
        let rss = bench.gateway.rss();
        let SharedConnection { mut slow, mut client, mut node, unread, other } = SharedConnection::begin(&bench);
        let sent = node.fill(unread, frame_bytes, FULL_BYTES);
        assert!(sent < FULL_BYTES, "nothing holds the node back");
        assert!(sent > FULL_BYTES / 8, "{sent} bytes are not a flood");
        node.peer.send(kind::DATA, END_STREAM, other, b"end");
        assert_eq!(seen(&mut client, "GET"), Whole, "by {frame_bytes}");
        let grown = bench.gateway.rss().saturating_sub(rss);
        assert!(grown < hostile_node::GROWTH_BYTES_MAX / 4, "{grown} bytes more");
        // All of it arrives once it is read.
        node.peer.send(kind::DATA, END_STREAM, unread, &[]);
        slow.send(kind::WINDOW_UPDATE, 0, 0, &0x100_0000_u32.to_be_bytes());
        slow.send(kind::WINDOW_UPDATE, 0, 1, &0x100_0000_u32.to_be_bytes());
        let (_, body, end) = slow.finish(1);
        assert_eq!((body.len(), end), (sent, StreamEnd::Whole));
        bench.await_rest();
    }
}

#[test]
fn small_pieces_of_an_upload_that_stalls_harm_no_other_request() {
    let bench = Bench::new(", timeout: {send: 60s, read: 60s}");
    let mut client = WindowedConnection::new(Http2::connect(bench.gateway.addr()));
    client.peer.send_head(1, &POST, 0);
    let mut node = Http2::accept(bench.node.accept().stream().try_clone().expect("a handle"), &[CLOSED]);
    let stalled = node.until(|frame| frame.kind == kind::HEADERS).stream;
    let sent = client.fill(1, 16, FULL_BYTES);
    assert!(sent < FULL_BYTES, "nothing holds the client back");
    client.peer.get(3, "/good?size=100000");
    let mut got = 0;
    while got < 65_535 {
        let frame = client.until(|frame| frame.kind == kind::DATA && frame.stream == 3);
        got += frame.payload.len();
    }
    client.peer.send(kind::DATA, END_STREAM, 1, &[]);
    node.send(kind::WINDOW_UPDATE, 0, 0, &0x100_0000_u32.to_be_bytes());
    node.send(kind::WINDOW_UPDATE, 0, stalled, &0x100_0000_u32.to_be_bytes());
    let (_, body, end) = node.finish(stalled);
    assert_eq!((body.len(), end), (sent, StreamEnd::Whole));
}

/// The windows of all that one client does not read must not be the window of all others.
#[test]
fn streams_that_are_not_read_stall_no_other_clients() {
    const STREAMS: u32 = 40;
    let bench = Bench::new("");
    let mut slow = Http2::connect_with(bench.gateway.addr(), &[CLOSED]);
    let mut node: Option<WindowedConnection> = None;
    for stream in (1..).step_by(2).take(STREAMS as usize) {
        slow.get(stream, "/bad");
        let node = node.get_or_insert_with(|| WindowedConnection::new(bench.accept()));
        let unread = node.until(|frame| frame.kind == kind::HEADERS).stream;
        node.peer.send_head(unread, &[(":status", "200")], 0);
        let sent = node.fill(unread, 16 * 1024, FULL_BYTES);
        assert!(sent > 20_000, "stream {unread} may send only {sent} bytes");
    }
    let mut node = node.expect("a connection");
    let mut client = bench.gateway.client();
    client.send(GET);
    let other = node.until(|frame| frame.kind == kind::HEADERS).stream;
    node.peer.send_head(other, &[(":status", "200")], 0);
    assert_eq!(node.fill(other, 16 * 1024, FULL_BYTES), FULL_BYTES);
    node.peer.send(kind::DATA, END_STREAM, other, &[]);
    assert_eq!(seen(&mut client, "GET"), Whole);
}

/// The client's side: uploads to a node that stalls, beside one to a node that does not.
#[test]
fn uploads_that_stall_leave_room_for_others_of_the_same_client() {
    let bench = Bench::new(", timeout: {send: 60s, read: 60s}");
    let mut client = WindowedConnection::new(Http2::connect(bench.gateway.addr()));
    // A connection whose node reads nothing takes no further request.
    let mut nodes = Vec::new();
    for stream in (1..).step_by(2).take(40) {
        client.peer.send_head(stream, &POST, 0);
        let mut node = Http2::accept(bench.node.accept().stream().try_clone().expect("a handle"), &[CLOSED]);
        node.until(|frame| frame.kind == kind::HEADERS);
        assert!(client.fill(stream, 16 * 1024, FULL_BYTES) > 20_000);
        nodes.push(node);
    }
    let mut fields = POST;
    fields[3] = (":path", "/good");
    client.peer.send_head(81, &fields, 0);
    assert_eq!(client.fill(81, 16 * 1024, FULL_BYTES), FULL_BYTES);
    client.peer.send(kind::DATA, END_STREAM, 81, &[]);
    let head = client.until(|frame| frame.kind == kind::HEADERS);
    assert_eq!((head.stream, head.status()), (81, 200));
}

/// A connection carries no more streams than its window has room for, whatever the node allows.
/// The window of a connection is shared: what a node does not read of one upload leaves no room for others.
#[test]
fn an_upload_that_a_node_does_not_read_holds_up_no_other() {
    const WINDOW_BYTES: usize = 65_535;
    let bench = Bench::new(", timeout: {send: 60s, read: 60s}");
    let mut unread = bench.gateway.client();
    unread.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n");
    unread.send("x".repeat(100_000));
    let (mut first, mut arrived) = (bench.accept(), 0);
    while arrived < WINDOW_BYTES {
        arrived += first.until(|frame| frame.kind == kind::DATA).payload.len();
    }
    let began = Instant::now();
    let mut client = bench.gateway.client();
    client.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    let mut second = bench.accept();
    let other = second.until(|frame| frame.kind == kind::DATA).stream;
    begin(&mut second, other);
    second.send(kind::DATA, END_STREAM, other, b"end");
    assert_eq!(seen(&mut client, "POST"), Whole);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn a_node_that_allows_any_number_of_streams_gets_a_second_connection() {
    const STREAMS_MAX: usize = 128;
    let bench = Bench::new("");
    let mut clients: Vec<_> = (0..=STREAMS_MAX).map(|_| bench.gateway.client()).collect();
    clients[0].send(GET);
    let mut first = bench.accept();
    first.until(|frame| frame.kind == kind::HEADERS);
    for client in &mut clients[1..STREAMS_MAX] {
        client.send(GET);
        first.until(|frame| frame.kind == kind::HEADERS);
    }
    clients[STREAMS_MAX].send(GET);
    let mut second = bench.accept();
    let stream = second.until(|frame| frame.kind == kind::HEADERS).stream;
    second.send_head(stream, &[(":status", "204")], END_STREAM);
    assert_eq!(seen(&mut clients[STREAMS_MAX], "GET"), Whole);
}

/// A request that finds the shared connection full waits for the next one rather than opening one alone.
#[test]
fn a_burst_of_requests_makes_no_more_connections_than_it_needs() {
    const STREAMS_MAX: usize = 128;
    let bench = Bench::new("");
    let mut clients: Vec<_> = (0..2 * STREAMS_MAX + 1).map(|_| bench.gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(GET));
    let mut nodes = Vec::new();
    for requests in [STREAMS_MAX, STREAMS_MAX, 1] {
        let mut node = bench.accept();
        for _ in 0..requests {
            node.until(|frame| frame.kind == kind::HEADERS);
        }
        nodes.push(node);
    }
    assert!(bench.node.try_accept().is_none(), "a fourth connection");
}

/// A response that has begun on a connection to a node, and its stream there.
fn begun(bench: &Bench) -> (Client, Http2, u32) {
    let mut client = bench.gateway.client();
    client.send(GET);
    let mut node = bench.accept();
    let stream = node.until(|frame| frame.kind == kind::HEADERS).stream;
    begin(&mut node, stream);
    (client, node, stream)
}

/// Some servers end the connection because of one head that is too large for them: nginx, for a field above 8 KiB, as it is coded.
#[test]
fn a_node_that_ends_the_connection_of_a_large_head_harms_no_other_client() {
    let bench = Bench::new("");
    let (mut client, mut node, other) = begun(&bench);
    // The last two are short, and their codes are not.
    for field in ["Z".repeat(9_000), "~".repeat(3_500), "\u{ef}".repeat(1_000)] {
        let mut large = bench.gateway.client();
        large.send(format!("GET /bad HTTP/1.1\r\nHost: h\r\nX-Field: {field}\r\n\r\n"));
        let mut own = bench.accept();
        own.until(|frame| frame.kind == kind::HEADERS);
        drop(own);
        assert_eq!(seen(&mut large, "GET"), BadGateway);
    }
    node.send(kind::DATA, END_STREAM, other, b"end");
    assert_eq!(seen(&mut client, "GET"), Whole);
}

/// A connection for large heads is kept for the next one, and carries one at a time.
#[test]
fn requests_with_large_heads_use_a_connection_one_after_the_other() {
    let bench = Bench::new("");
    let large = format!("GET /bad HTTP/1.1\r\nHost: h\r\nCookie: a={}\r\n\r\n", "b".repeat(6_000));
    let mut client = bench.gateway.client();
    client.send(&large);
    let mut first = bench.accept();
    for _ in 0..3 {
        let stream = first.until(|frame| frame.kind == kind::HEADERS).stream;
        first.send_head(stream, &[(":status", "204")], END_STREAM);
        assert_eq!(seen(&mut client, "GET"), Whole);
        client.send(&large);
    }
    let stream = first.until(|frame| frame.kind == kind::HEADERS).stream;
    let mut beside = bench.gateway.client();
    beside.send(&large);
    let mut second = bench.accept();
    let other = second.until(|frame| frame.kind == kind::HEADERS).stream;
    for (node, stream, client) in [(&mut second, other, &mut beside), (&mut first, stream, &mut client)] {
        node.send_head(stream, &[(":status", "204")], END_STREAM);
        assert_eq!(seen(client, "GET"), Whole);
    }
}

/// Servers end a connection on which too many streams were reset, also if different clients have given them up.
#[test]
fn a_connection_on_which_many_requests_broke_off_takes_no_further_ones() {
    const RESETS_MAX: u32 = 64;
    let bench = Bench::new("");
    let (mut client, mut node, other) = begun(&bench);
    let mut fickle = Http2::connect(bench.gateway.addr());
    for stream in (1..).step_by(2).take(RESETS_MAX as usize) {
        fickle.get(stream, "/bad");
        let given_up = node.until(|frame| frame.kind == kind::HEADERS).stream;
        fickle.send(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes());
        node.until(|frame| frame.kind == kind::RST_STREAM && frame.stream == given_up);
    }
    let mut next = bench.gateway.client();
    next.send(GET);
    let mut second = bench.accept();
    let stream = second.until(|frame| frame.kind == kind::HEADERS).stream;
    second.send_head(stream, &[(":status", "204")], END_STREAM);
    assert_eq!(seen(&mut next, "GET"), Whole);
    node.send(kind::DATA, END_STREAM, other, b"end");
    assert_eq!(seen(&mut client, "GET"), Whole);
}

/// What is still on its way for requests that were given up must not use up what the connection has for others.
#[test]
fn clients_that_give_up_small_messages_harm_no_other_client() {
    let bench = Bench::new("");
    let mut client = bench.gateway.client();
    client.send(GET);
    let mut node = WindowedConnection::new(bench.accept());
    let other = node.until(|frame| frame.kind == kind::HEADERS).stream;
    begin(&mut node.peer, other);
    let mut fickle = Http2::connect(bench.gateway.addr());
    for round in 0..10 {
        fickle.get(1 + 2 * round, "/bad");
        let given_up = node.until(|frame| frame.kind == kind::HEADERS).stream;
        node.peer.send_head(given_up, &[(":status", "200")], 0);
        fickle.until(|frame| frame.kind == kind::HEADERS);
        fickle.send(kind::RST_STREAM, 0, 1 + 2 * round, &code::CANCEL.to_be_bytes());
        node.until(|frame| frame.kind == kind::RST_STREAM && frame.stream == given_up);
        node.peer.send_bytes(&encode_frame(kind::DATA, 0, given_up, b"a").repeat(5_000));
        node.round_trip();
    }
    node.peer.send(kind::DATA, END_STREAM, other, b"end");
    assert_eq!(seen(&mut client, "GET"), Whole);
}

/// Padding makes a frame longer, and its content no larger.
#[test]
fn padding_harms_no_other_client() {
    let bench = Bench::new("");
    let SharedConnection { slow: _slow, mut client, mut node, unread, other } = SharedConnection::begin(&bench);
    let rss = bench.gateway.rss();
    let with_padding = [&[255, 7][..], &[0; 255]].concat();
    let sent = node.fill_with(unread, &with_padding, PADDED, FULL_BYTES);
    assert!(sent > 0);
    // A frame with nothing but padding is not a message. It uses up windows, more than there are at first, which are opened again.
    let nothing_but_padding = [&[255][..], &[0; 255]].concat();
    for _ in 0..10 {
        let bytes = 30 * nothing_but_padding.len();
        assert_eq!(node.fill_with(other, &nothing_but_padding, PADDED, bytes), bytes);
    }
    node.peer.send(kind::DATA, END_STREAM, other, b"end");
    assert_eq!(seen(&mut client, "GET"), Whole);
    let grown = bench.gateway.rss().saturating_sub(rss);
    assert!(grown < hostile_node::GROWTH_BYTES_MAX / 4, "{grown} bytes more");
}

/// A little of each buffer that was read must not keep the rest of it.
#[test]
fn frames_that_are_not_read_keep_no_memory_of_others() {
    const UNREAD: usize = 16;
    const WINDOW_BYTES: usize = 65_535;
    const SMALL_BYTES: usize = 256;
    let bench = Bench::new("");
    let mut slow = Http2::connect_with(bench.gateway.addr(), &[CLOSED]);
    slow.get(1, "/bad");
    let mut node = WindowedConnection::new(bench.accept());
    let begin_unread = |node: &mut WindowedConnection| {
        let stream = node.until(|frame| frame.kind == kind::HEADERS).stream;
        node.peer.send_head(stream, &[(":status", "200")], 0);
        stream
    };
    let first = begin_unread(&mut node);
    // What the exchange and the client's side take of a body, before its window fills.
    let taken = node.fill(first, 16 * 1024, FULL_BYTES).saturating_sub(WINDOW_BYTES);
    let unread: Vec<u32> = (3..)
        .step_by(2)
        .take(UNREAD)
        .map(|stream| {
            slow.get(stream, "/bad");
            let unread = begin_unread(&mut node);
            node.fill(unread, 16 * 1024, taken);
            unread
        })
        .collect();
    let mut client = bench.gateway.client();
    client.send(GET);
    let other = begin_unread(&mut node);
    let mut stream = client.stream().try_clone().expect("a handle");
    let reading = std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
    let rss = bench.gateway.rss();
    let mut small = 0;
    for _ in 0..WINDOW_BYTES / SMALL_BYTES {
        for &unread in &unread {
            small += node.fill_once(unread, SMALL_BYTES);
            node.fill_by(12_000, |node, left| node.fill_once(other, left));
        }
    }
    let grown = bench.gateway.rss().saturating_sub(rss);
    assert!(small > UNREAD * WINDOW_BYTES / 2, "{small} bytes are not much");
    assert!(grown < 6 * UNREAD * WINDOW_BYTES, "{grown} bytes more for {small}");
    drop((node, slow));
    client.stream().shutdown(std::net::Shutdown::Both).expect("a shutdown");
    let _ = reading.join().expect("no panic");
}

/// A window of a byte now and then is not progress.
#[test]
fn a_client_that_takes_a_byte_now_and_then_loses_its_stream() {
    let node = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway("timeouts: {send: 1s}"));
    let mut slow = Http2::connect_with(gateway.addr(), &[CLOSED]);
    slow.get(1, "/?size=100000");
    slow.until(|frame| frame.kind == kind::HEADERS);
    let began = Instant::now();
    let mut taken = 0;
    // Each byte that comes is answered with room for one more.
    slow.send(kind::WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes());
    loop {
        let frame = slow.until(|frame| frame.stream == 1);
        match frame.kind {
            kind::RST_STREAM => break,
            kind::DATA => taken += frame.payload.len(),
            _ => panic!("{frame:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "{taken} bytes were taken, and it still goes on");
        std::thread::sleep(Duration::from_millis(20));
        slow.send(kind::WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes());
    }
    assert!(taken < 1_024, "{taken}");
    // Its connection goes on, and a client that reads is served whatever the size.
    slow.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]);
    assert_eq!(slow.get_status(3, "/?size=1000"), 200);
    assert_eq!(gateway.get("/?size=1000000").body, payload(0, 1_000_000));
}

#[test]
fn a_node_that_takes_a_byte_now_and_then_is_given_up() {
    let bench = Bench::new(", timeout: {send: 1s, read: 60s}");
    let mut client = bench.gateway.client();
    client.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n");
    let mut upload = client.stream().try_clone().expect("a handle");
    // It ends when the gateway takes no more.
    let sending = std::thread::spawn(move || std::io::Write::write_all(&mut upload, &payload(1, 200_000)));
    let mut node = Http2::accept(bench.node.accept().stream().try_clone().expect("a handle"), &[CLOSED]);
    let stream = node.until(|frame| frame.kind == kind::HEADERS).stream;
    let began = Instant::now();
    let mut taken = 0;
    loop {
        node.send(kind::WINDOW_UPDATE, 0, stream, &1_u32.to_be_bytes());
        let frame = node.until(|frame| frame.stream == stream);
        match frame.kind {
            kind::RST_STREAM => break,
            kind::DATA => taken += frame.payload.len(),
            _ => {}
        }
        assert!(began.elapsed() < PATIENCE, "{taken} bytes were taken, and it still goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(seen(&mut client, "POST"), GatewayTimeout);
    drop(client);
    let _ = sending.join().expect("no panic");
}

/// Frames without progress end a connection when they are a flood, not by their total number.
#[test]
fn empty_frames_now_and_then_end_nothing() {
    let bench = Bench::new("");
    let mut client = bench.gateway.client();
    client.send(GET);
    let mut node = WindowedConnection::new(bench.accept());
    let stream = node.until(|frame| frame.kind == kind::HEADERS).stream;
    begin(&mut node.peer, stream);
    // More than a hundred, and fewer than a flood.
    for round in 0..150_usize {
        // Written in two parts, of each length, so that the gateway may read them apart.
        let frames = encode_frame(kind::DATA, 0, stream, &[]).repeat(2);
        let (a, b) = frames.split_at(round % frames.len());
        node.peer.send_bytes(a);
        node.peer.send_bytes(b);
        node.round_trip();
    }
    node.peer.send(kind::DATA, END_STREAM, stream, b"end");
    assert_eq!(seen(&mut client, "GET"), Whole);
}

/// A client that also makes a mistake now and then.
#[test]
fn mistakes_of_a_client_now_and_then_end_nothing() {
    let node = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()));
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &POST, 0);
    let mut fields = POST.to_vec();
    fields.push(("content-length", "1"));
    for round in 0..300 {
        client.send(kind::DATA, 0, 1, &[]);
        let stream = 3 + 4 * round;
        client.send_head(stream, &fields, 0);
        client.send(kind::DATA, END_STREAM, stream, b"ab");
        let reset = client.until(|frame| frame.stream == stream && frame.kind == kind::RST_STREAM);
        assert_eq!(reset.code(), code::PROTOCOL_ERROR);
        assert_eq!(client.get_status(stream + 2, "/"), 200);
        // Together they are below what counts as a flood.
        std::thread::sleep(Duration::from_millis(5));
    }
    client.send(kind::DATA, END_STREAM, 1, b"end");
    let (heads, _, end) = client.finish(1);
    assert_eq!((heads[0].status(), end), (200, StreamEnd::Whole));
}

/// A window beyond 2^31-1 ends its stream (RFC 9113 section 6.9.1), also where nothing more is sent through it.
#[test]
fn a_node_that_opens_too_large_a_window_fails_its_request_at_once() {
    const ALL: u32 = 0x7fff_ffff;
    let post = "POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab";
    let half_a_post = "POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab";
    for request in [GET, post, half_a_post] {
        for (begun, expected) in [(false, &[BadGateway][..]), (true, &[BadGateway, Cut])] {
            // A connection that had served another request would be given up for a new one.
            let bench = Bench::new(", timeout: {read: 60s}");
            let mut clients = [bench.gateway.client(), bench.gateway.client()];
            clients[0].send(request);
            let mut peer = bench.accept();
            let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
            clients[1].send(GET);
            let other = peer.until(|frame| frame.kind == kind::HEADERS).stream;
            if begun {
                begin(&mut peer, stream);
            }
            // All that it may have, and a few bytes more.
            peer.send(kind::WINDOW_UPDATE, 0, stream, &(ALL - 65_535).to_be_bytes());
            peer.send(kind::WINDOW_UPDATE, 0, stream, &3_u32.to_be_bytes());
            let method = request.split(' ').next().expect("a method");
            let got = seen(&mut clients[0], method);
            assert!(expected.contains(&got), "{request}: {got:?}");
            peer.send_head(other, &[(":status", "204")], END_STREAM);
            assert_eq!(seen(&mut clients[1], "GET"), Whole);
        }
    }
}

/// All requests of the connection fail: the log must show why.
#[test]
fn a_node_that_breaks_the_protocol_is_named_in_the_log() {
    let bench = Bench::new("");
    let (seen, _) = bench.play(GET, |peer, _| peer.send(kind::DATA, 0, 0, b"a"));
    assert_eq!(seen, BadGateway);
    let node = bench.node.addr().to_string();
    eventually("a warning", || {
        bench.gateway.log().lines().any(|line| line.contains("were ended after an error") && line.contains(&node))
    });
}

/// However many requests the connection has served since the stream began.
#[test]
fn a_window_too_large_is_noticed_on_a_connection_that_has_served_many() {
    let bench = Bench::new(", timeout: {read: 60s}");
    let post = "POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab";
    let mut lasting = bench.gateway.client();
    lasting.send(post);
    let mut peer = bench.accept();
    let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    let mut client = bench.gateway.client();
    for _ in 0..300 {
        client.send(post);
        let other = peer.until(|frame| frame.kind == kind::DATA && frame.stream != stream).stream;
        peer.send(kind::WINDOW_UPDATE, 0, other, &2_u32.to_be_bytes());
        peer.send_head(other, &[(":status", "204")], END_STREAM);
        assert_eq!(seen(&mut client, "POST"), Whole);
    }
    peer.send(kind::WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes());
    assert_eq!(seen(&mut lasting, "POST"), BadGateway);
    // The node is notified as well.
    assert_eq!(peer.until(|frame| frame.kind == kind::RST_STREAM).code(), 3);
}

/// A node may open as much again as it was sent, however much that is in all.
#[test]
fn a_node_that_opens_all_it_may_is_served() {
    const ALL: u32 = 0x7fff_ffff;
    let bench = Bench::new(", timeout: {read: 60s}");
    let mut client = bench.gateway.client();
    client.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n");
    let mut peer = Http2::accept(bench.node.accept().stream().try_clone().expect("a handle"), &[(4, ALL)]);
    let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    peer.send(kind::WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
    for piece in payload(1, 100_000).chunks(10_000) {
        client.send(piece);
        let mut got = 0;
        while got < piece.len() {
            got += peer.until(|frame| frame.kind == kind::DATA).payload.len();
        }
        peer.send(kind::WINDOW_UPDATE, 0, stream, &10_000_u32.to_be_bytes());
    }
    peer.send_head(stream, &[(":status", "204")], END_STREAM);
    assert_eq!(seen(&mut client, "POST"), Whole);
}
