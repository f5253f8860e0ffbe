//! TLS with other proxies: HAProxy in front of us, HAProxy and nginx behind us, each side verifying all certificates, thousands of
//! requests with bodies through each pair of them.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::net::SocketAddr;
use stillgate_testkit::{Client, Gateway, Haproxy, Nginx, Setup, Upstream, eventually, payload, run_tool, sha256};

const NAME: &str = "shop.example.com";
const LOG: &str =
    "access_log: {path: \"{dir}/access.log\", format: json, fields: [server_protocol, ssl_client_s_dn, status]}";
/// Through each front to each node.
const REQUESTS: usize = 1_000;
const CLIENTS: usize = 4;

/// The nodes, by the first part of the path, and what they say of our connection to them.
const NODES: [(&str, &str); 3] = [
    ("haproxy-h1", "http/1.1 node.test gateway"),
    ("haproxy-h2", "h2 node.test gateway"),
    ("nginx", "node.test SUCCESS"),
];

/// A gateway that wants certificates and shows its own, with proxies in front of it and behind it.
struct Chain {
    authority: Authority,
    /// Speaks HTTP/1.1 to us at its first port, HTTP/2 at its second.
    front: Haproxy,
    gateway: Gateway,
    _haproxy: Haproxy,
    _nginx: Nginx,
    echo: Upstream,
}

impl Chain {
    fn new() -> Chain {
        let (authority, echo) = (Authority::new(), Upstream::echo());
        for (file, name) in [("shop", NAME), ("node", "node.test"), ("gateway", "gateway"), ("front", "front")] {
            authority.issue(file, &[name]);
        }
        let haproxy = nodes_by_haproxy(&authority, echo.addr());
        let nginx = node_by_nginx(&authority, echo.addr());
        let gateway = gateway(&authority, [haproxy.addr(0), haproxy.addr(1), nginx.addr()]);
        let ca = authority.path("ca.pem");
        let server = format!(
            "{} ssl verify required ca-file {ca} crt {} sni str({NAME}) verifyhost {NAME}",
            gateway.addr(),
            authority.both("front")
        );
        let front = Haproxy::configured(
            2,
            &format!(
                "listen h1\n  bind 127.0.0.1:{{port0}}\n  server gateway {server} alpn http/1.1\n\
                 listen h2\n  bind 127.0.0.1:{{port1}}\n  server gateway {server} alpn h2\n"
            ),
        );
        Chain { authority, front, gateway, _haproxy: haproxy, _nginx: nginx, echo }
    }
}

/// Two nodes, of HTTP/1.1 and of HTTP/2, that say what was agreed on.
fn nodes_by_haproxy(authority: &Authority, echo: SocketAddr) -> Haproxy {
    let bind = format!("ssl crt {} ca-file {} verify required", authority.both("node"), authority.path("ca.pem"));
    let node = |at: usize, alpn: &str| {
        format!(
            "listen node-{at}\n  bind 127.0.0.1:{{port{at}}} {bind} alpn {alpn}\n  \
             http-response set-header X-Tls \"%[ssl_fc_alpn] %[ssl_fc_sni] %[ssl_c_s_dn(cn)]\"\n  server echo {echo}\n"
        )
    };
    Haproxy::configured(2, &(node(0, "http/1.1") + &node(1, "h2")))
}

fn node_by_nginx(authority: &Authority, echo: SocketAddr) -> Nginx {
    let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|file| authority.path(file));
    Nginx::start(&format!(
        "upstream echo {{ server {echo}; keepalive 8; }}\n\
         server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};\n\
         ssl_client_certificate {ca}; ssl_verify_client on; client_max_body_size 0; keepalive_requests 100000;\n\
         location / {{ proxy_pass http://echo; proxy_http_version 1.1; proxy_set_header Connection '';\n\
         add_header X-Tls \"$ssl_server_name $ssl_client_verify\" always; }} }}"
    ))
}

fn gateway(authority: &Authority, nodes: [SocketAddr; 3]) -> Gateway {
    let ca = authority.dir().display();
    let tls = format!(
        "scheme: https, pass_host: rewrite, upstream_host: node.test, \
         tls: {{ca: \"{ca}/ca.pem\", client_cert: \"{ca}/gateway.pem\", client_key: \"{ca}/gateway.key\"}}"
    );
    let upstreams: String = nodes
        .iter()
        .zip(NODES)
        .map(|(node, (id, _))| {
            format!("  - {{id: {id}, http2: {}, nodes: {{\"{node}\": 1}}, {tls}}}\n", id.ends_with("h2"))
        })
        .collect();
    let routes: String =
        NODES.iter().map(|(id, _)| format!("  - {{id: {id}, uri: /{id}/*, upstream_id: {id}}}\n")).collect();
    let setup = Setup::resources(format!(
        "ssls:\n  - {{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}], client: {{ca: \"{ca}/ca.pem\"}}}}\n\
         upstreams:\n{upstreams}routes:\n{routes}"
    ));
    Gateway::start(STILLGATE, &setup.listener("tls: true").gateway(LOG).gateway("workers: 2"))
}

