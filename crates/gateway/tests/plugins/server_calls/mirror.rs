//! `proxy-mirror` to mirrors of all kinds: none delays a request, dropped copies are counted, and memory has a bound.

use crate::shared::STILLGATE;
use crate::shared::logs::{self, route};
use crate::shared::measured::MeasuredGateway;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stillgate_testkit::{BufferedSocket, Gateway, Head, Setup, Upstream, eventually, payload};

const MIB: usize = 1024 * 1024;
/// Maximum memory that waits for a mirror, of one worker; see `docs/plugins/proxy-mirror.md`.
const HELD_BYTES_MAX: usize = 16 * MIB;
const DROPPED: &str = "stillgate_plugin_sends_dropped_total";

fn mirroring(node: &Upstream, mirror: &Upstream, keys: &str) -> Setup {
    route(node, &format!("proxy-mirror: {{host: \"http://{}\"{keys}}}", mirror.addr()), "")
}

fn dropped(measured: &MeasuredGateway) -> f64 {
    measured.scrape().sum(DROPPED, &[("plugin", "proxy-mirror")])
}

/// The requests that a mirror has received.
type Noted = Arc<Mutex<Vec<(Head, Vec<u8>)>>>;

/// A mirror that notes its requests and answers them.
fn noting() -> (Upstream, Noted) {
    let noted = Noted::default();
    let notes = noted.clone();
    let serve = move |connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            notes.lock().expect("no panic").push((request.head, request.body));
            if connection.try_send("HTTP/1.1 500 Never Seen\r\nContent-Length: 3\r\n\r\nno!").is_err() {
                return;
            }
        }
    };
    (Upstream::serve(serve), noted)
}

#[test]
fn a_copy_is_what_the_node_gets() {
    let (node, (mirror, noted)) = (Upstream::echo(), noting());
    let measured = MeasuredGateway::start(mirroring(&node, &mirror, ", path: /shadow, path_concat_mode: prefix"), "");
    let mut client = measured.gateway.client();
    let body = payload(5, 100_000);
    let response = client.request("POST", "/a?echo&x=%20", &body);
    assert!(response.head.status() == 200 && response.body == body, "the copy took the body");
    assert_eq!(client.get("/b?size=10").body.len(), 10);
    eventually("two copies", || noted.lock().expect("no panic").len() == 2);
    let noted = noted.lock().expect("no panic");
    let post = noted.iter().find(|(head, _)| head.start.starts_with("POST")).expect("a copy of the POST");
    assert_eq!(post.0.method_and_target(), ("POST", "/shadow/a?echo&x=%20"));
    assert_eq!((post.0.get("host"), post.0.get("content-length")), (Some("localhost"), Some("100000")));
    assert!(post.1 == body, "{} bytes", post.1.len());
    // Too large for a copy, which is counted; the node gets it.
    let body = payload(6, MIB + 1);
    assert!(client.request("POST", "/a?echo", &body).body == body);
    eventually("the one without a copy to be counted", || dropped(&measured) == 1.0);
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let chunks = body.chunks(7_777);
    let chunks = chunks.flat_map(|part| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
    [chunks.collect(), b"0\r\n\r\n".to_vec()].concat()
}

const CHUNKED: &str = "POST /a?echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A body in chunks has a copy of its length, and the node gets it as it comes.
#[test]
fn a_body_in_chunks_is_copied() {
    let (node, (mirror, noted)) = (Upstream::echo(), noting());
    let measured = MeasuredGateway::start(mirroring(&node, &mirror, ""), "");
    let mut client = measured.gateway.client();
    for length in [0, 1, 100_000, MIB, MIB + 1] {
        let body = payload(7, length);
        client.send([CHUNKED.as_bytes(), &chunked(&body)].concat());
        assert!(client.expect_response("POST").body == body, "{length}");
    }
    eventually("all copies but that of the largest", || noted.lock().expect("no panic").len() == 4);
    let mut lengths = Vec::new();
    for (head, body) in &*noted.lock().expect("no panic") {
        assert!(*body == payload(7, body.len()), "{}", body.len());
        assert_eq!(head.get("transfer-encoding"), None);
        assert_eq!(head.get("content-length"), Some(&*body.len().to_string()));
        lengths.push(body.len());
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [0, 1, 100_000, MIB]);
    eventually("the largest to be counted", || dropped(&measured) == 1.0);
}

/// A request does not wait for its copy, and half a body is not mirrored.
#[test]
fn a_request_is_passed_on_as_it_comes() {
    let (node, (mirror, noted)) = (Upstream::bind(), noting());
    let measured = MeasuredGateway::start(mirroring(&node, &mirror, ""), "");
    let mut client = measured.gateway.client();
    client.send(format!("{CHUNKED}5\r\nfirst\r\n"));
    let mut connection = node.accept();
    connection.read_head().expect("a head");
    assert_eq!(connection.read_exactly(10).expect("what has come of the body"), b"5\r\nfirst\r\n");
    client.send("4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(connection.read_exactly(14).expect("the rest"), b"4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(noted.lock().expect("no panic").len(), 0, "the response is not out");
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.expect_response("POST").head.status(), 200);
    eventually("the copy", || noted.lock().expect("no panic").len() == 1);
    assert_eq!(noted.lock().expect("no panic")[0].1, b"firstlast");
    // One client goes away in the middle, and one node answers there.
    let mut gone = measured.gateway.client();
    gone.send(format!("{CHUNKED}5\r\nfirst\r\n"));
    connection.read_head().expect("a head on the connection that was kept");
    gone.into_connection().reset();
    eventually("the one that is gone to be counted", || dropped(&measured) == 1.0);
    let mut early = measured.gateway.client();
    early.send(format!("{CHUNKED}5\r\nfirst\r\n"));
    let mut connection = node.accept();
    connection.read_head().expect("a head");
    connection.send("HTTP/1.1 413 Enough\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_eq!(early.expect_response("POST").head.status(), 413);
    eventually("the one that was answered early to be counted", || dropped(&measured) == 2.0);
    assert_eq!(noted.lock().expect("no panic").len(), 1);
}

/// All requests are answered while the mirror does what it does; each copy has arrived or is counted, and the rest is bounded.
fn check_mirror(mirror: &Upstream, what: &str) {
    const REQUESTS: usize = 600;
    const BODY_BYTES: usize = 100 * 1024;
    /// How much slower than a gateway without a mirror most requests may be, and how slow they may be in any case.
    const SLOWER_MAX: u32 = 4;
    const MEDIAN_MAX: Duration = Duration::from_millis(50);
    // The node answers how long the body was.
    let node = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n{:06}", request.body.len());
            if connection.try_send(answer).is_err() {
                return;
            }
        }
    });
    let mut measured = MeasuredGateway::start(mirroring(&node, mirror, ""), "");
    let mut client = measured.gateway.client();
    let body = payload(1, BODY_BYTES);
    assert_eq!(client.request("POST", "/warm", &body).head.status(), 200, "{what}");
    let plain = Gateway::start(STILLGATE, &Setup::to(node.addr()));
    let mut reference = plain.client();
    let before = measured.gateway.rss();
    let (mut times, mut reference_times) = (Vec::with_capacity(REQUESTS), Vec::with_capacity(REQUESTS));
    for number in 0..REQUESTS {
        // Small ones and large ones: the count and the bytes have bounds.
        let length = if number % 4 == 0 { 100 } else { BODY_BYTES };
        let began = Instant::now();
        let response = client.request("POST", "/a", &body[..length]);
        times.push(began.elapsed());
        let expected = format!("{length:06}");
        assert!(response.head.status() == 200 && response.body == expected.as_bytes(), "{what}: request {number}");
        let began = Instant::now();
        assert_eq!(reference.request("POST", "/a", &body[..length]).head.status(), 200, "{what}");
        reference_times.push(began.elapsed());
    }
    // On a busy machine all requests are slow, but a mirror that is waited for makes most of its own slower than the others.
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[REQUESTS / 2]
    };
    let (median, reference) = (median(times), median(reference_times));
    assert!(median < MEDIAN_MAX.max(SLOWER_MAX * reference), "{what}: half of them took {median:?}, not {reference:?}");
    eventually(&format!("{what}: what is lost to be counted"), || dropped(&measured) > 0.0);
    let grown = measured.gateway.rss().saturating_sub(before);
    // Buffers of the allocator and the kernel's pages are not what waits; all bodies together are 44 MiB.
    assert!(grown < 2 * HELD_BYTES_MAX, "{what}: {grown} bytes more");
    measured.gateway.assert_healthy();
}

