//! TLS besides its data: handshakes in odd pieces and sizes, renegotiation, key updates.

use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsServer, patient};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use stillgate_testkit::{Gateway, PATIENCE, ReservedPort, Setup, Upstream, eventually, require_tool, run_tool};
use stillgate_tls::rustls::{HandshakeKind, NamedGroup, StreamOwned};

const NAME: &str = "shop.example.com";
const GET: &[u8] = b"GET /?size=5 HTTP/1.1\r\nHost: shop.example.com\r\n\r\n";
/// Maximum growth in any of this. The build under test is not optimised.
const GROWTH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Number of key updates that rustls accepts without data in between.
const KEY_UPDATES: usize = 32;

/// TLS towards clients, and towards `node` where it speaks it.
fn gateway(authority: &Authority, node: SocketAddr, upstream: &str, entry: &str) -> Gateway {
    authority.issue("shop", &[NAME]);
    let ca = authority.dir().display();
    let setup = Setup::resources(format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}]{entry}}}]\n\
         upstreams: [{{id: u, retries: 0, nodes: {{\"{node}\": 1}}{upstream}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n"
    ));
    Gateway::start(STILLGATE, &setup.listener("tls: true"))
}

/// TLS towards the node, with the name `node.test`.
fn towards(authority: &Authority) -> String {
    authority.issue("node", &["node.test"]);
    let ca = authority.path("ca.pem");
    format!(", scheme: https, pass_host: rewrite, upstream_host: node.test, tls: {{ca: \"{ca}\"}}")
}

/// One request and its whole response.
fn ask(stream: &mut (impl Read + Write)) -> io::Result<String> {
    stream.write_all(GET)?;
    let mut response = Vec::new();
    while !response.windows(4).any(|end| end == b"\r\n\r\n") || !response.ends_with(&stillgate_testkit::payload(0, 5)) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        response.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&response[..12]).into_owned())
}

fn assert_served(gateway: &Gateway, authority: &Authority) {
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200");
}

/// OpenSSL's own client or server, which takes commands in the middle of a connection.
struct OpenSsl {
    child: Child,
    output: PathBuf,
    _dir: tempfile::TempDir,
}

impl OpenSsl {
    fn start(arguments: &[&str]) -> OpenSsl {
        require_tool("openssl", "openssl");
        let dir = tempfile::tempdir().expect("a folder");
        let output = dir.path().join("output");
        let out = File::create(&output).expect("a file");
        let child = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(out.try_clone().expect("a second handle"))
            .stdout(out)
            .spawn()
            .expect("start openssl");
        OpenSsl { child, output, _dir: dir }
    }

    fn client(gateway: &Gateway, authority: &Authority, option: &str) -> OpenSsl {
        let (at, ca) = (gateway.addr().to_string(), authority.path("ca.pem"));
        let client = OpenSsl::start(&["s_client", "-connect", &at, "-servername", NAME, "-CAfile", &ca, option]);
        client.wait_for("Verify return code: 0");
        client
    }

    fn say(&mut self, text: &str) {
        // If the process has ended, its output shows it.
        let _ = self.child.stdin.as_mut().expect("its input is ours").write_all(text.as_bytes());
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    fn wait_for(&self, text: &str) {
        eventually(&format!("{text:?} from openssl"), || self.output().contains(text));
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("an own child").is_some()
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- openssl ---\n{}\n---", self.output());
        }
    }
}

#[test]
fn renegotiation_by_a_client_is_refused() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let mut gateway = gateway(&authority, upstream.addr(), "", "");
    let mut other = authority.connect(gateway.addr(), NAME, &[]);
    assert_eq!(ask(&mut other).expect("a response"), "HTTP/1.1 200");
    for _ in 0..5 {
        let mut client = OpenSsl::client(&gateway, &authority, "-tls1_2");
        client.say("R\n");
        client.wait_for("RENEGOTIATING");
        client.wait_for("no renegotiation");
        eventually("it to give up", || client.has_ended());
    }
    assert_eq!(ask(&mut other).expect("a response"), "HTTP/1.1 200");
    assert_served(&gateway, &authority);
    drop(other);
    eventually("no client", || gateway.status()["connections"]["open"] == 0);
    // Clients must not be able to fill the log.
    assert!(!gateway.log().contains("rustls"), "{}", gateway.log());
    gateway.assert_healthy();
}

