//! Third-party clients and servers: curl, nginx on either side, Python's h11, Chromium.

use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_testkit::{
    Framing, Gateway, Nginx, Python, Setup, Upstream, eventually_within, payload, run_tool, sha256,
};

/// What both h11 programs together may take; they are slow, and take some ten seconds on a machine with nothing else to do.
const H11_PATIENCE: Duration = Duration::from_secs(900);

/// Runs curl against a gateway in front of an echo; returns its standard output.
#[track_caller]
fn curl(gateway: &Gateway, target: &str, arguments: &[&str]) -> String {
    let url = format!("http://{}{target}", gateway.addr());
    let arguments = [&["-sS", "--max-time", "300", "--noproxy", "*"], arguments, &[&url]].concat();
    let output = run_tool("curl", "curl", &arguments);
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn echo_gateway() -> (Upstream, Gateway) {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    (upstream, gateway)
}

#[test]
fn curl_gets_and_posts() {
    let (_upstream, gateway) = echo_gateway();
    assert_eq!(curl(&gateway, "/?echo", &["-d", "some data"]), "some data");
    assert_eq!(
        curl(&gateway, "/?status=404&size=0", &["-o", "/dev/null", "-w", "%{http_code} %{http_version}"]),
        "404 1.1"
    );
    assert_eq!(curl(&gateway, "/?echo", &["-d", "some data", "-H", "Transfer-Encoding: chunked"]), "some data");
    assert_eq!(curl(&gateway, "/?echo", &["--http1.0", "-d", "some data"]), "some data");
    assert_eq!(curl(&gateway, "/?echo&chunked", &["--http1.0", "-d", "some data"]), "some data");
    assert_eq!(curl(&gateway, "/?echo&close", &["-d", "some data"]), "some data");
    assert_eq!(curl(&gateway, "/?echo&chunked", &["--raw", "-d", "some data"]), "9\r\nsome data\r\n0\r\n\r\n");
}

#[test]
fn curl_asks_for_heads() {
    let (_upstream, gateway) = echo_gateway();
    let head = curl(&gateway, "/?size=12345", &["-I"]);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("Content-Length: 12345\r\n"), "{head}");
}

/// curl sends `Expect: 100-continue` before bodies of more than 1 MiB, and waits a second for the answer.
#[test]
fn curl_uploads_a_file() {
    let (_upstream, gateway) = echo_gateway();
    let file = gateway.dir().join("upload");
    let body = payload(5, 3 * 1024 * 1024);
    std::fs::write(&file, &body).expect("write the file to upload");
    let path = file.display().to_string();
    let sum = sha256(&body);
    for arguments in [
        &["-T", &path][..],
        &["-T", &path, "-H", "Expect: 100-continue"],
        &["-T", &path, "-H", "Transfer-Encoding: chunked"],
        &["--data-binary", &format!("@{path}")],
    ] {
        let head = curl(&gateway, "/up", &[arguments, &["-D", "-"]].concat());
        assert!(head.contains(&sum), "{arguments:?}: {head}");
    }
}

#[test]
fn curl_reuses_its_connection() {
    let (upstream, gateway) = echo_gateway();
    let url = format!("http://{}/[1-20]?size=100", gateway.addr());
    let output =
        run_tool("curl", "curl", &["-sS", "--noproxy", "*", "-w", "%{num_connects}\n", "-o", "/dev/null", &url]);
    let connects: u32 =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.parse::<u32>().ok()).sum();
    assert_eq!((connects, upstream.connections(), upstream.requests()), (1, 1, 20));
}

