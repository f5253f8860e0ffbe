//! Hosts that require client certificates: a connection without the right one never reaches them, whatever names it sends.

use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsClient};
use crate::shared::folder::Folder;
use expect_test::expect;
use rcgen::date_time_ymd;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_testkit::http2::{END_STREAM, Http2, NO_DYNAMIC_TABLE, StreamEnd};
use stillgate_testkit::{Gateway, Head, Setup, Upstream, eventually};

/// Hosts below names that require certificates, at one label and deeper, in all the ways they can be written.
const PROTECTED: [&str; 10] = [
    "sec.example",
    "a.sec.example",
    "a.b.sec.example",
    "g.f.e.d.c.b.a.sec.example",
    "A.B.SEC.Example",
    "sec.example.",
    "a.b.sec.example.",
    "a.b.sec.example:443",
    "a.b.sec.example:",
    "a.b.sec.example.:8443",
];

/// No name has an empty label.
const NO_HOSTS: [&str; 6] =
    ["a..sec.example", "..sec.example", ".sec.example", "sec.example..", "a.b.sec.example..:443", "."];

/// Names that a node may decode. Over HTTP/2 a stream with one is reset.
const ENCODED_HOSTS: [&str; 2] = ["a%2esec.example", "%73ec.example"];

/// The issuer of the gateway's certificates, and two issuers of client certificates.
struct World {
    roots: Authority,
    first: Authority,
    second: Authority,
    upstream: Upstream,
}

impl World {
    fn new() -> World {
        let world = World {
            roots: Authority::new(),
            first: Authority::new(),
            second: Authority::new(),
            upstream: Upstream::echo(),
        };
        world.roots.issue("sec", &["sec.example", "*.sec.example"]);
        world.roots.issue("two", &["two.example"]);
        world.roots.issue("pub", &["pub.example", "unknown.example"]);
        world.first.issue("alice", &["alice"]);
        world.second.issue("bob", &["bob"]);
        world
    }

    /// `sec` and `two`: the issuers that the entries of these names require.
    fn setup(&self, sec: &Authority, two: &Authority) -> Setup {
        let entry = |id: &str, more: &str| {
            let dir = self.roots.dir().display();
            format!("  - {{id: {id}, cert: \"{dir}/{id}.pem\", key: \"{dir}/{id}.key\", {more}}}\n")
        };
        let client = |ca: &Authority| format!("client: {{ca: \"{}\"}}", ca.path("ca.pem"));
        let ssls = [
            entry("sec", &format!("snis: [sec.example, \"*.sec.example\"], {}", client(sec))),
            entry("two", &format!("snis: [two.example], {}", client(two))),
            entry("pub", "snis: [pub.example], default: true"),
        ];
        Setup::resources(format!(
            "ssls:\n{}upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nroutes:\n  \
             - {{id: sec, uri: /*, hosts: [sec.example, \"*.sec.example\"], enable_websocket: true, upstream_id: u}}\n  \
             - {{id: others, uri: /*, upstream_id: u}}\n",
            ssls.concat(),
            self.upstream.addr()
        ))
        .listener("tls: true")
    }

    fn start(&self) -> Gateway {
        Gateway::start(STILLGATE, &self.setup(&self.first, &self.second))
    }

    /// All clients without the certificate that `sec` requires, by what they are.
    fn strangers(&self, addr: SocketAddr, alpn: &str) -> [(&'static str, TlsClient); 4] {
        [
            ("another name", self.roots.connect(addr, "pub.example", &[alpn])),
            ("a name of no entry", self.roots.connect(addr, "unknown.example", &[alpn])),
            ("no name", self.roots.connect_without_name(addr, "pub.example", &[alpn])),
            ("another issuer", self.roots.connect_as(addr, "two.example", &[alpn], (&self.second, "bob"))),
        ]
    }

    fn alice(&self, addr: SocketAddr, alpn: &str) -> TlsClient {
        self.roots.connect_as(addr, "sec.example", &[alpn], (&self.first, "alice"))
    }
}

/// A request's status, over a connection that stays.
#[track_caller]
fn status(stream: &mut TlsClient, target: &str, lines: &str) -> u16 {
    write!(stream, "GET {target} HTTP/1.1\r\n{lines}\r\n").expect("a request");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let head = Head::parse(&head).expect("a head");
    let length = head.get("content-length").expect("a length").parse().expect("a number");
    stream.read_exact(&mut vec![0; length]).expect("the body");
    head.status()
}

#[track_caller]
fn status_of(stream: &mut TlsClient, host: &str) -> u16 {
    status(stream, "/", &format!("Host: {host}\r\n"))
}

/// Requests over HTTP/2, on one stream after the other.
struct Streams {
    http2: Http2<TlsClient>,
    next: u32,
}

impl Streams {
    fn begin(stream: TlsClient) -> Streams {
        Streams { http2: Http2::begin_with(stream, &[NO_DYNAMIC_TABLE]), next: 1 }
    }

