//! Peers that disappear at any point of an exchange: the other side must see that, and nothing of it may stay.
//!
//! Two gateways with a relay between them that cuts: the outer one loses its node, the inner one its client, at every
//! few bytes of handshake, head, body and trailers, over each protocol that they can speak.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, kind};
use stillgate_testkit::{
    BufferedSocket, Client, CutEnd, CutPoint, Cutter, Gateway, MessageError, Setup, Side, Upstream, eventually, payload,
};

const NAME: &str = "node.test";
const LOG: &str = "access_log: {path: \"{dir}/access.log\", format: json, fields: [status]}";
const UPLOAD_BYTES: usize = 2_000;
/// More than a record of TLS or a frame.
const DOWNLOAD_BYTES: usize = 24_000;

/// How the two gateways speak to each other.
#[derive(Debug, Clone, Copy)]
struct Way {
    tls: bool,
    http2: bool,
}

impl Way {
    /// Bytes between two cuts; primes, so that heads, frames and records are cut at ever other places.
    fn step(self, side: Side) -> usize {
        match (side, self.tls) {
            (Side::Client, false) => 29,
            (Side::Client, true) => 59,
            (Side::Node, _) => 307,
        }
    }
}

/// An outer gateway, the relay, an inner gateway and its node.
struct Chain {
    outer: Gateway,
    cutter: Cutter,
    inner: Gateway,
    _node: Upstream,
    _authority: Authority,
    requests: Arc<Requests>,
}

/// Requests that the node has received.
#[derive(Default)]
struct Requests {
    /// Requests that looked whole.
    whole: AtomicUsize,
    /// Requests among them that were not whole.
    forged: AtomicUsize,
}

impl Chain {
    fn new(way: Way) -> Chain {
        let authority = Authority::new();
        authority.issue("node", &[NAME]);
        let ca = authority.path("ca.pem");
        let requests = Arc::<Requests>::default();
        let count = requests.clone();
        let node = Upstream::serve(move |connection| while answer(connection, &count) {});
        let setup = setup(&authority, node.addr(), way.tls);
        let inner = Gateway::start(STILLGATE, &setup);
        let cutter = Cutter::to(inner.addr());
        let scheme = if way.tls {
            format!(", scheme: https, pass_host: rewrite, upstream_host: {NAME}, tls: {{ca: \"{ca}\"}}")
        } else {
            String::new()
        };
        let keys = format!("{scheme}, http2: {}", way.http2);
        let outer = Gateway::start(STILLGATE, &Setup::resources(resources(cutter.addr(), &keys)).gateway(LOG));
        Chain { outer, cutter, inner, _node: node, _authority: authority, requests }
    }
}

/// Everything to one node that is not tried again.
fn resources(node: SocketAddr, keys: &str) -> String {
    format!(
        "upstreams: [{{id: u, retries: 0, nodes: {{\"{node}\": 1}}{keys}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n"
    )
}

/// A gateway in front of `node` that speaks TLS, or not.
fn setup(authority: &Authority, node: SocketAddr, tls: bool) -> Setup {
    let ca = authority.dir().display();
    let ssls = format!("ssls: [{{id: node, cert: \"{ca}/node.pem\", key: \"{ca}/node.key\", snis: [{NAME}]}}]\n");
    match tls {
        true => Setup::resources(ssls + &resources(node, "")).listener("tls: true").gateway(LOG),
        false => Setup::resources(resources(node, "")).gateway(LOG),
    }
}

/// A client's connection.
trait Carrier: Read + Write {}

impl<T: Read + Write> Carrier for T {}

/// Answers one request with as much as it brought, and in the same framing.
fn answer(connection: &mut BufferedSocket, requests: &Requests) -> bool {
    let Ok(request) = connection.read_request() else { return false };
    let chunked = request.head.get("transfer-encoding").is_some();
    requests.whole.fetch_add(1, Ordering::SeqCst);
    if request.body != payload(1, UPLOAD_BYTES) {
        requests.forged.fetch_add(1, Ordering::SeqCst);
    }
    connection.try_send(message("HTTP/1.1 200 OK", chunked, &payload(2, DOWNLOAD_BYTES))).is_ok()
}

