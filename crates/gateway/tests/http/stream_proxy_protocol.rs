//! The PROXY protocol towards nodes of streams: byte by byte, and as HAProxy and nginx understand it.

use crate::shared::authority;
use crate::shared::authority::{Authority, TlsClient};
use crate::shared::streams::{Streams, nodes_of};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use stillgate_testkit::{BufferedSocket, Client, Haproxy, Nginx, Upstream, run_tool};

fn to(upstream: &Upstream, version: &str) -> Streams {
    Streams::new(format!(
        "stream_routes: [{{id: all, upstream: {{proxy_protocol: {version}, {}}}}}]\n",
        nodes_of(&[upstream.addr()])
    ))
}

/// A version 2 header for these two.
fn v2(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    match (source, destination) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            bytes.extend([0x11, 0, 12]);
            bytes.extend(from.ip().octets());
            bytes.extend(to.ip().octets());
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            bytes.extend([0x21, 0, 36]);
            bytes.extend(from.ip().octets());
            bytes.extend(to.ip().octets());
        }
        _ => panic!("of one family"),
    }
    bytes.extend(source.port().to_be_bytes());
    bytes.extend(destination.port().to_be_bytes());
    bytes
}

fn v1(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let family = if source.is_ipv4() { 4 } else { 6 };
    let (from, to) = (source.ip(), destination.ip());
    format!("PROXY TCP{family} {from} {to} {} {}\r\n", source.port(), destination.port()).into_bytes()
}

#[test]
fn the_node_learns_the_clients_address_before_anything_else() {
    let upstream = Upstream::bind();
    for version in ["v1", "v2"] {
        let header =
            |source, destination| if version == "v1" { v1(source, destination) } else { v2(source, destination) };
        let mut streams = to(&upstream, version);
        let gateway = streams.start();
        for first in ["", "what the client says first"] {
            let mut client = streams.client();
            client.send(first);
            let mut node = upstream.accept();
            let own = client.stream().local_addr().expect("an address");
            let expected = [&header(own, streams.addr())[..], first.as_bytes()].concat();
            // This holds also where the client waits for the node to send first.
            assert_eq!(node.read_exactly(expected.len()).expect("the header"), expected);
            node.send("welcome");
            assert_eq!(client.read_exactly(7).expect("what the node sent"), b"welcome");
            client.half_close();
            assert_eq!(node.read_to_end().expect("an end"), b"");
        }
        // Off again.
        streams.resources = to(&upstream, "off").resources;
        gateway.reload(&streams.setup());
        let mut client = streams.client();
        client.send("x");
        client.half_close();
        assert_eq!(upstream.accept().read_to_end().expect("an end"), b"x");
    }
}

#[test]
fn what_a_balancer_says_is_passed_on() {
    let upstream = Upstream::bind();
    let pairs = [
        ("192.0.2.1:40000", "198.51.100.2:443"),
        ("[2001:db8::1]:40000", "[2001:db8::2]:443"),
        ("255.255.255.255:65535", "0.0.0.0:1"),
    ];
    for version in ["v1", "v2"] {
        let streams = to(&upstream, version).listener("proxy_protocol: true");
        let _gateway = streams.start();
        for (source, destination) in pairs {
            let (source, destination) = (source.parse().expect("an address"), destination.parse().expect("an address"));
            for incoming in [v1(source, destination), v2(source, destination)] {
                let mut client = streams.client();
                client.send([&incoming[..], b"hello"].concat());
                client.half_close();
                let header = if version == "v1" { v1(source, destination) } else { v2(source, destination) };
                let expected = [&header[..], b"hello"].concat();
                assert_eq!(upstream.accept().read_to_end().expect("an end"), expected, "{version} {source}");
            }
        }
        // IPv4 inside IPv6 is reported as IPv4; for the balancer's own connection its own addresses are.
        let mut client = streams.client();
        client.send("PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.8 1 2\r\n");
        client.half_close();
        let (source, destination) = (SocketAddr::from(([192, 0, 2, 7], 1)), SocketAddr::from(([192, 0, 2, 8], 2)));
        let expected = if version == "v1" { v1(source, destination) } else { v2(source, destination) };
        assert_eq!(upstream.accept().read_to_end().expect("an end"), expected);
        let mut client = streams.client();
        client.send("PROXY UNKNOWN\r\n");
        let own = client.stream().local_addr().expect("an address");
        client.half_close();
        let expected = if version == "v1" { v1(own, streams.addr()) } else { v2(own, streams.addr()) };
        assert_eq!(upstream.accept().read_to_end().expect("an end"), expected);
    }
}

