//! Stream routes whose upstream does not name TCP or UDP, as APISIX writes them: they take both.

use crate::shared::streams::Streams;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use stillgate_testkit::{Client, PATIENCE, ReservedPort, Upstream, eventually};

/// A node of one address that answers TCP with `tcp` and each datagram with `udp`.
struct Both {
    tcp: Upstream,
    udp: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Both {
    fn start() -> Both {
        let tcp = Upstream::serve(|connection| {
            if connection.read_exactly(2).is_ok() {
                connection.send("tcp");
            }
        });
        let socket = UdpSocket::bind(tcp.addr()).expect("the same port of UDP");
        Both { tcp, udp: Some(answer_datagrams(socket)) }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.udp.take() {
            stop.store(true, Ordering::SeqCst);
            thread.join().expect("the node does not panic");
        }
    }
}

fn answer_datagrams(socket: UdpSocket) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while !stopped.load(Ordering::SeqCst) {
            if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(b"udp", from);
            }
        }
    });
    (stop, thread)
}

fn tcp(streams: &Streams) -> Vec<u8> {
    let mut client = streams.client();
    client.send("hi");
    client.read_exactly(3).expect("an answer")
}

fn udp(streams: &Streams) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.connect(streams.addr()).expect("connect");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send(b"hi").expect("sent");
    let mut buffer = [0; 100];
    let len = socket.recv(&mut buffer).expect("an answer");
    buffer[..len].to_vec()
}

#[test]
fn tcp_and_udp_go_to_the_same_node() {
    let node = Both::start();
    let nodes = format!("type: roundrobin, nodes: {{\"{}\": 1}}", node.tcp.addr());
    for resources in [
        format!("stream_routes: [{{id: r, upstream: {{{nodes}}}}}]\n"),
        format!("stream_routes: [{{id: r, upstream: {{scheme: http, {nodes}}}}}]\n"),
        format!("upstreams: [{{id: u, {nodes}}}]\nstream_routes: [{{id: r, upstream_id: u}}]\n"),
        format!("upstreams: [{{id: u, scheme: http, {nodes}}}]\nstream_routes: [{{id: r, upstream_id: u}}]\n"),
        format!("services: [{{id: s, upstream: {{{nodes}}}}}]\nstream_routes: [{{id: r, service_id: s}}]\n"),
    ] {
        let streams = Streams::new(&resources[..]);
        let _gateway = streams.start();
        assert_eq!((tcp(&streams), udp(&streams)), (b"tcp".to_vec(), b"udp".to_vec()), "{resources}");
    }
}

/// One upstream may serve requests and streams.
#[test]
fn requests_and_streams_share_an_upstream() {
    let node = Upstream::echo();
    let streams = Streams::new(format!(
        "upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nstream_routes: [{{id: s, upstream_id: u}}]\n\
         routes: [{{id: r, uri: /*, upstream_id: u}}]\n",
        node.addr()
    ));
    let gateway = streams.start();
    assert_eq!(gateway.get("/a").head.status(), 200);
    assert_eq!(Client::connect(streams.addr()).get("/b").head.status(), 200);
    assert_eq!(node.requests(), 2);
}

/// A route for all of TCP takes no datagrams away from one that names UDP, wherever it is.
#[test]
fn datagrams_go_first_where_udp_is_named() {
    let (node, names) = (Both::start(), Both::start());
    let streams = Streams::new(format!(
        "stream_routes:\n- {{id: all, upstream: {{nodes: {{\"{}\": 1}}}}}}\n\
         - {{id: names, upstream: {{scheme: udp, nodes: {{\"{}\": 1}}}}}}\n",
        ReservedPort::new().addr(),
        names.tcp.addr()
    ));
    let _gateway = streams.start();
    assert_eq!(udp(&streams), b"udp");
    drop(node);
}

/// Passive checks judge connections, whatever their `type`, whose default is for HTTP: a node that is back is used again.
#[test]
fn a_node_that_was_ejected_comes_back() {
    let (mut node, other) = (Upstream::refusing(), Upstream::echo());
    let streams = Streams::new(format!(
        "upstreams: [{{id: u, nodes: {{\"{}\": 1, \"{}\": 1}}, checks: {{passive: {{unhealthy: {{tcp_failures: 1}}, healthy: {{successes: 1}}}}}}}}]\n\
         stream_routes: [{{id: s, upstream_id: u}}]\n",
        node.addr(),
        other.addr()
    ));
    let gateway = streams.start();
    let state = || {
        let response = Client::connect(gateway.admin_addr()).get("/v1/upstreams");
        let shown: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
        shown["upstreams"][0]["endpoints"][0]["state"].as_str().unwrap_or_default().to_owned()
    };
    let ask = || assert_eq!(Client::connect(streams.addr()).get("/").head.status(), 200);
    eventually("the node to be ejected", || {
        ask();
        state() == "set_aside"
    });
    node.start_echo();
    eventually("the node to be back", || {
        ask();
        state() == "healthy"
    });
}
