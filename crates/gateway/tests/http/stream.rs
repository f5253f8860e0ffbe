//! TCP through the gateway: bytes, ends and resets of both sides, time, nodes that fail, routes, changes, and what is reported.

use crate::shared::streams::{Streams, lines, lines_so_far, nodes_of, wait};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use stillgate_testkit::{
    BufferedSocket, END_PATIENCE, Gateway, MessageError, Upstream, eventually, payload, with_longer_times,
};

/// Both ends of a connection through the gateway.
struct Pair {
    client: BufferedSocket,
    node: BufferedSocket,
}

impl Pair {
    #[track_caller]
    fn open(streams: &Streams, upstream: &Upstream) -> Pair {
        let mut pair = Pair { client: streams.client(), node: upstream.accept() };
        pair.check();
        pair
    }

    #[track_caller]
    fn check(&mut self) {
        assert!(self.is_open(), "the session is closed");
    }

    /// [`Pair::check`], where it may have been closed.
    fn is_open(&mut self) -> bool {
        let mut passes = |up: bool, bytes: &str| {
            let (from, to) = if up { (&mut self.client, &mut self.node) } else { (&mut self.node, &mut self.client) };
            let got =
                from.try_send(bytes).map_err(|_| MessageError::Closed).and_then(|()| to.read_exactly(bytes.len()));
            assert!(!matches!(got, Err(MessageError::Timeout(_))), "{bytes} does not arrive, and nothing is closed");
            got.inspect(|got| assert_eq!(got, bytes.as_bytes())).is_ok()
        };
        passes(true, "ping") && passes(false, "pong!")
    }

    /// Both have seen an orderly end.
    #[track_caller]
    fn expect_end(&mut self) {
        assert_eq!(self.client.read_to_end().expect("an orderly end"), b"");
        assert_eq!(self.node.read_to_end().expect("an orderly end"), b"");
    }
}

fn open_sessions(gateway: &Gateway) -> u64 {
    gateway.status()["streams"]["open"].as_u64().expect("a number")
}

#[test]
fn either_side_may_speak_first_and_end_first() {
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]);
    let gateway = streams.start();
    // The node sends first, as with SMTP: the gateway does not wait for the client's bytes.
    let mut pair = Pair { client: streams.client(), node: upstream.accept() };
    pair.node.send("220 ready");
    assert_eq!(pair.client.read_exactly(9).expect("a greeting"), b"220 ready");
    // Half closed by the client: it still gets everything.
    pair.client.send("question");
    pair.client.half_close();
    assert_eq!(pair.node.read_to_end().expect("an end"), b"question");
    wait(Duration::from_millis(100));
    pair.node.send("answer");
    pair.node.half_close();
    assert_eq!(pair.client.read_to_end().expect("an end"), b"answer");
    // Closed by the node.
    let mut pair = Pair::open(&streams, &upstream);
    pair.node.half_close();
    assert_eq!(pair.client.read_to_end().expect("an end"), b"");
    pair.client.send("late");
    pair.client.half_close();
    assert_eq!(pair.node.read_to_end().expect("an end"), b"late");
    let told = lines(&gateway, 2);
    assert_eq!(told[0]["bytes_received"], 8, "{told:#?}");
    assert_eq!(told[0]["bytes_sent"], 15);
    eventually("no session to be open", || open_sessions(&gateway) == 0);
}

#[test]
fn a_reset_of_one_side_is_one_of_the_other() {
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]);
    let mut gateway = streams.start();
    let Pair { client, mut node } = Pair::open(&streams, &upstream);
    client.reset();
    assert!(matches!(node.read_to_end(), Err(MessageError::Reset(_))), "the node sees a reset");
    let Pair { mut client, node } = Pair::open(&streams, &upstream);
    node.reset();
    assert!(matches!(client.read_to_end(), Err(MessageError::Reset(_))), "the client sees a reset");
    lines(&gateway, 2);
    gateway.assert_healthy();
}