    #[track_caller]
    fn status(&mut self, fields: &[(&str, &str)]) -> u16 {
        let stream = self.next;
        self.next += 2;
        self.http2.send_head(stream, fields, END_STREAM);
        let (heads, _, end) = self.http2.finish(stream);
        assert_eq!(end, StreamEnd::Whole, "{fields:?}");
        heads[0].status()
    }

    #[track_caller]
    fn status_of(&mut self, host: &str) -> u16 {
        self.status(&[(":method", "GET"), (":scheme", "https"), (":authority", host), (":path", "/")])
    }
}

#[test]
fn a_name_asks_for_certificates_at_any_depth() {
    let world = World::new();
    let gateway = world.start();
    for (who, mut stream) in world.strangers(gateway.addr(), "http/1.1") {
        for host in PROTECTED {
            assert_eq!(status_of(&mut stream, host), 421, "{who}: {host}");
            let absolute = format!("https://{host}/");
            assert_eq!(status(&mut stream, &absolute, "Host: pub.example\r\n"), 421, "{who}: {absolute}");
        }
        let upgrade = "Host: a.b.sec.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        assert_eq!(status(&mut stream, "/", upgrade), 421, "{who}");
        assert_eq!(world.upstream.requests(), 0, "{who}: {:?}", world.upstream.seen());
    }
    for (hosts, expected) in [(&NO_HOSTS[..], 400), (&ENCODED_HOSTS, 421)] {
        for host in hosts {
            let mut stream = world.roots.connect(gateway.addr(), "pub.example", &["http/1.1"]);
            assert_eq!(status_of(&mut stream, host), expected, "{host}");
        }
    }
    assert_eq!(world.upstream.requests(), 0, "{:?}", world.upstream.seen());
    // The target's authority is the host, whatever `Host` says (RFC 9112 section 3.2.2).
    let mut stream = world.roots.connect(gateway.addr(), "pub.example", &["http/1.1"]);
    assert_eq!(status(&mut stream, "https://pub.example/", "Host: a.b.sec.example\r\n"), 200);
    assert_eq!(status_of(&mut stream, "pub.example"), 200);
    assert_eq!(status_of(&mut stream, "xsec.example"), 200);
    let mut alice = world.alice(gateway.addr(), "http/1.1");
    for host in PROTECTED {
        assert_eq!(status_of(&mut alice, host), 200, "{host}");
    }
    assert_eq!(status_of(&mut alice, "pub.example"), 200);
    assert_eq!(status_of(&mut alice, "two.example"), 421);
}

#[test]
fn the_same_over_http2() {
    let world = World::new();
    let gateway = world.start();
    for (who, stream) in world.strangers(gateway.addr(), "h2") {
        let mut streams = Streams::begin(stream);
        for host in PROTECTED {
            assert_eq!(streams.status_of(host), 421, "{who}: {host}");
            let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/"), ("host", host)];
            assert_eq!(streams.status(&fields), 421, "{who}: host {host}");
        }
        let connect = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "a.b.sec.example"),
            (":path", "/"),
        ];
        assert_eq!(streams.status(&connect), 421, "{who}");
        for host in NO_HOSTS {
            assert_eq!(streams.status_of(host), 400, "{who}: {host}");
        }
        assert_eq!(world.upstream.requests(), 0, "{who}: {:?}", world.upstream.seen());
    }
    let mut alice = Streams::begin(world.alice(gateway.addr(), "h2"));
    for host in PROTECTED {
        assert_eq!(alice.status_of(host), 200, "{host}");
    }
    assert_eq!(alice.status_of("two.example"), 421);
}

/// What a connection has shown is compared with what is required now, by the issuers themselves.
#[test]
fn open_connections_do_not_outlive_the_issuers_they_were_verified_by() {
    let world = World::new();
    let gateway = world.start();
    let mut kept = world.alice(gateway.addr(), "http/1.1");
    let mut streams = Streams::begin(world.alice(gateway.addr(), "h2"));
    let mut check = |expected: [u16; 2], why: &str| {
        for (host, expected) in ["a.b.sec.example", "two.example"].into_iter().zip(expected) {
            assert_eq!(status_of(&mut kept, host), expected, "{why}: {host}");
            assert_eq!(streams.status_of(host), expected, "{why}: {host} over HTTP/2");
        }
    };
    check([200, 421], "as it began");
    gateway.reload(&world.setup(&world.second, &world.second));
    check([421, 421], "another issuer in its place");
    gateway.reload(&world.setup(&world.second, &world.first));
    check([421, 421], "its name asks for another issuer");
    gateway.reload(&world.setup(&world.first, &world.second));
    check([200, 421], "as it was");
}