/// A message whose end is given by its length, or by chunks and a trailer.
fn message(start: &str, chunked: bool, body: &[u8]) -> Vec<u8> {
    let (framing, end) = match chunked {
        true => ("Transfer-Encoding: chunked".to_owned(), &b"\r\n0\r\nX-Sum: 7\r\n\r\n"[..]),
        false => (format!("Content-Length: {}", body.len()), &b""[..]),
    };
    let size = if chunked { format!("{:x}\r\n", body.len()) } else { String::new() };
    [format!("{start}\r\nHost: h\r\n{framing}\r\n\r\n{size}").as_bytes(), body, end].concat()
}

/// The result that the client of the outer gateway sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ResetResult {
    /// The node's response, every byte of it.
    Whole,
    /// The beginning of it, and that it is not all.
    Cut,
    /// The gateway's own answer.
    BadGateway,
}

/// One request, by HTTP/1.1.
fn ask(gateway: &Gateway, chunked: bool) -> ResetResult {
    let mut client = gateway.client();
    client.send(message("PUT / HTTP/1.1", chunked, &payload(1, UPLOAD_BYTES)));
    let head = client.read_head().expect("the head of some answer");
    let status = head.status();
    match (status, client.read_response_body(head, "PUT")) {
        (200, Ok(response)) => {
            assert!(response.body == payload(2, DOWNLOAD_BYTES), "another body");
            assert_eq!(response.trailers.len(), usize::from(chunked));
            ResetResult::Whole
        }
        (200, Err(MessageError::Closed | MessageError::Truncated(_) | MessageError::Reset(_))) => ResetResult::Cut,
        (502, Ok(_)) => ResetResult::BadGateway,
        other => panic!("{other:?}"),
    }
}

/// Sends the request over HTTP/2.
fn ask_http2(gateway: &Gateway, chunked: bool) -> ResetResult {
    let mut client = Http2::connect(gateway.addr());
    let length = UPLOAD_BYTES.to_string();
    let fields = [
        (":method", "PUT"),
        (":scheme", "http"),
        (":authority", "h.example"),
        (":path", "/"),
        ("content-length", &*length),
    ];
    client.send_head(1, &fields[..if chunked { 4 } else { 5 }], 0);
    client.send(kind::DATA, END_STREAM, 1, &payload(1, UPLOAD_BYTES));
    let (heads, body, end) = client.finish(1);
    match (heads.first().map(|head| head.status()), end) {
        (Some(200), StreamEnd::Whole) => {
            assert!(body == payload(2, DOWNLOAD_BYTES), "another body");
            assert_eq!(heads.len(), 1 + usize::from(chunked));
            ResetResult::Whole
        }
        // A head that waited to be sent may go with what was to follow it.
        (Some(200) | None, StreamEnd::Reset(_)) => ResetResult::Cut,
        (Some(502), StreamEnd::Whole) => ResetResult::BadGateway,
        other => panic!("{other:?}"),
    }
}

/// Waits until nothing of any exchange is left.
fn await_rest(gateway: &Gateway, descriptors: usize) {
    eventually("no client and no request", || {
        let status = gateway.status();
        status["connections"]["open"] == 0 && status["requests"]["in_flight"] == 0
    });
    eventually("no request at a node", || {
        let upstreams = Client::connect(gateway.admin_addr()).get("/v1/upstreams");
        let upstreams: serde_json::Value = serde_json::from_slice(&upstreams.body).expect("JSON");
        upstreams["upstreams"][0]["endpoints"][0]["requests_in_flight"] == 0
    });
    eventually("its descriptors to be closed", || gateway.fd_count() <= descriptors);
}

/// How often each status is in the log.
fn statuses(gateway: &Gateway) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for line in std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default().lines() {
        *count.entry(line.to_owned()).or_default() += 1;
    }
    count
}

