//! Clients that break the rules of HTTP/2, or overuse them: every rule has its answer.

use crate::shared::STILLGATE;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{
    END_HEADERS, END_STREAM, Http2, StreamEnd, code, encode_fields, encode_frame, get_fields, kind,
};
use stillgate_testkit::{Client, Gateway, PATIENCE, Setup, Upstream, eventually, with_longer_times};

/// Requests that are reset together while they are served; fewer than may be reset before they are.
const SERVED_LOT: usize = 60;

fn echo_gateway() -> (Upstream, Gateway) {
    echo_gateway_with("")
}

fn echo_gateway_with(lines: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway(lines));
    (upstream, gateway)
}

/// An upstream that answers 204 while the gate is not held, and the number of requests that have come to it.
fn held_upstream(gate: &Arc<Mutex<()>>) -> (Upstream, Arc<AtomicUsize>) {
    let (gate, requests) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let counter = requests.clone();
    let upstream = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
            drop(gate.lock());
            if connection.try_send("HTTP/1.1 204 No Content\r\n\r\n").is_err() {
                return;
            }
        }
    });
    (upstream, requests)
}

#[test]
fn malformed_requests_are_refused() {
    let (upstream, gateway) = echo_gateway();
    let with = |more: &[(&'static str, &'static str)]| [&get_fields("/")[..], more].concat();
    let without = |name: &str| get_fields("/").into_iter().filter(|field| field.0 != name).collect::<Vec<_>>();
    let streams = [
        with(&[("connection", "close")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("keep-alive", "5")]),
        with(&[("proxy-connection", "close")]),
        with(&[("upgrade", "h2c")]),
        with(&[("te", "gzip")]),
        with(&[("host", "other.example")]),
        with(&[(":path", "/b")]),
        with(&[("x", "1"), (":authority", "late")]),
        with(&[("content-length", "1")]),
        with(&[("content-length", "a")]),
        with(&[("content-length", "0"), ("content-length", "1")]),
        without(":method"),
        without(":path"),
        without(":scheme"),
        [("x", "1")].to_vec(),
        [&[(":method", "GET"), (":scheme", "http"), (":path", "")][..], &[(":authority", "h")]].concat(),
        with(&[(":status", "200")]),
        with(&[(":protocol", "websocket")]),
    ];
    let mut client = Http2::connect(gateway.addr());
    for (index, fields) in streams.iter().enumerate() {
        let stream = 2 * index as u32 + 1;
        client.send_head(stream, fields, END_STREAM);
        assert_eq!(client.finish(stream).2, StreamEnd::Reset(code::PROTOCOL_ERROR), "{fields:?}");
    }
    assert_eq!(client.get_status(101, "/"), 200, "the connection goes on");
    for fields in [
        with(&[("X-Upper", "1")]),
        with(&[("x y", "1")]),
        with(&[("x", "a\r\nb: c")]),
        with(&[("x", "a\0b")]),
        with(&[("", "a")]),
        with(&[(":unknown", "a")]),
    ] {
        let mut client = Http2::connect(gateway.addr());
        client.send_head(1, &fields, END_STREAM);
        assert_eq!(client.finish(1).2, StreamEnd::GoAway(code::PROTOCOL_ERROR), "{fields:?}");
    }
    await_refused(&gateway, streams.len() + 6);
    eventually("the refusals in the log", || gateway.log().contains("refused before they were requests"));
    for fields in [with(&[("content_length", "1")]), with(&[("host", "h.example"), ("host", "h.example")])] {
        let mut client = Http2::connect(gateway.addr());
        client.send_head(1, &fields, END_STREAM);
        let (heads, _, end) = client.finish(1);
        let refused = heads.first().map(|head| head.status());
        assert!(refused == Some(400) || end == StreamEnd::Whole, "{fields:?}: {refused:?}");
    }
    // These are requests and are counted as requests: only the malformed stream that follows adds to the refused ones.
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &without(":path"), END_STREAM);
    assert_eq!(client.finish(1).2, StreamEnd::Reset(code::PROTOCOL_ERROR));
    assert_eq!(client.get_status(3, "/"), 200);
    await_refused(&gateway, streams.len() + 7);
    assert_eq!(upstream.faults(), [""; 0]);
}

/// Waits for refused requests, which only this counter reports.
#[track_caller]
fn await_refused(gateway: &Gateway, expected: usize) {
    let what = format!("{expected} refused requests");
    eventually(&what, || gateway.status()["requests"]["http2_refused"] == expected);
}

