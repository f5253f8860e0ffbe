//! Listeners that a reload adds, changes and removes, while others are served.

use crate::shared::STILLGATE;
use crate::shared::upgrade::UpgradedGateway;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Client, Gateway, ReservedPort, Rounds, Setup, Upstream, eventually, scrape, sha256,
};

const ROUNDS: usize = 5;

/// A gateway's configuration with further listeners, each as YAML has it in one line.
fn text(gateway: &Gateway, setup: &Setup, further: &[String]) -> String {
    let yaml = setup.render(gateway.addr(), gateway.admin_addr(), gateway.dir());
    let lines: String = further.iter().map(|keys| format!("    - {{{keys}}}\n")).collect();
    yaml.replacen("  admin:\n", &format!("{lines}  admin:\n"), 1)
}

fn at(address: SocketAddr) -> String {
    format!("address: \"{address}\"")
}

/// Reloads with these further listeners, and waits until that has been done.
#[track_caller]
fn reload(gateway: &Gateway, setup: &Setup, further: &[String]) {
    let text = text(gateway, setup, further);
    gateway.write_config_text(&text);
    let digest = sha256(text.as_bytes());
    eventually("the reload", || gateway.status()["config"]["digest"] == digest.as_str());
}

fn workers(upstream: &Upstream) -> Setup {
    Setup::to(upstream.addr()).gateway("workers: 2")
}

#[track_caller]
fn await_refusal(addr: SocketAddr) {
    eventually("connections to be refused", || TcpStream::connect(addr).is_err());
}

/// Requests on kept and on fresh connections until the end.
fn load(addr: SocketAddr, rounds: &Rounds) {
    rounds.of_requests(addr, false, |kept| {
        let answer = kept.get("/");
        assert_eq!((answer.head.status(), answer.head.get("connection")), (200, None));
        assert_eq!(Client::connect(addr).get("/").head.status(), 200);
    });
}

#[test]
fn listeners_that_stay_are_served_while_others_come_and_go() {
    let upstream = Upstream::echo();
    let setup = workers(&upstream);
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let (further, rounds) = (ReservedPort::new(), Rounds::default());
    thread::scope(|scope| {
        let _end = rounds.until_dropped();
        (0..2).for_each(|_| drop(scope.spawn(|| load(gateway.addr(), &rounds))));
        for _ in 0..ROUNDS {
            reload(&gateway, &setup, &[at(further.addr())]);
            let mut idle = Client::connect(further.addr());
            assert_eq!(idle.get("/").head.status(), 200);
            reload(&gateway, &setup, &[]);
            idle.into_connection().expect_close();
            await_refusal(further.addr());
        }
    });
    assert!(rounds.done() > 0);
    gateway.assert_healthy();
}

/// Every accepted connection is answered: nothing waits in the queue of a socket as it is closed.
#[test]
fn a_connection_that_was_accepted_by_the_kernel_is_served() {
    let upstream = Upstream::echo();
    let setup = workers(&upstream);
    let gateway = Gateway::start(STILLGATE, &setup);
    let further = ReservedPort::new();
    for _ in 0..ROUNDS {
        reload(&gateway, &setup, &[at(further.addr())]);
        let served = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Ok(stream) = TcpStream::connect(further.addr()) {
                        let mut client = Client::from_connection(BufferedSocket::new(stream));
                        let answer = client.try_request("GET", "/", b"").expect("an answer");
                        assert_eq!(answer.head.status(), 200);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            eventually("some requests", || served.load(Ordering::Relaxed) > 100);
            reload(&gateway, &setup, &[]);
        });
    }
}

#[test]
fn requests_of_a_removed_listener_are_finished() {
    let upstream = Upstream::bind();
    let setup = workers(&upstream);
    let gateway = Gateway::start(STILLGATE, &setup);
    let further = ReservedPort::new();
    reload(&gateway, &setup, &[at(further.addr())]);
    let mut client = Client::connect(further.addr());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    reload(&gateway, &setup, &[]);
    await_refusal(further.addr());
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = client.expect_response("GET");
    assert_eq!((answer.head.status(), answer.head.get("connection"), &*answer.body), (200, Some("close"), &b"ok"[..]));
    client.into_connection().expect_close();
}

#[test]
fn an_address_that_cannot_be_had_changes_nothing() {
    let upstream = Upstream::echo();
    let setup = workers(&upstream);
    let gateway = Gateway::start(STILLGATE, &setup);
    let (there, free) = (ReservedPort::new(), ReservedPort::new());
    reload(&gateway, &setup, &[at(there.addr())]);
    let before = gateway.status()["config"].clone();
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("its address");
    let next = setup.clone().route("uri: /other");
    let next = text(&gateway, &next, &[at(free.addr()), at(taken)]);
    gateway.write_config_text(&next);
    let error = || gateway.status()["config"]["last_error"]["errors"][0].as_str().unwrap_or_default().to_owned();
    let expected = format!("gateway.listeners[2].address: cannot listen on {taken}: ");
    eventually("the refusal", || error().starts_with(&expected));
    assert!(error().contains(&format!("ss -lntup 'sport = :{}'", taken.port())), "{}", error());
    assert_eq!(gateway.status()["config"]["digest"], before["digest"]);
    assert!(TcpStream::connect(free.addr()).is_err(), "nothing of it is listened on");
    assert_eq!(Client::connect(there.addr()).get("/").head.status(), 200);
    assert_eq!(gateway.get("/").head.status(), 200);
    drop(holder);
    gateway.signal("HUP");
    let digest = sha256(next.as_bytes());
    eventually("the reload", || gateway.status()["config"]["digest"] == digest.as_str());
    for addr in [taken, free.addr()] {
        assert_eq!(Client::connect(addr).get("/other").head.status(), 200);
    }
    await_refusal(there.addr());
}