/// The node answers it in the same way; whether the node goes on is its own affair.
#[test]
fn renegotiation_by_a_node_is_refused() {
    let (authority, port) = (Authority::new(), ReservedPort::new());
    let upstream = towards(&authority) + ", timeout: {read: 120s}";
    let mut gateway = gateway(&authority, port.addr(), &upstream, "");
    let (certificate, key) = (authority.path("node.pem"), authority.path("node.key"));
    let at = port.addr().to_string();
    let mut node = OpenSsl::start(&["s_server", "-accept", &at, "-cert", &certificate, "-key", &key, "-tls1_2"]);
    node.wait_for("ACCEPT");
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    client.write_all(GET).expect("a request");
    node.wait_for("GET /?size=5");
    node.say("r\n");
    let mut status = [0; 12];
    client.read_exact(&mut status).expect("a response");
    assert_eq!(&status, b"HTTP/1.1 502", "OpenSSL gives up where renegotiation is refused");
    gateway.assert_healthy();
}

/// What was recorded today cannot be read by a quantum computer later.
#[test]
fn keys_are_exchanged_post_quantum_with_clients_and_nodes() {
    let (authority, (groups, of_node)) = (Arc::new(Authority::new()), mpsc::sync_channel(1));
    let own = authority.clone();
    let towards_node = towards(&authority);
    let node = Upstream::serve(move |connection| {
        let stream = connection.stream().try_clone().expect("a handle");
        let mut tls = own.serve(stream, "node", &[]);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if tls.read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        groups.send(tls.conn.negotiated_key_exchange_group().map(|group| group.name())).expect("the test waits");
        let body = stillgate_testkit::payload(0, 5);
        let response = [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", &body[..]].concat();
        tls.write_all(&response).expect("a response");
    });
    let gateway = gateway(&authority, node.addr(), &towards_node, "");
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200");
    let of_client = client.conn.negotiated_key_exchange_group().map(|group| group.name());
    assert_eq!(of_client, Some(NamedGroup::X25519MLKEM768));
    assert_eq!(of_node.recv_timeout(PATIENCE), Ok(Some(NamedGroup::X25519MLKEM768)));
}

/// OpenSSL 3.0 knows no such exchange.
#[test]
fn a_client_without_post_quantum_keys_is_served() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let gateway = gateway(&authority, upstream.addr(), "", "");
    let mut client = OpenSsl::client(&gateway, &authority, "-groups=X25519");
    client.say("GET /?size=5 HTTP/1.1\r\nHost: shop.example.com\r\n\r\n");
    client.wait_for("HTTP/1.1 200 ");
}

/// Somebody on the way to the node may send first (CVE-2026-1642).
#[test]
fn what_a_node_sends_without_tls_is_no_response() {
    let authority = Authority::new();
    let node = Upstream::serve(|connection| {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
        if connection.stream().write_all(response).is_ok() {
            // Whatever comes, until the gateway gives up.
            let _ = connection.stream().read_to_end(&mut Vec::new());
        }
    });
    let gateway = gateway(&authority, node.addr(), &towards(&authority), "");
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    client.write_all(GET).expect("a request");
    let mut status = [0; 12];
    client.read_exact(&mut status).expect("a response");
    assert_eq!(&status, b"HTTP/1.1 502");
}

/// What is sent early could be sent again by others.
#[test]
fn tickets_allow_no_early_data() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let gateway = gateway(&authority, upstream.addr(), "", "");
    let config = authority.client_config(&[], |config| config.enable_early_data = true);
    for is_resumed in [false, true] {
        let mut client = authority.connect_with(gateway.addr(), NAME, &config);
        assert!(client.conn.early_data().is_none());
        assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200");
        assert_eq!(client.conn.handshake_kind() == Some(HandshakeKind::Resumed), is_resumed);
    }
}

