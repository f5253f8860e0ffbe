//! A gateway with one tunnel through it, as the tests of tunnels begin.

use stillgate_testkit::{BufferedSocket, Client, Gateway, MessageError, Setup, Upstream};

/// A request to switch to another protocol.
pub(crate) const ASK: &str =
    "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nX-Mine: 1\r\n\r\n";
/// The response that agrees to it.
pub(crate) const AGREE: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Yours: 2\r\n\r\n";

/// A gateway whose one route lets clients switch to another protocol.
pub(crate) fn setup(upstream: &Upstream) -> Setup {
    Setup::to(upstream.addr()).route("enable_websocket: true")
}

/// Both ends of a tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: Client,
    pub(crate) node: BufferedSocket,
}

impl Tunnel {
    /// Opens a tunnel.
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
        assert!(self.is_open(), "the tunnel is closed");
    }

    /// [`Tunnel::check`], where it may have been closed.
    pub(crate) fn is_open(&mut self) -> bool {
        let mut passes = |up: bool, bytes: &str| {
            let (from, to) = if up { (&mut *self.client, &mut self.node) } else { (&mut self.node, &mut *self.client) };
            let got =
                from.try_send(bytes).map_err(|_| MessageError::Closed).and_then(|()| to.read_exactly(bytes.len()));
            assert!(!matches!(got, Err(MessageError::Timeout(_))), "{bytes} does not arrive, and nothing is closed");
            got.inspect(|got| assert_eq!(got, bytes.as_bytes())).is_ok()
        };
        passes(true, "ping") && passes(false, "pong!")
    }
}
