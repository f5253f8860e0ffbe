//! The end of a process: time for load balancers to see it, and work that does not end in time.

use crate::shared::STILLGATE;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Client, Gateway, ReservedPort, Setup, Upstream, eventually, scrape,
};

fn health(admin: SocketAddr) -> u16 {
    Client::connect(admin).get("/v1/health").head.status()
}

fn logged(gateway: &Gateway, message: &str) -> Option<Value> {
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains(message))?;
    Some(serde_json::from_str(line).expect("JSON"))
}

#[test]
fn health_fails_before_the_listeners_close() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {shutdown_delay: 2s}");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(health(gateway.admin_addr()), 200);
    gateway.signal("TERM");
    eventually("the signal to be seen", || logged(&gateway, "health is 503 from now on").is_some());
    if gateway.ended().is_none() && logged(&gateway, "finishing what is in flight").is_none() {
        // The machine may stall for longer than the delay: only what is seen before its end counts.
        let (status, served) = (health(gateway.admin_addr()), TcpStream::connect(gateway.addr()).is_ok());
        if logged(&gateway, "finishing what is in flight").is_none() {
            assert_eq!((status, served), (503, true));
        }
    }
    eventually("the listeners to close", || TcpStream::connect(gateway.addr()).is_err());
    eventually("the drain in the log", || logged(&gateway, "finishing what is in flight").is_some());
    assert!(gateway.wait().success());
}

/// New connections, and reloads, are served as before until the delay is over; a second signal does not wait.
#[test]
fn the_delay_is_served_through_and_a_second_signal_ends_it() {
    let (old, new) = (Upstream::echo(), Upstream::echo());
    let delayed = |node: SocketAddr| Setup::to(node).gateway("timeouts: {shutdown_delay: 30m}");
    let mut gateway = Gateway::start(STILLGATE, &delayed(old.addr()));
    gateway.signal("TERM");
    eventually("health to fail", || health(gateway.admin_addr()) == 503);
    let health = Client::connect(gateway.admin_addr()).get("/v1/health");
    assert!(String::from_utf8_lossy(&health.body).contains("draining"), "{health:?}");
    let answer = gateway.get("/");
    assert_eq!((answer.head.status(), answer.head.connection_has("close")), (200, false));
    gateway.reload(&delayed(new.addr()));
    assert_eq!(gateway.get("/").head.status(), 200);
    assert_eq!((old.requests(), new.requests()), (1, 1));
    gateway.signal("TERM");
    assert!(!gateway.wait().success());
    assert!(gateway.log().contains("SIGTERM again: ending at once"), "{}", gateway.log());
}

#[test]
fn what_a_drain_cuts_off_is_logged_and_counted() {
    let (node, metrics, port) = (Upstream::bind(), ReservedPort::new(), ReservedPort::new());
    let setup = Setup::resources(format!(
        "routes: [{{id: r, uri: /*, enable_websocket: true, upstream: {{nodes: {{\"{0}\": 1}}}}}}]\n\
         stream_routes: [{{id: s, upstream: {{nodes: {{\"{0}\": 1}}}}}}]\n",
        node.addr()
    ))
    .gateway(&format!(
        "timeouts: {{drain: 1s}}\nstream_proxy: {{tcp: [{{address: \"{}\"}}]}}\nmetrics: {{address: \"{}\"}}\n\
         access_log: {{path: \"{{dir}}/access.log\", format: json, fields: [status, uri, protocol]}}",
        port.addr(),
        metrics.addr()
    ));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut requests = ["/one", "/two"].map(|target| {
        let mut client = gateway.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let mut peer = node.accept();
        peer.expect_request();
        (client, peer)
    });
    // One has its response's beginning.
    requests[1].1.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbeginning");
    requests[1].0.read_exactly(20).expect("the beginning of a response");
    let mut tunnel = gateway.client();
    tunnel.send("GET /tunnel HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let mut tunnel_peer = node.accept();
    tunnel_peer.expect_request();
    tunnel_peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    tunnel.read_head().expect("a 101");
    let stream = BufferedSocket::new(TcpStream::connect(port.addr()).expect("connect"));
    let stream_peer = node.accept();
    eventually("the families", || {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        let has = |kind: &str| text.contains(&format!("stillgate_shutdown_cut_total{{kind=\"{kind}\"}} 0\n"));
        ["request", "tunnel", "stream"].into_iter().all(has)
    });
    gateway.signal("TERM");
    assert!(gateway.wait().success(), "{}", gateway.log());
    let line = logged(&gateway, "cut off: these did not end in time").expect("a line of the log");
    let counts = ["requests", "tunnels", "streams"].map(|key| line[key].as_u64());
    assert_eq!((line["level"].as_str(), counts), (Some("WARN"), [Some(2), Some(1), Some(1)]), "{line}");
    let log = std::fs::read_to_string(gateway.dir().join("access.log")).expect("the access log");
    let mut seen: Vec<(u64, String)> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|line| (line["status"].as_u64().unwrap_or_default(), line["uri"].as_str().unwrap_or("-").to_owned()))
        .collect();
    seen.sort();
    let expected = [(101, "/tunnel"), (200, "-"), (200, "/two"), (503, "/one")];
    assert_eq!(seen, expected.map(|(status, uri)| (status, uri.to_owned())), "{log}");
    drop((requests, tunnel, tunnel_peer, stream, stream_peer));
}

#[test]
fn a_drain_that_cuts_nothing_off_says_nothing() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.get("/");
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(logged(&gateway, "cut off").is_none(), "{}", gateway.log());
}

/// Facts that need no action are not logged at each start, and those that need some are warnings.
#[test]
fn a_start_warns_of_too_few_descriptors_only() {
    let upstream = Upstream::echo();
    let start = |open_files: Option<usize>, gateway: &str| {
        let setup = Setup { open_files, ..Setup::to(upstream.addr()).gateway(gateway) };
        let gateway = Gateway::start(STILLGATE, &setup);
        assert_eq!(gateway.get("/").head.status(), 200);
        gateway.log()
    };
    let few = start(Some(256), "");
    let line = few
        .lines()
        .find(|line| line.contains("the limit of open files is 256, but gateway.limits.connections_per_worker needs "))
        .expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["level"], &line["limit"]), (&"WARN".into(), &256.into()), "{line}");
    let enough = start(Some(1_000), "limits: {connections_per_worker: 400}");
    assert!(!enough.contains("\"WARN\"") && !enough.contains("route cache"), "{enough}");
}
