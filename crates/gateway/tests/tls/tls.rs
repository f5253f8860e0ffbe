//! TLS with clients and towards nodes, with other implementations: curl, OpenSSL, nginx.

use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsClient};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Output;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    Gateway, Head, Nginx, PATIENCE, Setup, Upstream, eventually, payload, run_tool, sha256, with_longer_times,
};

/// The TLS properties of a request, as the access log shows them.
const LOG: &str = "access_log: {path: \"{dir}/access.log\", format: json, fields: [scheme, ssl_server_name, ssl_protocol, \
                   ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_fingerprint, status]}";

const FIELDS: [&str; 7] = [
    "scheme",
    "ssl_server_name",
    "ssl_protocol",
    "ssl_cipher",
    "ssl_client_verify",
    "ssl_client_s_dn",
    "ssl_client_fingerprint",
];

/// One route to `node`, served with the certificates of `ssls` (YAML lines).
fn setup(authority: &Authority, node: SocketAddr, ssls: &str, upstream: &str) -> Setup {
    let ssls = ssls.replace("{ca}", &authority.dir().display().to_string());
    let upstream = upstream.replace("{ca}", &authority.dir().display().to_string());
    Setup::resources(format!(
        "ssls:\n{ssls}\nupstreams:\n  - id: main\n    nodes: {{\"{node}\": 1}}\n{upstream}\nroutes:\n  - {{id: all, uri: /*, upstream_id: main}}\n"
    ))
    .listener("tls: true")
}

const SHOP: &str = "  - {id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [shop.example.com]}";

fn curl(gateway: &Gateway, authority: &Authority, host: &str, arguments: &[&str]) -> Output {
    let port = gateway.addr().port();
    let (ca, at) = (authority.path("ca.pem"), format!("{host}:{port}:127.0.0.1"));
    let url = format!("https://{host}:{port}/");
    let mut all = vec!["--silent", "--show-error", "--max-time", "300", "--cacert", &ca, "--resolve", &at];
    all.extend(arguments);
    // Its own arguments may name a path of their own.
    if !arguments.iter().any(|argument| argument.starts_with("https:")) {
        all.push(&url);
    }
    run_tool("curl", "curl", &all)
}

#[track_caller]
fn body(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Answers with the fields about the client's side that it received.
fn witness() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let field = |name| request.head.get(name).unwrap_or("none").to_owned();
            let body = format!("{} {} {}", field("x-forwarded-proto"), field("host"), field("x-real-ip"));
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if connection.try_send(response).is_err() {
                return;
            }
        }
    })
}