#[test]
fn a_mirror_that_never_accepts_costs_nothing() {
    check_mirror(&Upstream::bind(), "never accepts");
}

#[test]
fn a_mirror_that_refuses_costs_nothing() {
    check_mirror(&Upstream::refusing(), "refuses");
}

#[test]
fn a_mirror_that_reads_nothing_costs_nothing() {
    let held = Mutex::new(Vec::new());
    let mirror = Upstream::serve(move |connection| {
        held.lock().expect("no panic").push(connection.stream().try_clone().expect("a descriptor"));
        loop {
            std::thread::park();
        }
    });
    check_mirror(&mirror, "reads nothing");
}

#[test]
fn a_mirror_that_reads_and_never_answers_costs_nothing() {
    check_mirror(&logs::stalled(), "answers nothing");
}

#[test]
fn a_mirror_that_resets_costs_nothing() {
    let mirror = Upstream::serve(|connection| {
        let twin = connection.stream().try_clone().expect("a descriptor");
        BufferedSocket::new(twin).reset();
    });
    check_mirror(&mirror, "resets");
}

/// A mirror that comes back gets copies again, and no request notices.
#[test]
fn a_mirror_that_was_gone_gets_copies_again() {
    let (node, mut mirror) = (Upstream::echo(), Upstream::refusing());
    let measured = MeasuredGateway::start(mirroring(&node, &mirror, ""), "");
    let mut client = measured.gateway.client();
    let mut get = || assert_eq!(client.get("/a").head.status(), 200);
    (0..20).for_each(|_| get());
    eventually("all to be counted", || dropped(&measured) == 20.0);
    mirror.start_echo();
    eventually("a copy", || {
        get();
        mirror.requests() > 0
    });
}