/// A node that demands a header is not frightened by checks without one.
#[test]
fn checks_begin_with_a_header_of_their_own() {
    for (version, expected) in [("v1", &b"PROXY UNKNOWN\r\n"[..]), ("v2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")] {
        let upstream = Upstream::bind();
        let streams = Streams::new(format!(
            "stream_routes: [{{upstream: {{proxy_protocol: {version}, checks: {{active: {{type: tcp, healthy: {{interval: 0.1}}}}}}, {}}}}}]\n",
            nodes_of(&[upstream.addr()])
        ));
        let _gateway = streams.start();
        assert_eq!(upstream.accept().read_to_end().expect("an end"), expected);
    }
}

/// Routes match the client that the header names, not the peer that has connected to us, as in nginx.
#[test]
fn routes_go_by_the_client_of_the_header_and_our_own_address() {
    let upstream = Upstream::bind();
    let nodes = nodes_of(&[upstream.addr()]);
    let streams = Streams::new(format!(
        "stream_routes: [{{id: wrong, server_port: 443, upstream: {{nodes: {{}}}}}}, \
         {{id: far, remote_addr: 192.0.2.0/24, server_addr: 127.0.0.1, upstream: {{{nodes}}}}}]\n"
    ))
    .listener("proxy_protocol: true");
    let mut gateway = streams.start();
    for (header, is_taken) in [
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1 443\r\n", true),
        ("PROXY TCP4 192.0.3.1 198.51.100.2 1 443\r\n", false),
        ("PROXY TCP4 192.0.2.1 127.0.0.1 1 444\r\n", true),
        ("PROXY UNKNOWN\r\n", false),
        ("no header at all\r\n", false),
    ] {
        let mut client = streams.client();
        client.send(format!("{header}x"));
        match is_taken {
            true => assert_eq!(upstream.accept().read_exactly(1).expect("a byte"), b"x"),
            false => {
                assert!(!matches!(client.read_to_end(), Ok(bytes) if !bytes.is_empty()), "{header}");
                assert!(upstream.try_accept().is_none(), "{header}");
            }
        }
    }
    gateway.assert_healthy();
}

/// The header is outside of TLS, whichever side does the handshake.
#[test]
fn the_header_comes_before_tls() {
    let authority = Authority::new();
    authority.issue("mail", &["mail.test"]);
    let upstream = Upstream::bind();
    let ca = authority.path("ca.pem");
    let streams = Streams::new(format!(
        "stream_routes: [{{upstream: {{scheme: tls, tls: {{ca: \"{ca}\", sni: mail.test}}, proxy_protocol: v1, {}}}}}]\n",
        nodes_of(&[upstream.addr()])
    ));
    let _gateway = streams.start();
    let mut client = streams.client();
    client.send("ping");
    let node = upstream.accept();
    let expected = v1(client.stream().local_addr().expect("an address"), streams.addr());
    assert_eq!(peeked(&node, expected.len()), expected);
    node.stream().read_exact(&mut vec![0; expected.len()]).expect("the header");
    let mut tls = authority.serve(node.stream().try_clone().expect("a handle"), "mail", &[]);
    let mut got = [0; 4];
    tls.read_exact(&mut got).expect("what the client sent");
    tls.write_all(b"pong").expect("sent");
    assert_eq!((&got, client.read_exactly(4).expect("what the node sent")), (b"ping", b"pong".to_vec()));
    node.half_close();
}

/// A balancer's header, then the handshake, here or at the node.
#[test]
fn a_header_and_a_handshake_follow_each_other() {
    let authority = Authority::new();
    authority.issue("shop", &["shop.test"]);
    let upstream = Upstream::bind();
    let ca = authority.dir().display();
    let streams = |keys: &str| {
        let ssls =
            format!("ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [shop.test]}}]\n");
        let route = format!(
            "stream_routes: [{{sni: shop.test, remote_addr: 192.0.2.0/24, upstream: {{proxy_protocol: v1, {}}}}}]\n",
            nodes_of(&[upstream.addr()])
        );
        Streams::new(ssls + &route).listener(keys)
    };
    let header = b"PROXY TCP4 192.0.2.1 198.51.100.2 40000 8443\r\n";
    let connect = |streams: &Streams| {
        let mut socket = authority::patient(std::net::TcpStream::connect(streams.addr()).expect("connect"));
        socket.write_all(header).expect("sent");
        TlsClient::new(authority.client("shop.test", &[]), socket)
    };
    let here = streams("proxy_protocol: true, tls: true");
    let _gateway = here.start();
    let mut client = connect(&here);
    client.write_all(b"ping").expect("sent");
    let mut node = upstream.accept();
    assert_eq!(node.read_exactly(header.len() + 4).expect("both"), [&header[..], b"ping"].concat());
    let there = streams("proxy_protocol: true, tls_passthrough: true");
    let _gateway = there.start();
    let mut client = connect(&there);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(b"ping").expect("sent"));
        let node = upstream.accept();
        let mut got = vec![0; header.len()];
        node.stream().read_exact(&mut got).expect("the header");
        assert_eq!(got, header);
        let mut tls = authority.serve(node.stream().try_clone().expect("a handle"), "shop", &[]);
        let mut got = [0; 4];
        tls.read_exact(&mut got).expect("what the client sent");
        assert_eq!(&got, b"ping");
    });
}

