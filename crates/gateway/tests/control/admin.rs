//! The admin API and the exposition, as clients on this machine see them: the endpoints, and which clients are answered.

use crate::shared::STILLGATE;
use std::net::{SocketAddr, TcpStream};
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Gateway, Head, ReservedPort, Setup, Upstream, eventually, scrape,
};

/// Status, head and body of the answer to a request with these lines.
fn ask(addr: SocketAddr, request_line: &str, fields: &str) -> (u16, Head, String) {
    let mut connection = BufferedSocket::new(TcpStream::connect(addr).expect("connect"));
    connection.send(format!("{request_line}\r\n{fields}\r\n"));
    let response = connection.expect_response("GET");
    let body = String::from_utf8(response.body).expect("UTF-8");
    (response.head.status(), response.head, body)
}

fn status_of(addr: SocketAddr, path: &str, fields: &str) -> u16 {
    ask(addr, &format!("GET {path} HTTP/1.1"), fields).0
}

#[test]
fn the_root_lists_every_path() {
    let gateway = Gateway::start(STILLGATE, &Setup::to(Upstream::echo().addr()));
    let admin = gateway.admin_addr();
    let (status, head, index) = ask(admin, "GET / HTTP/1.1", "Host: localhost\r\n");
    assert_eq!((status, head.get("content-type")), (200, Some("text/plain; charset=utf-8")));
    let paths: Vec<&str> = index.lines().map(|line| line.split_whitespace().nth(1).expect("a path")).collect();
    for path in ["/v1/status", "/v1/health", "/v1/upstreams", "/v1/metrics/cardinality", "/v1/explain"] {
        assert!(paths.contains(&path), "{path}: {index}");
    }
    let (status, _, unknown) = ask(admin, "GET /v2 HTTP/1.1", "Host: localhost\r\n");
    assert!(status == 404 && unknown.contains("/v1/openapi.json"), "{unknown}");
    // Live figures have no end.
    for path in paths.into_iter().filter(|path| *path != "/v1/live") {
        let (_, _, answer) = ask(admin, &format!("GET {path} HTTP/1.1"), "Host: localhost\r\n");
        assert!(!answer.contains("404 Not Found: the paths are"), "{path} is not a path: {answer}");
    }
    let (_, head, page) = ask(admin, "GET / HTTP/1.1", "Host: localhost\r\nAccept: text/html,*/*\r\n");
    assert_eq!(head.get("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.contains("href=\"/v1/status\""), "{page}");
}

/// Without a store the Admin API has nothing to change.
#[test]
fn resources_of_a_file_are_not_written() {
    let key = "key-of-an-admin-0123456789";
    let setup = Setup::to(Upstream::echo().addr()).admin(&format!("key: {key}"));
    let gateway = Gateway::start(STILLGATE, &setup);
    let admin = gateway.admin_addr();
    let fields = format!("Host: localhost\r\nX-API-KEY: {key}\r\n");
    let put = format!("{fields}Content-Length: 2\r\n\r\n{{}}");
    let (status, _, told) = ask(admin, "PUT /apisix/admin/routes/1 HTTP/1.1", &put);
    assert!(status == 501 && told.contains("gateway.config.source"), "{told}");
    assert_eq!(status_of(admin, "/v1/explain?url=/", "Host: localhost\r\n"), 401, "the key is needed here, too");
    assert_eq!(status_of(admin, "/v1/explain?url=/", &fields), 200);
    assert_eq!(gateway.status()["source"], "file");
}

#[test]
fn what_waits_for_a_restart_is_reported_until_it_is_undone() {
    let metrics = ReservedPort::new();
    let address = format!("metrics: {{address: \"{}\"}}", metrics.addr());
    let setup = Setup::to(Upstream::echo().addr()).gateway(&address);
    let gateway = Gateway::start(STILLGATE, &setup);
    let is_exposed = |keys: &str| {
        let line = format!("stillgate_config_pending_restart_keys {keys}\n");
        scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().contains(&line)
    };
    let pending = || gateway.status()["pending_restart"].clone();
    assert_eq!(pending(), serde_json::json!([]));
    gateway.reload(&setup.clone().gateway("workers: 3\npid_file: \"{dir}/pid\""));
    assert_eq!(pending(), serde_json::json!(["gateway.workers", "gateway.pid_file"]));
    eventually("the metrics to tell", || is_exposed("2"));
    gateway.reload(&setup.clone().gateway("server_header: false"));
    assert_eq!(pending(), serde_json::json!([]));
    eventually("the metrics to tell", || is_exposed("0"));
}

/// A page whose own name is made to resolve to 127.0.0.1 sends requests under that name.
#[test]
fn over_loopback_only_own_names_are_answered() {
    let metrics = ReservedPort::new();
    let setup = Setup::to(Upstream::echo().addr()).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    for (addr, path, key) in [
        (gateway.admin_addr(), "/v1/status", "gateway.admin.hosts"),
        (metrics.addr(), "/metrics", "gateway.metrics.hosts"),
    ] {
        let port = addr.port();
        for own in [
            format!("127.0.0.1:{port}"),
            format!("LOCALHOST:{port}"),
            "10.0.0.1".to_owned(),
            hostname.trim().to_owned(),
        ] {
            assert_eq!(status_of(addr, path, &format!("Host: {own}\r\n")), 200, "{own}");
        }
        assert_eq!(ask(addr, &format!("GET {path} HTTP/1.0"), "").0, 200);
        let (status, head, told) =
            ask(addr, &format!("GET {path} HTTP/1.1"), &format!("Host: rebound.example:{port}\r\n"));
        assert_eq!((status, head.get("connection")), (403, Some("close")));
        assert!(told.contains("rebound.example") && told.contains(key), "{told}");
        let of_a_page =
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n";
        assert_eq!(status_of(addr, path, of_a_page), 403);
    }
}

#[test]
fn names_are_added_by_a_reload() {
    let metrics = ReservedPort::new();
    let with = |hosts: &str| {
        let keys = format!("metrics: {{address: \"{}\", {hosts}}}", metrics.addr());
        Setup::to("127.0.0.1:1".parse().expect("an address")).gateway(&keys)
    };
    let gateway = Gateway::start(STILLGATE, &with(""));
    let status = |addr, path| status_of(addr, path, "Host: metrics.example\r\n");
    assert_eq!(status(metrics.addr(), "/metrics"), 403);
    gateway.reload(&with("hosts: [Metrics.example]"));
    eventually("the new name to be known", || status(metrics.addr(), "/metrics") == 200);
    assert_eq!(status(gateway.admin_addr(), "/v1/health"), 403, "it is not the admin API's");
    let yaml = std::fs::read_to_string(gateway.config_path()).expect("read");
    let address = format!("address: \"{}\"\n", gateway.admin_addr());
    gateway.write_config_text(&yaml.replace(&address, &format!("{address}    hosts: [metrics.example]\n")));
    eventually("the new name to be known", || status(gateway.admin_addr(), "/v1/health") == 200);
}

/// Where other machines may connect, a scraper uses whatever name it knows.
#[test]
fn an_exposition_that_is_open_to_others_has_any_name() {
    let metrics = ReservedPort::new();
    let address = format!("0.0.0.0:{}", metrics.addr().port());
    let setup = Setup::to(Upstream::echo().addr()).gateway(&format!("metrics: {{address: \"{address}\"}}"));
    let _gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(status_of(metrics.addr(), "/metrics", "Host: gateway:9091\r\n"), 200);
}
