//! How a stream or a connection of HTTP/2 may be ended, by each side and at each point of an exchange: by RST_STREAM,
//! by GOAWAY, by FIN, by a reset. The other side must see an end for an end and a cut for a cut, and nothing may stay.

use crate::hostile_node::{Bench, ClientResult, seen};
use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsClient};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use stillgate_testkit::http2::{END_HEADERS, END_STREAM, Http2, StreamEnd, code, encode_fields, kind};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually, payload};

const LOG: &str = "access_log: {path: \"{dir}/access.log\", format: json, fields: [status]}";
const NAME: &str = "shop.example.com";
const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":authority", "shop.example.com"), (":path", "/bad")];

/// The way it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    ResetStream(u32),
    /// The connection goes on until its streams have ended.
    GoAway,
    /// A FIN follows the frame.
    GoAwayWith(u32),
    Fin,
    Reset,
}

const ACTS: [Act; 10] = [
    Act::ResetStream(code::NO_ERROR),
    Act::ResetStream(code::PROTOCOL_ERROR),
    Act::ResetStream(code::INTERNAL_ERROR),
    Act::ResetStream(code::CANCEL),
    Act::ResetStream(code::ENHANCE_YOUR_CALM),
    Act::GoAway,
    Act::GoAwayWith(code::NO_ERROR),
    Act::GoAwayWith(code::ENHANCE_YOUR_CALM),
    Act::Fin,
    Act::Reset,
];

/// What carries a connection.
trait Carrier: Read + Write {
    fn socket(&self) -> &TcpStream;
}

impl Carrier for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Carrier for TlsClient {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

fn end<S: Carrier>(peer: &mut Http2<S>, stream: u32, act: Act) {
    let goaway = |code: u32| [stream.to_be_bytes(), code.to_be_bytes()].concat();
    match act {
        Act::ResetStream(code) => peer.send(kind::RST_STREAM, 0, stream, &code.to_be_bytes()),
        Act::GoAway => peer.send(kind::GOAWAY, 0, 0, &goaway(code::NO_ERROR)),
        Act::GoAwayWith(code) => peer.send(kind::GOAWAY, 0, 0, &goaway(code)),
        Act::Fin | Act::Reset => {}
    }
    match act {
        Act::ResetStream(_) | Act::GoAway => {}
        Act::Reset => {
            let socket = socket2::SockRef::from(peer.stream().socket());
            socket.set_linger(Some(std::time::Duration::ZERO)).expect("SO_LINGER");
        }
        // The other direction too, when it is dropped.
        // Where the gateway has closed it for the GOAWAY already there is nothing to shut down.
        Act::GoAwayWith(_) | Act::Fin => _ = peer.stream().socket().shutdown(Shutdown::Write),
    }
}

/// How far a node has got with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NodeProgress {
    /// Its head has arrived, its body has not.
    Head,
    /// All of it has arrived.
    Request,
    /// The client has an interim response.
    Interim,
    /// The client has the response's head.
    ResponseHead,
    /// The client has some of its body, too.
    Body,
}

#[test]
fn nodes_that_end() {
    let bench = Bench::new("");
    for act in ACTS {
        for reached in [
            NodeProgress::Head,
            NodeProgress::Request,
            NodeProgress::Interim,
            NodeProgress::ResponseHead,
            NodeProgress::Body,
        ] {
            let got = node_ends(&bench, reached, act);
            let expected = match act {
                Act::GoAway => ClientResult::Whole,
                _ if reached < NodeProgress::ResponseHead => ClientResult::BadGateway,
                _ => ClientResult::Cut,
            };
            assert_eq!(got, expected, "{act:?} at {reached:?}");
            assert_eq!(bench.gateway.get("/good").head.status(), 200);
        }
    }
    bench.await_rest();
}

fn node_ends(bench: &Bench, reached: NodeProgress, act: Act) -> ClientResult {
    let mut client = bench.gateway.client().into_connection();
    client.send("POST /bad HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 6\r\n\r\nabc");
    let mut peer = bench.accept();
    let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
    if reached >= NodeProgress::Request {
        client.send("def");
        peer.until(|frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0);
    }
    if reached == NodeProgress::Interim {
        peer.send_head(stream, &[(":status", "103")], 0);
        client.read_head().expect("an interim response");
    }
    let has_head = reached >= NodeProgress::ResponseHead;
    if has_head {
        peer.send_head(stream, &[(":status", "200")], 0);
        client.read_head().expect("a head");
    }
    if reached == NodeProgress::Body {
        peer.send(kind::DATA, 0, stream, b"some");
        client.read_exactly("4\r\nsome\r\n".len()).expect("some of the body");
    }
    end(&mut peer, stream, act);
    match act {
        Act::Reset => drop(peer),
        Act::GoAway => {
            if reached == NodeProgress::Head {
                client.send("def");
            }
            if !has_head {
                peer.send_head(stream, &[(":status", "200")], 0);
            }
            peer.send(kind::DATA, END_STREAM, stream, b"end");
            peer.closed();
        }
        // What is left of the connection is not what the next request is to be sent on.
        Act::ResetStream(_) => {
            end(&mut peer, stream, Act::GoAway);
            peer.closed();
        }
        Act::GoAwayWith(_) | Act::Fin => _ = peer.closed(),
    }
    match (has_head, has_head.then(|| client.read_to_end())) {
        (_, None) => seen(&mut client, "POST"),
        (_, Some(Ok(rest))) if rest.ends_with(b"0\r\n\r\n") => ClientResult::Whole,
        _ => ClientResult::Cut,
    }
}

