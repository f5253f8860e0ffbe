//! Clients that speak HTTP/2: what they are served, and the answer to each rule that a hostile one breaks.

use crate::shared::STILLGATE;
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_HEADERS, END_STREAM, Http2, StreamEnd, code, encode_fields, get_fields, kind};
use stillgate_testkit::{
    ACCEPT_TEXT, Client, END_PATIENCE, Gateway, ReservedPort, Setup, Upstream, eventually, payload, run_tool, scrape,
    sha256, with_longer_times,
};

/// The fields that request a tunnel (RFC 8441).
const CONNECT: [(&str, &str); 5] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "h.example"),
];

fn echo_gateway() -> (Upstream, Gateway) {
    echo_gateway_with("")
}

fn echo_gateway_with(lines: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway(lines));
    (upstream, gateway)
}

#[track_caller]
fn curl(gateway: &Gateway, target: &str, arguments: &[&str]) -> String {
    let url = format!("http://{}{target}", gateway.addr());
    let always = ["-sS", "--http2-prior-knowledge", "--max-time", "300", "--noproxy", "*"];
    let output = run_tool("curl", "curl", &[&always[..], arguments, &[&url]].concat());
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_is_served() {
    let (_upstream, gateway) = echo_gateway();
    assert_eq!(curl(&gateway, "/?echo", &["-d", "some data"]), "some data");
    assert_eq!(curl(&gateway, "/?echo&chunked", &["-d", "some data"]), "some data");
    assert_eq!(curl(&gateway, "/?echo&close", &["-d", "some data"]), "some data");
    let written = curl(&gateway, "/?status=404", &["-o", "/dev/null", "-w", "%{http_code} %{http_version}"]);
    assert_eq!(written, "404 2");
    let head = curl(&gateway, "/?size=12345", &["-I"]);
    assert!(head.starts_with("HTTP/2 200") && head.contains("content-length: 12345\r\n"), "{head}");
    assert!(head.contains("server: stillgate\r\n") && head.contains("date: "), "{head}");
    assert!(!head.to_lowercase().contains("connection"), "{head}");
    for status in [204, 304] {
        let head = curl(&gateway, &format!("/?status={status}"), &["-i"]);
        assert!(head.starts_with(&format!("HTTP/2 {status}")), "{head}");
    }
    assert_eq!(curl(&gateway, "/nowhere?status=418", &["-X", "OPTIONS", "-w", "%{http_code}"]), "418");
}

#[test]
fn large_bodies_pass_both_ways() {
    let (_upstream, gateway) = echo_gateway();
    let body = payload(5, 3 * 1024 * 1024);
    let file = gateway.dir().join("upload");
    std::fs::write(&file, &body).expect("write the file to upload");
    let path = file.display().to_string();
    let sum = sha256(&body);
    for arguments in
        [&["-T", &path][..], &["-T", &path, "-H", "Expect: 100-continue"], &["-T", &path, "-H", "Content-Length:"]]
    {
        let head = curl(&gateway, "/up", &[arguments, &["-D", "-"]].concat());
        assert!(head.contains(&sum), "{arguments:?}: {head}");
    }
    let back = gateway.dir().join("back");
    for target in ["/?echo", "/?echo&chunked&piece=70001", "/?echo&close"] {
        curl(&gateway, target, &["-T", &path, "-o", &back.display().to_string()]);
        assert_eq!(sha256(&std::fs::read(&back).expect("what came back")), sum, "{target}");
    }
}

#[test]
fn the_node_sees_a_request_of_http_1() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/a?b"),
        (":authority", "h.example"),
        ("cookie", "a=1"),
        ("te", "trailers"),
        ("x-one", "1"),
        ("cookie", "b=2"),
    ];
    client.send_head(1, &fields, END_STREAM);
    let mut node = upstream.accept();
    let request = node.expect_request();
    assert_eq!(request.head.start, "GET /a?b HTTP/1.1");
    assert_eq!(request.head.all("host"), ["h.example"]);
    assert_eq!(request.head.all("cookie"), ["a=1; b=2"]);
    assert_eq!(request.head.get("x-one"), Some("1"));
    assert_eq!((request.head.get("te"), request.head.get("transfer-encoding")), (None, None));
    assert_eq!(request.head.get("x-forwarded-proto"), Some("http"));
    node.send(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: 5\r\n\r\nok",
    );
    let (heads, body, end) = client.finish(1);
    assert_eq!((heads.len(), heads[1].status(), &body[..], end), (2, 200, &b"ok"[..], StreamEnd::Whole));
}

