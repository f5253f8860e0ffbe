//! UDP through the gateway: sessions, their ends and bounds, nodes that are not there, and what is reported.

use crate::shared::streams::{Streams, lines, wait};
use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stillgate_testkit::{END_PATIENCE, Gateway, PATIENCE, eventually, eventually_within, with_longer_times};

/// Answers each datagram with what came and the port it came from.
struct Echo {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Echo {
        Echo::at("127.0.0.1:0")
    }

    fn at(address: &str) -> Echo {
        let socket = UdpSocket::bind(address).expect("bind");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (addr, stop) = (socket.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
        let seen = Arc::new(AtomicUsize::new(0));
        let (stopped, count) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                let answer = [from.port().to_string().as_bytes(), b" ", &buffer[..len]].concat();
                // An answer that is too long with its port is not sent.
                let _ = socket.send_to(&answer, from);
            }
        });
        Echo { addr, stop, seen, thread: Some(thread) }
    }

    fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn resources(nodes: &[SocketAddr], more: &str) -> String {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{node}\": 1")).collect();
    format!("stream_routes: [{{id: all{more}, upstream: {{scheme: udp, nodes: {{{}}}}}}}]\n", nodes.join(", "))
}

/// A route, and its upstream of one node apart from it.
fn apart(node: &Echo, route: &str) -> String {
    let nodes = format!("{{\"{}\": 1}}", node.addr);
    format!("upstreams: [{{id: u, scheme: udp, nodes: {nodes}}}]\nstream_routes: [{{id: {route}, upstream_id: u}}]\n")
}

fn client(streams: &Streams) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.connect(streams.addr()).expect("connect");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Sends and gets the answer; the port that the node saw.
#[track_caller]
fn ask(client: &UdpSocket, datagram: &[u8]) -> u16 {
    client.send(datagram).expect("sent");
    let mut buffer = [0; 65536];
    let len = client.recv(&mut buffer).expect("an answer");
    let answer = &buffer[..len];
    let at = answer.iter().position(|byte| *byte == b' ').expect("a port");
    assert!(answer[at + 1..] == *datagram, "{}", answer.escape_ascii());
    std::str::from_utf8(&answer[..at]).ok().and_then(|port| port.parse().ok()).expect("a port")
}

fn dropped(gateway: &Gateway) -> u64 {
    gateway.status()["streams"]["datagrams_dropped"].as_u64().expect("a number")
}

fn open_sessions(gateway: &Gateway) -> u64 {
    gateway.status()["streams"]["udp_open"].as_u64().expect("a number")
}

#[test]
fn each_client_has_a_session_and_keeps_it() {
    let echo = Echo::start();
    let streams = Streams::new(resources(&[echo.addr], "")).gateway("workers: 3");
    let gateway = streams.start();
    let clients: Vec<UdpSocket> = (0..100).map(|_| client(&streams)).collect();
    let ports: Vec<u16> = clients.iter().map(|client| ask(client, b"first")).collect();
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), clients.len(), "each has a port of its own");
    for turn in 0..3 {
        for (client, port) in clients.iter().zip(&ports) {
            assert_eq!(ask(client, format!("turn {turn}").as_bytes()), *port);
        }
    }
    assert_eq!(open_sessions(&gateway), 100);
    assert_eq!(dropped(&gateway), 0);
}

#[test]
fn datagrams_stay_whole_whatever_their_length() {
    let echo = Echo::start();
    let streams = Streams::new(resources(&[echo.addr], ""));
    let _gateway = streams.start();
    let client = client(&streams);
    for len in [1, 0, 100, 1472, 9000, 65_000, 0, 2] {
        ask(&client, &vec![b'x'; len]);
    }
}

#[test]
fn a_session_ends_when_nothing_moves_and_is_reported() {
    let echo = Echo::start();
    with_longer_times(Duration::from_secs(2), "datagrams without a pause", |idle| {
        let streams = Streams::new(resources(&[echo.addr], "")).stream_proxy(&format!("udp_idle: {}s", idle.as_secs()));
        let gateway = streams.start();
        let socket = client(&streams);
        let mut last = Instant::now();
        let port = ask(&socket, b"ping");
        let (since, mut asked) = (Instant::now(), 1);
        while since.elapsed() < idle * 5 / 4 {
            wait(idle / 20);
            let before = std::mem::replace(&mut last, Instant::now());
            if ask(&socket, b"ping") != port {
                assert!(before.elapsed() >= idle * 8 / 10, "it is busy: {:?}", before.elapsed());
                return false;
            }
            asked += 1;
        }
        let line = lines(&gateway, 1).remove(0);
        assert_eq!(line["status"], 200, "{line:#?}");
        assert_eq!(line["protocol"], "UDP");
        assert_eq!(line["route_id"], "all");
        assert_eq!(line["upstream_addr"], echo.addr.to_string().as_str());
        assert_eq!(line["bytes_received"], asked * 4);
        assert_eq!(line["bytes_sent"], asked * (4 + 1 + port.to_string().len()));
        assert_ne!(ask(&socket, b"ping"), port, "another session");
        streams.await_metric(&format!(
            "stillgate_stream_sessions_total{{stream_route=\"all\",node=\"{}\",protocol=\"udp\",code=\"200\"}} 2",
            echo.addr
        ));
        streams.await_metric("stillgate_stream_sessions_open 0");
        true
    });
}