#[test]
fn bodies_that_are_not_as_long_as_told_are_refused() {
    let (_upstream, gateway) = echo_gateway();
    let mut client = Http2::connect(gateway.addr());
    for (stream, sent) in [(1, &b"ab"[..]), (3, b"abcd")] {
        client.send_head(stream, &[&get_fields("/")[..], &[("content-length", "3")]].concat(), 0);
        client.send(kind::DATA, END_STREAM, stream, sent);
        assert_eq!(client.finish(stream).2, StreamEnd::Reset(code::PROTOCOL_ERROR), "{sent:?}");
    }
    assert_eq!(client.get_status(5, "/"), 200);
}

#[test]
fn a_client_that_opens_no_window_holds_back_the_node() {
    let (_upstream, gateway) = echo_gateway();
    let mut client = Http2::connect_with(gateway.addr(), &[(4, 0)]);
    client.get(1, "/?size=300000&chunked");
    let head = client.until(|frame| frame.kind == kind::HEADERS);
    assert_eq!((head.status(), head.flags & END_STREAM), (200, 0));
    assert_eq!(client.get_status(3, "/?status=204"), 204, "the connection is not held up");
    client.send(kind::WINDOW_UPDATE, 0, 1, &1000_u32.to_be_bytes());
    let mut got = 0;
    while got < 1000 {
        got += client.until(|frame| frame.kind == kind::DATA).payload.len();
    }
    assert_eq!(got, 1000);
    client.send(kind::WINDOW_UPDATE, 0, 1, &400_000_u32.to_be_bytes());
    client.send(kind::WINDOW_UPDATE, 0, 0, &400_000_u32.to_be_bytes());
    assert_eq!((client.finish(1).1.len(), 1000), (299_000, 1000));
}

#[test]
fn a_node_that_reads_nothing_holds_back_the_client() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &get_fields("/"), 0);
    let node = upstream.accept();
    let (mut window, mut sent, mut closed) = (65_535_usize, 0, 0);
    let began = Instant::now();
    // What the kernel takes is let in too. Once it is full the window stays closed, however often one looks.
    while closed < 20 {
        assert!(began.elapsed() < PATIENCE, "the node reads nothing, but {sent} bytes were let in");
        let piece = window.min(16_000);
        closed = if piece == 0 { closed + 1 } else { 0 };
        if piece > 0 {
            client.send(kind::DATA, 0, 1, &vec![b'x'; piece]);
        }
        (window, sent) = (window - piece, sent + piece);
        client.send(kind::PING, 0, 0, b"whatelse");
        loop {
            let frame = client.next_frame().expect("the answer to the ping");
            match (frame.kind, frame.stream) {
                (kind::WINDOW_UPDATE, 1) => {
                    window += u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes")) as usize;
                }
                (kind::PING, _) => break,
                (kind::SETTINGS, _) if frame.flags == 0 => client.send(kind::SETTINGS, END_STREAM, 0, &[]),
                _ => {}
            }
        }
    }
    drop(node);
}

#[test]
fn a_client_that_takes_nothing_is_given_up() {
    let (_upstream, gateway) = echo_gateway_with("timeouts: {send: 300ms}");
    let mut client = Http2::connect_with(gateway.addr(), &[(4, 0)]);
    client.get(1, "/?size=300000");
    assert_eq!(client.finish(1).2, StreamEnd::Reset(code::INTERNAL_ERROR), "no window");
    assert_eq!(client.get_status(3, "/?status=204"), 204);
    // Windows without end, but nothing is read.
    let mut client = Http2::connect_with(gateway.addr(), &[(4, 0x7fff_ffff)]);
    client.send(kind::WINDOW_UPDATE, 0, 0, &0x7000_0000_u32.to_be_bytes());
    for index in 0..20 {
        client.get(2 * index + 1, "/?size=5000000");
    }
    eventually("nothing in flight", || gateway.status()["requests"]["in_flight"] == 0);
    eventually("the one connection", || gateway.status()["connections"]["open"] == 1);
}

#[test]
fn at_most_128_streams_are_open_at_once() {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().expect("nobody panicked");
    let (upstream, requests) = held_upstream(&gate);
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    let settings = client.until(|frame| frame.kind == kind::SETTINGS && frame.flags == 0).payload;
    let setting = |id: u8| settings.chunks(6).find(|entry| entry[..2] == [0, id]).map(|entry| entry[2..].to_vec());
    assert_eq!(setting(3), Some(vec![0, 0, 0, 128]));
    assert_eq!(setting(6), Some(vec![0, 0, 0x4c, 0x80]), "16 KiB of a head and 32 bytes for each of 100 fields");
    for index in 0..129 {
        client.get(2 * index + 1, "/");
    }
    assert_eq!(client.finish(257).2, StreamEnd::Reset(code::REFUSED_STREAM));
    eventually("the others to be served", || requests.load(Ordering::Relaxed) == 128);
    drop(held);
    await_refused(&gateway, 1);
}

