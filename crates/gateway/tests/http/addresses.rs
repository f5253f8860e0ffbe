//! Addresses that are not plain IPv4: listeners and nodes on IPv6, nodes by name.

use crate::shared::STILLGATE;
use socket2::{Domain, Socket, Type};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use stillgate_testkit::{BufferedSocket, Client, Gateway, Setup, Upstream};

fn resources(node: &str) -> Setup {
    Setup::resources(format!(
        "upstreams: [{{id: u, type: roundrobin, nodes: {{\"{node}\": 1}}}}]\nroutes: [{{id: r, uri: /*, upstream_id: u}}]\n"
    ))
}

#[test]
fn a_node_by_name_is_resolved() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &resources(&format!("localhost:{}", upstream.addr().port())));
    assert_eq!(gateway.get("/").head.status(), 200);
}

#[test]
fn a_node_on_ipv6_is_reached() {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).expect("bind to any IPv6 loopback port");
    let node = listener.local_addr().expect("its address");
    let gateway = Gateway::start(STILLGATE, &resources(&node.to_string()).gateway("trusted_proxies: [\"::1\"]"));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut connection = BufferedSocket::new(listener.accept().expect("the gateway connects").0);
    connection.expect_request();
    connection.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 204);
}

#[test]
fn a_host_may_be_an_ipv6_address() {
    let upstream = Upstream::echo();
    let setup = Setup::resources(format!(
        "upstreams: [{{id: u, type: roundrobin, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: r, uri: /*, host: \"a.example\", upstream_id: u}}]\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup);
    for (host, status) in [
        ("a.example", 200),
        ("A.Example:8080", 200),
        ("a.example.", 200),
        ("[::1]:80", 404),
        ("b.a.example", 404),
        ("", 404),
    ] {
        let mut client = gateway.client();
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), status, "{host:?}");
    }
}

/// An address has many forms, and all of them are the same host, in the configuration as in requests.
#[test]
fn an_ipv6_address_is_the_same_host_however_it_is_written() {
    let upstream = Upstream::echo();
    let setup = Setup::resources(format!(
        "upstreams: [{{id: u, type: roundrobin, nodes: {{\"{}\": 1}}}}]\nroutes:\n\
         - {{id: short, uri: /short, host: \"[::1]\", upstream_id: u}}\n\
         - {{id: long, uri: /long, host: \"[2001:0DB8:0:0:0:0:0:1]\", upstream_id: u}}\n\
         - {{id: condition, uri: /condition, vars: [[host, \"==\", \"[::1]\"]], upstream_id: u}}\n\
         - {{id: expression, expression: 'http.path == \"/expression\" && http.host == \"[::1]\"', upstream_id: u}}\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup);
    for (path, host, status) in [
        ("/short", "[::1]", 200),
        ("/short", "[0:0:0:0:0:0:0:1]", 200),
        ("/short", "[0000::0001]:8080", 200),
        ("/short", "[::2]", 404),
        ("/long", "[2001:db8::1]", 200),
        ("/long", "[2001:DB8:0::1]:80", 200),
        ("/condition", "[0:0:0:0:0:0:0:1]", 200),
        ("/expression", "[0:0:0:0:0:0:0:1]", 200),
        ("/expression", "[::2]", 404),
    ] {
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), status, "{path} {host:?}");
    }
}

/// Some balancers write the client's port behind its address. If it were not parsed, the balancer itself would be the client.
#[test]
fn a_forwarded_address_may_have_a_port() {
    let upstream = Upstream::echo();
    let resources = format!(
        "upstreams: [{{id: node, type: roundrobin, nodes: {{\"{}\": 1}}}}]\nroutes:\n  \
         - {{id: inside, expression: 'net.src.ip in 127.0.0.0/8', upstream_id: node}}\n",
        upstream.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources).gateway("trusted_proxies: [\"127.0.0.0/8\"]"));
    for (forwarded, status) in
        [("127.0.0.9:1", 200), ("9.9.9.9:1234", 404), ("[2001:db8::5]:99", 404), ("9.9.9.9", 404)]
    {
        let mut client = gateway.client().into_connection();
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {forwarded}\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), status, "{forwarded}");
    }
}

#[test]
fn a_listener_on_ipv6_names_its_clients() {
    let upstream = Upstream::bind();
    // A port that the socket keeps from all others; the gateway may still listen there.
    let holder = Socket::new(Domain::IPV6, Type::STREAM, None).expect("open a socket");
    holder.set_reuse_address(true).expect("SO_REUSEADDR");
    holder.set_reuse_port(true).expect("SO_REUSEPORT");
    holder.bind(&SocketAddr::from((Ipv6Addr::LOCALHOST, 0)).into()).expect("bind to any IPv6 loopback port");
    let six = holder.local_addr().expect("its address").as_socket().expect("an IP address");
    let setup = Setup::to(upstream.addr());
    let gateway = Gateway::start(STILLGATE, &setup.with_listener(six));
    let mut client = Client::connect(six);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let request = upstream.accept().expect_request();
    assert_eq!(request.head.get("x-forwarded-for"), Some("::1"));
    assert_eq!(request.head.get("x-real-ip"), Some("::1"));
    drop(gateway);
}