#[test]
fn trailers_pass_both_ways() {
    let upstream = Upstream::serve(|connection| {
        let head = connection.read_head().expect("a head");
        assert_eq!(head.get("transfer-encoding"), Some("chunked"));
        let body = connection.read_exactly(b"3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n".len()).expect("a body");
        assert_eq!(body, b"3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n");
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-After: 8\r\n\r\n");
    });
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &get_fields("/"), 0);
    client.send(kind::DATA, 0, 1, b"abc");
    client.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &encode_fields(&[("x-sum", "7")]));
    let (heads, body, end) = client.finish(1);
    assert_eq!((heads.len(), &body[..], end), (2, &b"ok"[..], StreamEnd::Whole));
}

#[test]
fn streams_of_a_connection_do_not_wait_for_each_other() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    let mut nodes = [1, 3].map(|stream| {
        client.get(stream, "/");
        let mut node = upstream.accept();
        node.expect_request();
        node
    });
    for (node, stream) in nodes.iter_mut().zip([1, 3]).rev() {
        node.send("HTTP/1.1 204 No Content\r\n\r\n");
        let head = client.until(|frame| frame.kind == kind::HEADERS);
        assert_eq!((head.stream, head.status(), head.flags & END_STREAM), (stream, 204, END_STREAM));
    }
}

/// What RFC 9113 section 8 calls malformed is answered by a reset of the stream, or ends the connection where its
/// compression state cannot be trusted any more; it never reaches a node.
#[test]
fn a_cut_response_is_a_reset() {
    let (_upstream, gateway) = echo_gateway();
    let mut client = Http2::connect(gateway.addr());
    for (stream, target) in [(1, "/?size=1000&cut=100"), (3, "/?size=1000&chunked&cut=100")] {
        client.get(stream, target);
        let (_, body, end) = client.finish(stream);
        assert_eq!(end, StreamEnd::Reset(code::INTERNAL_ERROR), "{target}");
        assert!(payload(0, 1000).starts_with(&body));
    }
    assert_eq!(client.get_status(5, "/"), 200);
}

/// A client may take a reset for a failure, and discard the answer that it has got.
#[test]
fn a_request_that_is_answered_early_may_come_to_its_end() {
    let gateway = Gateway::start(STILLGATE, &Setup::resources("routes: []\n"));
    let mut client = Http2::connect(gateway.addr());
    let answer = |client: &mut Http2, stream: u32, length: Option<&str>| {
        let fields: Vec<_> =
            get_fields("/").into_iter().chain(length.map(|length| ("content-length", length))).collect();
        client.send_head(stream, &fields, 0);
        let (heads, _, end) = client.finish(stream);
        assert_eq!((heads[0].status(), end), (404, StreamEnd::Whole));
    };
    let mut check = |first: u32, length: Option<&str>, rest: &[&[u8]]| {
        for stream in (first..).step_by(4) {
            let began = Instant::now();
            answer(&mut client, stream, length);
            rest.iter().for_each(|data| client.send(kind::DATA, 0, stream, data));
            client.send(kind::DATA, END_STREAM, stream, b"");
            let next_stream = stream + 2;
            client.get(next_stream, "/");
            let next = client.until(|frame| {
                frame.kind == kind::RST_STREAM || (frame.kind, frame.stream) == (kind::HEADERS, next_stream)
            });
            if next.kind == kind::HEADERS {
                break;
            }
            assert!(began.elapsed() >= Duration::from_secs(1), "a reset after {:?}", began.elapsed());
        }
    };
    check(1, None, &[b"da", b"ta"]);
    check(1_001, Some("4"), &[b"data"]);
    // All of it had arrived when it was answered, except for its end.
    check(2_001, Some("0"), &[]);
    // Not for ever.
    const NEVER_ENDS: u32 = 9_001;
    answer(&mut client, NEVER_ENDS, None);
    let reset = client.until(|frame| frame.kind == kind::RST_STREAM);
    assert_eq!((reset.stream, reset.code()), (NEVER_ENDS, code::NO_ERROR));
    assert_eq!(client.get_status(NEVER_ENDS + 2, "/"), 404);
}

#[test]
fn a_reset_by_the_client_ends_the_exchange_with_the_node() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    client.get(1, "/");
    let mut node = upstream.accept();
    node.expect_request();
    client.send(kind::RST_STREAM, 0, 1, &code::CANCEL.to_be_bytes());
    node.expect_close();
    eventually("no request in flight", || gateway.status()["requests"]["in_flight"] == 0);
    client.send_head(3, &get_fields("/"), 0);
    client.send(kind::DATA, 0, 3, b"abc");
    let mut node = upstream.accept();
    node.read_head().expect("a head");
    client.send(kind::RST_STREAM, 0, 3, &code::CANCEL.to_be_bytes());
    eventually("the node's connection to end", || node.is_closed());
}