#[test]
fn floods_end_the_connection() {
    let (upstream, gateway) = echo_gateway();
    let ping = encode_frame(kind::PING, 0, 0, b"01234567");
    let settings = encode_frame(kind::SETTINGS, 0, 0, &[]);
    let priority = encode_frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 0, 1]);
    let unknown = encode_frame(0xee, 0, 0, &[]);
    let window = encode_frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    for (what, frame) in
        [("ping", ping), ("settings", settings), ("priority", priority), ("unknown", unknown), ("window", window)]
    {
        let mut client = Http2::connect(gateway.addr());
        assert_eq!(client.get_status(1, "/"), 200);
        client.send_bytes(&frame.repeat(900));
        assert_eq!(client.get_status(3, "/"), 200, "{what}: few are nothing bad");
        // This is half a minute's worth: one second of it is enough, and the gateway may be slow to read.
        client.send_bytes(&frame.repeat(30_000));
        assert_eq!(client.closed(), Some(code::ENHANCE_YOUR_CALM), "{what}");
    }
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &get_fields("/"), 0);
    client.send_bytes(&encode_frame(kind::DATA, 0, 1, &[]).repeat(30_000));
    assert_eq!(client.closed(), Some(code::ENHANCE_YOUR_CALM), "empty DATA");
    assert_eq!(upstream.faults(), [""; 0]);
    assert_eq!(Client::connect(gateway.addr()).get("/").head.status(), 200);
}

#[test]
fn rapid_resets_end_the_connection() {
    let (upstream, gateway) = echo_gateway();
    let reset = |stream| encode_frame(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes());
    let request = encode_fields(&get_fields("/?delay=200"));
    let pair =
        |stream| [encode_frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &request), reset(stream)].concat();
    let mut client = Http2::connect(gateway.addr());
    client.send_bytes(&(0..1000).flat_map(|index| pair(2 * index + 1)).collect::<Vec<_>>());
    assert_eq!(client.closed(), Some(code::ENHANCE_YOUR_CALM), "before they are seen");
    assert!(upstream.requests() < 100);
}

#[test]
fn streams_that_end_early_by_the_clients_doing_end_the_connection() {
    check_ends_of_served_streams("reset", |stream| {
        encode_frame(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes())
    });
    // CVE-2025-8671: the client's error makes the server reset its stream. Here the window overflows.
    check_ends_of_served_streams("overflow", |stream| {
        encode_frame(kind::WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes())
    });
    // Here more is sent than was announced.
    check_ends_of_served_streams("more than announced", |stream| encode_frame(kind::DATA, END_STREAM, stream, b"12"));
}

/// Opens streams, and ends each by a frame while it is served. Waiting for a place at the upstream is the cheapest way to be
/// served, so that a slow machine too takes on more than is allowed within one second, if not the first one.
fn check_ends_of_served_streams(what: &str, end: impl Fn(u32) -> Vec<u8>) {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).upstream("limits: {requests: 1, queue: 100, queue_timeout: 1h}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = Http2::connect(gateway.addr());
    let request = encode_fields(&[&get_fields("/?delay=20000")[..], &[("content-length", "1")]].concat());
    let (began, mut streams) = (Instant::now(), (1..).step_by(2));
    let ended = loop {
        assert!(began.elapsed() < PATIENCE, "{what} without end");
        let lot: Vec<u32> = streams.by_ref().take(SERVED_LOT).collect();
        let head = |stream: &u32| encode_frame(kind::HEADERS, END_HEADERS, *stream, &request);
        client.send_bytes(&lot.iter().flat_map(head).collect::<Vec<_>>());
        client.send(kind::PING, 0, 0, b"01234567");
        // They are being served when this is answered.
        let answer = client.until(|frame| {
            matches!(frame.kind, kind::GOAWAY) || frame.kind == kind::PING && frame.flags & END_STREAM != 0
        });
        if answer.kind == kind::GOAWAY {
            break answer.code();
        }
        client.send_bytes(&lot.iter().flat_map(|stream| end(*stream)).collect::<Vec<_>>());
    };
    assert_eq!(ended, code::ENHANCE_YOUR_CALM, "{what} of streams that are served");
    assert_eq!(Http2::connect(gateway.addr()).get_status(1, "/"), 200);
}

