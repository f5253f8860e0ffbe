//! A new process that dies soon after its start, at any moment: the old one serves on with everything that it has.

use crate::shared::killing::{PROBATION, When, is_old, kill_successor};
use crate::shared::tunnel::Tunnel;
use crate::shared::upgrade::{UpgradedGateway, children, signal, threads};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};
use stillgate_testkit::{ACCEPT_TEXT, Client, ReservedPort, Rounds, Setup, Upstream, eventually, scrape};

/// Requests of clients that come and go all the time, and of one that was there before.
struct Traffic<'a> {
    addr: SocketAddr,
    /// The new process may take connections, and lose them with its life.
    is_shared: &'a AtomicBool,
    rounds: &'a Rounds,
    failures: &'a Mutex<Vec<String>>,
}

impl Traffic<'_> {
    fn stay(&self) {
        self.rounds.of_requests(self.addr, false, |client| {
            let status = client.get("/stays").head.status();
            assert_eq!(status, 200, "over a connection that the old process has");
        });
    }

    fn come_and_go(&self) {
        while self.rounds.go_on() {
            let was_shared = self.is_shared.load(Ordering::SeqCst);
            let answered = Client::connect(self.addr).try_request("GET", "/comes", b"");
            let is_good = matches!(&answered, Ok(message) if message.head.status() == 200);
            if !is_good && !was_shared && !self.is_shared.load(Ordering::SeqCst) {
                self.failures.lock().expect("no panic").push(format!("{answered:?}"));
            }
        }
    }
}

/// The number of answered requests in the metrics.
fn answered(metrics: SocketAddr) -> f64 {
    let text = scrape(metrics, "/metrics", ACCEPT_TEXT, false).text().to_owned();
    let of = |line: &str| line.strip_prefix("stillgate_http_requests_total{")?.rsplit_once(' ')?.1.parse::<f64>().ok();
    text.lines().filter_map(of).sum()
}

#[test]
fn a_new_process_that_is_killed_early_costs_nothing() {
    let millis = Duration::from_millis;
    let after = [4, 10, 20, 50].map(|time| When::After(millis(time)));
    let serving = [0, 5, 50, 100].map(|time| When::Serving(millis(time)));
    let (upstream, metrics) = (Upstream::echo(), ReservedPort::new());
    let node = Upstream::bind();
    let resources = format!(
        "upstreams: [{{id: main, nodes: {{\"{}\": 1}}}}, {{id: sockets, nodes: {{\"{}\": 1}}}}]\n\
         routes: [{{id: all, uri: /*, upstream_id: main}}, \
         {{id: sockets, uri: /chat, upstream_id: sockets, enable_websocket: true}}]\n",
        upstream.addr(),
        node.addr()
    );
    let setup = Setup::resources(resources).gateway("workers: 2").gateway("timeouts: {tunnel_idle: 1h}");
    let setup = setup.gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let mut upgraded = UpgradedGateway::start(&setup);
    let mut tunnel = Tunnel::open(&upgraded.gateway, &node);
    let (rounds, is_shared, failures) = (Rounds::default(), AtomicBool::new(false), Mutex::default());
    let traffic =
        Traffic { addr: upgraded.gateway.addr(), is_shared: &is_shared, rounds: &rounds, failures: &failures };
    scope(|scope| {
        let _end = rounds.until_dropped();
        scope.spawn(|| traffic.stay());
        (0..3).for_each(|_| drop(scope.spawn(|| traffic.come_and_go())));
        for when in after.into_iter().chain([When::Accepting]).chain(serving) {
            let counted = answered(metrics.addr());
            let failed = upgraded.gateway.log().matches("serving on as before").count();
            is_shared.store(true, Ordering::SeqCst);
            let pid = kill_successor(&upgraded, when);
            is_shared.store(false, Ordering::SeqCst);
            eventually(&format!("{when:?}: it to be noticed"), || {
                upgraded.gateway.log().matches("serving on as before").count() > failed
            });
            assert!(!is_old(pid) && upgraded.pid() == Some(pid), "{when:?}");
            assert_eq!(upgraded.gateway.status()["draining"], false, "{when:?}");
            assert!(upgraded.gateway.status()["tunnels"]["open"] == 1, "{when:?}");
            eventually("requests to be counted on", || answered(metrics.addr()) > counted);
            tunnel.check();
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{failures:?}\n{}", upgraded.gateway.log());
    // Whichever process serves: on a machine that stalls, one of the new ones may have been confirmed.
    assert!(!upgraded.gateway.log().contains("panicked"), "{}", upgraded.gateway.log());
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
    // The next one may live.
    upgraded.upgrade();
    upgraded.await_old();
    tunnel.check();
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
}

#[test]
fn the_old_process_stays_while_the_new_one_proves_itself() {
    let upstream = Upstream::echo();
    let upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()));
    let pid = upgraded.gateway.pid();
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    let new = children(pid)[0];
    let began = Instant::now();
    eventually("its workers", || !threads(new, "worker-").is_empty());
    eventually("the old one to leave", || is_old(pid));
    assert!(began.elapsed() >= PROBATION, "{:?}", began.elapsed());
}

#[test]
fn datagrams_of_a_client_are_not_dealt_to_two_processes() {
    let node = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = ReservedPort::for_udp_too();
    let addr = port.addr();
    let setup = Setup::resources(format!(
        "upstreams: [{{id: u, scheme: udp, nodes: {{\"{}\": 1}}}}]\nstream_routes: [{{id: all, upstream_id: u}}]\n",
        node.local_addr().expect("its address")
    ));
    let upgraded = UpgradedGateway::start(&setup.gateway(&format!("stream_proxy: {{udp: [{{address: \"{addr}\"}}]}}")));
    let pid = upgraded.gateway.pid();
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let asked_by = || {
        client.send_to(b"x", addr).expect("send");
        node.recv_from(&mut [0; 8]).expect("what the client sent").1
    };
    node.set_read_timeout(Some(stillgate_testkit::PATIENCE)).expect("a timeout");
    let before = asked_by();
    signal(pid, "USR2");
    let mut count = 0;
    eventually("the old process to leave", || {
        let by = asked_by();
        // A request that came in between may be either's.
        let has_left = is_old(pid) || upgraded.pid() != Some(pid);
        count += u32::from(!has_left);
        assert!(has_left || by == before, "after {count} datagrams");
        has_left
    });
    assert!(count > 0, "none while both processes served");
    eventually("the new one's session", || asked_by() != before);
}
