//! HTTP/2, on `h2`. An HTTP/2 stream is an HTTP/1.1 connection to our engine: each request, whichever side speaks which version,
//! runs through the same parser, exchange and relay. The server half of a whole connection is `client::http2`; the client half is
//! driven by `node`.
//!
//! ```text
//!   socket ── transport ── connection        node ── transport ── socket      (a task each: frames, windows, floods)
//!              inbound        │ h2             │ h2   inbound                  (what `h2` is given of the bytes that came)
//!                        client_stream    node_stream                          (an exchange has one of either, or sockets)
//!                           request          response                          (heads)
//!                       bodies, incoming, outgoing                             (bodies)
//!                                            grpc_web                          (what becomes gRPC on the way)
//! ```

mod bodies;
pub(crate) mod bounds;
pub(crate) mod client_stream;
mod field_watch;
pub(crate) mod frames;
mod grpc_web;
mod incoming_body;
mod node_stream;
mod outgoing_body;
pub(crate) mod transport;

use crate::connection::stream::NodeProtocolGuess;
use bodies::Bodies;
use bounds::STREAMS_MAX;
use bytes::Bytes;
pub(crate) use client_stream::ClientStream;
use field_watch::ServedStreams;
pub(crate) use frames::{PREFACE, starts};
pub(crate) use grpc_web::is_bad_base64;
use h2::client::SendRequest;
pub(crate) use node_stream::{NodeStream, is_inexpressible};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_wire::RequestHead;

// An HTTP/2 connection to a node, shared by all requests that are under way on it.

/// What the requests of one connection share.
pub(crate) struct NodeShared {
    /// Requests under way.
    pub(crate) live: Cell<usize>,
    /// No further request is to use this connection.
    pub(crate) is_retired: Cell<bool>,
    /// How many there may be at once.
    pub(crate) live_max: Cell<usize>,
    /// Requests whose last write left little room for their content: the node reads slowly, and the connection's window, which all
    /// share, may be used up. Others would wait for as long as the node pleases.
    pub(crate) blocked: Cell<usize>,
    /// Whether it carries one request at a time, one with a large head: what the node does because of it harms no other.
    pub(crate) is_exclusive: bool,
    /// Requests that were reset before their end.
    pub(crate) resets: Cell<usize>,
    /// What the node seems to speak instead.
    pub(crate) mistaken: Cell<Option<NodeProtocolGuess>>,
    /// Whether gRPC-Web calls go to the node as gRPC calls.
    pub(crate) bridges_web: bool,
    pub(crate) bodies: Rc<Bodies>,
    /// Streams whose head or trailers are malformed.
    pub(crate) marked: Rc<ServedStreams>,
    pub(crate) scratch: RefCell<NodeScratch>,
}

impl NodeShared {
    pub(crate) fn new(bridges_web: bool, is_exclusive: bool) -> NodeShared {
        NodeShared {
            live: Cell::new(0),
            is_retired: Cell::new(false),
            live_max: Cell::new(STREAMS_MAX as usize),
            blocked: Cell::new(0),
            is_exclusive,
            resets: Cell::new(0),
            mistaken: Cell::new(None),
            bridges_web,
            bodies: Rc::default(),
            marked: Rc::default(),
            scratch: RefCell::default(),
        }
    }
}

/// Scratch memory for what is built and parsed at once.
#[derive(Default)]
pub(crate) struct NodeScratch {
    pub(crate) request: RequestHead,
    pub(crate) response: Vec<u8>,
}

/// A connection to a node as the pool keeps it; requests are streams of it. After it was dropped, it ends with its last request.
pub(crate) struct NodeConnection {
    send: SendRequest<Bytes>,
    shared: Rc<NodeShared>,
    server_name: Option<ServerName<'static>>,
}

impl NodeConnection {
    /// A connection that some task drives.
    pub(crate) fn new(
        send: SendRequest<Bytes>,
        shared: Rc<NodeShared>,
        server_name: Option<ServerName<'static>>,
    ) -> NodeConnection {
        NodeConnection { send, shared, server_name }
    }

    /// Opens a further request. There must be room for one.
    pub(crate) fn open(&self) -> NodeStream {
        NodeStream::new(self.send.clone(), self.shared.clone())
    }

    /// Whether no further request should use it at the moment: the node allows none, or does not read what others send.
    pub(crate) fn is_full(&self) -> bool {
        let live = self.shared.live.get();
        live >= self.shared.live_max.get() || live > 0 && self.shared.is_exclusive || self.shared.blocked.get() > 0
    }

    /// Whether it carries one request at a time, one with a large head.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.shared.is_exclusive
    }

    /// Whether it was closed, or is about to be, or a request on it was not answered in time.
    pub(crate) fn is_dead(&mut self) -> bool {
        self.shared.is_retired.get()
            || matches!(self.send.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// The name that the node's certificate was verified for.
    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }
}
