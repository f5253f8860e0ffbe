//! WebSocket with other implementations, and thousands of tunnels at once.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use crate::shared::tunnel::{AGREE, ASK, setup};
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_testkit::{Client, Gateway, Nginx, Python, Setup, Upstream, eventually, eventually_within};

/// The client moves tens of megabytes through interpreted code.
const CLIENT_PATIENCE: Duration = Duration::from_secs(600);
const SERVER: &str = include_str!("../data/python/ws_server.py");
const CLIENT: &str = include_str!("../data/python/ws_client.py");
/// The settings that a WebSocket needs according to nginx's documentation.
const NGINX_TUNNEL: &str =
    "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection 'upgrade';";

fn start_server(arguments: &[&str]) -> (Python, SocketAddr) {
    let mut server = Python::start(SERVER, arguments);
    let port: u16 = server.announced("port ").parse().expect("a port");
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// `further` are arguments of the client.
fn try_everything(at: SocketAddr, server: &Python, further: &[&str]) {
    let mut client = Python::start(CLIENT, &[&[&*at.port().to_string()], further].concat());
    eventually_within(CLIENT_PATIENCE, "the client to end", || client.succeeded().is_some());
    assert_eq!(client.output(), "done\n");
    eventually("the server to see the last end", || server.output().contains("closed 4999"));
    assert!(server.output().contains("closed 4001 mine\n"), "{}", server.output());
}

fn tunnelled(node: SocketAddr) -> Setup {
    Setup::to(node).route("enable_websocket: true")
}

#[test]
fn python_websockets_agrees_on_both_sides() {
    let (server, node) = start_server(&[]);
    let mut gateway = Gateway::start(STILLGATE, &tunnelled(node));
    try_everything(gateway.addr(), &server, &[]);
    eventually("all tunnels to end", || gateway.status()["tunnels"]["open"] == 0);
    assert_eq!(gateway.status()["tunnels"]["total"], 4);
    gateway.assert_healthy();
}

#[test]
fn nginx_passes_tunnels_on_from_both_sides() {
    let (server, node) = start_server(&[]);
    let nginx = |to: SocketAddr| {
        let location = format!("location / {{ {NGINX_TUNNEL} proxy_pass http://{to}; }}");
        Nginx::start(&format!("server {{ listen 127.0.0.1:{{port}}; {location} }}"))
    };
    let behind = nginx(node);
    let gateway = Gateway::start(STILLGATE, &tunnelled(behind.addr()));
    let before = nginx(gateway.addr());
    try_everything(before.addr(), &server, &[]);
}

/// A tunnel through TLS, on either side and on both.
#[test]
fn tls_carries_tunnels() {
    const NAME: &str = "chat.example.com";
    let authority = Authority::new();
    authority.issue("chat", &[NAME]);
    let [ca, certificate, key] = ["ca.pem", "chat.pem", "chat.key"].map(|file| authority.path(file));
    for (client_tls, node_tls) in [(true, false), (false, true), (true, true)] {
        let (of_server, of_client) = ([&*certificate, &*key], [&*ca, NAME]);
        let (server, node) = start_server(if node_tls { &of_server } else { &[] });
        let scheme = if node_tls {
            format!("scheme: https, pass_host: rewrite, upstream_host: {NAME}, tls: {{verify: true, ca: \"{ca}\"}}, ")
        } else {
            String::new()
        };
        let setup = Setup::resources(format!(
            "ssls: [{{id: chat, cert: \"{certificate}\", key: \"{key}\", snis: [{NAME}]}}]\n\
             upstreams: [{{id: u, {scheme}nodes: {{\"{node}\": 1}}}}]\n\
             routes: [{{id: all, uri: /*, enable_websocket: true, upstream_id: u}}]\n"
        ));
        let setup = if client_tls { setup.listener("tls: true") } else { setup };
        let mut gateway = Gateway::start(STILLGATE, &setup);
        try_everything(gateway.addr(), &server, if client_tls { &of_client } else { &[] });
        eventually("all tunnels to end", || gateway.status()["tunnels"]["open"] == 0);
        gateway.assert_healthy();
    }
}

/// Both sides together, the kernel's part aside. The build under test is not optimised.
#[test]
fn idle_tunnels_cost_little_and_go_without_a_trace() {
    const TUNNELS: usize = 2_000;
    const BYTES_MAX: usize = if cfg!(debug_assertions) { 8 * 1024 } else { 4 * 1024 };
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let open = |count: usize| -> Vec<_> {
        let mut tunnels = Vec::with_capacity(count);
        for _ in 0..count {
            let mut client = Client::connect(gateway.addr());
            client.send(ASK);
            let mut node = upstream.accept();
            node.expect_request();
            node.send(AGREE);
            assert_eq!(client.read_head().expect("an answer").status(), 101);
            tunnels.push((client, node));
        }
        tunnels
    };
    drop(open(50));
    eventually("the first ones to be gone", || gateway.status()["connections"]["open"] == 0);
    let (rss, fds) = (gateway.rss(), gateway.fd_count());
    let mut tunnels = open(TUNNELS);
    let each = |what: &str| {
        let each = gateway.rss().saturating_sub(rss) / TUNNELS;
        println!("{what}: {each} bytes a tunnel");
        each
    };
    let idle = each("idle from the start");
    assert!(idle < BYTES_MAX, "{idle} bytes a tunnel");
    for (client, node) in &mut tunnels {
        client.send([b'x'; 10_000]);
        node.read_exactly(10_000).expect("what the client sent");
    }
    let used = each("idle after use");
    assert!(used < BYTES_MAX, "{used} bytes a tunnel after use: buffers are kept");
    let (cpu, since) = (gateway.cpu(), std::time::Instant::now());
    eventually("a second to pass", || since.elapsed() > Duration::from_secs(1));
    let spent = gateway.cpu() - cpu;
    let elapsed = since.elapsed();
    assert!(spent < elapsed / 5, "{spent:?} of CPU for nothing in {elapsed:?}");
    drop(tunnels);
    eventually("their descriptors to be closed", || gateway.fd_count() <= fds);
    eventually("all tunnels to have ended", || gateway.status()["tunnels"]["open"] == 0);
}
