//! One check: a connection, and with `type: http` or `https` one GET up to the response's head. A node that demands a PROXY header
//! gets one that says that we speak for ourselves.
//!
//! Each check has a connection of its own, since whether one can be made is what it is about; the response's body is not
//! read. What it comes to is the business of `judge`.

use super::judge::CheckOutcome;
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{ActiveCheck, CheckType, PassHost, ProxyProtocol};
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{ClientTls, Peer, handshake_failure};
use stillgate_upstream::Endpoint;
use stillgate_wire::proxy_protocol::{V1_LOCAL, V2_LOCAL};
use stillgate_wire::{HeadLimits, HeadProgress, Method, ResponseHead};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Bounds of a response's head; no check needs more.
const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 16 * 1024, target_bytes_max: 0, headers_max: 100 };
/// Interim responses read over before the final one.
const INTERIMS_MAX: usize = 10;

/// How one endpoint is checked.
pub(crate) struct Probe {
    address: SocketAddr,
    /// What the node is sent first.
    preface: &'static [u8],
    /// `None`: connecting is enough.
    request: Option<String>,
    /// `None`: there is none.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

impl Probe {
    /// `tls`: the upstream's, for checks of that type. `proxy_protocol`: what connections of clients to the node begin with; another
    /// port speaks for itself, as with HAProxy. `pass_host`: the node is asked for the host that requests have in any case.
    pub(crate) fn new(
        endpoint: &Endpoint,
        rules: &ActiveCheck,
        pass_host: &PassHost,
        tls: Option<&ClientTls>,
        proxy_protocol: Option<ProxyProtocol>,
    ) -> Probe {
        let preface: &[u8] = match proxy_protocol.filter(|_| rules.port.is_none()) {
            None => b"",
            Some(ProxyProtocol::V1) => V1_LOCAL,
            Some(ProxyProtocol::V2) => V2_LOCAL,
        };
        let address = SocketAddr::new(endpoint.address.ip(), rules.port.unwrap_or(endpoint.address.port()));
        let host = match (&rules.host, pass_host) {
            (Some(host), _) | (None, PassHost::Rewrite(host)) => host,
            (None, PassHost::Pass | PassHost::Node) => &*endpoint.host,
        };
        let tls = tls.filter(|_| rules.r#type == CheckType::Https).map(|tls| {
            let mut config = Arc::unwrap_or_clone(tls.for_worker());
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            (TlsConnector::from(Arc::new(config)), tls.server_name(host, &endpoint.host))
        });
        let request = (rules.r#type != CheckType::Tcp).then(|| request(host, rules));
        Probe { address, preface, request, tls, timeout: rules.timeout }
    }

    /// Makes the check.
    pub(crate) async fn run(&self) -> CheckOutcome {
        timeout(self.timeout, self.exchange()).await.unwrap_or(CheckOutcome::TimedOut)
    }