/// What is next, left where it is.
fn peeked(node: &BufferedSocket, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stillgate_testkit::eventually("the header", || node.stream().peek(&mut bytes).expect("bytes") == len);
    bytes
}

#[test]
fn a_listener_of_both_families_tells_ipv4_as_such() {
    let upstream = Upstream::bind();
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        // Without IPv6 this cannot be tested.
        return;
    }
    let streams = to(&upstream, "v2");
    let port = streams.addr().port();
    let setup = streams.setup();
    let gateway = stillgate_testkit::Gateway::start(
        crate::shared::STILLGATE,
        &stillgate_testkit::Setup {
            gateway: setup.gateway.replace(
                &format!("tcp: [{{address: \"127.0.0.1:{port}\""),
                &format!("tcp: [{{address: \"[::]:{port}\""),
            ),
            ..setup
        },
    );
    stillgate_testkit::eventually("all listeners", || gateway.log().contains("\"serving\""));
    for address in [streams.addr(), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        let mut client = BufferedSocket::new(std::net::TcpStream::connect(address).expect("connect"));
        let expected = v2(client.stream().local_addr().expect("an address"), address);
        client.half_close();
        assert_eq!(upstream.accept().read_to_end().expect("an end"), expected);
        drop(client.pending());
    }
    drop(gateway);
}

/// Requests the client's address from an address that nothing else uses.
#[track_caller]
fn curl(addr: SocketAddr) -> String {
    let url = format!("http://{addr}/");
    let output =
        run_tool("curl", "curl", &["-sS", "--max-time", "300", "--noproxy", "*", "--interface", "127.0.0.77", &url]);
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn haproxy_understands_it() {
    let haproxy = Haproxy::configured(
        1,
        "listen web\n  bind 127.0.0.1:{port0} accept-proxy\n  http-request return status 200 content-type text/plain \
         lf-string \"%[src] %[dst_port]\"\n",
    );
    for version in ["v1", "v2"] {
        let streams = Streams::new(format!(
            "stream_routes: [{{upstream: {{proxy_protocol: {version}, {}}}}}]\n",
            nodes_of(&[haproxy.addr(0)])
        ));
        let _gateway = streams.start();
        assert_eq!(curl(streams.addr()), format!("127.0.0.77 {}", streams.addr().port()), "{version}");
    }
}

#[test]
fn nginx_understands_it() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:{port} proxy_protocol; location / { return 200 \
         \"$proxy_protocol_addr $proxy_protocol_server_port\"; } }",
    );
    for version in ["v1", "v2"] {
        let streams = Streams::new(format!(
            "stream_routes: [{{upstream: {{proxy_protocol: {version}, {}}}}}]\n",
            nodes_of(&[nginx.addr()])
        ));
        let _gateway = streams.start();
        assert_eq!(curl(streams.addr()), format!("127.0.0.77 {}", streams.addr().port()), "{version}");
    }
}

/// One gateway behind another: the last one's node sees the first one's client.
#[test]
fn our_own_listeners_understand_it() {
    let upstream = Upstream::bind();
    let inner = stillgate_testkit::Gateway::start(
        crate::shared::STILLGATE,
        &stillgate_testkit::Setup::to(upstream.addr()).listener("proxy_protocol: true"),
    );
    let streams =
        Streams::new(format!("stream_routes: [{{upstream: {{proxy_protocol: v2, {}}}}}]\n", nodes_of(&[inner.addr()])));
    let _outer = streams.start();
    let mut client = Client::connect(streams.addr());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let request = upstream.accept().expect_request();
    assert_eq!(request.head.get("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(request.head.get("x-forwarded-port"), Some(&*streams.addr().port().to_string()));
}