#[test]
fn much_goes_both_ways_at_once_and_a_slow_reader_slows_its_sender() {
    const BYTES: usize = 32 << 20;
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]);
    let gateway = streams.start();
    let Pair { mut client, mut node } = Pair::open(&streams, &upstream);
    let sent = payload(1, BYTES);
    std::thread::scope(|scope| {
        for connection in [&mut client, &mut node] {
            let mut writing = connection.stream().try_clone().expect("a second handle");
            let sent = &sent;
            scope.spawn(move || std::io::Write::write_all(&mut writing, sent).expect("all is taken"));
            scope.spawn(move || assert!(connection.read_exactly(BYTES).expect("all of it") == *sent));
        }
    });
    drop((client, node));
    let told = lines(&gateway, 1);
    assert_eq!(told[0]["bytes_received"], BYTES + 4);
    assert_eq!(told[0]["bytes_sent"], BYTES + 5);
    // A client that does not read: the node can send no more than buffers take.
    let Pair { mut client, node } = Pair::open(&streams, &upstream);
    node.stream().set_nonblocking(true).expect("nonblocking");
    let (mut taken, mut quiet) = (0, Instant::now());
    while quiet.elapsed() < Duration::from_millis(500) {
        match std::io::Write::write(&mut { node.stream() }, &sent[..65536]) {
            Ok(n) => (taken, quiet) = (taken + n, Instant::now()),
            Err(_) => std::thread::yield_now(),
        }
    }
    assert!(taken < 8 * BYTES, "{taken}");
    drop(node);
    assert_eq!(client.read_to_end().expect("an orderly end").len(), taken);
}

/// Sessions whose idle time is the one that `streams` is given.
fn check_idle(upstream: &Upstream, streams: impl Fn(Duration) -> Streams) {
    // Where the test itself stalls for so long the end is right, and another session has to show what is to be seen.
    with_longer_times(Duration::from_secs(1), "a session that is never idle", |idle| {
        let streams = streams(idle);
        let _gateway = streams.start();
        let opened = Instant::now();
        let mut pair = Pair { client: streams.client(), node: upstream.accept() };
        let mut last = opened;
        while opened.elapsed() < idle * 8 / 5 {
            wait(idle / 10);
            let before = std::mem::replace(&mut last, Instant::now());
            if pair.node.try_send("x").is_err() || pair.client.read_exactly(1).is_err() {
                assert!(pair.client.is_closed(), "what the node sent does not arrive, and nothing is closed");
                assert!(before.elapsed() >= idle * 8 / 10, "{:?}", before.elapsed());
                return false;
            }
        }
        pair.expect_end();
        assert!(last.elapsed() >= idle / 2, "{:?}", last.elapsed());
        true
    });
}

#[test]
fn an_idle_connection_is_closed() {
    let upstream = Upstream::bind();
    check_idle(&upstream, |idle| {
        Streams::to(&[upstream.addr()]).stream_proxy(&format!("tcp_idle: {}s", idle.as_secs()))
    });
}

#[test]
fn a_routes_own_idle_time_comes_first() {
    let upstream = Upstream::bind();
    let nodes = nodes_of(&[upstream.addr()]);
    check_idle(&upstream, |idle| {
        let timeout = format!("timeout: {{idle: {}s}}", idle.as_secs());
        let streams = Streams::new(format!("stream_routes: [{{id: all, {timeout}, upstream: {{{nodes}}}}}]\n"));
        streams.stream_proxy("tcp_idle: 50ms")
    });
}

#[test]
fn the_next_node_is_tried_and_who_fails_is_set_aside() {
    const SESSIONS: usize = 12;
    let (upstream, down) = (Upstream::bind(), Upstream::refusing());
    let streams = Streams::to(&[down.addr(), upstream.addr()]);
    let gateway = streams.start();
    let since = Instant::now();
    for _ in 0..SESSIONS {
        drop(Pair::open(&streams, &upstream));
    }
    let took = since.elapsed();
    let told = lines(&gateway, SESSIONS);
    let by_way_of = format!("{}, {}", down.addr(), upstream.addr());
    let are_both = |line: &Value| line["upstream_addr"] == by_way_of.as_str();
    let is_one = |line: &Value| line["upstream_addr"] == upstream.addr().to_string().as_str();
    assert!(told.iter().all(|line| are_both(line) || is_one(line)) && told.iter().any(are_both), "{told:#?}");
    eventually("the log to tell of the node", || gateway.log().contains("a node fails: it is set aside"));
    // The first time for a second, then for longer.
    let retries_max = (1 + took.as_secs() as usize).min(SESSIONS);
    let is_it = |line: &str| {
        (1..=retries_max).any(|retries| {
            line == format!("stillgate_upstream_retries_total{{upstream=\"stream_routes/all\"}} {retries}")
        })
    };
    eventually("the retries to be counted", || streams.metrics().lines().any(is_it));
}

