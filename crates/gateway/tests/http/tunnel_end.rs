//! How tunnels end that neither side ends: time, a drain, a changed configuration; and what is reported afterwards.

use crate::shared::STILLGATE;
use crate::shared::tunnel::{AGREE, ASK, Tunnel, setup};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Gateway, MessageError, PATIENCE, ReservedPort, Setup, Upstream, eventually, scrape,
    with_longer_times,
};

const ACCESS_LOG: &str = "access_log: {path: \"{dir}/access.log\", format: json, fields: \
    [status, bytes_sent, bytes_received, request_time, upstream_addr, route_id, request_uri, {mine: http_x_mine}]}";

/// A tunnel whose regular end both sides saw.
#[track_caller]
fn expect_end(tunnel: &mut Tunnel) {
    assert_eq!(tunnel.client.read_to_end().expect("an orderly end"), b"");
    assert_eq!(tunnel.node.read_to_end().expect("an orderly end"), b"");
}

fn lines(gateway: &Gateway) -> Vec<Value> {
    let text = std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn wait(time: Duration) {
    let since = Instant::now();
    eventually("some time to pass", || since.elapsed() >= time);
}

/// Sends a byte from one side to the other eight times as often as necessary, for so long; returns when it sent the last one.
/// `None`: the tunnel was closed meanwhile, as nothing had moved for the maximum time.
fn keep_busy(from: &mut BufferedSocket, to: &mut BufferedSocket, time: Duration, idle: Duration) -> Option<Instant> {
    let since = Instant::now();
    let mut last = since;
    while since.elapsed() < time {
        wait(idle / 8);
        let before = std::mem::replace(&mut last, Instant::now());
        if from.try_send("x").is_err() || to.read_exactly(1).is_err() {
            assert!(to.is_closed(), "what was sent does not arrive, and nothing is closed");
            assert!(before.elapsed() >= idle * 8 / 10, "{:?}", before.elapsed());
            return None;
        }
    }
    Some(last)
}

/// Tunnels through it may be idle for the time that `setup` is given.
fn check_idle(upstream: &Upstream, setup: impl Fn(Duration) -> Setup) {
    // Where the test itself stalls for so long the end is right, and another tunnel has to show what is to be seen.
    with_longer_times(Duration::from_millis(800), "a tunnel that is never idle", |idle| {
        let gateway = Gateway::start(STILLGATE, &setup(idle));
        let Some(mut tunnel) = open_in_time(&gateway, upstream) else { return false };
        // Either direction keeps it open.
        let up = keep_busy(&mut tunnel.client, &mut tunnel.node, idle * 2, idle);
        let Some(last) = up.and_then(|_| keep_busy(&mut tunnel.node, &mut tunnel.client, idle * 2, idle)) else {
            return false;
        };
        expect_end(&mut tunnel);
        assert!(last.elapsed() >= idle / 2, "{:?}", last.elapsed());
        true
    });
}

/// A tunnel, where the node must agree within the time that it may be silent for. `None`: the test stood still meanwhile.
fn open_in_time(gateway: &Gateway, upstream: &Upstream) -> Option<Tunnel> {
    let mut client = gateway.client();
    client.send(ASK);
    let mut node = upstream.accept();
    node.expect_request();
    // It may be closed by now.
    let _ = node.try_send(AGREE);
    let status = client.read_head().expect("an answer").status();
    assert!(matches!(status, 101 | 504), "{status}");
    (status == 101).then_some(Tunnel { client, node })
}

#[test]
fn an_idle_tunnel_is_closed() {
    let upstream = Upstream::bind();
    check_idle(&upstream, |idle| {
        setup(&upstream).gateway(&format!("timeouts: {{tunnel_idle: {}ms}}", idle.as_millis()))
    });
}

/// By default a node may be silent for as long as before a response.
#[test]
fn an_idle_tunnel_is_closed_as_a_silent_node_is() {
    let upstream = Upstream::bind();
    check_idle(&upstream, |idle| setup(&upstream).upstream(&format!("timeout: {{read: {}}}", idle.as_secs_f64())));
}

/// A longer time, and not that of the node, where it is said.
#[test]
fn a_tunnel_may_be_idle_for_longer_than_a_node_may_be_silent() {
    let upstream = Upstream::bind();
    with_longer_times(Duration::from_secs(1), "a node that agrees in time", |read| {
        let both = setup(&upstream).upstream(&format!("timeout: {{read: {}}}", read.as_secs_f64()));
        let gateway = Gateway::start(STILLGATE, &both.gateway("timeouts: {tunnel_idle: 1h}"));
        let Some(mut tunnel) = open_in_time(&gateway, &upstream) else { return false };
        wait(read + Duration::from_millis(500));
        tunnel.check();
        true
    });
}

#[test]
fn a_busy_tunnel_is_closed_at_its_total_time() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream).gateway("timeouts: {tunnel_total: 2s}"));
    let since = Instant::now();
    let mut tunnel = Tunnel::open(&gateway, &upstream);
    eventually("the tunnel to be closed", || {
        tunnel.client.try_send("x").is_err() || {
            wait(Duration::from_millis(20));
            tunnel.client.is_closed()
        }
    });
    // A worker that stood still when the tunnel began may use an earlier time.
    assert!(since.elapsed() >= Duration::from_millis(1_200), "{:?}", since.elapsed());
}