#[test]
fn key_updates_are_followed() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let gateway = gateway(&authority, upstream.addr(), "", "");
    let mut client = OpenSsl::client(&gateway, &authority, "-tls1_3");
    for round in 1..=5 {
        // The update comes with and without a request to do the same.
        for command in ["K\n", "k\n"] {
            let before = client.output().matches("KEYUPDATE").count();
            client.say(command);
            eventually("the key update", || client.output().matches("KEYUPDATE").count() > before);
        }
        client.say("GET /?size=5 HTTP/1.1\r\nHost: shop.example.com\r\n\r\n");
        eventually("a response", || client.output().matches("HTTP/1.1 200 ").count() == round);
    }
}

#[test]
fn floods_of_key_updates_by_a_client_end_its_connection() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let mut gateway = gateway(&authority, upstream.addr(), "", "");
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200");
    for _ in 0..100 {
        client.conn.refresh_traffic_keys().expect("a key update");
        assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200", "with requests between them they are fine");
    }
    let rss = gateway.rss();
    for _ in 0..10_000 {
        client.conn.refresh_traffic_keys().expect("a key update");
        if client.conn.complete_io(&mut client.sock).is_err() {
            break;
        }
    }
    assert!(ask(&mut client).is_err(), "more than {KEY_UPDATES} without data between them");
    assert!(gateway.rss().saturating_sub(rss) < GROWTH_BYTES_MAX);
    assert_served(&gateway, &authority);
    gateway.assert_healthy();
}

#[test]
fn floods_of_key_updates_by_a_node_fail_its_request() {
    let (authority, node) = (Authority::new(), Upstream::bind());
    let mut gateway = gateway(&authority, node.addr(), &towards(&authority), "");
    for (updates, expected) in [(KEY_UPDATES, &b"HTTP/1.1 200"[..]), (10_000, b"HTTP/1.1 502")] {
        let mut client = authority.connect(gateway.addr(), NAME, &[]);
        client.write_all(GET).expect("a request");
        let socket = node.accept().stream().try_clone().expect("a handle");
        let mut peer: TlsServer = authority.serve(socket, "node", &[]);
        let mut request = vec![0; 20];
        peer.read_exact(&mut request).expect("a request");
        for _ in 0..updates {
            peer.conn.refresh_traffic_keys().expect("a key update");
            while peer.conn.wants_write() {
                if peer.conn.write_tls(&mut peer.sock).is_err() {
                    break;
                }
            }
        }
        let _ = peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let mut status = [0; 12];
        client.read_exact(&mut status).expect("a response");
        assert_eq!(&status, expected, "{updates}");
    }
    gateway.assert_healthy();
}

/// Writes one byte at a time.
struct Bytewise(TcpStream);

impl Read for Bytewise {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.0.read(space)
    }
}

impl Write for Bytewise {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn records_may_come_byte_by_byte() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let gateway = gateway(&authority, upstream.addr(), "", "");
    for alpn in [&[][..], &["http/1.1"]] {
        let stream = TcpStream::connect(gateway.addr()).expect("connect");
        stream.set_nodelay(true).expect("no delay");
        let mut client = StreamOwned::new(authority.client(NAME, alpn), Bytewise(patient(stream)));
        for _ in 0..2 {
            assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200");
        }
    }
}

#[test]
fn a_hello_may_be_large_and_not_endless() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let gateway = gateway(&authority, upstream.addr(), "", "");
    // It takes several records.
    let names: Vec<String> = (0..200).map(|number| format!("{number:0200}")).collect();
    let mut alpn: Vec<&str> = names.iter().map(String::as_str).collect();
    alpn.push("http/1.1");
    let mut client = authority.connect(gateway.addr(), NAME, &alpn);
    assert_eq!(ask(&mut client).expect("a response"), "HTTP/1.1 200");

    let rss = gateway.rss();
    let mut endless = patient(TcpStream::connect(gateway.addr()).expect("connect"));
    // A ClientHello of 16 MiB less a byte, in records of the maximum size.
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    record.resize(5 + 0x4000, 0);
    let mut sent = 0;
    while sent < 64 * 1024 * 1024 && endless.write_all(&record).is_ok() {
        sent += record.len();
    }
    assert!(sent < 32 * 1024 * 1024, "{sent} bytes of a hello were taken");
    assert!(gateway.rss().saturating_sub(rss) < GROWTH_BYTES_MAX);
    assert_served(&gateway, &authority);
}