#[test]
fn a_port_may_move_between_addresses() {
    let upstream = Upstream::echo();
    let setup = workers(&upstream);
    let gateway = Gateway::start(STILLGATE, &setup);
    let port = ReservedPort::new().addr().port();
    let asks = |ip: &str| {
        let addr: SocketAddr = format!("{ip}:{port}").parse().expect("an address");
        TcpStream::connect(addr).is_ok_and(|stream| {
            let mut client = Client::from_connection(BufferedSocket::new(stream));
            client.try_request("GET", "/", b"").is_ok_and(|answer| answer.head.status() == 200)
        })
    };
    let all = ["127.0.0.1", "127.0.0.2", "[::1]"];
    for (ips, answer) in [
        (&["127.0.0.1"][..], [true, false, false]),
        (&["127.0.0.2"], [false, true, false]),
        (&["0.0.0.0"], [true, true, false]),
        (&["127.0.0.1", "[::1]"], [true, false, true]),
        (&["[::]"], [true, true, true]),
        (&["127.0.0.2"], [false, true, false]),
        (&[], [false, false, false]),
    ] {
        let listeners: Vec<String> = ips.iter().map(|ip| format!("address: \"{ip}:{port}\"")).collect();
        reload(&gateway, &setup, &listeners);
        eventually("the addresses to be those", || all.map(asks) == answer);
    }
}

#[test]
fn one_that_is_back_at_once_is_served() {
    let upstream = Upstream::echo();
    let setup = workers(&upstream);
    let gateway = Gateway::start(STILLGATE, &setup);
    let further = ReservedPort::new();
    reload(&gateway, &setup, &[at(further.addr())]);
    for _ in 0..ROUNDS {
        reload(&gateway, &setup, &[]);
        reload(&gateway, &setup, &[at(further.addr())]);
        assert_eq!(Client::connect(further.addr()).get("/").head.status(), 200);
    }
}

/// The address stays bound, and connections go on as they began.
#[test]
fn what_changes_holds_for_new_connections() {
    let upstream = Upstream::echo();
    let setup = workers(&upstream).gateway("trusted_proxies: [127.0.0.1]");
    let gateway = Gateway::start(STILLGATE, &setup);
    let further = ReservedPort::new();
    reload(&gateway, &setup, &[at(further.addr())]);
    let mut before = Client::connect(further.addr());
    assert_eq!(before.get("/").head.status(), 200);
    reload(&gateway, &setup, &[format!("{}, proxy_protocol: true", at(further.addr()))]);
    assert_eq!(gateway.status()["pending_restart"], serde_json::json!([]));
    let mut after = Client::connect(further.addr());
    after.send("PROXY TCP4 192.0.2.7 192.0.2.8 1000 80\r\n");
    assert_eq!(after.get("/").head.status(), 200);
    let answer = before.get("/");
    assert_eq!((answer.head.status(), answer.head.get("connection")), (200, None));
    let mut without = Client::connect(further.addr());
    without.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    without.into_connection().expect_close();
    reload(&gateway, &setup, &[at(further.addr())]);
    assert_eq!(Client::connect(further.addr()).get("/").head.status(), 200);
}

#[test]
fn an_upgrade_after_such_a_reload_keeps_what_is_there() {
    let upstream = Upstream::echo();
    let (gone, new) = (ReservedPort::new(), ReservedPort::new());
    let setup = workers(&upstream);
    let mut upgraded = UpgradedGateway::start(&setup.clone().with_listener(gone.addr()));
    upgraded.configure(&setup.with_listener(new.addr()));
    await_refusal(gone.addr());
    let mut moves = Client::connect(new.addr());
    assert_eq!(moves.get("/").head.status(), 200);
    upgraded.upgrade();
    upgraded.await_old();
    // Not closed by the old process: it was given away with its listener.
    let answer = moves.get("/");
    assert_eq!((answer.head.status(), answer.head.get("connection")), (200, None));
    assert_eq!(Client::connect(new.addr()).get("/").head.status(), 200);
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
}

#[test]
fn metrics_name_listeners_by_their_addresses() {
    let (upstream, metrics, further) = (Upstream::echo(), ReservedPort::new(), ReservedPort::new());
    let setup = workers(&upstream).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    let tells = |line: String| {
        let line = format!("{line}\n");
        eventually(&line, || scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().contains(&line));
    };
    let label = format!("listener=\"{}\"", further.addr());
    for round in 1..=2 {
        reload(&gateway, &setup, &[at(further.addr())]);
        let mut client = Client::connect(further.addr());
        assert_eq!(client.get("/").head.status(), 200);
        tells(format!("stillgate_connections{{{label},state=\"idle\"}} 1"));
        tells(format!("stillgate_connections_accepted_total{{{label}}} {round}"));
        reload(&gateway, &setup, &[]);
        client.into_connection().expect_close();
        tells(format!("stillgate_connections{{{label},state=\"idle\"}} 0"));
        await_refusal(further.addr());
    }
    let first = format!("listener=\"{}\"", gateway.addr());
    tells(format!("stillgate_connections_accepted_total{{{first}}} 0"));
}
