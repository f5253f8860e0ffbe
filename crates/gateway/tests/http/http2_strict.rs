//! Mistakes that a lenient reader of HTTP/2 would silently repair: here they are refused.

use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsClient};
use std::io::{Read, Write};
use stillgate_testkit::http2::{
    END_HEADERS, END_STREAM, Frame, Http2, StreamEnd, code, encode_fields, get_fields, kind,
};
use stillgate_testkit::{Gateway, MessageError, Setup, Upstream, eventually};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Flags of HEADERS (RFC 9113 section 6.2).
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

fn echo_gateway() -> (Upstream, Gateway) {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    (upstream, gateway)
}

/// The head of a `GET` in bytes, without its path.
fn head(path: &[u8]) -> Vec<u8> {
    [&[0x82, 0x86, 0x41, 1, b'h'], path].concat()
}

/// RFC 9113 section 8.3.1: a path and a query have no fragment. `http` cuts it off.
#[test]
fn a_path_with_a_fragment_is_refused() {
    let (upstream, gateway) = echo_gateway();
    let mut client = Http2::connect(gateway.addr());
    let (mut stream, mut refused) = (1, 0);
    let mut check = |client: &mut Http2, send: &dyn Fn(&mut Http2, u32), expected: StreamEnd| {
        send(client, stream);
        assert_eq!(client.finish(stream).2, expected, "stream {stream}");
        refused += usize::from(expected != StreamEnd::Whole);
        stream += 2;
    };
    let reset = StreamEnd::Reset(code::PROTOCOL_ERROR);
    for path in ["/a#b", "/#", "#", "#a", "/a?b#c", "/a?#", "?a"] {
        check(&mut client, &|client, stream| client.get(stream, path), reset);
    }
    let whole = END_HEADERS | END_STREAM;
    // Put into the table, and named by its index; in Huffman's code ("/#"); in two frames; behind padding and a priority.
    let inserted = head(b"\x44\x04/a#b");
    let coded = head(b"\x04\x83\x63\xfe\xbf");
    for block in [inserted, head(&[0xbf]), coded] {
        check(&mut client, &|client, stream| client.send(kind::HEADERS, whole, stream, &block), reset);
    }
    check(
        &mut client,
        &|client, stream| {
            let block = head(b"\x04\x04/a#b");
            client.send(kind::HEADERS, END_STREAM, stream, &block[..8]);
            client.send(kind::CONTINUATION, END_HEADERS, stream, &block[8..]);
        },
        reset,
    );
    check(
        &mut client,
        &|client, stream| {
            let block = [&[3, 0, 0, 0, 0, 7], &head(b"\x04\x04/a#b")[..], &[0; 3]].concat();
            client.send(kind::HEADERS, whole | PADDED | PRIORITY, stream, &block);
        },
        reset,
    );
    // A request with a body to come.
    check(&mut client, &|client, stream| client.send_head(stream, &get_fields("/a#b"), 0), reset);
    assert_eq!(upstream.requests(), 0);
    let fields = [&get_fields("/a%23b")[..], &[("referer", "http://h.example/#top")]].concat();
    check(&mut client, &|client, stream| client.send_head(stream, &fields, END_STREAM), StreamEnd::Whole);
    eventually("them to be counted", || gateway.status()["requests"]["http2_refused"] == refused);
    assert_eq!(upstream.seen(), ["GET /a%23b HTTP/1.1"]);
}

/// `h2` forgets what is wrong with a part of a head that ends within a field.
#[test]
fn a_head_in_several_frames_is_judged_as_a_whole() {
    let (upstream, gateway) = echo_gateway();
    let mut client = Http2::connect(gateway.addr());
    let mut send = |stream, more: &[(&str, &str)]| {
        let block = encode_fields(&[&get_fields("/")[..], more, &[("last", "1")]].concat());
        let cut = block.len() - 3;
        client.send(kind::HEADERS, END_STREAM, stream, &block[..cut]);
        client.send(kind::CONTINUATION, END_HEADERS, stream, &block[cut..]);
        client.finish(stream).2
    };
    let refused = [
        [("connection", "close")],
        [("transfer-encoding", "chunked")],
        [("keep-alive", "5")],
        [("upgrade", "h2c")],
        [("te", "gzip")],
        [(":path", "/b")],
        [(":authority", "i.example")],
    ];
    for (index, more) in refused.iter().enumerate() {
        assert_eq!(send(2 * index as u32 + 1, more), StreamEnd::Reset(code::PROTOCOL_ERROR), "{more:?}");
    }
    assert_eq!(send(51, &[("x", "1"), (":authority", "late")]), StreamEnd::Reset(code::PROTOCOL_ERROR));
    assert_eq!(send(53, &[("te", "trailers")]), StreamEnd::Whole);
    assert_eq!(upstream.requests(), 1);
}