/// Without an open window nothing is sent, and no more is taken from the node than the bounds of the gateway. DATA is let in only
/// as the node takes it.
#[test]
fn an_idle_connection_is_reported_and_closed() {
    with_longer_times(Duration::from_secs(2), "requests in time", |time| {
        let (_upstream, gateway) = echo_gateway_with(&format!("timeouts: {{keepalive: {}ms}}", time.as_millis()));
        let connected = Instant::now();
        let mut client = Http2::connect(gateway.addr());
        client.get(1, "/");
        if client.finish(1).2 != StreamEnd::Whole {
            assert!(connected.elapsed() >= time * 8 / 10, "{:?}", connected.elapsed());
            return false;
        }
        // Measured from before the request: on a busy machine its end is seen late.
        let began = Instant::now();
        let delay = time + Duration::from_secs(1);
        client.get(3, &format!("/?delay={}", delay.as_millis()));
        if client.finish(3).2 != StreamEnd::Whole {
            // A connection with a request is not idle, but the client may have been delayed before it.
            return false;
        }
        assert_eq!(client.closed(), Some(code::NO_ERROR));
        // A worker's cached time may be a few ticks old where the machine is busy.
        assert!(began.elapsed() >= delay + time / 2, "{:?}", began.elapsed());
        eventually("no open connection", || gateway.status()["connections"]["open"] == 0);
        true
    });
}

#[test]
fn draining_lets_streams_finish() {
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    client.get(1, "/");
    let mut node = upstream.accept();
    node.expect_request();
    gateway.signal("TERM");
    let goaway = client.until(|frame| frame.kind == kind::GOAWAY);
    assert_eq!(goaway.code(), code::NO_ERROR);
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let (heads, body, end) = client.finish(1);
    assert_eq!((heads[0].status(), body.len(), end), (200, 5, StreamEnd::Whole));
    client.closed();
    assert!(gateway.wait_within(END_PATIENCE).success());
}

#[test]
fn http_2_can_be_turned_off() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).listener("http2: false"));
    let mut client = Client::connect(gateway.addr()).into_connection();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 505);
}

#[test]
fn the_log_and_routes_know_the_version() {
    let upstream = Upstream::echo();
    let resources = format!(
        "upstreams: [{{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}]\nroutes:\n  - {{id: two, uri: /*, vars: [[server_protocol, '==', HTTP/2.0]], upstream_id: main}}\n",
        upstream.addr()
    );
    let setup = Setup::resources(resources).gateway("access_log: {path: '{dir}/access.log'}");
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(curl(&gateway, "/two", &["-o", "/dev/null", "-w", "%{http_code}"]), "200");
    assert_eq!(gateway.get("/one").head.status(), 404);
    eventually("both lines", || {
        let log = std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
        log.contains("GET /two HTTP/2.0") && log.contains("GET /one HTTP/1.1")
    });
}

/// RFC 8441: a WebSocket of HTTP/2 is one of HTTP/1.1 to the node.
#[test]
fn extended_connect_opens_a_tunnel() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).route("enable_websocket: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/chat"),
        (":authority", "h.example"),
        ("sec-websocket-version", "13"),
    ];
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &fields, 0);
    let mut node = upstream.accept();
    let request = node.read_head().expect("a head");
    assert_eq!(request.start, "GET /chat HTTP/1.1");
    assert_eq!((request.get("upgrade"), request.get("sec-websocket-version")), (Some("websocket"), Some("13")));
    assert_eq!(request.get("sec-websocket-key").map(str::len), Some(24));
    node.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\nhello");
    let head = client.until(|frame| frame.kind == kind::HEADERS);
    assert_eq!((head.status(), head.flags & END_STREAM), (200, 0));
    assert_eq!(client.until(|frame| frame.kind == kind::DATA).payload, b"hello");
    client.send(kind::DATA, 0, 1, b"there");
    assert_eq!(node.read_exactly(5).expect("what the client said"), b"there");
    client.send(kind::DATA, END_STREAM, 1, b"bye");
    assert_eq!(node.read_to_end().expect("the end"), b"bye");
    node.send("too");
    drop(node);
    let (_, body, end) = client.finish(1);
    assert_eq!((&body[..], end), (&b"too"[..], StreamEnd::Whole));
    eventually("no tunnel", || gateway.status()["requests"]["in_flight"] == 0);
    eventually("one connection", || gateway.status()["connections"]["open"] == 1);
}