    async fn exchange(&self) -> CheckOutcome {
        let mut stream = match TcpStream::connect(self.address).await {
            Ok(stream) => stream,
            Err(error) if is_local(&error) => return CheckOutcome::NotMade(error.to_string()),
            Err(error) => return CheckOutcome::Broken(error.to_string()),
        };
        if let Err(error) = stream.write_all(self.preface).await {
            return CheckOutcome::Broken(error.to_string());
        }
        let Some(request) = &self.request else { return CheckOutcome::Connected };
        let answer = match &self.tls {
            Some((connector, name)) => match connector.connect(name.clone(), stream).await {
                Ok(mut stream) => ask(&mut stream, request).await,
                Err(error) => Err(io::Error::other(format!("TLS: {}", handshake_failure(&error, Peer::Node)))),
            },
            None => ask(&mut stream, request).await,
        };
        answer.unwrap_or_else(|error| CheckOutcome::Broken(error.to_string()))
    }
}

/// The whole request.
fn request(host: &str, rules: &ActiveCheck) -> String {
    let ActiveCheck { http_method, http_path, http_req_body, .. } = rules;
    let mut head = format!("{http_method} {http_path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    // A method that means to send something says that it is nothing (RFC 9110 section 8.6).
    if !http_req_body.is_empty() || matches!(*http_method, "POST" | "PUT" | "PATCH") {
        head.push_str(&format!("Content-Length: {}\r\n", http_req_body.len()));
    }
    let is_agent = |line: &&String| line.get(..11).is_some_and(|name| name.eq_ignore_ascii_case("user-agent:"));
    if !rules.req_headers.iter().any(|line| is_agent(&line)) {
        head.push_str(concat!("User-Agent: stillgate/", env!("CARGO_PKG_VERSION"), " (health check)\r\n"));
    }
    for line in &rules.req_headers {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.push_str(http_req_body);
    head
}

/// Sends the request and reads the head of the final response.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> io::Result<CheckOutcome> {
    stream.write_all(request.as_bytes()).await?;
    let (mut bytes, mut head) = (Vec::new(), ResponseHead::default());
    let mut interims = 0;
    loop {
        match head.advance(&bytes, Method::Get, &HEAD_LIMITS) {
            Ok(HeadProgress::Complete(len)) if head.status < 200 && interims < INTERIMS_MAX => {
                interims += 1;
                bytes.drain(..len);
                head.reset();
                continue;
            }
            Ok(HeadProgress::Complete(_)) => return Ok(CheckOutcome::Status(head.status)),
            Ok(HeadProgress::Partial) => {}
            Err(error) => return Ok(CheckOutcome::NotHttp(error.to_string())),
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(CheckOutcome::Broken("the connection was closed without a response".to_owned()));
        }
    }
}

fn is_local(error: &io::Error) -> bool {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| ours.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    /// The rules of an upstream whose `checks.active` is `keys`.
    fn rules(keys: &str) -> ActiveCheck {
        let upstream = format!("{{id: u, nodes: {{\"10.0.0.1:81\": 1}}, checks: {{active: {{{keys}}}}}}}");
        let text = format!("upstreams: [{upstream}]\nroutes: []\n");
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        config.upstreams[0].checks.as_ref().unwrap().active.clone().unwrap()
    }

    fn endpoint(address: SocketAddr) -> Endpoint {
        Endpoint { address, weight: 1, priority: 0, host: "node.test:81".into(), verdict: None }
    }

    /// What comes of a check of a server that answers `response` and keeps the connection.
    async fn answered(response: &'static [u8], keys: &str) -> CheckOutcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let probe = Probe::new(&endpoint(listener.local_addr().unwrap()), &rules(keys), &PassHost::Pass, None, None);
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(response).unwrap();
            if response.is_empty() {
                return;
            }
            // Ends when the check has: its sender is dropped.
            let _ = ended.recv();
        });
        let outcome = probe.run().await;
        drop(end);
        server.join().unwrap();
        outcome
    }

