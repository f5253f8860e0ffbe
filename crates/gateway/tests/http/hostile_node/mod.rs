//! An HTTP/2 node that a test misuses, behind a gateway that has a good node too.

use crate::shared::STILLGATE;
use stillgate_testkit::http2::{Http2, kind};
use stillgate_testkit::{BufferedSocket, Gateway, Head, MessageError, Setup, Upstream, eventually};

/// More than a gateway may grow by all that nodes of a test send it. The build under test is not optimised.
pub(crate) const GROWTH_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The result that the client sees, or may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientResult {
    BadGateway,
    GatewayTimeout,
    /// A response whose end did not come.
    Cut,
    Whole,
}
/// What a node does with its connection once a request has arrived on this stream.
pub(crate) type Act = fn(&mut Http2, u32);

/// A gateway with a node under the test's control, and another that is good.
pub(crate) struct Bench {
    pub(crate) node: Upstream,
    pub(crate) good: Upstream,
    pub(crate) gateway: Gateway,
}

impl Bench {
    pub(crate) fn new(keys: &str) -> Bench {
        let (node, good) = (Upstream::bind(), Upstream::echo());
        let setup = Setup::resources(format!(
            "upstreams:\n  - {{id: bad, retries: 0, http2: true, nodes: {{\"{}\": 1}}{keys}}}\n  - {{id: good, nodes: {{\"{}\": 1}}}}\n\
             routes:\n  - {{id: good, uri: /good, upstream_id: good}}\n  - {{id: bad, uri: /*, upstream_id: bad, enable_websocket: true}}\n",
            node.addr(),
            good.addr(),
        ));
        let gateway = Gateway::start(STILLGATE, &setup);
        Bench { node, good, gateway }
    }

    pub(crate) fn accept(&self) -> Http2 {
        Http2::accept(self.node.accept().stream().try_clone().expect("a second handle"), &[])
    }

    /// Sends a request, lets the node act, and returns what came; the node's connection is given back.
    pub(crate) fn play(&self, request: &str, act: Act) -> (ClientResult, Http2) {
        let mut client = self.gateway.client();
        client.send(request);
        let mut peer = self.accept();
        let stream = peer.until(|frame| frame.kind == kind::HEADERS).stream;
        act(&mut peer, stream);
        (seen(&mut client, request.split(' ').next().expect("a method")), peer)
    }

    /// Plays each act to one `GET`. Acts that end the connection leave nothing of it.
    pub(crate) fn check(&self, ends_connection: bool, cases: &[(&str, &[ClientResult], Act)]) {
        let rss = self.gateway.rss();
        for &(what, expected, act) in cases {
            let (seen, mut peer) = self.play("GET /bad HTTP/1.1\r\nHost: h\r\n\r\n", act);
            assert!(expected.contains(&seen), "{what}: {seen:?}");
            assert_eq!(self.gateway.get("/good").head.status(), 200, "{what}: another upstream");
            if ends_connection {
                peer.closed();
            }
        }
        let grown = self.gateway.rss().saturating_sub(rss);
        assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
        self.await_rest();
    }

    pub(crate) fn await_rest(&self) {
        eventually("nothing in flight", || self.gateway.status()["requests"]["in_flight"] == 0);
        assert!(!self.gateway.log().contains("panicked"));
        assert_eq!(self.good.faults(), [""; 0]);
    }
}

/// The beginning of a good response.
pub(crate) fn begin(peer: &mut Http2, stream: u32) {
    peer.send_head(stream, &[(":status", "200")], 0);
    peer.send(kind::DATA, 0, stream, b"beginning");
}

/// Reads the response to a request with this method.
#[track_caller]
pub(crate) fn seen(client: &mut BufferedSocket, method: &str) -> ClientResult {
    let head: Head = loop {
        match client.read_head() {
            Ok(head) if (100..200).contains(&head.status()) => {}
            Ok(head) => break head,
            Err(broken) => panic!("no answer: {broken:?}"),
        }
    };
    match (head.status(), client.read_response_body(head, method)) {
        (502, Ok(_)) => ClientResult::BadGateway,
        (504, Ok(_)) => ClientResult::GatewayTimeout,
        (_, Ok(_)) => ClientResult::Whole,
        (_, Err(MessageError::Closed | MessageError::Truncated(_) | MessageError::Reset(_))) => ClientResult::Cut,
        (_, Err(other)) => panic!("{other:?}"),
    }
}
