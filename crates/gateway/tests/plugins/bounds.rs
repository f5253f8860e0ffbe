//! The cost of bodies that plugins change: memory is bounded in every case, and given back.

use crate::scripted::{AFTER, BEFORE, FILTERED, Node, REPLACED, check, chunked, gzip, resources, send, with_length};
use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, gateway, setup, try_ask};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stillgate_testkit::{
    ACCEPT_TEXT, Client, Gateway, MessageError, PATIENCE, ReservedPort, Upstream, eventually, payload, scrape,
};

const MIB: usize = 1024 * 1024;

/// The bound counts the output.
#[test]
fn a_small_body_that_becomes_large_is_refused() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED)]);
    let bomb = gzip(&vec![0; 200 * MIB]);
    assert!(bomb.len() < MIB, "{}", bomb.len());
    let before = gateway.rss();
    for response in
        [with_length("Content-Encoding: gzip\r\n", &bomb), chunked("Content-Encoding: gzip\r\n", &bomb, 9999, "")]
    {
        node.sends_whole(&response, false);
        for _ in 0..3 {
            let got = try_ask(&mut gateway.client(), "GET /f", &[]);
            assert!(got.as_ref().is_ok_and(|got| got.head.status() == 502), "{got:?}");
        }
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 24 * MIB, "{grown} bytes more");
    node.sends_whole(&with_length("", BEFORE.as_bytes()), false);
    check(&ask(&mut gateway.client(), "GET /f", &[]), 200, AFTER.as_bytes(), "after it");
    gateway.assert_healthy();
}

/// 1 MiB without another key.
#[test]
fn what_a_filter_holds_is_bounded() {
    let node = Node::new();
    let bound = |bytes: usize| {
        format!(
            r#"{{"response-rewrite": {{"filters": [{{"regex": "nothing like it", "replace": ""}}], "max_resp_body_size": {bytes}}}}}"#
        )
    };
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/ten", &bound(10)), ("/more", &bound(4 * MIB))]);
    let status = |path: &str, response: Vec<u8>, size: usize| {
        node.sends_whole(&response, false);
        match try_ask(&mut gateway.client(), &format!("GET {path}"), &[]) {
            Ok(got) if got.head.status() == 200 => {
                assert_eq!(got.body.len(), size, "{path}");
                200
            }
            Ok(got) => got.head.status(),
            Err(_) => 0,
        }
    };
    for framed in [|body: &[u8]| with_length("", body), |body: &[u8]| chunked("", body, 70_000, "")] {
        assert_eq!(status("/ten", framed(b"0123456789"), 10), 200);
        assert_eq!(status("/ten", framed(b"0123456789a"), 0), 502);
        assert_eq!(status("/f", framed(&payload(1, MIB - 3)), MIB), 200, "three more by the filter");
        assert_eq!(status("/f", framed(&payload(1, MIB + 1)), 0), 502);
        assert_eq!(status("/more", framed(&payload(1, 4 * MIB)), 4 * MIB), 200);
        assert_eq!(status("/more", framed(&payload(1, 4 * MIB + 1)), 0), 502);
    }
    gateway.assert_healthy();
}

/// Sends a body of so many MiB, as fast as it is taken.
fn large(mib: usize) -> Upstream {
    Upstream::serve(move |connection| {
        let piece = vec![b'x'; MIB];
        while connection.read_request().is_ok() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", mib * MIB);
            if !send(connection, head.as_bytes()) || !(0..mib).all(|_| send(connection, &piece)) {
                return;
            }
        }
    })
}

