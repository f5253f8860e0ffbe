//! A binary upgrade with live connections: connected clients notice nothing.

use crate::shared::tunnel;
use crate::shared::tunnel::{ASK, Tunnel};
use crate::shared::upgrade::UpgradedGateway;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;
use stillgate_testkit::{BufferedSocket, Rounds, Setup, Upstream, eventually, payload};

/// Number of clients that send requests all the time.
const CLIENTS: usize = 8;
/// Tunnels of each kind.
const TUNNELS: usize = 300;

const LOG: &str = "access_log: {path: \"{dir}/access.log\", format: json, fields: [status, uri, bytes_received, bytes_sent, request_time, upstream_addr, route_id]}";

#[test]
fn requests_go_on_over_the_same_connections() {
    let upstream = Upstream::echo();
    for (before, after) in [(1, 1), (2, 1), (1, 2)] {
        let mut upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()).gateway(&format!("workers: {before}")));
        upgraded.configure(&Setup::to(upstream.addr()).gateway(&format!("workers: {after}")));
        let mut waiting = upgraded.gateway.client();
        assert_eq!(waiting.get("/").head.status(), 200);
        let (rounds, addr) = (Rounds::default(), upgraded.gateway.addr());
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let rounds = &rounds;
                scope.spawn(move || {
                    rounds.of_requests(addr, number % 2 == 0, |client| {
                        assert_eq!(client.request("POST", "/", b"some bytes").head.status(), 200);
                    });
                });
            }
            let _end = rounds.until_dropped();
            rounds.await_more(100);
            upgraded.upgrade();
            upgraded.await_old();
            rounds.await_more(100);
        });
        assert_eq!(waiting.get("/").head.status(), 200, "the one that was idle");
        assert_eq!(
            upgraded.gateway.status()["draining"],
            false,
            "the admin API is the new one's, as the old one has ended"
        );
    }
    assert!(upstream.faults().is_empty(), "{:?}", upstream.faults());
}

/// The kernel drops data that is not read, and sends it again after ever longer pauses, of up to two minutes.
const SLOW_PATIENCE: Duration = Duration::from_secs(180);
/// Bytes that a slow reader has not taken, more than the kernel holds.
const MUCH: usize = 12 * 1024 * 1024;

/// Tunnels with one side that has sent `last` and ended.
fn half_closed(upgraded: &UpgradedGateway, upstream: &Upstream) -> (Vec<Tunnel>, Vec<Tunnel>) {
    let mut by_client: Vec<Tunnel> = (0..4).map(|_| Tunnel::open(&upgraded.gateway, upstream)).collect();
    for tunnel in &mut by_client {
        tunnel.client.send("last");
        tunnel.client.half_close();
        assert_eq!(tunnel.node.read_to_end().expect("an orderly end"), b"last");
    }
    let mut by_node: Vec<Tunnel> = (0..4).map(|_| Tunnel::open(&upgraded.gateway, upstream)).collect();
    for tunnel in &mut by_node {
        tunnel.node.send("last");
        tunnel.node.half_close();
        assert_eq!(tunnel.client.read_to_end().expect("an orderly end"), b"last");
    }
    (by_client, by_node)
}

/// Moves bytes while `during` upgrades: through some that go to and fro all the time, and through some whose receivers take nothing
/// until the call that it makes, so that the gateway holds bytes of both directions.
fn busy_and_slow(
    upgraded: &mut UpgradedGateway,
    upstream: &Upstream,
    during: impl FnOnce(&mut UpgradedGateway, &dyn Fn(), &dyn Fn()),
) {
    let slow: Vec<Tunnel> = (0..3).map(|_| Tunnel::open(&upgraded.gateway, upstream)).collect();
    let busy: Vec<Tunnel> = (0..6).map(|_| Tunnel::open(&upgraded.gateway, upstream)).collect();
    let (up, down) = (payload(1, MUCH), payload(2, MUCH));
    let rounds = Rounds::default();
    std::thread::scope(|scope| {
        let (up, down, rounds) = (&up, &down, &rounds);
        let mut readers = Vec::new();
        for Tunnel { mut client, mut node } in slow {
            client.set_patience(SLOW_PATIENCE);
            node.set_patience(SLOW_PATIENCE);
            let (mut client_sends, mut node_sends) = (second(client.stream()), second(node.stream()));
            scope.spawn(move || client_sends.send(up));
            scope.spawn(move || node_sends.send(down));
            readers.push((client, node));
        }
        for mut tunnel in busy {
            scope.spawn(move || {
                while rounds.go_on() {
                    tunnel.check();
                    rounds.count();
                }
            });
        }
        let _end = rounds.until_dropped();
        let move_on = || rounds.await_more(100);
        let readers = RefCell::new(readers);
        let read_all = || {
            for (mut client, mut node) in readers.take() {
                let node = scope.spawn(move || assert!(node.read_exactly(MUCH).expect("what the client sent") == *up));
                assert!(client.read_exactly(MUCH).expect("what the node sent") == *down);
                node.join().expect("the node reads");
            }
        };
        during(upgraded, &move_on, &read_all);
    });
}