#[test]
fn without_a_node_the_connection_is_closed_and_told_of() {
    let down = [Upstream::refusing(), Upstream::refusing()];
    let streams = Streams::to(&[down[0].addr(), down[1].addr()]);
    let gateway = streams.start();
    let mut client = streams.client();
    client.expect_close();
    let line = &lines(&gateway, 1)[0];
    assert_eq!(line["status"], 502, "{line:#?}");
    assert_eq!(line["upstream_addr"], format!("{}, {}", down[0].addr(), down[1].addr()).as_str());
    assert_eq!(line["route_id"], "all");
    streams.await_metric(&format!(
        "stillgate_stream_sessions_total{{stream_route=\"all\",node=\"{}\",protocol=\"tcp\",code=\"502\"}} 1",
        down[1].addr()
    ));
    let streams = Streams::to(&[]);
    let gateway = streams.start();
    streams.client().expect_close();
    let line = &lines(&gateway, 1)[0];
    assert_eq!((&line["status"], &line["upstream_addr"]), (&json!(503), &json!(null)));
    eventually("a line in the log", || gateway.log().contains("the upstream has no node"));
}

#[test]
fn a_connection_that_no_route_takes_is_closed_and_told_of() {
    let upstream = Upstream::bind();
    let nodes = nodes_of(&[upstream.addr()]);
    let mut streams = Streams::new("");
    let port = streams.addr().port();
    streams.resources = format!(
        "stream_routes:\n- {{id: other, server_port: 1, upstream: {{{nodes}}}}}\n\
         - {{id: elsewhere, server_addr: 127.0.0.2, upstream: {{{nodes}}}}}\n\
         - {{id: stranger, remote_addr: 10.0.0.0/8, upstream: {{{nodes}}}}}\n\
         - {{id: udp, upstream: {{scheme: udp, {nodes}}}}}\n"
    );
    let gateway = streams.start();
    streams.client().expect_close();
    let line = &lines(&gateway, 1)[0];
    assert_eq!(
        (&line["status"], &line["route_id"], &line["server_port"]),
        (&json!(404), &json!(null), &json!(port.to_string()))
    );
    eventually("a line in the log", || gateway.log().contains("no stream route takes one to 127.0.0.1:"));
    streams
        .await_metric("stillgate_stream_sessions_total{stream_route=\"\",node=\"\",protocol=\"tcp\",code=\"404\"} 1");
    streams.resources += &format!(
        "- {{id: here, remote_addr: 127.0.0.0/8, server_addr: 127.0.0.1, server_port: {port}, upstream: {{{nodes}}}}}\n\
         - {{id: later, upstream: {{{nodes}}}}}\n"
    );
    gateway.reload(&streams.setup());
    drop(Pair::open(&streams, &upstream));
    assert_eq!(lines(&gateway, 2)[1]["route_id"], "here");
}

#[test]
fn check_tells_how_many_there_are() {
    let streams = Streams::to(&[]);
    let gateway = streams.start();
    let check = std::process::Command::new(crate::shared::STILLGATE).arg("check").arg(gateway.config_path()).output();
    let said = String::from_utf8(check.expect("it runs").stdout).expect("text");
    assert!(said.contains("ok (no routes, 1 stream route, 1 upstream; 2 warnings)"), "{said}");
}

