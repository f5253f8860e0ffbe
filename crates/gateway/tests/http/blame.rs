//! Failures that a request causes itself: they count against no node, and other nodes are spared.

use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::http2::{END_STREAM, Http2, code, kind};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually};

/// One failure of any kind ejects.
const STRICT: &str = "checks: {passive: {unhealthy: {tcp_failures: 1, http_failures: 1, timeouts: 1}}}";

fn gateway(nodes: &[SocketAddr], keys: &str) -> Gateway {
    Gateway::start(STILLGATE, &setup(nodes, keys))
}

fn setup(nodes: &[SocketAddr], keys: &str) -> Setup {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{node}\": 1")).collect();
    Setup::resources(format!(
        "upstreams: [{{id: u, nodes: {{{}}}, {STRICT}{keys}}}]\nroutes: [{{id: r, uri: /*, upstream_id: u}}]\n",
        nodes.join(", ")
    ))
}

fn states(gateway: &Gateway) -> Vec<String> {
    let response = Client::connect(gateway.admin_addr()).get("/v1/upstreams");
    let shown: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
    let endpoints = shown["upstreams"][0]["endpoints"].as_array().expect("a list").clone();
    endpoints.iter().map(|endpoint| endpoint["state"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A node that closes the connection on a request with this in its target, and serves all others.
fn choosy() -> Upstream {
    choosy_counting(Arc::default())
}

/// Like [`choosy`], with a count of the requests that it serves.
fn choosy_counting(served: Arc<AtomicUsize>) -> Upstream {
    Upstream::serve(move |connection| {
        while let Ok(head) = connection.read_head() {
            if head.method_and_target().1.contains("poison") {
                return;
            }
            served.fetch_add(1, Ordering::SeqCst);
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    })
}

#[test]
fn a_request_that_two_nodes_close_on_goes_to_no_third() {
    let nodes = [(); 4].map(|()| choosy());
    let gateway = gateway(&nodes.each_ref().map(Upstream::addr), "");
    for _ in 0..8 {
        let before: usize = nodes.iter().map(Upstream::connections).sum();
        assert_eq!(gateway.get("/poison").head.status(), 502);
        let made = nodes.iter().map(Upstream::connections).sum::<usize>() - before;
        assert_eq!(made, 2, "the second node shows that the first is not to blame");
    }
    assert_eq!(states(&gateway), ["healthy"; 4]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}

#[test]
fn a_node_that_closes_on_what_another_serves_is_ejected() {
    let (closing, alive) = (Upstream::serve(|connection| drop(connection.read_head())), Upstream::echo());
    let gateway = gateway(&[closing.addr(), alive.addr()], "");
    eventually("the node to be ejected", || {
        assert_eq!(gateway.get("/").head.status(), 200);
        states(&gateway)[0] == "set_aside"
    });
    assert_eq!(states(&gateway)[1], "healthy");
}

/// As long as the nodes answer other requests in between, such a request may be repeated without limit.
#[test]
fn a_request_that_nodes_close_on_ejects_none_that_answers_others() {
    let counts: [Arc<AtomicUsize>; 4] = Default::default();
    let nodes = counts.each_ref().map(|count| choosy_counting(count.clone()));
    let gateway = gateway(&nodes.each_ref().map(Upstream::addr), "");
    for _ in 0..30 {
        let before: usize = nodes.iter().map(Upstream::connections).sum();
        assert_eq!(gateway.get("/poison").head.status(), 502);
        let made = nodes.iter().map(Upstream::connections).sum::<usize>() - before;
        assert_eq!(made, 2);
        let served = || counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        let before = served();
        eventually("an answer of each node", || {
            assert_eq!(gateway.get("/").head.status(), 200);
            served().iter().zip(before).all(|(now, before)| *now > before)
        });
    }
    assert_eq!(states(&gateway), ["healthy"; 4]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}

/// Two nodes that close every connection do not excuse each other for ever, with or without passive checks.
#[test]
fn nodes_that_close_on_every_request_are_at_fault_themselves() {
    for checks in ["", STRICT] {
        let closing = [(); 2].map(|()| Upstream::serve(|connection| drop(connection.read_head())));
        let spare = Upstream::echo();
        let [first, second] = closing.each_ref().map(|node| node.addr());
        let gateway = Gateway::start(
            STILLGATE,
            &Setup::resources(format!(
                "upstreams: [{{id: u, nodes: [{}, {}, {}]{}{checks}}}]\nroutes: [{{id: r, uri: /*, upstream_id: u}}]\n",
                of_tier(first, 1),
                of_tier(second, 1),
                of_tier(spare.addr(), 0),
                if checks.is_empty() { "" } else { ", " },
            )),
        );
        assert_eq!(gateway.get("/").head.status(), 502, "the request may be at fault");
        eventually("the third node to be tried", || gateway.get("/").head.status() == 200);
        for _ in 0..10 {
            assert_eq!(gateway.get("/").head.status(), 200);
        }
        // Never more than half of them are ejected, and none without passive checks.
        let ejected = states(&gateway).iter().filter(|state| *state == "set_aside").count();
        assert_eq!(ejected, usize::from(!checks.is_empty()));
    }
}

fn of_tier(node: SocketAddr, priority: u8) -> String {
    format!("{{host: {}, port: {}, weight: 1, priority: {priority}}}", node.ip(), node.port())
}

/// An HTTP/2 node that resets every stream is at fault, too.
#[test]
fn a_node_that_resets_every_stream_is_at_fault_itself() {
    let serving = |answer: fn(&mut Http2, u32)| {
        Upstream::serve(move |connection| {
            let mut peer = Http2::accept(connection.stream().try_clone().expect("a handle"), &[]);
            while let Some(frame) = peer.next_frame() {
                if frame.kind == kind::HEADERS {
                    answer(&mut peer, frame.stream);
                }
            }
        })
    };
    for checks in ["", STRICT] {
        let node = serving(|peer, stream| peer.send(kind::RST_STREAM, 0, stream, &code::PROTOCOL_ERROR.to_be_bytes()));
        let spare = serving(|peer, stream| peer.send_head(stream, &[(":status", "200")], END_STREAM));
        let setup = Setup::to_tiers(&[node.addr(), spare.addr()]).upstream("http2: true").upstream(checks);
        let gateway = Gateway::start(STILLGATE, &setup);
        assert_eq!(gateway.get("/").head.status(), 502, "the request may be at fault");
        eventually("the other node to be tried", || gateway.get("/").head.status() == 200);
        for _ in 0..10 {
            assert_eq!(gateway.get("/").head.status(), 200);
        }
        assert_eq!(states(&gateway)[0] == "set_aside", !checks.is_empty());
    }
}

/// Without another node to compare with the failure counts, as before.
#[test]
fn a_node_that_closes_on_what_must_not_be_repeated_is_ejected() {
    let (closing, alive) = (Upstream::serve(|connection| drop(connection.read_head())), Upstream::echo());
    let gateway = gateway(&[closing.addr(), alive.addr()], "");
    eventually("the node to be ejected", || {
        gateway.client().request("POST", "/", b"");
        states(&gateway)[0] == "set_aside"
    });
}

/// Nodes end requests whose clients take too long, which shows nothing of the nodes.
#[test]
fn a_node_that_does_not_wait_for_a_slow_client_is_not_to_blame() {
    let node = Upstream::bind();
    let other = Upstream::bind();
    let gateway = gateway(&[node.addr(), other.addr()], "");
    for _ in 0..3 {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf");
        let mut taken = None;
        eventually("the request at a node", || {
            taken = node.try_accept().or_else(|| other.try_accept());
            taken.is_some()
        });
        let mut connection = taken.expect("a connection");
        connection.read_head().expect("the head");
        connection.read_exactly(4).expect("what there is of the body");
        drop(connection);
        assert_eq!(client.expect_response("POST").head.status(), 502);
    }
    assert_eq!(states(&gateway), ["healthy"; 2]);
}

/// The request of a client that waits for permission to send its body, and never sends it.
const EXPECTING: [&str; 3] = [
    "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\nExpect: 100-Continue\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
];

/// Many nodes ignore `Expect` and wait for the body: until that has arrived, their silence shows nothing about them.
#[test]
fn a_body_that_is_announced_and_never_sent_is_not_the_nodes_fault() {
    let nodes = [(); 2].map(|()| {
        Upstream::serve(|connection| {
            // The gateway closes the connection.
            let _ = connection.read_head().and_then(|_| connection.read_exactly(1));
        })
    });
    // Longer than the gateway waits for the permission of the node, shorter, and with a bound on tries.
    for (timeout, statuses) in [("read: 30", [408; 3]), ("read: 0.2", [504; 3]), ("read: 30, per_try: 0.2", [408; 3])] {
        let keys = format!(", timeout: {{connect: 20, send: 20, {timeout}}}");
        let setup = setup(&nodes.each_ref().map(Upstream::addr), &keys);
        let gateway = Gateway::start(STILLGATE, &setup.gateway("timeouts: {body: 200ms}"));
        let mut clients = EXPECTING.map(|request| {
            let mut client = gateway.client();
            client.send(request);
            client
        });
        for (client, status) in clients.iter_mut().zip(statuses) {
            let response = client.expect_response("POST");
            assert_eq!(response.head.status(), status, "{timeout}");
            assert!(response.head.connection_has("close"));
        }
        assert_eq!(states(&gateway), ["healthy"; 2], "{timeout}");
        assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
    }
}

/// A node that gives up waiting is not at fault either.
#[test]
fn a_node_that_closes_on_a_body_that_does_not_come_is_not_to_blame() {
    let nodes = [(); 2].map(|()| Upstream::serve(|connection| drop(connection.read_head())));
    let gateway = gateway(&nodes.each_ref().map(Upstream::addr), "");
    for request in EXPECTING.iter().cycle().take(12) {
        let mut client = gateway.client();
        client.send(request);
        assert_eq!(client.expect_response("POST").head.status(), 502);
    }
    assert_eq!(states(&gateway), ["healthy"; 2]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}

/// A node that is silent with the whole request counts as any other: the gateway permits the body in its place.
#[test]
fn a_node_that_is_silent_with_the_whole_request_is_ejected() {
    let silent = Upstream::bind();
    let spare = Upstream::echo();
    let setup = setup(&[silent.addr(), spare.addr()], ", timeout: {connect: 20, send: 20, read: 1}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let mut taken = None;
    eventually("the request at the silent node", || {
        client = gateway.client();
        client.send(EXPECTING[0]);
        assert_eq!(client.read_head().expect("an interim response").status(), 100);
        taken = silent.try_accept();
        taken.is_some()
    });
    client.send("0123456789");
    assert_eq!(client.expect_response("POST").head.status(), 504);
    eventually("the node to be ejected", || states(&gateway)[0] == "set_aside");
}

/// A request without a body must not have the field (RFC 9110 section 10.1.1), so that no node waits for one.
#[test]
fn an_expectation_without_a_body_does_not_reach_the_node() {
    let node = Upstream::bind();
    let gateway = gateway(&[node.addr()], "");
    for head in ["GET / HTTP/1.1\r\nHost: h\r\n", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"] {
        let mut client = gateway.client();
        client.send(format!("{head}Expect: 100-continue\r\n\r\n"));
        let request = node.accept().expect_request();
        assert_eq!(request.head.get("expect"), None, "{request:?}");
    }
}

/// The answer that a client provokes may be larger than the gateway accepts.
#[test]
fn a_response_head_beyond_our_bounds_is_not_the_nodes_fault() {
    let node = Upstream::serve(|connection| {
        while let Ok(head) = connection.read_head() {
            let bytes = if head.method_and_target().1 == "/long" { 100_000 } else { 1 };
            let location = "x".repeat(bytes);
            if connection
                .try_send(format!("HTTP/1.1 302 Found\r\nLocation: /{location}\r\nContent-Length: 0\r\n\r\n"))
                .is_err()
            {
                return;
            }
        }
    });
    let other = Upstream::echo();
    let gateway = gateway(&[node.addr(), other.addr()], "");
    let mut refused = 0;
    eventually("some of them", || {
        refused += usize::from(gateway.get("/long").head.status() == 502);
        refused == 3
    });
    assert_eq!(states(&gateway), ["healthy"; 2]);
}

/// A node that switches to WebSocket as soon as it sees the key of a handshake, as some servers do, and serves all else.
fn hasty() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(head) = connection.read_head() {
            let answer = match head.get("sec-websocket-key") {
                Some(_) => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                None => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            };
            if connection.try_send(answer).is_err() {
                return;
            }
        }
    })
}

/// A switch that only the client's own fields make invalid counts neither against the node nor for `api-breaker`.
#[test]
fn a_switch_that_the_client_asks_for_in_a_wrong_way_is_not_the_nodes_fault() {
    let nodes = [(); 2].map(|()| hasty());
    let [first, second] = nodes.each_ref().map(Upstream::addr);
    let breaker = "plugins: {api-breaker: {break_response_code: 599, unhealthy: {http_statuses: [502], failures: 3}}}";
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::resources(format!(
            "upstreams: [{{id: u, nodes: {{\"{first}\": 1, \"{second}\": 1}}, {STRICT}}}]\nroutes:\n  \
             - {{id: open, uri: /open, enable_websocket: true, upstream_id: u, {breaker}}}\n  \
             - {{id: shut, uri: /shut, upstream_id: u, {breaker}}}\n"
        )),
    );
    let ask = |path: &str, fields: &str| {
        let before: usize = nodes.iter().map(Upstream::connections).sum();
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: dGhl\r\n{fields}\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), 502, "{path} {fields}");
        let made = nodes.iter().map(Upstream::connections).sum::<usize>() - before;
        assert!(made <= 1, "no second node is tried");
    };
    for _ in 0..8 {
        ask("/open", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n");
        ask("/open", "Connection: Upgrade\r\nUpgrade: foo\r\n");
        ask("/open", "Connection: Upgrade\r\nUpgrade: websocket/13\r\n");
        ask("/open", "");
        ask("/shut", "");
        ask("/shut", "Connection: Upgrade\r\nUpgrade: websocket\r\n");
    }
    for path in ["/open", "/shut"] {
        assert_eq!(gateway.get(path).head.status(), 200, "{path}");
    }
    assert_eq!(states(&gateway), ["healthy"; 2]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}

/// A switch that nothing in the request asks for is the node's own doing.
#[test]
fn a_switch_that_nobody_asks_for_is_the_nodes_fault() {
    let switching = Upstream::serve(|connection| {
        let _ = connection.read_head();
        connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    });
    let other = Upstream::echo();
    let gateway = gateway(&[switching.addr(), other.addr()], "");
    eventually("the node to be ejected", || {
        gateway.get("/");
        states(&gateway) == ["set_aside", "healthy"]
    });
}

/// A node that repeats a part of the target in a field, decoded, makes its head invalid where the client has encoded a control
/// character.
#[test]
fn a_head_with_control_characters_of_the_client_is_not_the_nodes_fault() {
    let node = Upstream::serve(|connection| {
        while let Ok(head) = connection.read_head() {
            let target = head.method_and_target().1.to_owned();
            let decoded =
                target.replace("%00", "\0").replace("%01", "\u{1}").replace("%7f", "\u{7f}").replace("%0d", "\r");
            let _ =
                connection.try_send(format!("HTTP/1.1 302 Found\r\nLocation: {decoded}/\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let other = Upstream::echo();
    let gateway = gateway(&[node.addr(), other.addr()], "");
    for target in ["/a?b=%00", "/a%01", "/a?b=%7f", "/a%0d"] {
        eventually("the node to be asked", || gateway.get(target).head.status() == 502);
        eventually("the node to answer another", || gateway.get("/a").head.status() == 302);
    }
    assert_eq!(states(&gateway), ["healthy"; 2]);
}

/// A node that repeats a value of a form in a field, decoded; with `all`, it is broken for all requests.
fn repeating_forms(all: bool) -> Upstream {
    Upstream::serve(move |connection| {
        while let Ok(request) = connection.read_request() {
            let is_echo = all || request.body == b"next=%0dx";
            let location = if is_echo { "\rx" } else { "/x" };
            let _ =
                connection.try_send(format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"));
        }
    })
}

/// In a body, too. Neither health nor `api-breaker` takes it for a failure of the node.
#[test]
fn a_head_with_control_characters_of_a_body_is_not_the_nodes_fault() {
    let nodes = [(); 2].map(|()| repeating_forms(false));
    let [first, second] = nodes.each_ref().map(Upstream::addr);
    let breaker = "plugins: {api-breaker: {break_response_code: 599, unhealthy: {http_statuses: [502], failures: 2}}}";
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::resources(format!(
            "upstreams: [{{id: u, nodes: {{\"{first}\": 1, \"{second}\": 1}}, {STRICT}}}]\n\
             routes: [{{id: r, uri: /*, upstream_id: u, {breaker}}}]\n"
        )),
    );
    for _ in 0..4 {
        for _ in 0..4 {
            assert_eq!(Client::connect(gateway.addr()).request("POST", "/", b"next=%0dx").head.status(), 502);
        }
        for _ in 0..4 {
            assert_eq!(gateway.get("/").head.status(), 302);
        }
    }
    assert_eq!(states(&gateway), ["healthy"; 2]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}

/// A node whose heads are always invalid is at fault itself, whatever bodies the requests have.
#[test]
fn a_node_that_fails_all_requests_with_bodies_is_ejected() {
    let (broken, other) = (repeating_forms(true), Upstream::echo());
    let gateway = gateway(&[broken.addr(), other.addr()], "");
    eventually("the node to be ejected", || {
        Client::connect(gateway.addr()).request("POST", "/", b"a=b");
        states(&gateway) == ["set_aside", "healthy"]
    });
}

/// A client that gives its calls little time opens `api-breaker` for no other, whether the node is late or cannot be connected to.
#[test]
fn calls_that_end_before_the_node_answers_do_not_count() {
    let late = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            if request.head.method_and_target().0 == "GET" {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let silent = Upstream::bind();
    let breaker =
        "plugins: {api-breaker: {break_response_code: 599, unhealthy: {http_statuses: [502, 503, 504], failures: 2}}}";
    let resources = format!(
        "routes:\n  - {{id: late, uri: /late, upstream: {{nodes: {{\"{}\": 1}}}}, {breaker}}}\n  \
         - {{id: silent, uri: /silent, upstream: {{scheme: https, timeout: {{connect: 1, send: 9, read: 9}}, nodes: {{\"{}\": 1}}}}, {breaker}}}\n",
        late.addr(),
        silent.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources));
    let mut client = Http2::connect(gateway.addr());
    for (stream, path) in [(1, "/late"), (3, "/silent"), (5, "/late"), (7, "/silent"), (9, "/late"), (11, "/silent")] {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "a.test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "50m"),
        ];
        client.send_head(stream, &fields, END_STREAM);
        let (heads, ..) = client.finish(stream);
        assert_eq!(heads[0].status(), 200, "{path}: with a status of gRPC");
    }
    for (path, status) in [("/late", 200), ("/silent", 504)] {
        let mut other = gateway.client();
        other.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        assert_eq!(other.expect_response("GET").head.status(), status, "{path}");
    }
}

fn accept(node: &Upstream) -> Http2 {
    Http2::accept(node.accept().stream().try_clone().expect("a handle"), &[])
}

#[test]
fn a_stream_that_the_node_finds_fault_with_is_not_tried_again() {
    /// RFC 9113 section 7.
    const HTTP_1_1_REQUIRED: u32 = 13;
    const REFUSALS: [u32; 3] = [code::PROTOCOL_ERROR, code::ENHANCE_YOUR_CALM, HTTP_1_1_REQUIRED];
    let (node, spare) = (Upstream::bind(), Upstream::bind());
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::to_tiers(&[node.addr(), spare.addr()]).upstream("http2: true").upstream(STRICT),
    );
    let mut peer = None;
    for refusal in REFUSALS {
        let mut client = gateway.client().into_connection();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let peer = peer.get_or_insert_with(|| accept(&node));
        let head = peer.until(|frame| frame.kind == kind::HEADERS);
        peer.send(kind::RST_STREAM, 0, head.stream, &refusal.to_be_bytes());
        assert_eq!(client.expect_response("GET").head.status(), 502);
    }
    assert_eq!((node.connections(), spare.connections()), (1, 0));
    assert_eq!(states(&gateway), ["healthy"; 2]);
}

/// The connection may have ended for another request on it, so once more on a new one, and then no more.
#[test]
fn a_connection_that_ends_for_a_request_ends_the_request() {
    let (node, spare) = (Upstream::bind(), Upstream::bind());
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::to_tiers(&[node.addr(), spare.addr()]).upstream("http2: true").upstream(STRICT),
    );
    let mut client = gateway.client().into_connection();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut peers = Vec::new();
    for _ in 0..2 {
        let mut peer = accept(&node);
        peer.until(|frame| frame.kind == kind::HEADERS);
        let payload = [&0_u32.to_be_bytes()[..], &code::ENHANCE_YOUR_CALM.to_be_bytes()].concat();
        peer.send(kind::GOAWAY, 0, 0, &payload);
        peers.push(peer);
    }
    assert_eq!(client.expect_response("GET").head.status(), 502);
    assert_eq!((node.connections(), spare.connections()), (2, 0));
    assert_eq!(states(&gateway), ["healthy"; 2]);
}

/// HTTP/1.1 takes more characters than HTTP/2.
#[test]
fn what_http_2_cannot_say_is_a_bad_request() {
    let node = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).upstream("http2: true").upstream(STRICT));
    for _ in 0..3 {
        let mut client = gateway.client().into_connection();
        client.send("GET /a<b HTTP/1.1\r\nHost: h\r\n\r\n");
        let answer = client.expect_response("GET");
        assert_eq!(answer.head.status(), 400, "{answer:?}");
    }
    assert_eq!(states(&gateway), ["healthy"]);
}