#[test]
fn curl_is_served_in_both_versions_by_name() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    authority.issue("wild", &["*.example.org"]);
    let wild = "  - {id: wild, cert: \"{ca}/wild.pem\", key: \"{ca}/wild.key\", snis: [\"*.example.org\"], ssl_protocols: [TLSv1.2]}";
    let setup = setup(&authority, upstream.addr(), &format!("{SHOP}\n{wild}"), "").gateway(LOG);
    let gateway = Gateway::start(STILLGATE, &setup);
    let port = gateway.addr().port();
    for (host, arguments) in
        [("shop.example.com", &["--tlsv1.3"][..]), ("shop.example.com", &["--tls-max", "1.2"]), ("a.example.org", &[])]
    {
        let output = curl(&gateway, &authority, host, arguments);
        assert_eq!(body(&output), format!("https {host}:{port} 127.0.0.1"));
    }
    // One version, another name, no name: refused by the handshake.
    for (host, arguments) in [("a.example.org", &["--tlsv1.3"][..]), ("b.a.example.org", &[]), ("other.test", &["-k"])]
    {
        let output = curl(&gateway, &authority, host, arguments);
        assert_eq!(output.status.code(), Some(35), "{host}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let lines: Vec<String> = log(&gateway, 3).iter().map(|line| line[..5].join(" ")).collect();
    let expected = [
        "https shop.example.com TLSv1.3 TLS_AES_256_GCM_SHA384 NONE",
        "https shop.example.com TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384 NONE",
        "https a.example.org TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384 NONE",
    ];
    assert_eq!(lines, expected);
    eventually("all handshakes to be counted", || {
        let connections = &gateway.status()["connections"];
        connections["tls_handshakes"] == 3 && connections["tls_handshake_errors"] == 3
    });
}

/// The values of each line of the access log.
fn log(gateway: &Gateway, lines: usize) -> Vec<Vec<String>> {
    let mut read = Vec::new();
    eventually("the access log", || {
        let text = std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
        let values = |line: &str| -> Vec<String> {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            FIELDS.iter().map(|field| line[field].as_str().map_or(line[field].to_string(), str::to_owned)).collect()
        };
        read = text.lines().map(values).collect();
        read.len() >= lines
    });
    read
}

#[test]
fn clients_are_asked_for_certificates_where_the_entry_says_so() {
    let (authority, stranger, upstream) = (Authority::new(), Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    authority.issue("alice", &["alice"]);
    stranger.issue("mallory", &["mallory"]);
    let entry = SHOP.replace("snis:", "client: {ca: \"{ca}/ca.pem\", depth: 2}, snis:");
    let setup = setup(&authority, upstream.addr(), &entry, "").gateway(LOG);
    let gateway = Gateway::start(STILLGATE, &setup);
    let with = |authority: &Authority, name: &str| {
        [authority.path(&format!("{name}.pem")), authority.path(&format!("{name}.key"))]
    };
    let [cert, key] = with(&authority, "alice");
    for version in ["--tlsv1.3", "--tlsv1.2"] {
        let output = curl(&gateway, &authority, "shop.example.com", &["--cert", &cert, "--key", &key, version]);
        assert!(body(&output).starts_with("https"));
    }
    let [cert, key] = with(&stranger, "mallory");
    assert!(!curl(&gateway, &authority, "shop.example.com", &["--cert", &cert, "--key", &key]).status.success());
    assert!(!curl(&gateway, &authority, "shop.example.com", &[]).status.success());
    let lines = log(&gateway, 2);
    for line in &lines {
        assert_eq!((line[4].as_str(), line[5].as_str()), ("SUCCESS", "O=Example\\, Inc.,CN=alice"));
        assert_eq!(line[6].len(), 40, "{line:?}");
    }
    assert_eq!(lines.len(), 2);
}

#[test]
fn bodies_of_any_size_go_through_both_sides() {
    let authority = Authority::new();
    authority.issue("shop", &["shop.example.com"]);
    authority.issue("node", &["node.test"]);
    let echo = Upstream::echo();
    let nginx = Nginx::start(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {0}; ssl_certificate_key {1}; client_max_body_size 0;\n\
         location / {{ proxy_pass http://127.0.0.1:{2}; proxy_http_version 1.1; }} }}",
        authority.path("node.pem"),
        authority.path("node.key"),
        echo.addr().port(),
    ));
    let upstream =
        "    scheme: https\n    pass_host: rewrite\n    upstream_host: node.test\n    tls: {ca: \"{ca}/ca.pem\"}";
    let gateway = Gateway::start(STILLGATE, &setup(&authority, nginx.addr(), SHOP, upstream));
    let dir = tempfile::tempdir().expect("a folder");
    let url = format!("https://shop.example.com:{}/?echo", gateway.addr().port());
    for (seed, len) in [0, 1, 16 * 1024 - 1, 16 * 1024 + 1, 1_000_000, 20_000_000].into_iter().enumerate() {
        let sent = payload(seed as u64, len);
        let (file, got) = (dir.path().join("sent"), dir.path().join("got"));
        std::fs::write(&file, &sent).expect("write");
        let data = format!("@{}", file.display());
        let out = got.display().to_string();
        for extra in [&["--http1.1"][..], &["-H", "Transfer-Encoding: chunked"]] {
            // On a busy machine a build that is not optimised takes its time for twenty megabytes.
            let mut arguments = vec!["--max-time", "300", "--data-binary", &data, "--output", &out, "--fail", &url];
            arguments.extend(extra);
            body(&curl(&gateway, &authority, "shop.example.com", &arguments));
            assert_eq!(sha256(&std::fs::read(&got).unwrap_or_default()), sha256(&sent), "{len} bytes");
            let _ = std::fs::remove_file(&got);
        }
    }
}

#[test]
fn a_node_must_show_a_certificate_of_its_name() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.issue("shop", &["shop.example.com"]);
    stranger.issue("node", &["node.test"]);
    authority.issue("node", &["node.test"]);
    authority.issue("gateway", &["gateway"]);
    let node = |of: &Authority, further: &str| {
        Nginx::start(&format!(
            "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {}; ssl_certificate_key {}; {further}\n\
             location / {{ return 200 \"$ssl_server_name $ssl_client_verify\"; }} }}",
            of.path("node.pem"),
            of.path("node.key"),
        ))
    };
    let (good, bad) = (node(&authority, ""), node(&stranger, ""));
    let asks = node(&authority, &format!("ssl_client_certificate {}; ssl_verify_client on;", authority.path("ca.pem")));
    const NAMED: &str = "    scheme: https\n    pass_host: rewrite\n    upstream_host: node.test\n";
    let own = "client_cert: \"{ca}/gateway.pem\", client_key: \"{ca}/gateway.key\"";
    for (node, tls, expected) in [
        (&good, "ca: \"{ca}/ca.pem\"", "node.test NONE"),
        (&good, "ca: \"{ca}/ca.pem\", sni: other.test", "502"),
        (&bad, "ca: \"{ca}/ca.pem\"", "502"),
        (&bad, "verify: false", "node.test NONE"),
        (&asks, "ca: \"{ca}/ca.pem\"", "400"),
        (&asks, &format!("ca: \"{{ca}}/ca.pem\", {own}"), "node.test SUCCESS"),
    ] {
        let setup = setup(&authority, node.addr(), SHOP, &format!("{NAMED}    tls: {{{tls}}}"));
        let gateway = Gateway::start(STILLGATE, &setup);
        // The second over the connection of the first, where there is one.
        for _ in 0..2 {
            let output = body(&curl(&gateway, &authority, "shop.example.com", &["--write-out", " %{http_code}"]));
            assert!(output.contains(expected), "{tls}: {output}");
        }
    }
}

#[test]
fn a_connection_shown_for_one_name_is_not_used_for_another() {
    let authority = Authority::new();
    authority.issue("both", &["a.test", "b.test"]);
    let nginx = Nginx::start(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
         location / {{ return 200 \"$ssl_server_name $connection\"; }} }}",
        authority.path("both.pem"),
        authority.path("both.key"),
    ));
    let ssls = "  - {id: both, cert: \"{ca}/both.pem\", key: \"{ca}/both.key\", snis: [a.test, b.test]}";
    let upstream = "    scheme: https\n    pass_host: pass\n    tls: {ca: \"{ca}/ca.pem\"}";
    let gateway = Gateway::start(STILLGATE, &setup(&authority, nginx.addr(), ssls, upstream));
    let ask = |host| body(&curl(&gateway, &authority, host, &[]));
    let (a, b) = (ask("a.test"), ask("b.test"));
    assert!(a.starts_with("a.test ") && b.starts_with("b.test "), "{a}, {b}");
    // Both are kept, each for its name.
    for _ in 0..3 {
        assert_eq!((ask("a.test"), ask("b.test")), (a.clone(), b.clone()));
    }
}

#[test]
fn a_session_is_resumed_by_another_worker() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    let setup = setup(&authority, upstream.addr(), SHOP, "").gateway("workers: 4");
    let gateway = Gateway::start(STILLGATE, &setup);
    let (at, ca) = (gateway.addr().to_string(), authority.path("ca.pem"));
    let ticket = authority.path("ticket");
    for version in ["-tls1_3", "-tls1_2"] {
        let connect = |how: &[&str]| {
            let mut words = vec![
                "-c",
                "printf 'GET / HTTP/1.1\\r\\nHost: shop.example.com\\r\\nConnection: close\\r\\n\\r\\n' | timeout 20 openssl s_client \"$@\"",
                "sh",
            ];
            words.extend(["-connect", &at, "-servername", "shop.example.com", "-CAfile", &ca, "-ign_eof", version]);
            words.extend(how);
            let output = run_tool("sh", "dash", &words);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let first = connect(&["-sess_out", &ticket]);
        assert!(first.contains("New, TLSv1"), "{first}");
        for _ in 0..8 {
            let next = connect(&["-sess_in", &ticket]);
            assert!(next.contains("Reused, TLSv1"), "{next}");
        }
    }
}

#[test]
fn a_client_without_tls_is_reported() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    with_longer_times(Duration::from_secs(1), "a request in time", |head| {
        let timeouts = format!("timeouts: {{head: {}ms}}", head.as_millis());
        let gateway = Gateway::start(STILLGATE, &setup(&authority, upstream.addr(), SHOP, "").gateway(&timeouts));
        is_told_so(&gateway, head)
    });
}

/// False: the machine delayed the client for as long as its first bytes may take.
fn is_told_so(gateway: &Gateway, head: Duration) -> bool {
    let connected = Instant::now();
    let Ok(answer) = gateway.client().try_request("GET", "/", b"") else {
        assert!(connected.elapsed() >= head * 8 / 10, "{:?}", connected.elapsed());
        return false;
    };
    assert_eq!(answer.head.status(), 400);
    assert!(String::from_utf8_lossy(&answer.body).contains("this port speaks TLS"));
    let garbage: [&[u8]; 4] =
        [&[0; 100], &[22, 3, 1, 255, 255, 1, 0, 0, 0], b"\x80\x2e\x01\x03\x01", &[22, 3, 1, 0, 4, 1, 0, 0, 0]];
    for bytes in garbage {
        let mut stream = TcpStream::connect(gateway.addr()).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(bytes).expect("send");
        // An alert or nothing, and the end.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
    }
    // A client that sends nothing, and one that stops in the middle of its ClientHello.
    for bytes in [&b""[..], &[22, 3, 1, 2, 0, 1]] {
        let began = Instant::now();
        let mut stream = TcpStream::connect(gateway.addr()).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // It may be closed by now.
        let _ = stream.write_all(bytes);
        let end = stream.read_to_end(&mut Vec::new());
        assert!(matches!(end, Ok(0)) || began.elapsed() >= head && end.is_err(), "{end:?}");
        let took = began.elapsed();
        // A worker that stood still when it took the connection may use an earlier time.
        assert!(head / 2 < took, "{took:?}");
    }
    let errors = || gateway.status()["connections"]["tls_handshake_errors"].as_u64();
    eventually("all of them to be counted", || errors() >= Some(6));
    true
}

#[test]
fn many_half_open_handshakes_leave_the_others_alone() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    // None of them is over before the last has come.
    let setup = setup(&authority, upstream.addr(), SHOP, "").gateway("timeouts: {head: 10m}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let half_open: Vec<TcpStream> = (0..2_000)
        .map(|_| {
            let mut stream = TcpStream::connect(gateway.addr()).expect("connect");
            stream.write_all(&[22, 3, 1, 2, 0, 1]).expect("send");
            stream
        })
        .collect();
    // Within curl's five minutes, not within the ten minutes that the others have.
    body(&curl(&gateway, &authority, "shop.example.com", &[]));
    assert!(gateway.status()["connections"]["open"].as_u64().expect("a number") >= half_open.len() as u64);
    drop(half_open);
    eventually("them to be gone", || gateway.status()["connections"]["open"] == 0);
}

#[test]
fn tls_on_a_plain_port_is_refused_with_a_status() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut stream = TcpStream::connect(gateway.addr()).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").expect("send");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", answer.escape_ascii());
}

