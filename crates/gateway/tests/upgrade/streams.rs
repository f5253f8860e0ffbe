//! An upgrade with sessions of `stream_proxy`: those of TCP go on, UDP is answered before and after.

use crate::shared::streams::{Streams, lines, nodes_of};
use crate::shared::upgrade::UpgradedGateway;
use serde_json::Value;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use stillgate_testkit::{BufferedSocket, Client, Setup, Upstream, eventually, with_longer_times};

fn check(client: &mut BufferedSocket, node: &mut BufferedSocket) {
    client.send("ping");
    assert_eq!(node.read_exactly(4).expect("what the client sent"), b"ping");
    node.send("pong!");
    assert_eq!(client.read_exactly(5).expect("what the node sent"), b"pong!");
}

#[test]
fn sessions_of_tcp_go_on_to_the_byte() {
    let upstream = Upstream::bind();
    let streams = Streams::to(&[upstream.addr()]).gateway("workers: 2");
    let upgraded = UpgradedGateway::start(&streams.setup());
    let mut pairs: Vec<_> = (0..20).map(|_| (streams.client(), upstream.accept())).collect();
    pairs.iter_mut().for_each(|(client, node)| check(client, node));
    let (client, ended) = &mut pairs[0];
    client.send("last");
    client.half_close();
    assert_eq!(ended.read_to_end().expect("an orderly end"), b"last");
    let mut before = upgraded.gateway.pid();
    for _ in 0..2 {
        let after = upgraded.upgrade();
        upgraded.await_end(before);
        pairs[1..].iter_mut().for_each(|(client, node)| check(client, node));
        before = after;
    }
    assert_eq!(upgraded.gateway.status()["streams"]["open"], 20);
    let (client, node) = &mut pairs[0];
    node.send("and yet");
    assert_eq!(client.read_exactly(7).expect("what the node still sends"), b"and yet");
    drop(pairs);
    let told = lines(&upgraded.gateway, 20);
    let node: Value = upstream.addr().to_string().into();
    for line in &told {
        assert_eq!((&line["status"], &line["route_id"], &line["upstream_addr"]), (&200.into(), &"all".into(), &node));
        let moved = (line["bytes_received"].as_u64(), line["bytes_sent"].as_u64());
        assert!(moved == (Some(12), Some(15)) || moved == (Some(8), Some(12)), "{line}");
    }
    streams.await_metric("stillgate_stream_sessions_open 0");
}

#[test]
fn changed_and_removed_stream_routes_are_distinguished() {
    let upstream = Upstream::bind();
    let nodes = nodes_of(&[upstream.addr()]);
    let route = |keys: &str| format!("stream_routes: [{{id: all, upstream: {{{nodes}}}{keys}}}]\n");
    let mut streams = Streams::new(route(", on_change: close"));
    let upgraded = UpgradedGateway::start(&streams.setup());
    let (mut client, mut node) = (streams.client(), upstream.accept());
    check(&mut client, &mut node);
    streams.resources = route(", on_change: close, timeout: {connect: 7}");
    upgraded.configure(&streams.setup());
    upgraded.upgrade();
    eventually("it to be closed", || client.is_closed());
}

#[test]
fn a_port_that_is_of_http_and_then_of_streams_keeps_its_connections() {
    let (http, node) = (Upstream::echo(), Upstream::bind());
    let resources = format!(
        "upstreams: [{{id: main, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: any, uri: /*, upstream_id: main}}]\n",
        http.addr()
    );
    let mut streams = Streams::to(&[node.addr()]);
    streams.resources += &resources;
    let of_http = Setup::resources(resources).with_listener(streams.addr());
    let mut upgraded = UpgradedGateway::start(&of_http);
    let mut request = Client::connect(streams.addr());
    assert_eq!(request.get("/").head.status(), 200);
    upgraded.configure(&streams.setup());
    let second = upgraded.upgrade();
    // The old process may have taken a connection, and would wait for its request.
    let mut pair = None;
    with_longer_times(Duration::from_secs(5), "a connection after the old process has stopped accepting", |time| {
        let (client, since) = (streams.client(), Instant::now());
        let mut peer = None;
        while peer.is_none() && since.elapsed() < time {
            std::thread::sleep(Duration::from_millis(10));
            peer = node.try_accept();
        }
        pair = peer.map(|peer| (client, peer));
        pair.is_some()
    });
    let (mut client, mut peer) = pair.expect("the loop above ends with one");
    check(&mut client, &mut peer);
    eventually("the old process to end its connection", || {
        let last = request.get("/");
        assert_eq!(last.head.status(), 200);
        last.head.get("connection") == Some("close")
    });
    upgraded.await_old();
    // The other way round.
    upgraded.configure(&of_http);
    upgraded.upgrade();
    // Here, too, the old process may take a connection, and its node answers no request.
    eventually("an answer of the new process", || {
        let answer = Client::connect(streams.addr()).try_request("GET", "/", b"");
        answer.is_ok_and(|answer| answer.head.status() == 200)
    });
    check(&mut client, &mut peer);
    drop((client, peer));
    upgraded.await_end(second);
    assert!(!upgraded.gateway.log().contains("ERROR"), "{}", upgraded.gateway.log());
}

#[test]
fn udp_is_answered_before_and_after() {
    let node = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let addr = node.local_addr().expect("its address");
    std::thread::spawn(move || {
        let mut space = [0; 64];
        while let Ok((n, from)) = node.recv_from(&mut space) {
            if node.send_to(&space[..n], from).is_err() {
                return;
            }
        }
    });
    let streams = Streams::new(format!(
        "upstreams: [{{id: u, scheme: udp, {}}}]\nstream_routes: [{{id: all, upstream_id: u}}]\n",
        nodes_of(&[addr])
    ));
    let upgraded = UpgradedGateway::start(&streams.setup());
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.set_read_timeout(Some(stillgate_testkit::PATIENCE)).expect("a timeout");
    let ask = |text: &str| {
        client.send_to(text.as_bytes(), streams.addr()).expect("send");
        let mut space = [0; 64];
        let (n, from) = client.recv_from(&mut space).expect("an answer");
        assert_eq!((&space[..n], from), (text.as_bytes(), streams.addr()));
    };
    ask("before");
    upgraded.upgrade();
    ask("after");
    let late = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    late.set_read_timeout(Some(stillgate_testkit::PATIENCE)).expect("a timeout");
    late.send_to(b"new", streams.addr()).expect("send");
    assert_eq!(late.recv_from(&mut [0; 64]).expect("an answer").0, 3);
}