fn cut_everywhere(way: Way) {
    let mut chain = Chain::new(way);
    assert_eq!((ask(&chain.outer, true), ask_http2(&chain.outer, false)), (ResetResult::Whole, ResetResult::Whole));
    chain.cutter.arm(None);
    for gateway in [&chain.outer, &chain.inner] {
        eventually("no client", || gateway.status()["connections"]["open"] == 0);
    }
    let descriptors = [chain.outer.fd_count(), chain.inner.fd_count()];
    let (mut runs, mut cuts) = (0, 0);
    for (side, end) in
        [Side::Client, Side::Node].into_iter().flat_map(|side| [(side, CutEnd::Fin), (side, CutEnd::Reset)])
    {
        for (first, chunked) in [(0, false), (31, true)] {
            let mut seen = BTreeMap::new();
            for (index, after) in (first..).step_by(way.step(side)).enumerate() {
                chain.cutter.arm(Some(CutPoint { side, after, end }));
                let whole = chain.requests.whole.load(Ordering::SeqCst);
                let got = if index % 2 == 0 { ask(&chain.outer, chunked) } else { ask_http2(&chain.outer, chunked) };
                *seen.entry(got).or_insert(0) += 1;
                let is_answered = chain.requests.whole.load(Ordering::SeqCst) > whole;
                assert!(
                    got != ResetResult::Cut || is_answered,
                    "{way:?} {side:?} {end:?} {after}: a part of no response"
                );
                if !chain.cutter.has_cut() {
                    assert_eq!(got, ResetResult::Whole, "{way:?}: nothing was cut");
                    break;
                }
                runs += 1;
            }
            println!("{way:?} {side:?} {end:?} {chunked}: {seen:?}");
            // A plain response is nearly all body; of the others a good deal is handshake.
            let (bad, cut) = (seen[&ResetResult::BadGateway], seen.get(&ResetResult::Cut).copied().unwrap_or(0));
            assert!(bad > 0, "{way:?} {side:?} {end:?}: {seen:?}");
            cuts += cut;
        }
    }
    assert!(cuts > 3, "{way:?}: no response was cut after its beginning");
    chain.cutter.arm(None);
    assert_eq!((ask(&chain.outer, false), ask_http2(&chain.outer, true)), (ResetResult::Whole, ResetResult::Whole));
    chain.cutter.arm(None);
    await_rest(&chain.outer, descriptors[0]);
    await_rest(&chain.inner, descriptors[1]);
    assert_eq!(chain.requests.forged.load(Ordering::SeqCst), 0, "part of a request looked whole");
    println!("{way:?}: {runs} cuts, outer {:?}, inner {:?}", statuses(&chain.outer), statuses(&chain.inner));
    chain.outer.assert_healthy();
    chain.inner.assert_healthy();
}

#[test]
fn http1() {
    cut_everywhere(Way { tls: false, http2: false });
}

#[test]
fn http2() {
    cut_everywhere(Way { tls: false, http2: true });
}

#[test]
fn http1_through_tls() {
    cut_everywhere(Way { tls: true, http2: false });
}

#[test]
fn http2_through_tls() {
    cut_everywhere(Way { tls: true, http2: true });
}

/// Where a client is gone, the node is notified at once, and the log says so; HTTP/2's clients are covered elsewhere.
#[test]
fn clients_that_leave() {
    let (authority, node) = (Authority::new(), Upstream::bind());
    authority.issue("node", &[NAME]);
    let (tls, plain) = (setup(&authority, node.addr(), true), setup(&authority, node.addr(), false));
    for (setup, tls, end) in
        [(plain, false, CutEnd::Reset), (tls.clone(), true, CutEnd::Fin), (tls, true, CutEnd::Reset)]
    {
        let gateway = Gateway::start(STILLGATE, &setup);
        let (head, body) = ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc", "def");
        let cutter = Cutter::to(gateway.addr());
        for asked_all in [false, true] {
            for begun in [false, true] {
                let mut client: Box<dyn Carrier> = match tls {
                    true => Box::new(authority.connect(cutter.addr(), NAME, &[])),
                    false => Box::new(TcpStream::connect(cutter.addr()).expect("connect")),
                };
                client.write_all(head.as_bytes()).expect("send");
                let mut peer = node.accept();
                peer.read_head().expect("a request's head");
                if asked_all {
                    client.write_all(body.as_bytes()).expect("send");
                    peer.read_exactly(6).expect("its body");
                }
                if begun {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc");
                    client.read_exact(&mut [0; 12]).expect("a status line");
                }
                cutter.end_with(end);
                eventually("the node to be told", || peer.is_closed());
            }
        }
        let expected = BTreeMap::from([("{\"status\":200}".to_owned(), 2), ("{\"status\":499}".to_owned(), 2)]);
        eventually("the log", || statuses(&gateway) == expected);
        eventually("no client", || gateway.status()["connections"]["open"] == 0);
    }
}

