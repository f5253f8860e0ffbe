//! Nodes that refuse, hang, close or lie: what the client gets, and which node is tried next.

use crate::shared::STILLGATE;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually, with_longer_times};

/// A timeout in a test of timeouts.
const SHORT: &str = "timeout: {connect: 0.2, send: 0.2, read: 0.2}";
/// A short timeout for connecting only: the machine may delay a connection.
const SHORT_CONNECT: &str = "timeout: {connect: 0.2, send: 60, read: 60}";
/// A short timeout for reading only: a connection and a request must come first.
const SHORT_READ: &str = "timeout: {connect: 60, send: 60, read: 0.2}";

#[test]
fn a_node_that_refuses_is_passed_over() {
    let (dead, alive) = (Upstream::refusing(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to_tiers(&[dead.addr(), alive.addr()]));
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    // Nothing of a POST was sent to a node that refused: it may go to the next one as well.
    assert_eq!(client.request("POST", "/?echo", b"body").body, b"body");
}

#[test]
fn retries_zero_gives_up_at_once() {
    let (dead, alive) = (Upstream::refusing(), Upstream::echo());
    let setup = Setup::to_tiers(&[dead.addr(), alive.addr()]).upstream("retries: 0");
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.get("/").head.status(), 502);
    assert_eq!(alive.connections(), 0);
}

#[test]
fn retries_bound_the_nodes_tried() {
    let dead = [Upstream::refusing(), Upstream::refusing(), Upstream::refusing()];
    let alive = Upstream::echo();
    let nodes = [dead[0].addr(), dead[1].addr(), dead[2].addr(), alive.addr()];
    let gateway = Gateway::start(STILLGATE, &Setup::to_tiers(&nodes).upstream("retries: 2"));
    assert_eq!(gateway.get("/").head.status(), 502);
    let gateway = Gateway::start(STILLGATE, &Setup::to_tiers(&nodes).upstream("retries: 3"));
    assert_eq!(gateway.get("/").head.status(), 200);
}

#[test]
fn errors_of_nodes_have_the_status_of_each_try() {
    let (dead, node) = (Upstream::refusing(), Upstream::echo());
    let setup = Setup::to_tiers(&[dead.addr(), node.addr()]);
    let shown = |gateway: &Gateway, path: &str| {
        let head = gateway.get(path).head;
        (head.status(), head.all("x-apisix-upstream-status").join(" and "))
    };
    let gateway = Gateway::start(STILLGATE, &setup);
    let of_both = shown(&gateway, "/?status=503");
    assert_eq!(of_both, (503, "502, 503".to_owned()));
    for good in ["/", "/?status=404"] {
        assert_eq!(shown(&gateway, good).1, "", "{good}");
    }
    let gateway = Gateway::start(STILLGATE, &setup.clone().upstream("retries: 0"));
    assert_eq!(shown(&gateway, "/"), (502, "502".to_owned()));
    // No node was asked.
    assert_eq!(shown(&gateway, "/%zz"), (400, String::new()));
    // The node's own field, such as that of a gateway behind this one, is replaced.
    let node = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            let head = "HTTP/1.1 500 No\r\nX-APISIX-Upstream-Status: 200\r\nContent-Length: 0\r\n\r\n";
            if connection.try_send(head).is_err() {
                return;
            }
        }
    });
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()));
    assert_eq!(shown(&gateway, "/"), (500, "500".to_owned()));
}

#[test]
fn a_node_that_closes_is_passed_over_for_idempotent_requests_only() {
    let first = Upstream::serve(|connection| {
        connection.expect_request();
    });
    let second = Upstream::echo();
    let setup = Setup::to_tiers(&[first.addr(), second.addr()]);
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.client().request("POST", "/", b"x").head.status(), 502);
    assert_eq!(second.requests(), 0, "a POST that was sent must not be sent again");
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.get("/").head.status(), 200);
    assert_eq!(second.requests(), 1);
}

#[test]
fn a_node_that_hangs_is_answered_504() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).upstream(SHORT_READ));
    let started = Instant::now();
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    assert_eq!(client.expect_response("GET").head.status(), 504);
    // The client would not wait for the minute that is the default.
    assert!(started.elapsed() > Duration::from_millis(150), "too early");
    eventually("the upstream connection to be closed", || node.is_closed());
}

#[test]
fn a_node_that_never_accepts_is_answered_504() {
    let stalled = StalledNode::new();
    let gateway = Gateway::start(STILLGATE, &Setup::to(stalled.addr).upstream(SHORT));
    assert_eq!(gateway.get("/").head.status(), 504);
}

#[test]
fn a_node_that_never_accepts_is_passed_over() {
    let (stalled, alive) = (StalledNode::new(), Upstream::echo());
    let setup = Setup::to_tiers(&[stalled.addr, alive.addr()]).upstream(SHORT_CONNECT);
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.client().request("POST", "/?echo", b"x").body, b"x");
}