#[test]
fn a_host_that_asks_for_certificates_is_not_reached_by_another_name() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    authority.issue("inner", &["inner.example.com"]);
    let inner = "  - {id: inner, cert: \"{ca}/inner.pem\", key: \"{ca}/inner.key\", client: {ca: \"{ca}/ca.pem\"}, snis: [inner.example.com]}";
    let gateway = Gateway::start(STILLGATE, &setup(&authority, upstream.addr(), &format!("{SHOP}\n{inner}"), ""));
    for (host, expected) in [
        ("inner.example.com", "421"),
        ("inner.example.com:443", "421"),
        ("INNER.example.com", "421"),
        ("shop.example.com", "200"),
    ] {
        let header = format!("Host: {host}");
        let arguments = ["--header", &header, "--output", "/dev/null", "--write-out", "%{http_code}"];
        assert_eq!(body(&curl(&gateway, &authority, "shop.example.com", &arguments)), expected, "{host}");
    }
}

#[test]
fn http2_is_agreed_on_where_the_listener_speaks_it() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    for (listener, expected) in [("http2: true", "2"), ("http2: false", "1.1")] {
        let gateway = Gateway::start(STILLGATE, &setup(&authority, upstream.addr(), SHOP, "").listener(listener));
        let output = curl(&gateway, &authority, "shop.example.com", &["--http2", "--write-out", " %{http_version}"]);
        let body = body(&output);
        assert!(body.starts_with("https ") && body.ends_with(&format!(" {expected}")), "{body}");
    }
}