    #[tokio::test]
    async fn responses() {
        let (long, short) = ("timeout: 120", "timeout: 0.2");
        assert_eq!(answered(b"HTTP/1.1 204 No Content\r\n\r\n", long).await, CheckOutcome::Status(204));
        assert_eq!(answered(b"HTTP/1.0 500 No\r\n\r\nbody", long).await, CheckOutcome::Status(500));
        let interim = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(answered(interim, long).await, CheckOutcome::Status(200));
        assert!(matches!(answered(b"SSH-2.0-OpenSSH_9.7\r\n", long).await, CheckOutcome::NotHttp(_)));
        assert_eq!(answered(b"HTTP/1.1 200 OK\r\nContent-Le", short).await, CheckOutcome::TimedOut);
        assert!(matches!(answered(b"", long).await, CheckOutcome::Broken(_)));
        assert_eq!(answered(b"", "type: tcp, timeout: 120").await, CheckOutcome::Connected);
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_not_read_for_ever() {
        static LONG: [u8; 40_000] = [b'a'; 40_000];
        assert!(matches!(answered(&LONG, "timeout: 120").await, CheckOutcome::NotHttp(_)));
    }

    #[tokio::test]
    async fn nobody_listens() {
        let port = stillgate_testkit::ReservedPort::new();
        for keys in ["timeout: 120", "type: tcp, timeout: 120"] {
            let probe = Probe::new(&endpoint(port.addr()), &rules(keys), &PassHost::Pass, None, None);
            assert!(matches!(probe.run().await, CheckOutcome::Broken(_)));
        }
    }

    /// A node that demands a PROXY header gets one without addresses (LOCAL); another port of it is not one of its listeners.
    #[tokio::test]
    async fn a_header_comes_first_where_clients_have_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tcp = "type: tcp, timeout: 120";
        let to_port = format!("{tcp}, port: {}", address.port());
        for (keys, version, expected) in [
            (tcp, None, &b""[..]),
            (tcp, Some(ProxyProtocol::V1), b"PROXY UNKNOWN\r\n"),
            (tcp, Some(ProxyProtocol::V2), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"),
            (&to_port, Some(ProxyProtocol::V2), b""),
        ] {
            let outcome = Probe::new(&endpoint(address), &rules(keys), &PassHost::Pass, None, version).run().await;
            assert_eq!(outcome, CheckOutcome::Connected);
            let (mut stream, mut got) = (listener.accept().unwrap().0, Vec::new());
            stream.read_to_end(&mut got).unwrap();
            assert_eq!(got, expected, "{keys}");
        }
    }

    #[test]
    fn what_is_asked() {
        let address = SocketAddr::from(([10, 0, 0, 1], 81));
        let probe = Probe::new(&endpoint(address), &rules(""), &PassHost::Pass, None, None);
        let version = env!("CARGO_PKG_VERSION");
        let agent = format!("User-Agent: stillgate/{version} (health check)\r\n");
        let expected = format!("GET / HTTP/1.1\r\nHost: node.test:81\r\nConnection: close\r\n{agent}\r\n");
        assert_eq!((probe.address, probe.request), (address, Some(expected)));
        let keys = "host: a.test, port: 82, http_path: /h?x=1, req_headers: [\"user-agent: me\", \"X-Key:  1 \"]";
        let probe = Probe::new(&endpoint(address), &rules(keys), &PassHost::Pass, None, None);
        let expected = "GET /h?x=1 HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nuser-agent: me\r\nX-Key: 1\r\n\r\n";
        assert_eq!((probe.address.port(), probe.request.as_deref()), (82, Some(expected)));
    }

    #[test]
    fn method_and_body_are_those_of_the_check() {
        let address = SocketAddr::from(([10, 0, 0, 1], 81));
        let agent = "req_headers: [\"User-Agent: me\"]";
        for (keys, begin, end) in [
            ("http_method: HEAD", "HEAD / ", "User-Agent: me\r\n\r\n"),
            ("http_method: POST", "POST / ", "close\r\nContent-Length: 0\r\nUser-Agent: me\r\n\r\n"),
            ("http_method: POST, http_req_body: \"a=é\"", "POST / ", "Content-Length: 4\r\nUser-Agent: me\r\n\r\na=é"),
            ("http_req_body: x, http_path: /h", "GET /h ", "Content-Length: 1\r\nUser-Agent: me\r\n\r\nx"),
        ] {
            let rules = rules(&format!("{keys}, {agent}"));
            let request = Probe::new(&endpoint(address), &rules, &PassHost::Pass, None, None).request.unwrap();
            assert!(request.starts_with(begin) && request.ends_with(end), "{keys}: {request}");
        }
    }

    #[tokio::test]
    async fn a_head_without_a_body_is_an_answer() {
        let keys = "http_method: HEAD, timeout: 60";
        assert_eq!(answered(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", keys).await, CheckOutcome::Status(200));
    }

    #[test]
    fn the_host_is_that_of_requests_unless_the_check_has_its_own() {
        let address = SocketAddr::from(([10, 0, 0, 1], 81));
        let rewrite = PassHost::Rewrite("shop.test:8443".to_owned());
        for (keys, pass_host, expected) in [
            ("", &rewrite, "shop.test:8443"),
            ("host: check.test", &rewrite, "check.test"),
            ("", &PassHost::Node, "node.test:81"),
            ("host: check.test", &PassHost::Node, "check.test"),
            ("", &PassHost::Pass, "node.test:81"),
        ] {
            let request = Probe::new(&endpoint(address), &rules(keys), pass_host, None, None).request.unwrap();
            let mut hosts = request.lines().filter_map(|line| line.strip_prefix("Host: "));
            assert_eq!((hosts.next(), hosts.next()), (Some(expected), None), "{keys} {pass_host:?}");
        }
    }
}