#[test]
fn retry_timeout_ends_the_tries() {
    let (stalled, alive) = (StalledNode::new(), Upstream::echo());
    let setup = Setup::to_tiers(&[stalled.addr, alive.addr()]).upstream(SHORT).upstream("retry_timeout: 0.05");
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.get("/").head.status(), 504);
    assert_eq!(alive.requests(), 0);
}

#[test]
fn a_response_that_stalls_is_cut() {
    let upstream = Upstream::bind();
    with_longer_times(Duration::from_secs(1), "a response that begins in time", |read| {
        let timeout = format!("timeout: {{connect: 600, send: 600, read: {}}}", read.as_secs());
        let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).upstream(&timeout));
        let mut client = gateway.client();
        let asked = Instant::now();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut node = upstream.accept();
        node.expect_request();
        // The connection may be closed by now.
        let _ = node.try_send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        let held_up = asked.elapsed();
        let answer = client.read_response("GET");
        if answer.as_ref().is_ok_and(|answer| answer.head.status() == 504) {
            assert!(held_up >= read * 8 / 10, "{held_up:?}");
            return false;
        }
        assert!(answer.is_err(), "a cut response must not look complete");
        eventually("the upstream connection to be closed", || node.is_closed());
        true
    });
}

/// The read timeout is between two reads, not for the whole response.
#[test]
fn a_response_that_trickles_is_not_cut() {
    with_longer_times(Duration::from_secs(2), "a node that is never silent", |read| {
        let upstream = Upstream::serve(move |connection| {
            connection.expect_request();
            let mut is_wanted = connection.try_send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n").is_ok();
            for _ in 0..8 {
                pass(read / 5);
                is_wanted = is_wanted && connection.try_send("x").is_ok();
            }
        });
        let timeout = format!("timeout: {{connect: 600, send: 600, read: {}}}", read.as_secs());
        let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).upstream(&timeout));
        // The machine may have delayed the node.
        gateway.client().try_request("GET", "/", b"").is_ok_and(|answer| answer.body == b"xxxxxxxx")
    });
}

#[test]
fn a_routes_timeout_overrides_the_upstreams() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).route(SHORT));
    assert_eq!(gateway.get("/").head.status(), 504);
}

#[test]
fn idle_upstream_connections_are_closed_in_time() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).upstream("keepalive_pool: {size: 4, idle_timeout: 0.2, requests: 100}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    client.expect_response("GET");
    eventually("the idle connection to be closed", || node.is_closed());
}

#[test]
fn upstream_connections_serve_a_limited_number_of_requests() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).upstream("keepalive_pool: {size: 4, idle_timeout: 60, requests: 2}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    for _ in 0..6 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    assert_eq!(upstream.connections(), 3);
}

#[test]
fn no_more_idle_upstream_connections_are_kept_than_allowed() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).upstream("keepalive_pool: {size: 1, idle_timeout: 60, requests: 100}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut clients = [gateway.client(), gateway.client()];
    let mut nodes = clients.each_mut().map(|client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        upstream.accept()
    });
    for (client, node) in clients.iter_mut().zip(&mut nodes) {
        node.expect_request();
        node.send("HTTP/1.1 204 No Content\r\n\r\n");
        client.expect_response("GET");
    }
    let open = |nodes: &mut [stillgate_testkit::BufferedSocket; 2]| {
        nodes.iter_mut().filter_map(|node| (!node.is_closed()).then_some(())).count()
    };
    eventually("one of two idle connections to be closed", || open(&mut nodes) == 1);
}

#[test]
fn weights_are_kept_to() {
    let (heavy, light) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::resources(format!(
            "upstreams: [{{id: u, type: roundrobin, nodes: {{\"{}\": 3, \"{}\": 1}}}}]\nroutes: [{{id: r, uri: /*, upstream_id: u}}]\n",
            heavy.addr(),
            light.addr()
        )),
    );
    let mut client = gateway.client();
    for _ in 0..40 {
        client.get("/");
    }
    assert_eq!((heavy.requests(), light.requests()), (30, 10));
}

/// Lets time pass in an upstream that is slow on purpose.
fn pass(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::park_timeout(time);
    }
}

/// A node whose queue of unaccepted connections is full, so that a further SYN gets no answer.
struct StalledNode {
    addr: SocketAddr,
    _listener: socket2::Socket,
    _queued: Vec<TcpStream>,
}

impl StalledNode {
    fn new() -> Self {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("open a socket");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&any.into()).expect("bind to any loopback port");
        listener.listen(0).expect("listen");
        let addr = listener.local_addr().expect("its address").as_socket().expect("an IP address");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(100)) {
            queued.push(stream);
            assert!(queued.len() < 100, "the queue never fills");
        }
        Self { addr, _listener: listener, _queued: queued }
    }
}