/// A response that ends with its connection is only complete where TLS says so.
#[test]
fn only_a_whole_response_has_an_orderly_end() {
    let (authority, node) = (Authority::new(), Upstream::bind());
    authority.issue("node", &[NAME]);
    // It holds for the first request too, so it is longer than a client may stall before that.
    let setup = setup(&authority, node.addr(), true).gateway("timeouts: {keepalive: 5s}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let begin = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    for whole in [true, false] {
        let mut client = authority.connect(gateway.addr(), NAME, &[]);
        client.write_all(b"GET / HTTP/1.0\r\nHost: h\r\n\r\n").expect("send");
        let mut peer = node.accept();
        peer.expect_request();
        peer.send(begin);
        let mut response = Vec::new();
        while !response.ends_with(b"abc") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("the beginning");
            response.push(byte[0]);
        }
        if whole {
            peer.send("0\r\n\r\n");
        }
        drop(peer);
        let end = client.read_to_end(&mut response);
        assert_eq!(end.is_ok(), whole, "{end:?}");
    }
    // Nor is an idle connection cut when its time is over.
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("send");
    let mut peer = node.accept();
    peer.expect_request();
    peer.send("HTTP/1.1 204 No Content\r\n\r\n");
    let mut response = Vec::new();
    client.read_to_end(&mut response).expect("an orderly end");
    assert!(response.starts_with(b"HTTP/1.1 204"), "{}", response.escape_ascii());
}

/// Through TLS a client may end its own direction, and wait for the answer.
#[test]
fn a_client_that_has_said_its_end_is_still_answered() {
    let (authority, node) = (Authority::new(), Upstream::echo());
    authority.issue("node", &[NAME]);
    let gateway = Gateway::start(STILLGATE, &setup(&authority, node.addr(), true));
    let mut client = authority.connect(gateway.addr(), NAME, &[]);
    client.write_all(b"GET /?delay=1200&size=3&chunked HTTP/1.0\r\nHost: h\r\n\r\n").expect("send");
    client.conn.send_close_notify();
    client.flush().expect("send");
    let mut response = Vec::new();
    client.read_to_end(&mut response).expect("an orderly end");
    assert!(response.ends_with(&payload(0, 3)), "{}", response.escape_ascii());
}

#[test]
fn a_client_that_takes_nothing_through_tls_is_given_up() {
    let (authority, node) = (Authority::new(), Upstream::echo());
    authority.issue("node", &[NAME]);
    let gateway = Gateway::start(STILLGATE, &setup(&authority, node.addr(), true).gateway("timeouts: {send: 300ms}"));
    let rss = gateway.rss();
    let mut clients: Vec<_> = (0..10).map(|_| authority.connect(gateway.addr(), NAME, &[])).collect();
    for client in &mut clients {
        client.write_all(b"GET /?size=16000000 HTTP/1.1\r\nHost: h\r\n\r\n").expect("send");
    }
    eventually("the requests", || gateway.status()["requests"]["total"] == clients.len());
    eventually("no client", || gateway.status()["connections"]["open"] == 0);
    let grown = gateway.rss().saturating_sub(rss);
    assert!(grown < 16 * 1024 * 1024, "{grown} bytes more");
    for client in &mut clients {
        assert!(client.read_to_end(&mut Vec::new()).is_err(), "a cut that looks like an end");
    }
}