#[test]
fn limits_hold_for_open_sessions() {
    let upstream = Upstream::bind();
    let streams = Streams::new(format!(
        "stream_routes: [{{id: all, upstream: {{limits: {{requests: 2}}, {}}}}}]\n",
        nodes_of(&[upstream.addr()])
    ));
    let gateway = streams.start();
    let first = Pair::open(&streams, &upstream);
    let second = Pair::open(&streams, &upstream);
    streams.client().expect_close();
    assert_eq!(lines(&gateway, 1)[0]["status"], 503);
    drop(first);
    lines(&gateway, 2);
    drop((Pair::open(&streams, &upstream), second));
    lines(&gateway, 4);
}

#[test]
fn connections_are_spread_and_hashed() {
    let upstreams = [Upstream::bind(), Upstream::bind()];
    let [a, b] = [0, 1].map(|at: usize| upstreams[at].addr());
    let nodes = format!("nodes: {{\"{a}\": 1, \"{b}\": 1}}");
    let mut streams = Streams::new(format!("stream_routes: [{{id: all, upstream: {{{nodes}}}}}]\n"));
    let gateway = streams.start();
    let accepted = |upstream: &Upstream| upstream.try_accept().is_some();
    for turn in 0..4 {
        let _client = streams.client();
        let mut found = [false; 2];
        eventually("one of the nodes to be connected to", || {
            found = [accepted(&upstreams[0]), accepted(&upstreams[1])];
            found.contains(&true)
        });
        assert_eq!(found, [turn % 2 == 0, turn % 2 == 1], "turn {turn}");
    }
    lines(&gateway, 4);
    // One client's always go to the same.
    streams.resources = format!("stream_routes: [{{id: all, upstream: {{type: chash, key: remote_addr, {nodes}}}}}]\n");
    gateway.reload(&streams.setup());
    for _ in 0..6 {
        let _client = streams.client();
        eventually("the node to be connected to", || upstreams.iter().any(accepted));
    }
    let told = lines(&gateway, 10);
    assert!(told[4..].iter().all(|line| line["upstream_addr"] == told[4]["upstream_addr"]), "{told:#?}");
}

#[test]
fn a_session_is_reported_at_its_end() {
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]);
    let gateway = streams.start();
    let since = Instant::now();
    let pair = Pair::open(&streams, &upstream);
    streams.await_metric("stillgate_stream_sessions_open 1");
    wait(Duration::from_millis(300));
    drop(pair);
    let mut line = lines(&gateway, 1).remove(0);
    let fields = line.as_object_mut().expect("an object");
    let took = fields.remove("request_time").and_then(|time| time.as_f64()).expect("a time");
    let connecting = fields.remove("upstream_response_time").and_then(|time| time.as_f64()).expect("a time");
    assert!((0.2..since.elapsed().as_secs_f64()).contains(&took) && connecting < took, "{took} {connecting}");
    let expected = json!({
        "status": 200, "bytes_sent": 5, "bytes_received": 4, "upstream_addr": upstream.addr().to_string(),
        "route_id": "all", "remote_addr": "127.0.0.1", "server_port": streams.addr().port().to_string(),
        "protocol": "TCP", "ssl_server_name": null, "request_method": null,
    });
    assert_eq!(line, expected);
    let node = upstream.addr();
    streams.await_metric("stillgate_stream_sessions_open 0");
    streams.await_metric(&format!(
        "stillgate_stream_sessions_total{{stream_route=\"all\",node=\"{node}\",protocol=\"tcp\",code=\"200\"}} 1"
    ));
    streams.await_metric("stillgate_stream_bytes_total{stream_route=\"all\",direction=\"ingress\"} 4");
    streams.await_metric("stillgate_stream_bytes_total{stream_route=\"all\",direction=\"egress\"} 5");
    eventually("the total", || gateway.status()["streams"]["total"] == 1);
}