/// The bytes of a request and its response over a connection that stays open.
struct PersistentClient {
    stream: TlsClient,
}

impl PersistentClient {
    fn connect(gateway: &Gateway, authority: &Authority, name: &str) -> PersistentClient {
        PersistentClient { stream: authority.connect(gateway.addr(), name, &[]) }
    }

    fn status(&mut self, host: &str) -> u16 {
        write!(self.stream, "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("a request");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.stream.read_exact(&mut byte).expect("a response");
            head.push(byte[0]);
        }
        let head = Head::parse(&head).expect("a head");
        let length = head.get("content-length").expect("a length").parse().expect("a number");
        self.stream.read_exact(&mut vec![0; length]).expect("the body");
        head.status()
    }
}

#[test]
fn a_connection_made_before_certificates_were_asked_for_does_not_go_on_without() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    let gateway = Gateway::start(STILLGATE, &setup(&authority, upstream.addr(), SHOP, ""));
    let mut kept = PersistentClient::connect(&gateway, &authority, "shop.example.com");
    assert_eq!(kept.status("shop.example.com"), 200);
    let asking = SHOP.replace("snis:", "client: {ca: \"{ca}/ca.pem\"}, snis:");
    gateway.reload(&setup(&authority, upstream.addr(), &asking, ""));
    assert_eq!(kept.status("shop.example.com"), 421);
}

