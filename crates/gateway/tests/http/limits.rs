//! Bounds on clients: their time, their number, our file descriptors.

use crate::shared::STILLGATE;
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, Gateway, PATIENCE, Setup, Upstream, eventually, with_longer_times};

/// Idle clients at once; the descriptors are the test's too.
const IDLE: usize = 300;

/// Maximum cost of one of them, with the allocator's slack.
const IDLE_BYTES_MAX: usize = 4 * 1024;

#[test]
fn a_slow_head_is_answered_408() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {head: 200ms}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost:");
    let response = client.expect_response("GET");
    assert_eq!(response.head.status(), 408);
    assert!(response.head.connection_has("close"));
    client.expect_close();
    assert!(upstream.try_accept().is_none());
}

/// The head's time runs from its first byte, whatever comes in between.
#[test]
fn a_trickling_head_is_answered_408() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {head: 400ms}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let started = Instant::now();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX: ");
    eventually("the gateway to lose its patience", || client.try_send("y").is_err() || client.is_closed());
    assert!(started.elapsed() < PATIENCE / 2);
    assert_eq!(client.expect_response("GET").head.status(), 408);
}

#[test]
fn a_slow_second_head_is_answered_408_too() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {head: 200ms}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /");
    assert_eq!(client.expect_response("GET").head.status(), 200);
    assert_eq!(client.expect_response("GET").head.status(), 408);
    client.expect_close();
}

#[test]
fn a_slow_body_is_answered_408() {
    let upstream = Upstream::bind();
    // Longer than the gateway takes to connect to the node, to which the head goes first.
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {body: 1s}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    let mut node = upstream.accept();
    node.read_head().expect("the head goes ahead");
    let response = client.expect_response("POST");
    assert_eq!(response.head.status(), 408);
    assert!(response.head.connection_has("close"));
    client.expect_close();
    eventually("the upstream connection to be closed", || node.is_closed());
}

/// A client that waits for 100 is not slow: its time begins when it may send.
#[test]
fn an_unmet_expectation_does_not_use_up_the_bodys_time() {
    let upstream = Upstream::bind();
    with_longer_times(Duration::from_millis(500), "a body that comes in time", |time| {
        let setup = Setup::to(upstream.addr()).gateway(&format!("timeouts: {{body: {}ms}}", time.as_millis()));
        let gateway = Gateway::start(STILLGATE, &setup);
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
        let mut node = upstream.accept();
        node.read_head().expect("the head goes ahead");
        // The node says nothing, so that the gateway does, after a second; what the node says then is said already.
        let interim = client.read_head().expect("an interim response");
        let since = Instant::now();
        assert_eq!(interim.status(), 100);
        node.send("HTTP/1.1 100 Continue\r\n\r\n");
        client.send("abc");
        if node.read_exactly(3).is_err() {
            assert!(since.elapsed() >= time * 8 / 10, "{:?}", since.elapsed());
            return false;
        }
        node.send("HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(client.expect_response("POST").head.status(), 204);
        true
    });
}

/// An upstream that never answers it is a gateway timeout.
#[test]
fn an_expectation_never_met_is_answered_504() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).upstream("timeout: {connect: 20, send: 20, read: 0.2}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    let mut node = upstream.accept();
    node.read_head().expect("the head goes ahead");
    let response = client.expect_response("POST");
    assert_eq!(response.head.status(), 504);
    assert!(response.head.connection_has("close"));
}

#[test]
fn an_idle_client_is_closed_without_a_word() {
    let upstream = Upstream::echo();
    // It holds for the first request too, before which the client may stall.
    with_longer_times(Duration::from_secs(1), "a first request in time", |time| {
        let setup = Setup::to(upstream.addr()).gateway(&format!("timeouts: {{keepalive: {}ms}}", time.as_millis()));
        let gateway = Gateway::start(STILLGATE, &setup);
        let since = Instant::now();
        let mut used = gateway.client();
        if used.try_request("GET", "/", b"").is_err() {
            assert!(since.elapsed() >= time * 8 / 10, "{:?}", since.elapsed());
            return false;
        }
        let mut unused = gateway.client();
        used.expect_close();
        unused.expect_close();
        true
    });
}

