//! A gateway with one tunnel through it, as the tests of tunnels begin.

#![allow(dead_code, reason = "each test uses a part of it")]

use stillgate_testkit::{Client, Connection, Gateway, Setup, Upstream};

pub(crate) const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");

/// What asks for another protocol.
pub(crate) const ASK: &str =
    "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nX-Mine: 1\r\n\r\n";
/// What agrees.
pub(crate) const AGREE: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Yours: 2\r\n\r\n";

/// A gateway whose one route lets clients ask for another protocol.
pub(crate) fn setup(upstream: &Upstream) -> Setup {
    Setup::to(upstream.addr()).route("enable_websocket: true")
}

/// Both ends of a tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: Client,
    pub(crate) node: Connection,
}

impl Tunnel {
    /// Opens one.
    #[track_caller]
    pub(crate) fn open(gateway: &Gateway, upstream: &Upstream) -> Tunnel {
        let mut client = gateway.client();
        client.send(ASK);
        let mut node = upstream.accept();
        node.expect_request();
        node.send(AGREE);
        assert_eq!(client.read_head().expect("an answer").status(), 101);
        Tunnel { client, node }
    }

    /// Sends a little both ways.
    #[track_caller]
    pub(crate) fn check(&mut self) {
        self.client.send("ping");
        assert_eq!(self.node.read_exactly(4).expect("what the client sent"), b"ping");
        self.node.send("pong!");
        assert_eq!(self.client.read_exactly(5).expect("what the node sent"), b"pong!");
    }
}
