//! Listeners of streams that a reload adds, changes and removes.

use crate::shared::STILLGATE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    BufferedSocket, Gateway, PATIENCE, ReservedPort, Setup, eventually, sha256, with_longer_times,
};

/// Answers datagrams, and bytes of connections, with themselves.
fn echo() -> SocketAddr {
    let port = ReservedPort::for_udp_too();
    let (tcp, udp) = (TcpListener::bind(port.addr()).expect("bind"), UdpSocket::bind(port.addr()).expect("bind"));
    let addr = port.addr();
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let mut bytes = [0; 1024];
                while let Ok(n @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..n]).expect("the client listens");
                }
            });
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok((n, from)) = udp.recv_from(&mut bytes) {
            let _ = udp.send_to(&bytes[..n], from);
        }
    });
    addr
}

/// Reloads with these listeners of streams.
#[track_caller]
fn reload(gateway: &Gateway, node: SocketAddr, listeners: &str) {
    reload_with(gateway, &setup(node, listeners));
}

#[track_caller]
fn reload_with(gateway: &Gateway, setup: &Setup) {
    let text = setup.render(gateway.addr(), gateway.admin_addr(), gateway.dir());
    gateway.write_config_text(&text);
    let digest = sha256(text.as_bytes());
    eventually("the reload", || gateway.status()["config"]["digest"] == digest.as_str());
}

fn setup(node: SocketAddr, listeners: &str) -> Setup {
    Setup::resources(format!(
        "stream_routes:\n\
         - {{id: tcp, upstream: {{scheme: tcp, nodes: {{\"{node}\": 1}}}}}}\n\
         - {{id: udp, upstream: {{scheme: udp, nodes: {{\"{node}\": 1}}}}}}\n"
    ))
    .gateway(&format!("workers: 2\nstream_proxy: {{{listeners}}}"))
}

fn tunnel(addr: SocketAddr) -> BufferedSocket {
    BufferedSocket::new(TcpStream::connect(addr).expect("connect to the gateway"))
}

#[track_caller]
fn echoes(connection: &mut BufferedSocket) {
    connection.send("ping");
    assert_eq!(connection.read_exactly(4).expect("an answer"), b"ping");
}

fn client(addr: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.connect(addr).expect("connect");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

#[track_caller]
fn answers(client: &UdpSocket) {
    client.send(b"ping").expect("sent");
    let mut bytes = [0; 16];
    let n = client.recv(&mut bytes).expect("an answer");
    assert_eq!(&bytes[..n], b"ping");
}

#[test]
fn tunnels_of_a_removed_listener_go_on_until_the_drain_is_over() {
    let (node, port, stays) = (echo(), ReservedPort::new(), ReservedPort::new());
    let kept = format!("{{address: \"{}\"}}", stays.addr());
    with_longer_times(Duration::from_secs(2), "a tunnel that is used after its listener is removed", |drain| {
        let with = |listeners: &str| {
            setup(node, &format!("tcp: [{listeners}]")).gateway(&format!("timeouts: {{drain: {}s}}", drain.as_secs()))
        };
        let gateway = Gateway::start(STILLGATE, &with(&kept));
        let mut other = tunnel(stays.addr());
        echoes(&mut other);
        reload_with(&gateway, &with(&format!("{{address: \"{}\"}}, {kept}", port.addr())));
        let mut removed = tunnel(port.addr());
        echoes(&mut removed);
        let since = Instant::now();
        reload_with(&gateway, &with(&kept));
        eventually("connections to be refused", || TcpStream::connect(port.addr()).is_err());
        let was_used = removed.try_send("ping").is_ok() && removed.read_exactly(4).is_ok_and(|bytes| bytes == b"ping");
        if was_used {
            removed.expect_close();
        }
        assert!(since.elapsed() >= drain / 2, "it was to have {drain:?}: {:?}", since.elapsed());
        echoes(&mut other);
        was_used
    });
}

#[test]
fn datagrams_come_to_listeners_that_come_and_go() {
    let (node, port) = (echo(), ReservedPort::for_udp_too());
    let listeners = format!("udp: [{{address: \"{}\"}}]", port.addr());
    let gateway = Gateway::start(STILLGATE, &setup(node, "udp: []"));
    let known = client(port.addr());
    for _ in 0..3 {
        reload(&gateway, node, &listeners);
        answers(&known);
        answers(&client(port.addr()));
        reload(&gateway, node, "udp: []");
        // The listener is back before its sessions have ended: the sessions start over.
        reload(&gateway, node, &listeners);
        answers(&known);
        (0..8).for_each(|_| answers(&client(port.addr())));
        reload(&gateway, node, "udp: []");
        eventually("the socket to be closed", || UdpSocket::bind(port.addr()).is_ok());
    }
}

/// One address of TCP, for streams and for HTTP in turn.
/// Whether a request is answered with these bytes first.
fn answers_with(to: SocketAddr, expected: &[u8; 4]) -> bool {
    let mut stream = TcpStream::connect(to).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("it is read");
    let mut first = [0; 4];
    stream.read_exact(&mut first).is_ok() && first == *expected
}

#[test]
fn an_address_may_come_to_take_something_else() {
    let node = echo();
    let port = ReservedPort::new();
    let streams = format!("tcp: [{{address: \"{}\"}}]", port.addr());
    let gateway = Gateway::start(STILLGATE, &setup(node, &streams));
    let mut before = tunnel(port.addr());
    echoes(&mut before);
    let http = setup(node, "tcp: []").with_listener(port.addr());
    gateway.reload(&http);
    // A connection that came while the old listener was closing is still one of a stream.
    eventually("HTTP", || (0..4).all(|_| answers_with(port.addr(), b"HTTP")));
    let mut after = stillgate_testkit::Client::connect(port.addr());
    assert_eq!(after.get("/").head.status(), 404);
    echoes(&mut before);
    reload(&gateway, node, &streams);
    eventually("streams", || (0..4).all(|_| answers_with(port.addr(), b"GET ")));
    echoes(&mut tunnel(port.addr()));
    assert_eq!(after.get("/").head.status(), 404);
}

#[test]
fn a_socket_of_udp_that_cannot_be_had_changes_nothing() {
    let (node, port) = (echo(), ReservedPort::new());
    let gateway = Gateway::start(STILLGATE, &setup(node, "udp: []"));
    let holder = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("its address");
    let listeners = format!("tcp: [{{address: \"{}\"}}], udp: [{{address: \"{taken}\"}}]", port.addr());
    gateway.write_config_text(&setup(node, &listeners).render(gateway.addr(), gateway.admin_addr(), gateway.dir()));
    let expected = format!("gateway.stream_proxy.udp[0].address: cannot listen on {taken}: ");
    eventually("the refusal", || {
        let error = gateway.status()["config"]["last_error"]["errors"][0].clone();
        error.as_str().is_some_and(|error| error.starts_with(&expected))
    });
    assert!(TcpStream::connect(port.addr()).is_err());
}