/// Memory does not grow with the size of the input.
#[test]
fn a_large_response_takes_little_memory() {
    const RESPONSE_MIB: usize = 256;
    let node = large(RESPONSE_MIB);
    let mut gateway = gateway(
        node.addr(),
        &resources(&[
            ("/f", FILTERED),
            ("/r", REPLACED),
            ("/plain", r#"{"response-rewrite": {"headers": {"set": {"X-A": "1"}}}}"#),
        ]),
    );
    let before = gateway.rss();
    check(&ask(&mut gateway.client(), "GET /r", &[]), 200, b"in place of it", "replaced");
    let got = try_ask(&mut gateway.client(), "GET /f", &[]);
    assert!(got.as_ref().is_ok_and(|got| got.head.status() == 502), "{:?}", got.map(|got| got.head));
    let mut client = gateway.client();
    client.send("GET /plain HTTP/1.1\r\nHost: h\r\n\r\n");
    let head = client.read_head().expect("a head");
    assert_eq!(head.get("x-a"), Some("1"));
    let mut peak = 0;
    for _ in 0..RESPONSE_MIB {
        client.read_exactly(MIB).expect("a mebibyte");
        peak = peak.max(gateway.rss());
    }
    let grown = peak.saturating_sub(before);
    assert!(grown < 32 * MIB, "{grown} bytes more");
    gateway.assert_healthy();
}

/// MiB that are compressed on their way. More take longer: `STILLGATE_TEST_BODY_MIB=1024` for a GiB.
const COMPRESSED_MIB: usize = 48;

/// An encoder takes no more than is counted for it, whatever the level and the window: at one pair it took 32 MiB.
#[test]
fn brotli_takes_little_memory_for_a_short_body() {
    let node = Node::new();
    let routes: Vec<(String, String)> = [(4, 10), (5, 10), (6, 16), (6, 19), (9, 0)]
        .map(|(level, lgwin)| {
            let keys = format!(r#"{{"comp_level": {level}, "lgwin": {lgwin}, "types": "*"}}"#);
            (format!("/{level}-{lgwin}"), format!(r#"{{"brotli": {keys}}}"#))
        })
        .to_vec();
    let routes: Vec<(&str, &str)> = routes.iter().map(|(path, plugins)| (&**path, &**plugins)).collect();
    let gateway = node.gateway(&routes);
    node.sends_whole(&with_length("Content-Type: text/html\r\n", &payload(1, 8 * 1024)), false);
    let before = gateway.rss_peak();
    for (path, _) in &routes {
        let got = ask(&mut gateway.client(), &format!("GET {path}"), &["Accept-Encoding: br"]);
        assert_eq!(got.head.get("content-encoding"), Some("br"), "{path}");
        let grown = gateway.rss_peak() - before;
        assert!(grown < 20 * MIB, "{path}: {grown} bytes more");
    }
}

/// A body that gzip cannot make smaller, whatever its size.
#[test]
fn a_large_response_is_compressed_in_little_memory() {
    let size = std::env::var("STILLGATE_TEST_BODY_MIB").map_or(COMPRESSED_MIB, |mib| mib.parse().expect("MiB"));
    let piece = Arc::new(payload(1, MIB));
    let sent = Arc::clone(&piece);
    let node = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n", size * MIB);
            if !send(connection, head.as_bytes()) || !(0..size).all(|_| send(connection, &sent)) {
                return;
            }
        }
    });
    let mut gateway =
        gateway(node.addr(), &resources(&[("/gzip", r#"{"gzip": {"http_version": 1.0, "comp_level": 1}}"#)]));
    let before = gateway.rss();
    let mut client = gateway.client();
    // Its end is the connection's, so that it need not be held here, either.
    client.send("GET /gzip HTTP/1.0\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n");
    let head = client.read_head().expect("a head");
    assert_eq!((head.status(), head.get("content-encoding")), (200, Some("gzip")), "{head:?}");
    let mut decoder = flate2::write::GzDecoder::new(RepeatedBody { piece: &piece, count: 0 });
    let mut peak = 0;
    loop {
        let (bytes, is_end) = match client.read_exactly(MIB) {
            Ok(bytes) => (bytes, false),
            Err(MessageError::Truncated(bytes)) => (bytes, true),
            Err(MessageError::Closed) => (Vec::new(), true),
            Err(broken) => panic!("{broken:?}"),
        };
        decoder.write_all(&bytes).expect("a good stream");
        peak = peak.max(gateway.rss());
        if is_end {
            break;
        }
    }
    assert_eq!(decoder.finish().expect("a whole stream").count, size * MIB);
    let grown = peak.saturating_sub(before);
    assert!(grown < 16 * MIB, "{grown} bytes more");
    gateway.assert_healthy();
}

/// Takes repetitions of a piece, and nothing else.
struct RepeatedBody<'a> {
    piece: &'a [u8],
    count: usize,
}

impl Write for RepeatedBody<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let rest = &self.piece[self.count % self.piece.len()..];
        let length = rest.len().min(bytes.len());
        assert!(rest[..length] == bytes[..length], "other bytes behind {}", self.count);
        self.count += length;
        Ok(length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The node is not read on for a client that does not read; with a filter, no more than that holds.
#[test]
fn a_client_that_stops_reading_costs_little() {
    const CLIENTS: usize = 20;
    let end = r#"{"response-rewrite": {"filters": [{"regex": "$", "replace": "end"}], "max_resp_body_size": 4194304}}"#;
    let check = |path: &str, mib: usize, grown_max: usize| {
        let node = large(mib);
        let routes = [(
            path,
            if path == "/filtered" { end } else { r#"{"response-rewrite": {"headers": {"set": {"X-A": "1"}}}}"# },
        )];
        let mut gateway =
            Gateway::start(STILLGATE, &setup(node.addr(), &resources(&routes)).gateway("timeouts: {send: 300ms}"));
        let (before, files) = (gateway.rss(), gateway.fd_count());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut client = gateway.client();
                client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
                client
            })
            .collect();
        let mut peak = 0;
        let rss = |peak: &mut usize| *peak = gateway.rss().max(*peak);
        eventually("all to be served", || {
            rss(&mut peak);
            // Where the test stood still some are given up already.
            let is_reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
            clients.iter().all(|client| client.stream().peek(&mut [0]).map_or_else(is_reset, |_| true))
        });
        if path == "/plain" {
            eventually("the gateway to give up", || {
                rss(&mut peak);
                gateway.fd_count() <= files
            });
        }
        let grown = peak.saturating_sub(before);
        assert!(grown < grown_max, "{path}: {grown} bytes more");
        drop(clients);
        // Connections to the node are kept where all of a response was read.
        eventually("what was held to be given back", || {
            rss(&mut peak);
            gateway.fd_count() <= files + CLIENTS
        });
        if path == "/filtered" {
            for _ in 0..2 {
                let got = ask(&mut gateway.client(), "GET /filtered", &[]);
                assert_eq!((got.head.status(), got.body.len()), (200, mib * MIB + 3));
            }
        }
        gateway.assert_healthy();
    };
    check("/plain", 256, 32 * MIB);
    check("/filtered", 3, 96 * MIB);
}

/// A node that sends most of a body that a filter holds, then cuts (`/cut`) or waits for the other side's end.
fn stalling(stalled: &Arc<AtomicUsize>) -> Upstream {
    let stalled = Arc::clone(stalled);
    Upstream::serve(move |connection| {
        let Ok(request) = connection.read_request() else { return };
        let body = payload(1, 900 * 1024);
        if request.head.start.contains("/whole") {
            send(connection, &with_length("", &body));
            return;
        }
        let sent = send(connection, &with_length("", &[&body[..], b"rest"].concat())[..body.len()]);
        if sent && request.head.start.contains("/stall") {
            stalled.fetch_add(1, Ordering::SeqCst);
            // The end of the connection.
            let _ = connection.read_exactly(1);
        }
    })
}

const HOLDS: &str = r#"{"response-rewrite": {"filters": [{"regex": "nothing like it", "replace": ""}]}}"#;

/// 64 MiB for each worker, and none of it is lost with exchanges that end early: each way would use it up three times here.
#[test]
fn what_filters_hold_is_given_back() {
    let stalled = Arc::new(AtomicUsize::new(0));
    let node = stalling(&stalled);
    let mut gateway = gateway(node.addr(), &resources(&[("/cut", HOLDS), ("/stall", HOLDS), ("/whole", HOLDS)]));
    let whole = || ask(&mut gateway.client(), "GET /whole", &[]);
    check(&whole(), 200, &payload(1, 900 * 1024), "before");
    for _ in 0..220 {
        let cut = ask(&mut gateway.client(), "GET /cut", &[]);
        assert_eq!(cut.head.status(), 502, "{:?}", cut.head);
    }
    check(&whole(), 200, &payload(1, 900 * 1024), "after nodes that cut");
    for _ in 0..3 {
        let before = stalled.load(Ordering::SeqCst);
        let stall = |count: usize| -> Vec<_> {
            let clients = (0..count).map(|_| {
                let mut client = gateway.client();
                client.send("GET /stall HTTP/1.1\r\nHost: h\r\n\r\n");
                client
            });
            clients.collect()
        };
        let mut clients = stall(100);
        let refused = |clients: &mut Vec<Client>| {
            clients.iter_mut().filter(|client| client.stream().peek(&mut [0]).is_ok()).count()
        };
        for client in &clients {
            client.stream().set_nonblocking(true).expect("a socket");
        }
        eventually("all to be held or refused", || {
            stalled.load(Ordering::SeqCst) - before + refused(&mut clients) >= 100 && refused(&mut clients) >= 20
        });
        assert!(gateway.rss() < 200 * MIB, "{} bytes", gateway.rss());
        for client in clients {
            client.into_connection().reset();
        }
        eventually("memory for another", || whole().head.status() == 200);
    }
    gateway.assert_healthy();
}

/// The bound holds after each replacement, too: one byte can become many.
#[test]
fn what_replacements_make_is_bounded() {
    let node = Node::new();
    let grow = format!(
        r#"{{"response-rewrite": {{"filters": [{{"regex": "x*", "replace": "{}", "scope": "global"}}]}}}}"#,
        "y".repeat(4000)
    );
    let double = r#"{"regex": "(?s)^(.*)$", "replace": "$1$1"}"#;
    let doubles = format!(r#"{{"response-rewrite": {{"filters": [{}]}}}}"#, vec![double; 40].join(", "));
    let mut gateway = node.gateway(&[("/grow", &grow), ("/double", &doubles)]);
    let before = gateway.rss();
    node.sends_whole(&with_length("", &b"ab".repeat(500 * 1024)), false);
    for path in ["/grow", "/double"] {
        let got = try_ask(&mut gateway.client(), &format!("GET {path}"), &[]);
        assert!(got.as_ref().is_ok_and(|got| got.head.status() == 502), "{path}: {:?}", got.map(|got| got.head));
    }
    node.sends_whole(&with_length("", b"tiny"), false);
    let got = try_ask(&mut gateway.client(), "GET /double", &[]);
    assert!(got.as_ref().is_ok_and(|got| got.head.status() == 502), "{:?}", got.map(|got| got.head));
    assert!(gateway.rss().saturating_sub(before) < 24 * MIB);
    gateway.assert_healthy();
}

/// Answers with the first part of a body, and with the rest when it is let.
fn holding(arrived: SyncSender<()>, go_on: Receiver<()>) -> Upstream {
    let both = Mutex::new((arrived, go_on));
    Upstream::serve(move |connection| {
        let Ok(_) = connection.read_request() else { return };
        let (arrived, go_on) = &*both.lock().expect("no node panics");
        let response = with_length("", BEFORE.as_bytes());
        if send(connection, &response[..response.len() - 5]) && arrived.send(()).is_ok() && go_on.recv().is_ok() {
            send(connection, &response[response.len() - 5..]);
        }
    })
}

/// The client has not been sent anything whose loss would show that it is gone, so it is probed, long before the node's timeout.
#[test]
fn a_client_that_ends_while_a_filter_holds_its_response_is_noticed() {
    let (arrived, at_filter) = sync_channel(64);
    let (let_go, go_on) = sync_channel(64);
    let node = holding(arrived, go_on);
    let log = "access_log: {path: \"{dir}/access.log\", format: json, fields: [status, bytes_sent]}";
    let mut gateway = Gateway::start(
        STILLGATE,
        &setup(node.addr(), &resources(&[("/f", FILTERED)])).gateway(&format!("timeouts: {{send: 600s}}\n{log}")),
    );
    let ask = || {
        let mut client = gateway.client();
        client.send("GET /f HTTP/1.1\r\nHost: h\r\n\r\n");
        at_filter.recv_timeout(PATIENCE).expect("the node is asked");
        client
    };
    drop(ask());
    let lines = || std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    eventually("it to be noticed", || lines() == "{\"status\":499,\"bytes_sent\":0}\n");
    let_go.send(()).expect("the node waits");
    // A client that only closes its sending side gets its response.
    let mut client = ask();
    client.half_close();
    eventually("it to be asked", || client.stream().peek(&mut [0]).is_ok_and(|bytes| bytes > 0));
    let_go.send(()).expect("the node waits");
    let got = client.read_response("GET").expect("a response");
    assert_eq!((got.interim.len(), got.head.status()), (1, 200), "{got:?}");
    assert_eq!(got.body, AFTER.as_bytes());
    gateway.assert_healthy();
}

/// Each of a million searches reads the body to its end, so this is given up when its time is used up: after five seconds of CPU,
/// however fast the machine is.
#[test]
fn a_filter_that_searches_for_long_holds_up_no_other_request() {
    let slow = r#"{"response-rewrite": {"filters": [{"regex": "a.*b|a", "replace": "-", "scope": "global"}]}}"#;
    let node = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let body = if request.head.start.contains("/slow") { vec![b'a'; 1_000_000] } else { b"quick".to_vec() };
            if !send(connection, &with_length("", &body)) {
                return;
            }
        }
    });
    let setup = setup(node.addr(), &resources(&[("/slow", slow), ("/quick", "{}")])).gateway("workers: 1");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let before = gateway.cpu();
    let mut waiting = gateway.client();
    waiting.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually("the search to be under way", || gateway.cpu() > before + Duration::from_millis(500));
    let mut kept = gateway.client();
    for _ in 0..10 {
        check(&ask(&mut kept, "GET /quick", &[]), 200, b"quick", "on a connection that is kept");
        check(&ask(&mut gateway.client(), "GET /quick", &[]), 200, b"quick", "on a new connection");
    }
    assert!(!waiting.is_closed(), "it has ended");
    assert_eq!(waiting.pending(), b"", "it was answered first");
    assert_eq!(waiting.expect_response("GET").head.status(), 502);
    gateway.assert_healthy();
}

/// A short template makes a long head of a long request.
#[test]
fn what_plugins_add_to_a_head_is_bounded() {
    let node = Node::new();
    let metrics = ReservedPort::new();
    let template = "$request_uri".repeat(30);
    let of_request = format!(r#"{{"proxy-rewrite": {{"headers": {{"set": {{"X-A": "{template}"}}}}}}}}"#);
    let of_response = format!(r#"{{"response-rewrite": {{"headers": {{"set": {{"X-A": "{template}"}}}}}}}}"#);
    let resources = resources(&[("/request/*", &of_request), ("/response/*", &of_response)]);
    let setup =
        setup(node.upstream.addr(), &resources).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    node.sends_whole(&with_length("", b"of the node"), false);
    let ask = |path: &str, bytes: usize| {
        let got = ask(&mut gateway.client(), &format!("GET {path}{}", "a".repeat(bytes)), &[]);
        (got.head.status(), got.head.get("x-a").map(str::len), got.body)
    };
    for path in ["/request/", "/response/"] {
        let (status, added, body) = ask(path, 1000);
        let expected = (path == "/response/").then_some(30 * (path.len() + 1000));
        assert_eq!((status, added, &body[..]), (200, expected, &b"of the node"[..]), "{path}");
        let (status, added, body) = ask(path, 4000);
        assert_eq!((status, added), (500, None), "{path}");
        assert!(!body.windows(11).any(|part| part == b"of the node"), "{path}");
    }
    let told = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
    for plugin in ["proxy-rewrite", "response-rewrite"] {
        let line = format!("stillgate_plugin_heads_refused_total{{plugin=\"{plugin}\"}} 1");
        assert!(told.lines().any(|have| have == line), "{line}\n{told}");
    }
    gateway.assert_healthy();
}

/// The counts by plugin and reason.
#[test]
fn refused_bodies_are_counted() {
    let node = Node::new();
    let metrics = ReservedPort::new();
    let setup = setup(node.upstream.addr(), &resources(&[("/f", FILTERED)]))
        .gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let too_large = with_length("", &payload(1, MIB + 1));
    let malformed = with_length("Content-Encoding: br\r\n", b"not brotli");
    for response in [&too_large, &malformed, &malformed] {
        node.sends_whole(response, false);
        assert_eq!(ask(&mut gateway.client(), "GET /f", &[]).head.status(), 502);
    }
    let told = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
    for (reason, count) in [("too_large", 1), ("malformed", 2)] {
        let line =
            format!("stillgate_plugin_bodies_refused_total{{plugin=\"response-rewrite\",reason=\"{reason}\"}} {count}");
        assert!(told.lines().any(|have| have == line), "{line}\n{told}");
    }
    eventually("the log to tell", || gateway.log().contains("plugins did not let heads or bodies go on"));
    gateway.assert_healthy();
}

/// Tokens up to the bounds of a head, and beyond: none costs more than its request.
#[test]
fn huge_tokens_are_refused() {
    const GOOD: &str =
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJrZXkiOiJqYWNrLWtleSJ9.wIIx5tU80tQLliLcBDZvIndXEQHdzZi_PlnDMxrwBRc";
    /// `{"alg":"HS256"}`, and `{"a":[[[…`, which never ends.
    const HEADER: &str = "eyJhbGciOiJIUzI1NiJ9";
    let node = Node::new();
    let consumer = "consumers:\n  - {\"username\": \"jack\", \"plugins\": {\"jwt-auth\": {\"key\": \"jack-key\", \"secret\": \"the secret\"}}}\n";
    let resources = format!("{consumer}{}", resources(&[("/a", r#"{"jwt-auth": {}}"#)]));
    let mut gateway = gateway(node.upstream.addr(), &resources);
    node.sends_whole(&with_length("", b"in"), false);
    let before = gateway.rss();
    let deep = |bytes: usize| format!("{HEADER}.eyJhIjpb{}.c2ln", "W1tb".repeat(bytes / 4));
    let wide = |bytes: usize| format!("{HEADER}.{}.{GOOD}", "x".repeat(bytes));
    for bytes in [1_000, 7_000, 15_000, 40_000] {
        for token in [deep(bytes), wide(bytes)] {
            for (target, line) in [
                ("/a".to_owned(), format!("Authorization: Bearer {token}")),
                (format!("/a?jwt={token}"), "X: y".to_owned()),
                ("/a".to_owned(), format!("Cookie: jwt={token}")),
            ] {
                // What is too large for a head is refused before its end, and the connection ends.
                let status = match try_ask(&mut gateway.client(), &format!("GET {target}"), &[&line]) {
                    Ok(response) => response.head.status(),
                    Err(_) => 0,
                };
                let is_in = bytes <= 7_000 || bytes <= 15_000 && target == "/a";
                let expected: &[u16] = if is_in { &[401] } else { &[400, 414, 431, 0] };
                assert!(expected.contains(&status), "{bytes} in {}: {status}", &line[..6]);
                let good = ask(&mut gateway.client(), "GET /a", &[&format!("Authorization: Bearer {GOOD}")]);
                assert_eq!((good.head.status(), &good.body[..]), (200, &b"in"[..]));
            }
        }
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 8 * MIB, "{grown} bytes more");
    gateway.assert_healthy();
}
