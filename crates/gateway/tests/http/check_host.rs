//! Active checks send the same host as requests do: with `pass_host: rewrite` that is `upstream_host`.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::net::SocketAddr;
use stillgate_testkit::{Client, Gateway, Nginx, Setup, Upstream, eventually};

/// A server of one virtual host.
fn server() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(head) = connection.read_head() {
            let status = if head.get("host") == Some("shop.test") { "200 OK" } else { "404 Not Found" };
            if connection.try_send(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")).is_err() {
                return;
            }
        }
    })
}

fn setup(node: SocketAddr, keys: &str, active: &str) -> Setup {
    Setup::resources(format!(
        "upstreams: [{{id: u, nodes: {{\"{node}\": 1}}, {keys}, checks: {{active: {{timeout: 60, {active}, \
         healthy: {{interval: 0.1, successes: 1}}, unhealthy: {{interval: 0.1, http_failures: 1, tcp_failures: 1}}}}}}}}]\n\
         routes: [{{id: r, uri: /*, upstream_id: u}}]\n"
    ))
}

/// Waits for a check: its state, and the status or error it ended with.
fn checked(gateway: &Gateway) -> (String, String) {
    let mut found = (String::new(), String::new());
    eventually("a check", || {
        let response = Client::connect(gateway.admin_addr()).get("/v1/upstreams");
        let shown: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
        let endpoint = &shown["upstreams"][0]["endpoints"][0];
        let last = &endpoint["active_checks"]["last"];
        let ended = if last["status"].is_null() { &last["error"] } else { &last["status"] };
        found = (endpoint["state"].as_str().unwrap_or_default().to_owned(), ended.to_string());
        !ended.is_null()
    });
    found
}

const REWRITE: &str = "pass_host: rewrite, upstream_host: shop.test";

#[test]
fn a_virtual_host_is_found_healthy() {
    let node = server();
    for (keys, active, expected) in [
        (REWRITE, "http_path: /", ("healthy", "200")),
        (REWRITE, "host: other.test", ("unhealthy", "404")),
        ("pass_host: node", "host: shop.test", ("healthy", "200")),
        ("pass_host: pass", "host: shop.test", ("healthy", "200")),
        ("pass_host: pass", "http_path: /", ("unhealthy", "404")),
    ] {
        let gateway = Gateway::start(STILLGATE, &setup(node.addr(), keys, active));
        let (state, ended) = checked(&gateway);
        assert_eq!((state.as_str(), ended.as_str()), expected, "{keys} {active}");
    }
}

#[test]
fn a_reload_that_changes_the_host_changes_the_checks() {
    let node = server();
    let gateway = Gateway::start(STILLGATE, &setup(node.addr(), "pass_host: node", "http_path: /"));
    assert_eq!(checked(&gateway).0, "unhealthy");
    gateway.reload(&setup(node.addr(), REWRITE, "http_path: /"));
    eventually("the checks with another host", || checked(&gateway) == ("healthy".to_owned(), "200".to_owned()));
}

/// The certificate must be the one that requests need.
#[test]
fn over_tls_it_is_the_name_too() {
    let authority = Authority::new();
    authority.issue("shop.test", &["shop.test"]);
    // The name that a check without the host would send has a certificate, and requests need another one.
    authority.issue("address", &["127.0.0.1"]);
    let node = |file: &str| {
        Nginx::start(&format!(
            "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
             location / {{ return 200; }} }}",
            authority.path(&format!("{file}.pem")),
            authority.path(&format!("{file}.key")),
        ))
    };
    let keys = format!("scheme: https, tls: {{ca: \"{}\"}}, {REWRITE}", authority.path("ca.pem"));
    for (file, expected) in [("shop.test", "healthy"), ("address", "unhealthy")] {
        let node = node(file);
        let gateway = Gateway::start(STILLGATE, &setup(node.addr(), &keys, "type: https"));
        let (state, ended) = checked(&gateway);
        assert_eq!(state, expected, "{file}: {ended}");
    }
}