#[test]
fn sessions_are_bounded_and_what_has_no_place_is_dropped() {
    with_longer_times(Duration::from_secs(2), "four clients before the first session ends", |idle| {
        let (echo, opened) = (Echo::start(), Instant::now());
        let bounds = format!("udp_sessions_per_worker: 3, udp_idle: {}s", idle.as_secs());
        let streams = Streams::new(resources(&[echo.addr], "")).stream_proxy(&bounds);
        let gateway = streams.start();
        let clients: Vec<UdpSocket> = (0..3).map(|_| client(&streams)).collect();
        for client in &clients {
            ask(client, b"x");
        }
        let late = client(&streams);
        late.send(b"late").expect("sent");
        eventually("it to be dropped, or answered", || dropped(&gateway) == 1 || echo.seen() == 4);
        if echo.seen() == 4 {
            assert!(opened.elapsed() >= idle * 8 / 10, "{:?}", opened.elapsed());
            return false;
        }
        eventually("a line in the log", || gateway.log().contains("udp_sessions_per_worker sessions already"));
        assert_eq!(echo.seen(), 3);
        streams.await_metric("stillgate_stream_datagrams_dropped_total 1");
        eventually("the sessions to end", || open_sessions(&gateway) == 0);
        ask(&late, b"again");
        true
    });
}

/// Its datagram comes before the session that it leaves has ended.
#[test]
fn a_session_that_takes_anothers_place_needs_no_more_room() {
    let nodes = [Echo::start(), Echo::start()];
    let mut streams = Streams::new(apart(&nodes[0], "all")).stream_proxy("udp_sessions_per_worker: 2");
    let gateway = streams.start();
    let clients = [client(&streams), client(&streams)];
    assert!(clients.iter().all(|client| ask(client, b"x") > 0));
    streams.resources = apart(&nodes[1], "all");
    gateway.reload(&streams.setup());
    assert!(clients.iter().all(|client| ask(client, b"x") > 0));
    assert_eq!(nodes.each_ref().map(Echo::seen), [2, 2]);
    eventually("the sessions before to end", || open_sessions(&gateway) == 2);
    client(&streams).send(b"x").expect("sent");
    eventually("what is one too many to be dropped", || dropped(&gateway) == 1);
    assert_eq!(nodes.each_ref().map(Echo::seen), [2, 2]);
}

#[test]
fn what_no_route_takes_is_dropped() {
    let echo = Echo::start();
    let streams = Streams::new(resources(&[echo.addr], ", remote_addr: 10.0.0.0/8"));
    let mut gateway = streams.start();
    client(&streams).send(b"x").expect("sent");
    eventually("it to be dropped", || dropped(&gateway) == 1);
    eventually("a line in the log", || gateway.log().contains("no stream route takes datagrams to 127.0.0.1:"));
    eventually("their number in the log", || gateway.log().contains("datagrams were dropped"));
    assert_eq!((echo.seen(), open_sessions(&gateway)), (0, 0));
    gateway.assert_healthy();
}

