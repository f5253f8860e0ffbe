//! Streams through TLS: ours, the node's by the name that the client sends, and TLS towards nodes.

use crate::shared::authority::{Authority, TlsClient};
use crate::shared::streams::{Streams, lines, nodes_of};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use stillgate_testkit::{END_PATIENCE, MessageError, Upstream, eventually, payload, require_tool};

fn ssl(authority: &Authority, name: &str) -> String {
    let ca = authority.dir().display();
    format!(
        "ssls: [{{id: {name}, cert: \"{ca}/{name}.pem\", key: \"{ca}/{name}.key\", snis: [\"{name}.test\", \"*.{name}.test\"]}}]\n"
    )
}

/// Sends `ping`, and gets it back with the name of the node before it.
#[track_caller]
fn ask(client: &mut TlsClient) -> String {
    client.write_all(b"ping\n").expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer and an orderly end");
    answer
}

/// A node that answers one line with its name and the line, through TLS by its certificate, and ends.
fn tls_node(authority: &std::sync::Arc<Authority>, name: &'static str) -> Upstream {
    let authority = authority.clone();
    Upstream::serve(move |connection| {
        let Ok(socket) = connection.stream().try_clone() else { return };
        let mut stream = authority.serve(socket, name, &[]);
        let mut line = [0; 5];
        if stream.read_exact(&mut line).is_ok() {
            let answer = format!("{name} {}", String::from_utf8_lossy(&line));
            // A client that is gone has its answer or does not want it.
            let _ = stream.write_all(answer.as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    })
}

#[test]
fn tls_ends_here_and_the_node_gets_what_was_in_it() {
    let authority = Authority::new();
    authority.issue("shop", &["shop.test", "*.shop.test"]);
    let upstream = Upstream::bind();
    let nodes = nodes_of(&[upstream.addr()]);
    let streams = Streams::new(format!(
        "{}stream_routes:\n- {{id: other, sni: other.shop.test, upstream: {{nodes: {{\"127.0.0.1:1\": 1}}}}}}\n\
         - {{id: shop, sni: \"*.test\", upstream: {{{nodes}}}}}\n",
        ssl(&authority, "shop")
    ))
    .listener("tls: true");
    let gateway = streams.start();
    // An unknown protocol is not a reason to refuse it.
    let mut client = authority.connect(streams.addr(), "shop.test", &["postgresql"]);
    client.write_all(b"ping").expect("sent");
    let mut node = upstream.accept();
    assert_eq!(node.read_exactly(4).expect("what the client sent"), b"ping");
    let much = payload(1, 3 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| node.send(&much));
        let mut got = vec![0; much.len()];
        client.read_exact(&mut got).expect("what the node sent");
        assert!(got == much);
    });
    assert_eq!(client.conn.alpn_protocol(), None);
    // The node's end reaches the client as one of TLS.
    node.half_close();
    assert_eq!(client.read(&mut [0; 9]).expect("an orderly end"), 0);
    client.conn.send_close_notify();
    client.flush().expect("sent");
    drop(client);
    assert_eq!(node.read_to_end().expect("an orderly end"), b"");
    let line = lines(&gateway, 1).remove(0);
    assert_eq!((line["ssl_server_name"].as_str(), line["route_id"].as_str()), (Some("shop.test"), Some("shop")));
    // One without TLS gets no answer, and no node.
    let mut plain = streams.client();
    plain.send("GET / HTTP/1.1\r\n\r\n");
    assert!(!matches!(plain.read_to_end(), Ok(bytes) if bytes.starts_with(b"HTTP")));
    assert!(upstream.try_accept().is_none());
    eventually("it to be counted", || gateway.status()["connections"]["tls_handshake_errors"] == 1);
}

/// A stream route's wildcard matches any number of labels, that of `ssls` one: names in between get no node without the certificate
/// that the name requires.
#[test]
fn a_name_asks_for_certificates_at_any_depth() {
    let authority = Authority::new();
    authority.issue("shop", &["shop.test", "*.shop.test"]);
    authority.issue("open", &["a.b.shop.test", "open.test"]);
    authority.issue("alice", &["alice"]);
    let (ca, upstream) = (authority.dir().display(), Upstream::bind());
    let streams = Streams::new(format!(
        "ssls:\n- {{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [\"*.shop.test\"], client: {{ca: \"{ca}/ca.pem\"}}}}\n\
         - {{id: open, cert: \"{ca}/open.pem\", key: \"{ca}/open.key\", default: true}}\n\
         stream_routes: [{{id: all, sni: \"*.test\", upstream: {{{}}}}}]\n",
        nodes_of(&[upstream.addr()])
    ))
    .listener("tls: true");
    let gateway = streams.start();
    let mut client = authority.connect(streams.addr(), "a.b.shop.test", &[]);
    // It may be closed before or after this is written.
    let _ = client.write_all(b"ping");
    assert!(!matches!(client.read(&mut [0; 9]), Ok(1..)));
    let line = lines(&gateway, 1).remove(0);
    assert_eq!((line["status"].as_u64(), line["ssl_server_name"].as_str()), (Some(421), Some("a.b.shop.test")));
    assert!(upstream.try_accept().is_none());
    for mut client in [
        authority.connect(streams.addr(), "open.test", &[]),
        authority.connect_as(streams.addr(), "a.shop.test", &[], (&authority, "alice")),
    ] {
        client.write_all(b"ping").expect("sent");
        assert_eq!(upstream.accept().read_exactly(4).expect("what the client sent"), b"ping");
    }
}