/// RFC 9113 section 8.1: trailers have no pseudo-headers. `h2` leaves them out.
#[test]
fn trailers_with_a_pseudo_header_break_the_request() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = Http2::connect(gateway.addr());
    let trailers =
        [&[(":path", "/")][..], &[(":status", "200")], &[(":method", "GET"), ("a", "b")], &[(":authority", "h")]];
    for (index, trailers) in trailers.iter().enumerate() {
        let stream = 2 * index as u32 + 1;
        client.send_head(stream, &[&[(":method", "POST")], &get_fields("/")[1..]].concat(), 0);
        let mut node = upstream.accept();
        let head = node.read_head().expect("a head");
        assert_eq!(head.get("transfer-encoding"), Some("chunked"));
        client.send(kind::DATA, 0, stream, b"body");
        client.send_head(stream, trailers, END_STREAM);
        assert_eq!(client.finish(stream).2, StreamEnd::Reset(code::PROTOCOL_ERROR), "{trailers:?}");
        let rest = node.read_request_body(head);
        assert!(
            matches!(rest, Err(MessageError::Closed | MessageError::Truncated(_) | MessageError::Reset(_))),
            "not whole: {rest:?}"
        );
    }
    // With other trailers the request is an ordinary one, whatever was in the table.
    client.send_head(51, &[&[(":method", "POST")], &get_fields("/")[1..]].concat(), 0);
    let mut node = upstream.accept();
    let head = node.read_head().expect("a head");
    client.send(kind::DATA, 0, 51, b"body");
    client.send_head(51, &[("a", ":path")], END_STREAM);
    let request = node.read_request_body(head).expect("a whole request");
    assert_eq!(request.body, b"body");
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(client.finish(51).2, StreamEnd::Whole);
}

/// RFC 8441 section 5: the key has no use in HTTP/2; the node gets one, which is ours.
#[test]
fn the_key_of_an_extended_connect_is_ours() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).route("enable_websocket: true"));
    let mut client = Http2::connect(gateway.addr());
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/chat"),
        (":authority", "h.example"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat"),
        ("sec-websocket-key", "b3VycyBpcyBhbm90aGVyLg=="),
        ("sec-websocket-accept", "x"),
    ];
    client.send_head(1, &connect, 0);
    let head = upstream.accept().read_head().expect("a head");
    let keys = head.all("sec-websocket-key");
    assert!(keys.len() == 1 && keys[0].len() == 24 && !keys[0].starts_with("b3Vycy"), "{head:?}");
    assert_eq!((head.all("sec-websocket-accept").len(), head.get("sec-websocket-protocol")), (0, Some("chat")));
    // Fields that request an upgrade in HTTP/1.1 are refused in an extended CONNECT.
    for (stream, more) in [(3, ("connection", "upgrade")), (5, ("upgrade", "websocket"))] {
        client.send_head(stream, &[&connect[..], &[more]].concat(), 0);
        assert_eq!(client.finish(stream).2, StreamEnd::Reset(code::PROTOCOL_ERROR), "{more:?}");
    }
}

/// Malformed authorities and schemes are refused, whatever a URI parser makes of them.
#[test]
fn odd_authorities_and_schemes_are_refused() {
    let (upstream, gateway) = echo_gateway();
    for authority in ["u@h.example", "u:p@h.example", "h.example/a", "h.example#a", "h.example?a", "h,i", "h:x", "h i"]
    {
        let mut client = Http2::connect(gateway.addr());
        let fields = [(":method", "GET"), (":scheme", "http"), (":authority", authority), (":path", "/")];
        client.send_head(1, &fields, END_STREAM);
        let (heads, _, end) = client.finish(1);
        let status = heads.first().map(Frame::status);
        assert!(
            status == Some(400) || end == StreamEnd::Reset(code::PROTOCOL_ERROR),
            "{authority}: {status:?} {end:?}"
        );
    }
    for scheme in ["", "ht tp", "http:", "http://", "1http"] {
        let mut client = Http2::connect(gateway.addr());
        let fields = [(":method", "GET"), (":scheme", scheme), (":authority", "h.example"), (":path", "/")];
        client.send_head(1, &fields, END_STREAM);
        assert_eq!(client.finish(1).2, StreamEnd::Reset(code::PROTOCOL_ERROR), "{scheme:?}");
    }
    assert_eq!(upstream.requests(), 0);
}

