//! HTTP/2 through TLS: negotiated in the handshake, with clients and with nodes.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::net::SocketAddr;
use stillgate_testkit::{Gateway, Nginx, Setup, Upstream, run_tool};

/// Everything to one node, for clients that know it as `shop.example.com`.
fn secure(authority: &Authority, node: SocketAddr, upstream: &str) -> Setup {
    let ca = authority.dir().display().to_string();
    Setup::resources(format!(
        "ssls:\n  - {{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [shop.example.com]}}\n\
         upstreams:\n  - {{id: main, nodes: {{\"{node}\": 1}}{upstream}}}\nroutes:\n  - {{id: all, uri: /*, upstream_id: main}}\n"
    ))
    .listener("tls: true")
}

#[track_caller]
fn curl(gateway: &Gateway, authority: &Authority, arguments: &[&str]) -> String {
    let port = gateway.addr().port();
    let (ca, at) = (authority.path("ca.pem"), format!("shop.example.com:{port}:127.0.0.1"));
    let url = format!("https://shop.example.com:{port}/?echo");
    let common = ["-sS", "--max-time", "300", "--noproxy", "*", "--cacert", &ca, "--resolve", &at, "-d", "data", &url];
    let output = run_tool("curl", "curl", &[&common[..], arguments].concat());
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn clients_agree_on_the_version_in_the_handshake() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let version = ["-w", " %{http_version}"];
    let gateway = Gateway::start(STILLGATE, &secure(&authority, upstream.addr(), ""));
    assert_eq!(curl(&gateway, &authority, &version), "data 2");
    assert_eq!(curl(&gateway, &authority, &[&version[..], &["--http1.1"]].concat()), "data 1.1");
    assert_eq!(curl(&gateway, &authority, &[&version[..], &["--no-alpn"]].concat()), "data 1.1");
    let gateway = Gateway::start(STILLGATE, &secure(&authority, upstream.addr(), "").listener("http2: false"));
    assert_eq!(curl(&gateway, &authority, &version), "data 1.1");
}

#[test]
fn nodes_agree_on_it_or_fail() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let ca = authority.dir().display().to_string();
    let inner = Gateway::start(
        STILLGATE,
        &secure(&authority, upstream.addr(), "").gateway("access_log: {path: \"{dir}/access.log\"}"),
    );
    for keys in ["scheme: grpcs", "scheme: https, http2: true"] {
        let keys =
            format!(", {keys}, pass_host: rewrite, upstream_host: shop.example.com, tls: {{ca: \"{ca}/ca.pem\"}}");
        let outer = Gateway::start(STILLGATE, &secure(&authority, inner.addr(), &keys));
        assert_eq!(curl(&outer, &authority, &[]), "data");
        let log = || std::fs::read_to_string(inner.dir().join("access.log")).unwrap_or_default();
        stillgate_testkit::eventually("the inner gateway's log", || log().contains("HTTP/2.0"));
    }
    let nginx = Nginx::start(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {ca}/shop.pem; ssl_certificate_key {ca}/shop.key; return 200; }}"
    ));
    let keys = format!(
        ", scheme: https, http2: true, pass_host: rewrite, upstream_host: shop.example.com, tls: {{ca: \"{ca}/ca.pem\"}}"
    );
    let outer = Gateway::start(STILLGATE, &secure(&authority, nginx.addr(), &keys));
    assert!(curl(&outer, &authority, &[]).contains("502"), "a node without HTTP/2");
}