#[test]
fn what_cannot_be_agreed_on_is_refused_by_an_alert() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    let only = gateway(&authority, upstream.addr(), "", ", ssl_protocols: [TLSv1.3]");
    let any = gateway(&authority, upstream.addr(), "", "");
    let (ca, at) =
        (authority.path("ca.pem"), |gateway: &Gateway| format!("{NAME}:{}:127.0.0.1", gateway.addr().port()));
    for (gateway, how, exit) in [
        (&only, &["--tls-max", "1.2"][..], 35),
        (&only, &["--tlsv1.3"], 0),
        (&any, &["--tls-max", "1.2"], 0),
        (&any, &["--tlsv1.3"], 0),
        // OpenSSL does not offer these below its lowest level of security.
        (&any, &["--tls-max", "1.1", "--tlsv1.0", "--ciphers", "DEFAULT@SECLEVEL=0"], 35),
        (&any, &["--tls-max", "1.2", "--ciphers", "AES128-SHA"], 35),
    ] {
        let (resolve, url) = (at(gateway), format!("https://{NAME}:{}/", gateway.addr().port()));
        let common = ["-sS", "--max-time", "300", "--noproxy", "*", "--cacert", &ca, "--resolve", &resolve, &url];
        let output = run_tool("curl", "curl", &[&common[..], how].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(exit), "{how:?}: {error}");
        assert!(exit == 0 || error.contains("alert"), "{how:?}: {error}");
    }
    let mut client = authority.connect(any.addr(), NAME, &["spdy/3", "acme-nothing"]);
    let error = ask(&mut client).expect_err("no protocol in common").to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
    // Plain HTTP/2 by a client that did not announce it in the handshake.
    let mut client = authority.connect(any.addr(), NAME, &["http/1.1"]);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("send");
    let mut answer = [0; 9];
    client.read_exact(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1") || answer[3] == 4, "{answer:?}");
    let _ = client.sock.shutdown(Shutdown::Both);
}

#[test]
fn handshakes_that_stall_are_closed_while_others_are_served() {
    // Together with those of tests beside it, this is below the number of descriptors that a process usually may open.
    const STALLED: usize = 300;
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &[NAME]);
    let ca = authority.dir().display();
    let setup = Setup::resources(format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}]}}]\n\
         upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &setup.listener("tls: true").gateway("timeouts: {head: 6s}"));
    assert_served(&gateway, &authority);
    eventually("no client", || gateway.status()["connections"]["open"] == 0);
    let descriptors = gateway.fd_count();
    // The whole ClientHello is sent: the gateway's answer has arrived, and the client sends nothing more.
    let mut hello = Vec::new();
    authority.client(NAME, &[]).write_tls(&mut hello).expect("a hello");
    let stalled: Vec<TcpStream> = (0..STALLED)
        .map(|number| {
            let mut stream = TcpStream::connect(gateway.addr()).expect("connect");
            let some = if number % 2 == 0 { hello.len() } else { 1 + number % hello.len() };
            stream.write_all(&hello[..some]).expect("send");
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_served(&gateway, &authority);
    }
    eventually("them to be closed", || gateway.status()["connections"]["open"] == 0);
    let errors = || gateway.status()["connections"]["tls_handshake_errors"].as_u64();
    eventually("all of them to be counted", || errors() >= Some(STALLED as u64));
    for mut stream in stalled {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut answer = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut answer);
    }
    eventually("their descriptors to be closed", || gateway.fd_count() <= descriptors);
}