#[test]
fn a_changed_route_does_to_its_sessions_what_it_says() {
    let upstream = Upstream::bind();
    let resources = |name: &str| {
        let mut text =
            format!("upstreams: [{{id: u, scheme: tcp, {}}}]\nstream_routes:\n", nodes_of(&[upstream.addr()]));
        for (id, client) in [("keep", "127.0.0.2"), ("drain", "127.0.0.3"), ("close", "127.0.0.4")] {
            text += &format!("- {{id: {id}, remote_addr: {client}, on_change: {id}, {name} upstream_id: u}}\n");
        }
        text
    };
    let mut streams = Streams::new(resources(""));
    let gateway = streams.start();
    let mut pairs: Vec<Pair> = (2..5)
        .map(|last| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
            socket.bind(&std::net::SocketAddr::from(([127, 0, 0, last], 0)).into()).expect("bind");
            socket.connect(&streams.addr().into()).expect("connect");
            let mut pair = Pair { client: BufferedSocket::new(socket.into()), node: upstream.accept() };
            pair.check();
            pair
        })
        .collect();
    // A new name does not count as a change.
    streams.resources = resources("name: other,");
    gateway.reload(&streams.setup());
    wait(Duration::from_millis(300));
    pairs.iter_mut().for_each(Pair::check);
    streams.resources = resources("timeout: {idle: 77s},");
    let reloaded = Instant::now();
    gateway.reload(&streams.setup());
    pairs[2].expect_end();
    // Goes on while it is busy: until nothing has moved for a second, for which a test may also stall.
    let (since, mut last) = (Instant::now(), reloaded);
    while since.elapsed() < Duration::from_millis(1_500) {
        let before = std::mem::replace(&mut last, Instant::now());
        if !pairs[1].is_open() {
            assert!(before.elapsed() >= Duration::from_millis(800), "{:?}", before.elapsed());
            break;
        }
    }
    eventually("the quiet one to be closed", || pairs[1].client.is_closed() && pairs[1].node.is_closed());
    pairs[0].check();
}

#[test]
fn a_drain_lets_sessions_go_on_until_its_deadline() {
    let upstream = Upstream::bind();
    with_longer_times(Duration::from_secs(3), "a session that is used while the gateway drains", |drain| {
        let streams = Streams::to(&[upstream.addr()]).gateway(&format!("timeouts: {{drain: {}s}}", drain.as_secs()));
        let mut gateway = streams.start();
        let mut pair = Pair::open(&streams, &upstream);
        let since = Instant::now();
        gateway.signal("TERM");
        eventually("the drain to begin", || gateway.log().contains("SIGTERM: finishing"));
        eventually("no more to be accepted", || std::net::TcpStream::connect(streams.addr()).is_err());
        let was_used = pair.is_open();
        if was_used {
            pair.expect_end();
        }
        assert!(since.elapsed() >= drain * 8 / 10, "{:?}", since.elapsed());
        assert!(gateway.wait_within(END_PATIENCE).success());
        // A probe that was still accepted is a session, too.
        assert!(lines_so_far(&gateway).iter().any(|line| line["bytes_received"] == 8 && line["status"] == 200));
        was_used
    });
}

#[test]
fn a_worker_takes_no_more_connections_than_its_share() {
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]).gateway("limits: {connections_per_worker: 1}");
    let gateway = streams.start();
    let mut pair = Pair::open(&streams, &upstream);
    streams.client().expect_close();
    pair.check();
    eventually("the refusal to be counted", || gateway.status()["connections"]["refused"] == 1);
}

#[test]
fn idle_connections_cost_little_and_go_without_a_trace() {
    const SESSIONS: usize = 1_000;
    const BYTES_MAX: usize = if cfg!(debug_assertions) { 8 * 1024 } else { 4 * 1024 };
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]);
    let gateway = streams.start();
    drop((0..50).map(|_| Pair::open(&streams, &upstream)).collect::<Vec<_>>());
    eventually("the first ones to be gone", || gateway.status()["connections"]["open"] == 0);
    let (rss, fds) = (gateway.rss(), gateway.fd_count());
    let mut pairs: Vec<Pair> = (0..SESSIONS).map(|_| Pair::open(&streams, &upstream)).collect();
    for pair in &mut pairs {
        pair.client.send([b'x'; 10_000]);
        pair.node.read_exactly(10_000).expect("what the client sent");
    }
    let each = gateway.rss().saturating_sub(rss) / SESSIONS;
    assert!(each < BYTES_MAX, "{each} bytes a session after use");
    assert_eq!(open_sessions(&gateway), SESSIONS as u64);
    drop(pairs);
    eventually("their descriptors to be closed", || gateway.fd_count() <= fds);
    eventually("no session to be open", || open_sessions(&gateway) == 0);
}