#[test]
fn nginx_is_served_as_an_upstream() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:{port}; root {dir}; gzip on; gzip_min_length 1; gzip_types *; keepalive_timeout 60; }",
    );
    let file = payload(3, 2_000_000);
    std::fs::write(nginx.dir().join("file"), &file).expect("write a file for nginx");
    std::fs::write(nginx.dir().join("text"), "a".repeat(100_000)).expect("write a file for nginx");
    let gateway = Gateway::start(STILLGATE, &Setup::to(nginx.addr()));
    let mut client = gateway.client();
    let whole = client.get("/file");
    assert!(whole.body == file, "another file came");
    let tag = whole.head.get("etag").expect("nginx sends ETag").to_owned();
    client.send(format!("GET /file HTTP/1.1\r\nHost: a\r\nIf-None-Match: {tag}\r\n\r\n"));
    assert_eq!(client.expect_response("GET").head.status(), 304);
    client.send("GET /file HTTP/1.1\r\nHost: a\r\nRange: bytes=1000-1999\r\n\r\n");
    let part = client.expect_response("GET");
    assert_eq!((part.head.status(), &part.body[..]), (206, &file[1000..2000]));
    client.send("HEAD /file HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_response("HEAD").head.get("content-length"), Some("2000000"));
    client.send("GET /text HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let zipped = client.expect_response("GET");
    assert_eq!((zipped.framing, zipped.head.get("content-encoding")), (Framing::Chunked, Some("gzip")));
    assert_eq!(client.get("/missing").head.status(), 404);
    assert_eq!(client.request("POST", "/file", b"x").head.status(), 405);
    assert!(client.get("/file").body == file, "the connection goes on");
}

#[test]
fn nginx_is_served_as_a_client() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway("trusted_proxies: [\"127.0.0.1\"]"));
    let nginx = in_front(gateway.addr(), "");
    let mut client = stillgate_testkit::Client::connect(nginx.addr());
    for size in [0, 1, 1000, 100_000, 1_000_000] {
        for query in ["echo", "echo&chunked"] {
            let body = payload(size as u64, size);
            let response = client.request("POST", &format!("/?{query}"), &body);
            assert!(response.body == body, "{query} {size}");
        }
    }
    assert_eq!(client.get("/?status=204").head.status(), 204);
    client.send("HEAD /?size=77 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_response("HEAD").head.get("content-length"), Some("77"));
    assert_eq!(upstream.requests(), 12);
    assert!(gateway.status()["connections"]["total"].as_u64() < Some(6), "nginx kept its connections");
}

/// nginx's default towards its upstreams.
#[test]
fn nginx_is_served_as_a_1_0_client() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let nginx = in_front(gateway.addr(), "proxy_http_version 1.0; proxy_set_header Connection close;");
    let mut client = stillgate_testkit::Client::connect(nginx.addr());
    for query in ["size=100000&seed=4", "size=100000&seed=4&chunked", "size=100000&seed=4&close"] {
        assert!(client.get(&format!("/?{query}")).body == payload(4, 100_000), "{query}");
    }
}

fn in_front(gateway: SocketAddr, further: &str) -> Nginx {
    let version = if further.is_empty() { "proxy_http_version 1.1; proxy_set_header Connection '';" } else { further };
    Nginx::start(&format!(
        "upstream gateway {{ server {gateway}; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:{{port}}; client_max_body_size 10m; location / {{\n\
         {version} proxy_pass http://gateway; proxy_request_buffering off; proxy_buffering off; }} }}"
    ))
}

#[test]
fn h11_agrees_with_us_on_both_sides() {
    let mut server = Python::start(include_str!("../data/python/h11_server.py"), &[]);
    let port: u16 = server.announced("port ").parse().expect("a port");
    let gateway = Gateway::start(STILLGATE, &Setup::to(SocketAddr::from(([127, 0, 0, 1], port))));
    let script = include_str!("../data/python/h11_client.py");
    let port = gateway.addr().port().to_string();
    let mut clients = ["1", "2"].map(|seed| Python::start(script, &[&port, seed, "200"]));
    eventually_within(H11_PATIENCE, "the h11 clients to end", || {
        clients.iter_mut().all(|client| client.succeeded().is_some())
    });
    for client in &mut clients {
        assert_eq!(client.output(), "done 200\n");
    }
    assert!(!server.output().contains("FAULT"), "{}", server.output());
}
