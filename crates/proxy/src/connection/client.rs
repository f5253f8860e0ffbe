//! What is known of a client's connection, apart from the request being served.

use super::stream::Stream;
use super::tls_facts::TlsFacts;
use crate::basics::clock::Timer;
use crate::sockets::listener::Listener;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use stillgate_wire::RequestHead;

/// One client connection.
pub(crate) struct ClientConnection {
    pub(crate) stream: Stream,
    pub(crate) timer: Timer,
    pub(crate) peer: SocketAddr,
    /// Address of the client: the peer, or the address that a trusted peer names in the current request.
    pub(crate) address: IpAddr,
    /// Port of the client, and whether a plugin has set its address.
    pub(crate) port: u16,
    pub(crate) is_named: bool,
    pub(crate) local: SocketAddr,
    /// What TLS has agreed on; `None`: we do not terminate TLS for it.
    pub(crate) tls: Option<Rc<TlsFacts>>,
    /// The client came over TLS, to us or to a balancer that says so.
    pub(crate) is_https: bool,
    /// The listener that accepted it.
    pub(crate) listener: Rc<Listener>,
    /// The header lines that describe this client to a node; the same for every request of an untrusted client.
    pub(crate) forwarded: Rc<[u8]>,
    /// The client has closed its sending side.
    pub(crate) eof: bool,
    /// A response is being sent whose end is marked only by the end of the connection: if it breaks off, the connection must be
    /// reset.
    pub(crate) ends_with_connection: bool,
    /// When the last request ended, or the connection began.
    pub(crate) quiet_since_ms: u64,
    /// No request has been served yet.
    pub(crate) is_new: bool,
}

impl ClientConnection {
    /// Makes a client whose connection facts are already known.
    pub(crate) fn with_facts(
        stream: Stream,
        peer: SocketAddr,
        local: SocketAddr,
        listener: Rc<Listener>,
        forwarded: Rc<[u8]>,
        tls: Option<Rc<TlsFacts>>,
        now_ms: u64,
    ) -> ClientConnection {
        ClientConnection {
            stream,
            timer: Timer::new(),
            peer,
            address: peer.ip().to_canonical(),
            port: peer.port(),
            is_named: false,
            local,
            is_https: tls.is_some(),
            tls,
            listener,
            forwarded,
            eof: false,
            ends_with_connection: false,
            quiet_since_ms: now_ms,
            is_new: true,
        }
    }

    /// The protocol version that the client speaks; `request` is what our engine got.
    pub(crate) fn protocol(&self, request: &RequestHead) -> &'static str {
        if self.stream.is_http2() { "HTTP/2.0" } else { request.version.as_str() }
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        scheme(self.is_https)
    }
}

/// `http` or `https`.
pub(crate) fn scheme(is_https: bool) -> &'static str {
    if is_https { "https" } else { "http" }
}

impl Drop for ClientConnection {
    /// Whatever ended the connection, a timeout, the worker's end or a bug: a truncated response must not look complete. A response
    /// that ends with its connection is reset; for any other the framing shows it, so the connection may be closed in an orderly
    /// way.
    fn drop(&mut self) {
        if self.ends_with_connection {
            self.stream.reset_when_closed();
        } else {
            self.stream.say_end();
        }
    }
}