#[test]
fn connections_to_nodes_end_where_a_reload_asks_more_of_them() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.issue("shop", &["shop.example.com"]);
    stranger.issue("node", &["node.test"]);
    let nginx = Nginx::start(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200; }} }}",
        stranger.path("node.pem"),
        stranger.path("node.key"),
    ));
    let to = |tls: &str| {
        let upstream =
            format!("    scheme: https\n    pass_host: rewrite\n    upstream_host: node.test\n    tls: {{{tls}}}");
        setup(&authority, nginx.addr(), SHOP, &upstream)
    };
    let gateway = Gateway::start(STILLGATE, &to("verify: false"));
    let ask = || {
        body(&curl(&gateway, &authority, "shop.example.com", &["--output", "/dev/null", "--write-out", "%{http_code}"]))
    };
    assert_eq!(ask(), "200");
    gateway.reload(&to("ca: \"{ca}/ca.pem\""));
    assert_eq!(ask(), "502", "the node's certificate is of nobody's that is trusted");
    gateway.reload(&to("verify: false"));
    assert_eq!(ask(), "200");
}

#[test]
fn the_log_says_what_a_handshake_with_a_node_failed_of() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let plain = Nginx::start("server { listen 127.0.0.1:{port}; location / { return 200; } }");
    authority.issue("shop", &["shop.example.com"]);
    stranger.issue("node", &["node.test"]);
    authority.issue("node", &["node.test"]);
    let node = |of: &Authority| {
        let (cert, key) = (of.path("node.pem"), of.path("node.key"));
        let ssl = format!("ssl_certificate {cert}; ssl_certificate_key {key}");
        Nginx::start(&format!("server {{ listen 127.0.0.1:{{port}} ssl; {ssl}; location / {{ return 200; }} }}"))
    };
    let (good, bad) = (node(&authority), node(&stranger));
    for (node, host, expected) in [
        (plain.addr(), "node.test", "if it does not speak TLS write `scheme: http`"),
        (bad.addr(), "node.test", "name the roots of its certificate in `tls.ca`"),
        (good.addr(), "other.test", "name the one it has a certificate of in `tls.sni`"),
    ] {
        let upstream = format!(
            "    scheme: https\n    pass_host: rewrite\n    upstream_host: {host}\n    tls: {{ca: \"{{ca}}/ca.pem\"}}"
        );
        let gateway = Gateway::start(STILLGATE, &setup(&authority, node, SHOP, &upstream));
        let output =
            curl(&gateway, &authority, "shop.example.com", &["--output", "/dev/null", "--write-out", "%{http_code}"]);
        assert_eq!(body(&output), "502");
        eventually("the reason in the log", || gateway.log().contains(expected));
    }
}

#[test]
fn a_star_is_for_the_names_that_no_other_entry_has() {
    let (authority, upstream) = (Authority::new(), witness());
    authority.issue("shop", &["shop.example.com"]);
    authority.issue("any", &["else.test"]);
    let any = "  - {id: any, cert: \"{ca}/any.pem\", key: \"{ca}/any.key\", snis: [\"*\"]}";
    for ssls in [format!("{SHOP}\n{any}"), format!("{any}\n{SHOP}")] {
        let gateway = Gateway::start(STILLGATE, &setup(&authority, upstream.addr(), &ssls, ""));
        let port = gateway.addr().port();
        // Neither certificate has the name of the other, and curl checks it.
        for host in ["shop.example.com", "else.test"] {
            let output = curl(&gateway, &authority, host, &[]);
            assert_eq!(body(&output), format!("https {host}:{port} 127.0.0.1"));
        }
        // The certificate does not have this name, which curl alone minds.
        let refused = curl(&gateway, &authority, "other.test", &[]);
        assert_eq!(refused.status.code(), Some(60), "{}", String::from_utf8_lossy(&refused.stderr));
        assert_eq!(
            body(&curl(&gateway, &authority, "other.test", &["-k"])),
            format!("https other.test:{port} 127.0.0.1")
        );
    }
}