/// The certificate was good in the handshake, and a session with it is not resumed.
#[test]
fn open_connections_do_not_outlive_the_certificate_that_they_were_verified_with() {
    let world = World::new();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    world.first.issue_with("brief", &["brief"], |params| {
        params.not_after = date_time_ymd(1970, 1, 1) + since_1970 + Duration::from_secs(10);
    });
    let gateway = world.start();
    let brief = |alpn| world.roots.connect_as(gateway.addr(), "sec.example", &[alpn], (&world.first, "brief"));
    let (mut kept, mut streams) = (brief("http/1.1"), Streams::begin(brief("h2")));
    assert_eq!((status_of(&mut kept, "sec.example"), streams.status_of("sec.example")), (200, 200));
    eventually("its end", || status_of(&mut kept, "sec.example") == 421);
    assert_eq!(streams.status_of("sec.example"), 421);
    assert_eq!(status_of(&mut kept, "a.b.sec.example"), 421);
    // It came by a name that asks for certificates, as before.
    assert_eq!(status_of(&mut kept, "pub.example"), 421);
    let mut again = brief("http/1.1");
    assert!(write!(again, "GET / HTTP/1.1\r\n\r\n").is_err() || again.read(&mut [0]).is_err());
}

/// A file of issuers that is replaced has the same effect, unless its meaning stays the same.
#[test]
fn a_file_of_issuers_may_be_replaced() {
    let world = World::new();
    let (ca, other) = (world.first.file("ca.pem"), world.second.file("ca.pem"));
    let [ca, other] = [ca, other].map(|file| std::fs::read_to_string(file).expect("read"));
    let gateway = world.start();
    let mut kept = world.alice(gateway.addr(), "http/1.1");
    assert_eq!(status_of(&mut kept, "a.sec.example"), 200);
    let generation = || gateway.status()["config"]["generation"].as_u64().expect("a number");
    let before = generation();
    world.first.write("ca.pem", format!("# the same\n{ca}{ca}"));
    eventually("the file to be read", || generation() > before);
    assert_eq!(status_of(&mut kept, "a.sec.example"), 200);
    let before = generation();
    world.first.write("ca.pem", other);
    eventually("the file to be read", || generation() > before);
    assert_eq!(status_of(&mut kept, "a.sec.example"), 421);
    assert_eq!(status_of(&mut kept, "pub.example"), 421, "the name that it came by asks for another issuer");
}

#[test]
fn check_warns_of_hosts_that_no_handshake_finds_a_name_for() {
    let roots = Authority::new();
    roots.issue("sec", &["sec.example", "*.sec.example"]);
    let text = |hosts: &str, client: &str| {
        let dir = roots.dir().display();
        format!(
            "gateway:\n  listeners: [{{address: \"127.0.0.1:9443\", tls: true}}]\n\
             ssls: [{{id: sec, cert: \"{dir}/sec.pem\", key: \"{dir}/sec.key\", snis: [sec.example, \"*.sec.example\"]{client}}}]\n\
             upstreams: [{{id: u, nodes: {{\"127.0.0.1:1\": 1}}}}]\nroutes:\n\
             - {{id: flat, uri: /, hosts: [sec.example, a.sec.example, pub.example], upstream_id: u}}\n\
             - {{id: deep, uri: /, hosts: {hosts}, upstream_id: u}}\n"
        )
    };
    let client = format!(", client: {{ca: \"{}\"}}", roots.path("ca.pem"));
    let folder = Folder::with(&[
        ("wild.yaml", text("[\"*.sec.example\"]", &client).as_str()),
        ("exact.yaml", text("[b.sec.example, a.b.sec.example]", &client).as_str()),
        ("open.yaml", text("[\"*.sec.example\"]", "").as_str()),
    ]);
    folder.check(&["check", "wild.yaml"], expect![[r#"
        exit 0
        wild.yaml:7: warning: route "deep" takes hosts (*.sec.example) deeper than the one label that "*.sec.example" of ssls "sec" covers in a TLS handshake; requests for them are answered 421 unless the client presented its certificate under another name of that entry; list the exact hosts in the route, and add the deeper ones to `snis`
        wild.yaml: ok (2 routes, 1 upstream; 1 warning)
    "#]]);
    folder.check(&["check", "exact.yaml"], expect![[r#"
        exit 0
        exact.yaml:7: warning: route "deep" takes hosts (a.b.sec.example) deeper than the one label that "*.sec.example" of ssls "sec" covers in a TLS handshake; requests for them are answered 421 unless the client presented its certificate under another name of that entry; list the exact hosts in the route, and add the deeper ones to `snis`
        exact.yaml: ok (2 routes, 1 upstream; 1 warning)
    "#]]);
    folder.check(
        &["check", "open.yaml"],
        expect![[r#"
        exit 0
        open.yaml: ok (2 routes, 1 upstream)
    "#]],
    );
}