#[test]
fn a_drain_lets_tunnels_go_on_until_its_deadline() {
    let upstream = Upstream::bind();
    with_longer_times(Duration::from_secs(3), "a tunnel that is used while the gateway drains", |drain| {
        let setup = setup(&upstream).gateway(&format!("timeouts: {{drain: {}s}}", drain.as_secs()));
        let mut gateway = Gateway::start(STILLGATE, &setup.gateway(ACCESS_LOG));
        let mut busy = Tunnel::open(&gateway, &upstream);
        let mut idle = Tunnel::open(&gateway, &upstream);
        busy.check();
        let since = Instant::now();
        gateway.signal("TERM");
        eventually("the drain to begin", || gateway.log().contains("SIGTERM: finishing"));
        let was_used = busy.is_open() && busy.is_open();
        if was_used {
            expect_end(&mut busy);
            expect_end(&mut idle);
        }
        assert!(since.elapsed() >= drain * 8 / 10, "{:?}", since.elapsed());
        assert!(gateway.wait().success());
        let told = lines(&gateway);
        assert_eq!(told.len(), 2, "one line for each");
        let least = (drain * 7 / 10).as_secs_f64();
        assert!(
            told.iter().all(|line| line["status"] == 101 && line["request_time"].as_f64() > Some(least)),
            "{told:?}"
        );
        was_used
    });
}

#[test]
fn a_drain_ends_with_the_last_tunnel() {
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let tunnel = Tunnel::open(&gateway, &upstream);
    gateway.signal("TERM");
    eventually("the drain to begin", || gateway.status()["draining"] == true);
    drop(tunnel);
    assert!(gateway.wait().success());
}

/// Three routes of different policies, and one more that changes around them.
fn policies(node: SocketAddr, version: &str, other: &str, drain: &str) -> Setup {
    let route = |id: &str| {
        format!(
            "  - {{id: {id}, uri: /{id}, priority: {version}, enable_websocket: true, on_change: {id}, upstream_id: u}}\n"
        )
    };
    let routes: String = ["keep", "drain", "close"].map(route).concat();
    Setup::resources(format!(
        "upstreams: [{{id: u, nodes: {{\"{node}\": 1}}}}]\nroutes:\n  - {{id: other, uri: /other/{other}, upstream_id: u}}\n{routes}"
    ))
    .gateway(&format!("timeouts: {{drain: {drain}}}"))
    .gateway(ACCESS_LOG)
}

#[track_caller]
fn open_at(gateway: &Gateway, upstream: &Upstream, path: &str) -> Tunnel {
    let mut client = gateway.client();
    client.send(ASK.replace("/chat", path));
    let mut node = upstream.accept();
    node.expect_request();
    node.send(AGREE);
    assert_eq!(client.read_head().expect("an answer").status(), 101);
    Tunnel { client, node }
}

/// Moves bytes in a tunnel that ends when nothing has moved in it for a second, for which a test may also stall: until it is
/// closed, or for so long. Returns the longest time in which nothing may have moved.
fn keep_from_quiet(tunnel: &mut Tunnel, time: Duration) -> Duration {
    let since = Instant::now();
    let (mut last, mut longest) = (since, Duration::ZERO);
    while since.elapsed() < time {
        let before = std::mem::replace(&mut last, Instant::now());
        let is_open = tunnel.is_open();
        longest = longest.max(before.elapsed());
        if !is_open {
            break;
        }
    }
    longest
}

/// A little less than how long it must be quiet.
const QUIET: Duration = Duration::from_millis(800);

#[test]
fn a_change_of_its_route_does_to_a_tunnel_what_the_route_says() {
    let upstream = Upstream::bind();
    let policies = |version: &str, other: &str| policies(upstream.addr(), version, other, "1h");
    let gateway = Gateway::start(STILLGATE, &policies("0", "a"));
    let open = |path: &str| open_at(&gateway, &upstream, path);
    let (mut keep, mut close) = (open("/keep"), open("/close"));
    let (mut idle, mut busy) = (open("/drain"), open("/drain"));
    // Another route.
    gateway.reload(&policies("0", "b"));
    for tunnel in [&mut keep, &mut close, &mut idle, &mut busy] {
        tunnel.check();
    }
    // All of them.
    let since = Instant::now();
    gateway.reload(&policies("1", "b"));
    let quiet = keep_from_quiet(&mut busy, Duration::from_millis(1_500));
    assert!(since.elapsed() > Duration::from_millis(1_500) || quiet.max(since.elapsed()) > QUIET, "{quiet:?}");
    expect_end(&mut close);
    eventually("quiet ones to be closed", || {
        [&mut idle, &mut busy].iter_mut().all(|quiet| quiet.client.is_closed() && quiet.node.is_closed())
    });
    keep.check();
    // New ones begin under the new routes, which go away.
    let mut again = open("/close");
    again.check();
    gateway.reload(&Setup { resources: Some("routes: []\n".to_owned()), ..policies("1", "b") });
    expect_end(&mut again);
    keep.check();
    drop(keep);
    eventually("all to be logged", || lines(&gateway).len() == 5);
    let mut routes: Vec<_> = lines(&gateway).iter().map(|line| line["route_id"].to_string()).collect();
    routes.sort();
    assert_eq!(routes, ["\"close\"", "\"close\"", "\"drain\"", "\"drain\"", "\"keep\""]);
}