/// The two ways of one client to say its path, or its host, in one request.
#[test]
fn a_path_with_an_authority_of_its_own_is_refused() {
    let (upstream, gateway) = echo_gateway();
    let mut client = Http2::connect(gateway.addr());
    for (index, path) in ["http://i.example/a", "//", "a", "*", "h.example/a"].into_iter().enumerate() {
        let stream = 2 * index as u32 + 1;
        client.get(stream, path);
        let expected = if path == "//" { StreamEnd::Whole } else { StreamEnd::Reset(code::PROTOCOL_ERROR) };
        assert_eq!(client.finish(stream).2, expected, "{path}");
    }
    client.send(kind::HEADERS, END_HEADERS | END_STREAM, 51, &encode_fields(&get_fields("/")));
    assert_eq!(client.finish(51).2, StreamEnd::Whole);
    assert_eq!(upstream.seen(), ["GET // HTTP/1.1", "GET / HTTP/1.1"]);
}

struct Secure {
    authority: Authority,
    upstream: Upstream,
    gateway: Gateway,
}

fn secure(listener: &str) -> Secure {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let (dir, node) = (authority.dir().display(), upstream.addr());
    let setup = Setup::resources(format!(
        "ssls:\n  - {{id: shop, cert: \"{dir}/shop.pem\", key: \"{dir}/shop.key\", snis: [shop.example.com]}}\n\
         upstreams:\n  - {{id: main, nodes: {{\"{node}\": 1}}}}\nroutes:\n  - {{id: all, uri: /*, upstream_id: main}}\n"
    ));
    let gateway = Gateway::start(STILLGATE, &setup.listener("tls: true").listener(listener));
    Secure { authority, upstream, gateway }
}

impl Secure {
    fn connect(&self, alpn: &[&str]) -> TlsClient {
        self.authority.connect(self.gateway.addr(), "shop.example.com", alpn)
    }

    /// The bytes that come back for these, until the end.
    fn said(&self, alpn: &[&str], bytes: &[u8]) -> Vec<u8> {
        let mut client = self.connect(alpn);
        client.write_all(bytes).expect("the connection takes it");
        let mut said = Vec::new();
        client.read_to_end(&mut said).expect("an orderly end");
        said
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n";

/// RFC 9113 section 3.3: the protocol that the handshake has agreed on is used.
#[test]
fn what_was_agreed_on_is_spoken() {
    let server = secure("");
    let http2 = |alpn: &[&str]| Http2::begin(server.connect(alpn));
    assert_eq!(http2(&["h2", "http/1.1"]).get_status(1, "/"), 200);
    assert_eq!(http2(&[]).get_status(1, "/"), 200, "without an agreement both are possible");
    for alpn in [&["http/1.1"][..], &[]] {
        assert!(server.said(alpn, GET).starts_with(b"HTTP/1.1 200 "), "{alpn:?}");
    }
    let served = server.upstream.requests();
    let said = server.said(&["http/1.1"], &[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat());
    assert!(said.starts_with(b"HTTP/1.1 4") || said.starts_with(b"HTTP/1.1 505 "), "{:?}", said.escape_ascii());
    for bytes in [GET, b"INVALID CONNECTION PREFACE\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSX", &[0, 0, 0, 4, 0, 0, 0, 0, 0]]
    {
        let mut client = Http2::begin_silently(server.connect(&["h2"]));
        client.send_bytes(bytes);
        assert_eq!(client.closed(), Some(code::PROTOCOL_ERROR), "{:?}", bytes.escape_ascii());
    }
    assert_eq!(server.upstream.requests(), served, "none of it is a request");
}

/// A preface that came in pieces, or is cut off, does not affect the negotiated protocol.
#[test]
fn a_preface_may_come_slowly() {
    let server = secure("");
    let mut client = Http2::begin_silently(server.connect(&["h2"]));
    for byte in PREFACE {
        client.send_bytes(&[*byte]);
    }
    client.send(kind::SETTINGS, 0, 0, &[]);
    assert_eq!(client.get_status(1, "/"), 200);
    let mut cut = server.connect(&["h2"]);
    cut.write_all(&PREFACE[..5]).expect("the connection takes it");
    cut.conn.send_close_notify();
    cut.flush().expect("the connection takes it");
    let mut rest = Vec::new();
    cut.read_to_end(&mut rest).expect("an orderly end");
    assert!(!rest.starts_with(b"HTTP"), "{:?}", rest.escape_ascii());
}

/// A listener without HTTP/2 agrees on nothing else than HTTP/1.1.
#[test]
fn a_listener_without_http2_does_not_speak_it() {
    let server = secure("http2: false");
    for alpn in [&[][..], &["http/1.1"], &["h2", "http/1.1"]] {
        assert!(server.said(alpn, PREFACE).starts_with(b"HTTP/1.1 "), "{alpn:?}");
    }
}