#[test]
fn a_node_that_is_not_there_is_passed_over() {
    let echo = Echo::start();
    // A port without a listener: the kernel says so. Its owner accepts datagrams from one other peer only, so that nobody else gets
    // it.
    let holder = UdpSocket::bind("127.0.0.1:0").expect("bind");
    holder.connect("127.0.0.1:9").expect("connect");
    let gone = holder.local_addr().expect("an address");
    let tiers = format!(
        "stream_routes: [{{id: all, upstream: {{scheme: udp, nodes: [{{host: 127.0.0.1, port: {}, priority: 1}}, \
         {{host: 127.0.0.1, port: {}, priority: 0}}]}}}}]\n",
        gone.port(),
        echo.addr.port()
    );
    let streams = Streams::new(tiers);
    let gateway = streams.start();
    let socket = client(&streams);
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let since = Instant::now();
    let mut sent = 0;
    loop {
        socket.send(b"hello").expect("sent");
        sent += 1;
        if socket.recv(&mut [0; 100]).is_ok() {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "nobody answers");
    }
    // A gateway that stalls answers late, but loses none.
    eventually(&format!("all of {sent} datagrams but two to get through"), || echo.seen() + 2 >= sent);
    eventually("the log to tell of the node", || gateway.log().contains("a node fails: it is set aside"));
    let line = lines(&gateway, 1).remove(0);
    assert_eq!((line["status"].as_u64(), line["upstream_addr"].as_str()), (Some(502), Some(&*gone.to_string())));
    // Without any node it does not wait.
    let streams = Streams::new(resources(&[], ""));
    let gateway = streams.start();
    let socket = client(&streams);
    (0..100).for_each(|_| assert_eq!(socket.send(b"x").expect("sent"), 1));
    eventually("all of them to be dropped", || dropped(&gateway) == 100);
    let told = || std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    eventually("a line in the log", || told().contains("\"status\":503"));
    assert!(told().lines().count() <= 10, "{}", told());
}

/// It answers nothing, so that only refusals show whether it is there.
#[test]
fn a_silent_node_that_refuses_nothing_any_more_is_used_again() {
    let bind = |at: &str| UdpSocket::bind(at).expect("bind");
    let gone = bind("127.0.0.2:0").local_addr().expect("an address");
    let streams = Streams::new(resources(&[gone], ""));
    let gateway = streams.start();
    let socket = client(&streams);
    eventually("the node to be set aside", || {
        socket.send(b"x").expect("sent");
        gateway.log().contains("a node fails: it is set aside")
    });
    let node = bind(&gone.to_string());
    eventually_within(2 * PATIENCE, "it to be used again", || {
        socket.send(b"x").expect("sent");
        gateway.log().contains("a node that was set aside works again")
    });
    assert!(node.recv(&mut [0]).is_ok());
}

#[test]
fn a_changed_route_does_to_its_sessions_what_it_says() {
    let echo = Echo::start();
    let mut streams = Streams::new(resources(&[echo.addr], ", on_change: close"));
    let gateway = streams.start();
    let socket = client(&streams);
    let port = ask(&socket, b"x");
    let other = Echo::start();
    streams.resources = resources(&[other.addr], ", on_change: keep");
    gateway.reload(&streams.setup());
    eventually("the session to end", || open_sessions(&gateway) == 0);
    ask(&socket, b"x");
    assert_eq!((echo.seen(), other.seen()), (1, 1));
    assert_eq!(lines(&gateway, 1)[0]["upstream_addr"], echo.addr.to_string().as_str());
    // The session now stays, as long as its node does.
    let port_now = ask(&socket, b"x");
    assert_ne!(port, port_now);
    streams.resources = resources(&[echo.addr, other.addr], ", on_change: keep, name: another");
    gateway.reload(&streams.setup());
    wait(Duration::from_millis(300));
    assert_eq!(ask(&socket, b"x"), port_now);
    assert_eq!((echo.seen(), other.seen()), (1, 3));
}

/// However long its client goes on sending, and whatever becomes of the route.
#[test]
fn a_session_leaves_a_node_that_is_there_no_more() {
    let nodes = [Echo::start(), Echo::start(), Echo::start()];
    let mut streams = Streams::new(apart(&nodes[0], "all"));
    let gateway = streams.start();
    let socket = client(&streams);
    ask(&socket, b"x");
    // The upstream stays, its node changes.
    streams.resources = apart(&nodes[1], "all");
    gateway.reload(&streams.setup());
    let port = ask(&socket, b"x");
    assert_eq!(nodes.each_ref().map(Echo::seen), [1, 1, 0], "the first datagram of them all");
    // Another route to the same node does not affect the session.
    streams.resources = apart(&nodes[1], "other");
    gateway.reload(&streams.setup());
    assert_eq!(ask(&socket, b"x"), port);
    // The session goes with its upstream.
    streams.resources = resources(&[nodes[2].addr], "");
    gateway.reload(&streams.setup());
    ask(&socket, b"x");
    assert_eq!(nodes.each_ref().map(Echo::seen), [1, 2, 1]);
    eventually("the sessions before to end", || open_sessions(&gateway) == 1);
    assert_eq!(dropped(&gateway), 0);
    let told = lines(&gateway, 2);
    let expected = |line: usize, node: &Echo, bytes: u64| {
        let line = &told[line];
        assert_eq!((&line["status"], &line["bytes_received"]), (&200.into(), &bytes.into()), "{line:#?}");
        assert_eq!(line["upstream_addr"], node.addr.to_string().as_str());
    };
    expected(0, &nodes[0], 1);
    expected(1, &nodes[1], 2);
}