#[test]
fn field_sections_are_bounded() {
    let (_upstream, gateway) = echo_gateway();
    let long = "x".repeat(9_000);
    let two = [&get_fields("/")[..], &[("a", &long), ("b", &long)]].concat();
    let mut client = Http2::connect(gateway.addr());
    // Over our own bound, below that of the settings.
    client.send(kind::HEADERS, END_STREAM, 1, &encode_fields(&two)[..16_000]);
    client.send(kind::CONTINUATION, END_HEADERS, 1, &encode_fields(&two)[16_000..]);
    let (heads, _, end) = client.finish(1);
    assert_eq!((heads.len(), end), (1, StreamEnd::Whole));

    // A field of 4 KiB in the table, named by one byte each time.
    let mut bomb = encode_fields(&get_fields("/"));
    bomb.push(0x40);
    bomb.extend_from_slice(&encode_fields(&[("x", &"y".repeat(3_900))])[1..]);
    bomb.extend(std::iter::repeat_n(0xbe, 10_000));
    let mut client = Http2::connect(gateway.addr());
    client.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &bomb);
    assert_eq!(client.finish(1).2, StreamEnd::GoAway(code::ENHANCE_YOUR_CALM));

    let mut client = Http2::connect(gateway.addr());
    client.send(kind::HEADERS, END_STREAM, 1, &encode_fields(&get_fields("/")));
    for _ in 0..10_000 {
        client.send(kind::CONTINUATION, 0, 1, &encode_fields(&[("x", "y")]));
    }
    assert_eq!(client.finish(1).2, StreamEnd::GoAway(code::ENHANCE_YOUR_CALM));
    let hundred_and_one: Vec<_> = std::iter::repeat_n(("x", "y"), 101).collect();
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &[&get_fields("/")[..], &hundred_and_one].concat(), END_STREAM);
    assert_eq!(client.finish(1).2, StreamEnd::Whole, "431");
    // Over our own bounds it is a request; only the bomb was none that came whole.
    await_refused(&gateway, 1);
    // Answered by `h2`, over the bound of its settings but not four times.
    let mut client = Http2::connect(gateway.addr());
    let fields = [&get_fields("/")[..], &[("a", &long), ("b", &long), ("c", &long)]].concat();
    let block = encode_fields(&fields);
    client.send(kind::HEADERS, END_STREAM, 1, &block[..16_000]);
    client.send(kind::CONTINUATION, END_HEADERS, 1, &block[16_000..]);
    assert_eq!(client.finish(1).2, StreamEnd::Whole, "431");
    assert_eq!(client.get_status(3, "/"), 200);
    await_refused(&gateway, 2);
}

#[test]
fn a_preface_that_does_not_go_on_is_closed() {
    // The machine may hold up a client that has just connected.
    with_longer_times(Duration::from_secs(1), "clients that send in time", |keepalive| {
        let timeouts = format!("timeouts: {{head: 300ms, keepalive: {}ms}}", keepalive.as_millis());
        let (_upstream, gateway) = echo_gateway_with(&timeouts);
        let connected = Instant::now();
        let mut client = Client::connect(gateway.addr()).into_connection();
        let _ = client.try_send("PRI * HT");
        let mut held_up = connected.elapsed();
        let first = client.read_response("GET").map(|answer| answer.head.status());
        let mut closed_after = |bytes: &[u8]| {
            let connected = Instant::now();
            let mut client = Http2::over(std::net::TcpStream::connect(gateway.addr()).expect("connect"));
            client.send_bytes(bytes);
            held_up = held_up.max(connected.elapsed());
            client.closed()
        };
        let silent = closed_after(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let other = closed_after(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        if held_up >= keepalive * 8 / 10 {
            return false;
        }
        assert_eq!(first, Ok(408));
        assert_eq!(silent, Some(code::NO_ERROR));
        assert_eq!(other, Some(6), "FRAME_SIZE_ERROR");
        true
    });
}

/// A request takes what a connection takes, and so has its bound.
#[test]
fn streams_have_the_bound_of_connections() {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().expect("nobody panicked");
    let (upstream, _) = held_upstream(&gate);
    let setup = Setup::to(upstream.addr()).gateway("limits: {connections_per_worker: 10}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = Http2::connect(gateway.addr());
    for stream in (1..=29).step_by(2) {
        client.get(stream, "/");
    }
    for _ in 0..6 {
        let refused = client.until(|frame| matches!(frame.kind, kind::HEADERS | kind::RST_STREAM));
        assert_eq!(refused.code(), code::REFUSED_STREAM);
    }
    drop(held);
    for _ in 0..9 {
        let head = client.until(|frame| matches!(frame.kind, kind::HEADERS | kind::RST_STREAM));
        assert_eq!((head.status(), head.flags & END_STREAM), (204, END_STREAM));
    }
    eventually("the six to be counted", || {
        let connections = gateway.status()["connections"].clone();
        connections["streams_refused"] == 6 && connections["refused"] == 0
    });
    assert_eq!(client.get_status(31, "/"), 204, "there is room again");
}