#[test]
fn an_end_does_not_wait_for_clients_that_say_nothing() {
    let authority = Authority::new();
    authority.issue("shop", &["shop.test", "*.shop.test"]);
    let resources = format!("{}stream_routes: [{{upstream: {{nodes: {{}}}}}}]\n", ssl(&authority, "shop"));
    for listener in ["tls: true", "tls_passthrough: true"] {
        let streams = Streams::new(&*resources).listener(listener).gateway("timeouts: {drain: 1h}");
        let mut gateway = streams.start();
        let _silent = streams.client();
        eventually("the connection to be accepted", || gateway.status()["connections"]["open"] == 1);
        gateway.signal("TERM");
        assert!(gateway.wait_within(END_PATIENCE).success(), "{listener}");
    }
}

#[test]
fn openssl_is_understood() {
    require_tool("openssl", "openssl");
    let authority = Authority::new();
    authority.issue("shop", &["shop.test", "*.shop.test"]);
    let upstream = Upstream::bind();
    let streams = Streams::new(format!(
        "{}stream_routes: [{{upstream: {{{}}}}}]\n",
        ssl(&authority, "shop"),
        nodes_of(&[upstream.addr()])
    ))
    .listener("tls: true");
    let _gateway = streams.start();
    for version in ["-tls1_2", "-tls1_3"] {
        let mut client = Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_return_error", "-servername", "a.shop.test", version])
            .args(["-CAfile", &authority.path("ca.pem"), "-connect", &streams.addr().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("run openssl");
        client.stdin.as_mut().expect("a pipe").write_all(b"question\n").expect("sent");
        let mut node = upstream.accept();
        assert_eq!(node.read_exactly(9).expect("what the client sent"), b"question\n");
        node.send("answer\n");
        drop(node);
        let output = client.wait_with_output().expect("its end");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "answer\n", "{version}");
    }
}

/// Three nodes with certificates of their own; the name selects the one that answers.
#[test]
fn the_name_decides_and_the_handshake_is_the_nodes() {
    let authority = std::sync::Arc::new(Authority::new());
    authority.issue("exact", &["a.shop.test"]);
    authority.issue("wide", &["*.shop.test"]);
    authority.issue("rest", &["rest.test", "127.0.0.1"]);
    let nodes = ["exact", "wide", "rest"].map(|name| tls_node(&authority, name));
    let mut resources = "stream_routes:\n".to_owned();
    for (at, sni) in ["", "sni: \"*.shop.test\", ", "sni: A.shop.test, "].into_iter().enumerate() {
        let node = nodes_of(&[nodes[2 - at].addr()]);
        resources += &format!("- {{id: \"{}\", {sni}upstream: {{{node}}}}}\n", ["rest", "wide", "exact"][at]);
    }
    let streams = Streams::new(resources).listener("tls_passthrough: true");
    let mut gateway = streams.start();
    for (name, expected) in [
        ("a.shop.test", "exact"),
        ("A.Shop.Test", "exact"),
        ("b.shop.test", "wide"),
        ("rest.test", "rest"),
        // For an address, clients send no name.
        ("127.0.0.1", "rest"),
    ] {
        let mut client = authority.connect(streams.addr(), name, &["h2"]);
        assert_eq!(ask(&mut client), format!("{expected} ping\n"), "{name}");
    }
    let told = lines(&gateway, 5);
    let of = |name: &str| told.iter().filter(|line| line["ssl_server_name"] == name).count();
    assert_eq!((of("a.shop.test"), of("b.shop.test"), of("rest.test")), (2, 1, 1), "{told:#?}");
    assert_eq!(told.iter().filter(|line| line["ssl_server_name"].is_null()).count(), 1);
    assert!(told.iter().all(|line| line["bytes_received"].as_u64() > Some(200)), "the hello counts: {told:#?}");
    gateway.assert_healthy();
}

/// The bytes of a client's ClientHello.
fn hello(authority: &Authority, name: &str, alpn: &[&str]) -> Vec<u8> {
    let (mut client, mut bytes) = (authority.client(name, alpn), Vec::new());
    while client.wants_write() {
        client.write_tls(&mut bytes).expect("written");
    }
    bytes
}

#[test]
fn a_hello_may_come_in_any_pieces_and_be_long() {
    let authority = Authority::new();
    let upstream = Upstream::bind();
    let streams =
        Streams::new(format!("stream_routes: [{{sni: a.test, upstream: {{{}}}}}]\n", nodes_of(&[upstream.addr()])))
            .listener("tls_passthrough: true");
    let gateway = streams.start();
    let short = hello(&authority, "a.test", &[]);
    let mut client = streams.client();
    for byte in &short {
        client.send([*byte]);
    }
    client.send("more");
    let mut node = upstream.accept();
    assert!(node.read_exactly(short.len() + 4).expect("all of it") == [&short[..], b"more"].concat());
    // It is longer than a record, and than other implementations read.
    let long_words: Vec<String> = (0..180).map(|n| format!("{n:0>200}")).collect();
    let long = hello(&authority, "a.test", &long_words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(long.len() > 2 * 16384, "{}", long.len());
    let mut client = streams.client();
    client.send(&long[..20_000]);
    client.send(&long[20_000..]);
    let mut node = upstream.accept();
    assert!(node.read_exactly(long.len()).expect("all of it") == long);
    assert_eq!(gateway.status()["connections"]["tls_handshake_errors"], 0);
}

#[test]
fn what_is_not_a_hello_reaches_no_node() {
    let authority = Authority::new();
    let upstream = Upstream::bind();
    let streams = Streams::new(format!("stream_routes: [{{upstream: {{{}}}}}]\n", nodes_of(&[upstream.addr()])))
        .listener("tls_passthrough: true")
        .gateway("timeouts: {head: 2s}");
    let mut gateway = streams.start();
    let good = hello(&authority, "a.test", &[]);
    let huge = [&b"\x16\x03\x01\x40\x00\x01\x00\xff\xff"[..], &[0; 16380]].concat();
    let garbage: [&[u8]; 5] =
        [b"GET / HTTP/1.1\r\n\r\n", b"\x15\x03\x01\0\x02\x01\0", b"\x16\x03\x01\0\0", &huge, b"\0"];
    for (count, bytes) in garbage.iter().enumerate() {
        let mut client = streams.client();
        // It may be closed before all of it is out.
        let _ = client.try_send(bytes);
        assert!(!matches!(client.read_to_end(), Ok(answer) if !answer.is_empty()));
        eventually("it to be counted", || gateway.status()["connections"]["tls_handshake_errors"] == count + 1);
    }
    // Cut, and late.
    let mut client = streams.client();
    client.send(&good[..50]);
    client.half_close();
    client.expect_close();
    let (since, cpu) = (Instant::now(), gateway.cpu());
    let mut client = streams.client();
    client.send(&good[..50]);
    client.expect_close();
    // A worker that stood still when it took the connection may use an earlier time.
    assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
    assert!(gateway.cpu() - cpu < since.elapsed() / 2);
    // A client that sends nothing at all is not counted.
    streams.client().half_close();
    eventually("all to be counted", || gateway.status()["connections"]["tls_handshake_errors"] == garbage.len() + 2);
    eventually("the log to tell of it", || gateway.log().contains("closed before their first request"));
    assert!(upstream.try_accept().is_none());
    gateway.assert_healthy();
}

#[test]
fn nodes_are_spoken_to_through_tls() {
    let authority = std::sync::Arc::new(Authority::new());
    authority.issue("mail", &["mail.test"]);
    authority.issue("other", &["other.test"]);
    let node = tls_node(&authority, "mail");
    let nodes = nodes_of(&[node.addr()]);
    let ca = authority.path("ca.pem");
    let resources =
        |tls: &str| format!("stream_routes: [{{id: all, upstream: {{scheme: tls, tls: {{{tls}}}, {nodes}}}}}]\n");
    let mut streams = Streams::new(resources(&format!("ca: \"{ca}\", sni: mail.test")));
    let gateway = streams.start();
    let ask = |streams: &Streams| {
        let mut client = streams.client();
        client.send("ping\n");
        client.read_to_end()
    };
    assert_eq!(ask(&streams).expect("an answer and an end"), b"mail ping\n");
    // With another name, the node fails verification.
    streams.resources = resources(&format!("ca: \"{ca}\", sni: other.test"));
    gateway.reload(&streams.setup());
    let refused: Result<Vec<u8>, MessageError> = ask(&streams);
    assert!(refused.is_err() || refused.is_ok_and(|bytes| bytes.is_empty()));
    assert_eq!(lines(&gateway, 2)[1]["status"], 502);
    eventually("the log to tell why", || gateway.log().contains("name the one it has a certificate of in `tls.sni`"));
    streams.resources = resources("verify: false");
    gateway.reload(&streams.setup());
    assert_eq!(ask(&streams).expect("an answer and an end"), b"mail ping\n");
}