#[test]
fn a_changed_routes_busy_tunnel_is_closed_in_the_end() {
    let upstream = Upstream::bind();
    let policies = |version: &str| policies(upstream.addr(), version, "a", "4s");
    let gateway = Gateway::start(STILLGATE, &policies("0"));
    let mut busy = open_at(&gateway, &upstream, "/drain");
    let since = Instant::now();
    gateway.reload(&policies("1"));
    let reloading = since.elapsed();
    let quiet = keep_from_quiet(&mut busy, 2 * PATIENCE);
    assert!(since.elapsed() < 2 * PATIENCE, "it is never closed");
    assert!(since.elapsed() > Duration::from_secs(3) || quiet.max(reloading) > QUIET, "{:?}", since.elapsed());
}

#[test]
fn a_tunnel_is_reported_once_and_exactly() {
    let upstream = Upstream::bind();
    let metrics = ReservedPort::new();
    let with =
        |setup: Setup| setup.gateway(ACCESS_LOG).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &with(setup(&upstream)));
    let since = Instant::now();
    let mut client = gateway.client();
    client.send(ASK);
    let mut node = upstream.accept();
    node.expect_request();
    node.send(AGREE);
    let head = client.read_head().expect("an answer");
    let head_bytes =
        head.start.len() + 4 + head.fields.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
    let mut tunnel = Tunnel { client, node };
    (0..3).for_each(|_| tunnel.check());
    assert_eq!(lines(&gateway).len(), 0, "not before its end");
    // Its route moves to another place, and another one takes its own.
    let moved = "routes:\n  - {id: first, uri: /first, upstream_id: main}\n  - {id: all, uri: /*, enable_websocket: true, upstream_id: main}\n";
    let moved = format!("upstreams: [{{id: main, nodes: {{\"{}\": 1}}}}]\n{moved}", upstream.addr());
    gateway.reload(&with(Setup::resources(moved)));
    tunnel.check();
    wait(Duration::from_millis(300));
    drop(tunnel);
    eventually("a line", || lines(&gateway).len() == 1);
    let (up, down) = (ASK.len() + 4 * 4, head_bytes + 4 * 5);
    let line = &lines(&gateway)[0];
    assert_eq!(
        (&line["status"], &line["route_id"], &line["mine"]),
        (&101.into(), &"all".into(), &"1".into()),
        "{line}"
    );
    assert_eq!((&line["bytes_received"], &line["bytes_sent"]), (&up.into(), &down.into()), "{line}");
    assert_eq!(line["request_uri"], "/chat");
    assert_eq!(line["upstream_addr"], upstream.addr().to_string());
    let time = line["request_time"].as_f64().expect("a number");
    assert!(time >= 0.2 && time <= since.elapsed().as_secs_f64(), "{line}");
    let node = upstream.addr();
    let wanted = [
        format!(
            "stillgate_http_requests_total{{route=\"all\",service=\"\",node=\"{node}\",consumer=\"\",code=\"101\"}} 1"
        ),
        format!("stillgate_http_bytes_total{{route=\"all\",service=\"\",direction=\"ingress\"}} {up}"),
        format!("stillgate_http_bytes_total{{route=\"all\",service=\"\",direction=\"egress\"}} {down}"),
        "stillgate_http_tunnel_duration_seconds_count{route=\"all\",service=\"\"} 1".to_owned(),
        "stillgate_tunnels_open 0".to_owned(),
        "stillgate_tunnels_total 1".to_owned(),
    ];
    for line in wanted {
        eventually(&format!("in the metrics: {line}"), || {
            scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().lines().any(|have| have == line)
        });
    }
    // Its duration says nothing about the duration of requests.
    let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
    for of_requests in ["request", "upstream", "gateway"] {
        assert!(!text.contains(&format!("stillgate_http_{of_requests}_duration_seconds_count{{")), "{text}");
    }
}

/// A node that goes away takes its tunnels along, and the gateway serves on.
#[test]
fn a_node_that_dies_ends_its_tunnels() {
    let mut upstream = Upstream::serve(|connection| {
        connection.expect_request();
        connection.send(AGREE);
        // It reads until the end.
        while connection.read_exactly(1).is_ok() {}
    });
    let mut gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let mut clients: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(ASK);
        assert_eq!(client.read_head().expect("an answer").status(), 101);
    }
    upstream.stop();
    for client in &mut clients {
        assert!(matches!(client.read_to_end(), Ok(_) | Err(MessageError::Reset(_))));
    }
    drop(clients);
    eventually("all tunnels to end", || gateway.status()["connections"]["open"] == 0);
    gateway.assert_healthy();
}