#[test]
fn tunnels_go_on_to_the_byte() {
    let upstream = Upstream::bind();
    let setup = tunnel::setup(&upstream).gateway("workers: 2").gateway("timeouts: {tunnel_idle: 1h}").gateway(LOG);
    let mut upgraded = UpgradedGateway::start(&setup);
    let mut quiet: Vec<Tunnel> = (0..TUNNELS).map(|_| Tunnel::open(&upgraded.gateway, &upstream)).collect();
    quiet.iter_mut().for_each(Tunnel::check);
    let (mut by_client, mut by_node) = half_closed(&upgraded, &upstream);
    busy_and_slow(&mut upgraded, &upstream, |upgraded, move_on, read_all| {
        move_on();
        let first = upgraded.upgrade();
        // Not for the end of the process, for which the kernel may take its time, while senders pause ever longer.
        eventually("everything to be taken over", || upgraded.gateway.log().contains("holds nothing any more"));
        read_all();
        upgraded.await_old();
        move_on();
        // Once more, by the successor.
        upgraded.upgrade();
        upgraded.await_end(first);
        move_on();
    });
    quiet.iter_mut().for_each(Tunnel::check);
    for tunnel in &mut by_client {
        tunnel.node.send("and yet");
        assert_eq!(tunnel.client.read_exactly(7).expect("what the node still sends"), b"and yet");
    }
    for tunnel in &mut by_node {
        tunnel.client.send("and yet");
        assert_eq!(tunnel.node.read_exactly(7).expect("what the client still sends"), b"and yet");
    }
    let open = quiet.len() + by_client.len() + by_node.len();
    eventually("those that are busy or slow to have ended, and no other", || {
        upgraded.gateway.status()["tunnels"]["open"] == open
    });
    let status = upgraded.gateway.status();
    assert_eq!(
        (&status["tunnels"]["open"], &status["tunnels"]["total"]),
        (&open.into(), &0.into()),
        "none was opened here"
    );
    drop((quiet, by_client, by_node));
    eventually("all tunnels to end", || upgraded.gateway.status()["tunnels"]["open"] == 0);
    check_log(&upgraded, open + 9);
}

/// Each process that had connections at their end has logged all of them, once.
#[track_caller]
fn check_log(upgraded: &UpgradedGateway, count: usize) {
    let mut lines = Vec::new();
    eventually("all lines of the access log", || {
        let text = std::fs::read_to_string(upgraded.gateway.dir().join("access.log")).unwrap_or_default();
        // A line that is being written may be there in part.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON")).collect();
        lines.len() >= count
    });
    assert_eq!(lines.len(), count);
    let agreed = lines.iter().map(|line| line["bytes_sent"].as_u64().expect("a number")).min().expect("a line") - 4;
    let mut moved: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for line in &lines {
        assert_eq!((&line["status"], &line["uri"], &line["route_id"]), (&101.into(), &"/chat".into(), &"all".into()));
        assert!(line["request_time"].as_f64().is_some_and(|time| time > 0.1), "{line}");
        let number = |key: &str| line[key].as_u64().expect("a number");
        *moved.entry((number("bytes_received") - ASK.len() as u64, number("bytes_sent") - agreed)).or_default() += 1;
    }
    assert_eq!(moved[&(MUCH as u64, MUCH as u64)], 3);
    assert_eq!(moved[&(8, 10)], TUNNELS);
    assert_eq!((moved[&(4, 7)], moved[&(7, 4)]), (4, 4));
    let busy = moved.iter().filter(|((up, down), _)| up * 5 == down * 4 && *up > 8 && *up != MUCH as u64);
    assert_eq!(busy.map(|(_, count)| count).sum::<usize>(), 6, "{moved:?}");
}

fn second(stream: &TcpStream) -> BufferedSocket {
    let second = BufferedSocket::new(stream.try_clone().expect("a second handle on the socket"));
    second.stream().set_write_timeout(Some(SLOW_PATIENCE)).expect("a timeout");
    second
}