/// A node may answer before it has the whole request, and say that it does not want the rest (RFC 9113 section 8.1).
#[test]
fn a_whole_response_is_whole_though_its_request_was_not() {
    let bench = Bench::new("");
    for has_length in [true, false] {
        let mut client = bench.gateway.client().into_connection();
        client.send("POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 600000\r\n\r\nabc");
        let mut peer = bench.accept();
        let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
        let fields = [(":status", "413"), ("content-length", "5")];
        peer.send_head(stream, &fields[..1 + usize::from(has_length)], 0);
        peer.send(kind::DATA, END_STREAM, stream, b"large");
        peer.send(kind::RST_STREAM, 0, stream, &code::NO_ERROR.to_be_bytes());
        let response = client.expect_response("POST");
        assert_eq!((response.head.status(), &response.body[..]), (413, &b"large"[..]));
        end(&mut peer, stream, Act::GoAway);
        peer.closed();
    }
    bench.await_rest();
}

/// How far a client has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ClientProgress {
    Nothing,
    PartOfHead,
    Head,
    PartOfBody,
    Request,
    /// The node has it, and has not answered.
    Waited,
    /// The head of the response has come.
    ResponseHead,
    /// So has some of its body.
    Body,
}

#[test]
fn clients_that_end() {
    let (authority, node) = (Authority::new(), Upstream::bind());
    authority.issue("shop", &[NAME]);
    let plain = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway(LOG));
    let ca = authority.dir().display();
    let secure = Setup::resources(format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}]}}]\n\
         upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n",
        node.addr()
    ));
    let secure = Gateway::start(STILLGATE, &secure.listener("tls: true").gateway(LOG));
    for gateway in [&plain, &secure] {
        let descriptors = gateway.fd_count();
        let mut gone = 0;
        for act in ACTS {
            for asked in [
                ClientProgress::Nothing,
                ClientProgress::PartOfHead,
                ClientProgress::Head,
                ClientProgress::PartOfBody,
                ClientProgress::Request,
                ClientProgress::Waited,
                ClientProgress::ResponseHead,
                ClientProgress::Body,
            ] {
                println!("{act:?} at {asked:?}");
                match std::ptr::eq(gateway, &raw const plain) {
                    true => client_ends(Http2::connect(gateway.addr()), &node, asked, act),
                    false => {
                        client_ends(Http2::begin(authority.connect(gateway.addr(), NAME, &["h2"])), &node, asked, act)
                    }
                }
                gone +=
                    usize::from((ClientProgress::Head..=ClientProgress::Waited).contains(&asked) && act != Act::GoAway);
            }
        }
        eventually("no client and no request", || {
            let status = gateway.status();
            status["connections"]["open"] == 0 && status["requests"]["in_flight"] == 0
        });
        eventually("its descriptors to be closed", || gateway.fd_count() <= descriptors);
        let logged = || {
            let log = std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
            log.lines().filter(|line| *line == "{\"status\":499}").count()
        };
        eventually("the requests that nobody waited for", || logged() == gone);
        assert!(!gateway.log().contains("panicked"));
    }
}

fn client_ends<S: Carrier>(mut client: Http2<S>, node: &Upstream, asked: ClientProgress, act: Act) {
    let head = encode_fields(&POST);
    match asked {
        ClientProgress::Nothing => {}
        ClientProgress::PartOfHead => client.send(kind::HEADERS, 0, 1, &head[..10]),
        _ => client.send(kind::HEADERS, END_HEADERS, 1, &head),
    }
    if asked >= ClientProgress::PartOfBody {
        client.send(kind::DATA, 0, 1, &payload(1, 100));
    }
    if asked >= ClientProgress::Request {
        client.send(kind::DATA, END_STREAM, 1, &payload(2, 100));
    }
    let mut peer = (asked >= ClientProgress::Head).then(|| node.accept());
    if asked >= ClientProgress::Waited {
        let peer = peer.as_mut().expect("asked");
        assert_eq!(peer.expect_request().body.len(), 200);
        if asked >= ClientProgress::ResponseHead {
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.until(|frame| frame.kind == kind::HEADERS);
        }
        if asked >= ClientProgress::Body {
            peer.send("4\r\nsome\r\n");
            client.until(|frame| frame.kind == kind::DATA);
        }
    }
    end(&mut client, 1, act);
    let Some(mut peer) = peer else { return };
    match act {
        // What was begun goes on; then the gateway closes.
        Act::GoAway => {
            match asked {
                ClientProgress::Head | ClientProgress::PartOfBody => client.send(kind::DATA, END_STREAM, 1, b"end"),
                _ => {}
            }
            if asked < ClientProgress::Waited {
                peer.expect_request();
            }
            if asked < ClientProgress::ResponseHead {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            }
            peer.send("3\r\nend\r\n0\r\n\r\n");
            let (_, body, end) = client.finish(1);
            assert!(body.ends_with(b"end") && end == StreamEnd::Whole, "{act:?} at {asked:?}: {end:?}");
        }
        Act::Reset => {
            drop(client);
            eventually("the node to be told", || peer.is_closed());
        }
        _ => eventually("the node to be told", || peer.is_closed()),
    }
}