#[test]
fn a_tunnel_that_is_not_agreed_to_is_none() {
    let (upstream, gateway) = echo_gateway();
    let mut client = Http2::connect(gateway.addr());
    client.send_head(1, &CONNECT, 0);
    // The payload of the tunnel is not a request, whatever it looks like.
    client.send(kind::DATA, 0, 1, b"GET /hidden HTTP/1.1\r\nHost: h.example\r\n\r\n");
    let (heads, _, _) = client.finish(1);
    assert_eq!(heads.len(), 1);
    assert_ne!(heads[0].payload[0], 0x88, "not 200");
    assert_eq!(client.get_status(3, "/seen"), 200);
    let seen = upstream.seen();
    assert!(seen.iter().any(|line| format!("{line:?}").contains("/seen")), "{seen:?}");
    assert!(!seen.iter().any(|line| format!("{line:?}").contains("/hidden")), "{seen:?}");
}

/// One connection can request many tunnels.
#[test]
fn tunnels_beyond_the_limit_of_connections_are_refused() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).route("enable_websocket: true");
    let setup = setup.gateway("limits: {connections_per_worker: 3}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = Http2::connect(gateway.addr());
    // Both have their room before a node has agreed to either.
    client.send_head(1, &CONNECT, 0);
    client.send_head(3, &CONNECT, 0);
    let mut nodes = [upstream.accept(), upstream.accept()];
    nodes.iter_mut().for_each(|node| _ = node.read_head().expect("a head"));
    client.send_head(5, &CONNECT, 0);
    assert_eq!(client.until(|frame| frame.kind == kind::RST_STREAM).code(), code::REFUSED_STREAM);
    assert_eq!(gateway.client().expect_response("GET").head.status(), 503, "no room for a connection either");
    for node in &mut nodes {
        node.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(client.until(|frame| frame.kind == kind::HEADERS).status(), 200);
    }
    eventually("both tunnels, and nothing else", || {
        let status = gateway.status();
        status["tunnels"]["open"] == 2 && status["connections"]["open"] == 3
    });
    client.send_head(7, &CONNECT, 0);
    assert_eq!(client.until(|frame| frame.kind == kind::RST_STREAM).code(), code::REFUSED_STREAM);
    for stream in [1, 3] {
        client.send(kind::DATA, END_STREAM, stream, b"");
    }
    drop(nodes);
    eventually("their room to be free", || gateway.status()["connections"]["open"] == 1);
    client.send_head(9, &CONNECT, 0);
    upstream.accept().read_head().expect("a head");
}

/// However many requests it has.
#[test]
fn a_connection_is_one_in_the_metrics() {
    let upstream = Upstream::bind();
    let metrics = ReservedPort::new();
    let setup = Setup::to(upstream.addr()).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    let is_told = |active: u32, idle: u32| {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        let has = |state: &str, count: u32| {
            let is_it = |line: &str| line.contains(state) && line.ends_with(&format!(" {count}"));
            text.lines().filter(|line| line.starts_with("stillgate_connections{")).any(is_it)
        };
        has("active", active) && has("idle", idle)
    };
    let mut client = Http2::connect(gateway.addr());
    let mut nodes = [1, 3, 5].map(|stream| {
        client.get(stream, "/");
        let mut node = upstream.accept();
        node.read_head().expect("a head");
        node
    });
    eventually("three requests", || gateway.status()["requests"]["in_flight"] == 3);
    eventually("one busy connection", || is_told(1, 0));
    for node in &mut nodes {
        node.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
    eventually("an idle one", || is_told(0, 1));
}

/// RFC 9220 section 3: a protocol that the route does not pass on is not implemented, and no node is tried.
#[test]
fn extended_connect_without_enable_websocket_reaches_no_node() {
    let upstream = Upstream::bind();
    let shut = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let open = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).route("enable_websocket: true"));
    for (gateway, protocol) in [(&shut, "websocket"), (&open, "h2c")] {
        let mut client = Http2::connect(gateway.addr());
        let fields = [
            (":method", "CONNECT"),
            (":protocol", protocol),
            (":scheme", "http"),
            (":path", "/chat"),
            (":authority", "h.example"),
        ];
        client.send_head(1, &fields, 0);
        let (heads, _, _) = client.finish(1);
        assert_eq!(heads.first().map(|head| head.status()), Some(501), "{protocol}");
    }
    assert_eq!(upstream.connections(), 0);
}

/// As over HTTP/1.1: a node may take `delete` as `DELETE`, which no rule for it has seen.
#[test]
fn a_method_in_lower_case_is_refused() {
    let (upstream, gateway) = echo_gateway();
    for (stream, method) in [(1, "delete"), (3, "Get"), (5, "GET1")] {
        let mut client = Http2::connect(gateway.addr());
        let fields = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "h.example")];
        client.send_head(stream, &fields, END_STREAM);
        assert_eq!(client.finish(stream).0.first().map(|head| head.status()), Some(400), "{method}");
    }
    assert_eq!(upstream.requests(), 0);
}