/// A client's share of the requests, to each node in turn.
fn ask(front: SocketAddr, seed: usize) {
    let mut client = Client::connect(front);
    for number in 0..REQUESTS / CLIENTS {
        let seed = (seed * REQUESTS + number) as u64;
        // Small ones, ones of several records, and now and then one of more than any window.
        let len = match number % 50 {
            0 => 100_000,
            few @ 1..5 => 7_000 * few,
            _ => number,
        };
        let body = payload(seed, len);
        for (node, tls) in NODES {
            let framing = if number % 2 == 0 { "" } else { "&chunked" };
            let response = client.request("POST", &format!("/{node}/{number}?echo{framing}"), &body);
            assert_eq!(response.head.status(), 200, "{node}: {response:?}");
            assert!(response.body == body, "{node}, {len} bytes: another body");
            assert_eq!(response.head.get("x-tls"), Some(tls));
        }
    }
}

#[test]
fn haproxy_and_nginx_verify_us_and_are_verified() {
    let mut chain = Chain::new();
    for (front, protocol) in [(0, "HTTP/1.1"), (1, "HTTP/2.0")] {
        let addr = chain.front.addr(front);
        let served = chain.echo.requests();
        std::thread::scope(|scope| {
            for seed in 0..CLIENTS {
                scope.spawn(move || ask(addr, seed));
            }
        });
        assert_eq!(chain.echo.requests() - served, REQUESTS * NODES.len());
        let expected = format!(
            "{{\"server_protocol\":\"{protocol}\",\"ssl_client_s_dn\":\"O=Example\\\\, Inc.,CN=front\",\"status\":200}}"
        );
        let mut log = String::new();
        eventually("the access log", || {
            log = std::fs::read_to_string(chain.gateway.dir().join("access.log")).unwrap_or_default();
            log.lines().count() == (front + 1) * REQUESTS * NODES.len()
        });
        let alike = log.lines().filter(|line| *line == expected).count();
        assert_eq!(alike, REQUESTS * NODES.len(), "{:?} is not {expected}", log.lines().last());
    }
    assert_eq!(chain.echo.faults(), [""; 0]);
    // Connections were kept on all sides; HAProxy lets go of some every few seconds.
    let handshakes = chain.gateway.status()["connections"]["tls_handshakes"].as_u64().expect("a number");
    assert!(handshakes < REQUESTS as u64, "{handshakes} handshakes with HAProxy");
    chain.gateway.assert_healthy();
}

#[test]
fn curl_goes_through_all_of_them() {
    let chain = Chain::new();
    let file = chain.gateway.dir().join("upload");
    let body = payload(11, 300_000);
    std::fs::write(&file, &body).expect("write");
    let back = chain.gateway.dir().join("back").display().to_string();
    let (data, port) = (format!("@{}", file.display()), chain.gateway.addr().port());
    let [ca, certificate, key] = ["ca.pem", "front.pem", "front.key"].map(|file| chain.authority.path(file));
    let at = format!("{NAME}:{port}:127.0.0.1");
    let curl = |arguments: &[&str]| {
        let common =
            ["-sS", "--max-time", "300", "--noproxy", "*", "--cacert", &ca, "--resolve", &at, "--output", &back];
        run_tool("curl", "curl", &[&common[..], arguments].concat())
    };
    for (node, _) in NODES {
        let direct = format!("https://{NAME}:{port}/{node}/?echo");
        let [front1, front2] = [0, 1].map(|front| format!("http://{}/{node}/?echo", chain.front.addr(front)));
        let with = ["--cert", &*certificate, "--key", &*key];
        let ways: [(&str, &[&str]); 5] = [
            (&direct, &["--http1.1"]),
            (&direct, &["--http2"]),
            (&direct, &["--http2", "--tls-max", "1.2"]),
            (&front1, &["--http1.1"]),
            (&front2, &["--http2-prior-knowledge"]),
        ];
        for (url, how) in ways {
            let output = curl(&[&["--fail", "--data-binary", &*data, url][..], how, &with].concat());
            assert!(output.status.success(), "{url} {how:?}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(sha256(&std::fs::read(&back).expect("what came back")), sha256(&body), "{url} {how:?}");
            std::fs::remove_file(&back).expect("remove");
        }
        assert!(!curl(&[&*direct]).status.success(), "a client without a certificate");
    }
}