#[test]
fn a_client_that_does_not_read_is_closed() {
    let upstream = Upstream::serve(|connection| {
        connection.expect_request();
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        // It sends until the gateway hangs up.
        while connection.try_send([&b"10000\r\n"[..], &[b'x'; 65536], b"\r\n"].concat()).is_ok() {}
    });
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {send: 200ms}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the exchange to be given up", || {
        gateway.status()["requests"]["in_flight"] == 0 && gateway.status()["requests"]["total"] == 1
    });
    assert!(client.read_response("GET").is_err(), "a cut response must not look complete");
}

#[test]
fn connections_beyond_the_limit_are_refused_clearly() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("limits: {connections_per_worker: 2}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut clients = [gateway.client(), gateway.client()];
    for client in &mut clients {
        assert_eq!(client.get("/").head.status(), 200);
    }
    let mut third = gateway.client();
    let response = third.expect_response("GET");
    assert_eq!(response.head.status(), 503);
    assert!(response.head.connection_has("close"));
    third.expect_close();
    eventually("the refusal to be counted", || gateway.status()["connections"]["refused"] == 1);
    for client in &mut clients {
        assert_eq!(client.get("/").head.status(), 200, "the first ones go on");
    }
    let [first, _second] = clients;
    drop(first);
    eventually("a place to be free", || {
        let mut client = gateway.client();
        client.try_request("GET", "/", b"").is_ok_and(|response| response.head.status() == 200)
    });
}

/// An idle connection owns no buffer, and what it had is given back.
#[test]
fn idle_connections_cost_little_and_go_without_a_trace() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    gateway.get("/");
    let warm_up: Vec<Client> = (0..IDLE).map(|_| gateway.client()).collect();
    let open = || gateway.status()["connections"]["open"].as_u64();
    eventually("the first clients to be there", || open() >= Some(IDLE as u64));
    drop(warm_up);
    eventually("the first clients to be gone", || open() == Some(0));
    let (rss, fds) = (gateway.rss(), gateway.fd_count());
    let mut clients: Vec<Client> = (0..IDLE).map(|_| gateway.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").head.status(), 200);
    }
    eventually("all to be idle", || open() == Some(IDLE as u64));
    let each = gateway.rss().saturating_sub(rss) / IDLE;
    assert!(each < IDLE_BYTES_MAX, "{each} bytes an idle connection");
    drop(clients);
    eventually("their descriptors to be closed", || gateway.fd_count() <= fds);
}

#[test]
fn running_out_of_descriptors_slows_accepting_and_recovers() {
    let upstream = Upstream::echo();
    let mut setup = Setup::to(upstream.addr());
    setup.open_files = Some(64);
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut clients: Vec<Client> = (0..100).map(|_| gateway.client()).collect();
    eventually("all descriptors to be in use", || gateway.log().contains("cannot accept connections"));
    // Work that has begun ends some day; a busy loop never does.
    eventually("half a second with hardly any use of CPU", || {
        let (cpu, since) = (gateway.cpu(), Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        gateway.cpu() - cpu < since.elapsed() * 3 / 10
    });
    // The accepted connections may find no descriptor for their upstream, but are answered.
    let status = clients[0].get("/").head.status();
    assert!(matches!(status, 200 | 502 | 503), "{status}");
    clients.truncate(10);
    eventually("a new client to be served", || {
        gateway.client().try_request("GET", "/", b"").is_ok_and(|response| response.head.status() == 200)
    });
    gateway.assert_healthy();
    assert!(gateway.status()["connections"]["accept_errors"].as_u64() > Some(0));
}