/// The node answers still: only its checks say that it is not well.
#[test]
fn a_session_leaves_a_node_that_is_found_unhealthy() {
    let nodes = [Echo::at("127.0.0.2:0"), Echo::at("127.0.0.3:0")];
    let checked = TcpListener::bind("127.0.0.2:0").expect("bind");
    let port = checked.local_addr().expect("an address").port();
    let other = TcpListener::bind(("127.0.0.3", port)).expect("bind");
    let checks = format!(
        "checks: {{active: {{type: tcp, port: {port}, timeout: 60, healthy: {{interval: 0.1, successes: 1}}, \
         unhealthy: {{interval: 0.1, tcp_failures: 1}}}}}}"
    );
    let streams = Streams::new(format!(
        "stream_routes: [{{id: all, upstream: {{scheme: udp, {checks}, nodes: [{{host: 127.0.0.2, port: {}, weight: 1, priority: 1}}, \
         {{host: 127.0.0.3, port: {}, weight: 1, priority: 0}}]}}}}]\n",
        nodes[0].addr.port(),
        nodes[1].addr.port()
    ));
    let gateway = streams.start();
    let socket = client(&streams);
    let first = ask(&socket, b"x");
    assert_eq!(ask(&socket, b"x"), first);
    drop(checked);
    eventually("the session to go to the other node", || {
        ask(&socket, b"x");
        nodes[1].seen() > 0
    });
    // Where no other one is better it stays where it is.
    let last = ask(&socket, b"x");
    drop(other);
    eventually("the other one to be found unhealthy", || gateway.log().matches("unhealthy").count() >= 2);
    assert_eq!(ask(&socket, b"x"), last);
}

#[test]
fn an_end_does_not_wait_for_sessions_that_are_quiet() {
    let echo = Echo::start();
    let streams = Streams::new(resources(&[echo.addr], "")).gateway("timeouts: {drain: 1h}");
    let mut gateway = streams.start();
    ask(&client(&streams), b"x");
    gateway.signal("TERM");
    assert!(gateway.wait_within(END_PATIENCE).success());
    assert_eq!(lines(&gateway, 1)[0]["status"], 200);
}

/// Many clients at once, over several workers, while the configuration changes: what is answered is right, and nearly all is.
#[test]
fn a_busy_socket_mixes_nothing_up() {
    const CLIENTS: usize = 16;
    const DATAGRAMS: usize = 200;
    let echo = Echo::start();
    let mut streams = Streams::new(resources(&[echo.addr], "")).gateway("workers: 2");
    let mut gateway = streams.start();
    let answered = AtomicUsize::new(0);
    let sockets: Vec<UdpSocket> = (0..CLIENTS).map(|_| client(&streams)).collect();
    std::thread::scope(|scope| {
        for (number, socket) in sockets.iter().enumerate() {
            let answered = &answered;
            scope.spawn(move || {
                socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
                let mut buffer = [0; 2048];
                // The next answer's turn. A lost answer is not a failure, nor a late one; one of another session is.
                let mut next = || {
                    let len = socket.recv(&mut buffer).ok()?;
                    let answer = std::str::from_utf8(&buffer[..len]).expect("text");
                    let own = answer.split_once(' ').expect("a port").1;
                    let own = own.strip_prefix(&format!("{number}/")).unwrap_or_else(|| panic!("{own}"));
                    let (turn, rest) = own.split_once('/').expect("a turn");
                    let turn: usize = turn.parse().expect("a number");
                    assert_eq!(rest.len(), turn * 7 % 1200, "{own}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    Some(turn)
                };
                for turn in 0..DATAGRAMS {
                    let datagram = format!("{number}/{turn}/{}", "x".repeat(turn * 7 % 1200));
                    socket.send(datagram.as_bytes()).expect("sent");
                    while next().is_some_and(|answered| answered != turn) {}
                }
                // Late answers follow.
                while next().is_some() {}
            });
        }
        for round in 0..5 {
            streams.resources = resources(&[echo.addr], &format!(", name: round-{round}"));
            gateway.reload(&streams.setup());
        }
    });
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered > CLIENTS * DATAGRAMS * 80 / 100, "{answered}");
    eventually("a session for each", || open_sessions(&gateway) == CLIENTS as u64);
    gateway.assert_healthy();
}
