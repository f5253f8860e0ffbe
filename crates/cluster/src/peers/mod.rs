//! Requests from node to node: HTTP/2, one connection from each node to each other one, flow-controlled.
//!
//! Over TLS both sides present a certificate of the same roots with their node's name: another certificate of these
//! roots is not enough. Without TLS both ends are on one machine.
//!
//! A request is a POST with its kind as path and the sender's name in a field; 200 means that the node has processed
//! it, 421 that its subject is not there (any more), 503 that another process of the node takes over. A connection that
//! does not answer a ping is given up, so that requests on it do not wait for a hanging node.

mod client;
mod server;
mod tls;

pub use client::Peers;
pub use server::{PeerServerSettings, serve};
pub use tls::{PeerTls, PeerTlsError};

use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;

/// The field with the name of the requesting node.
const NODE_FIELD: &str = "stillgate-node";

/// Unread bytes in flight on one stream and on a whole connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Concurrent requests of one node. More wait at the sender, or are [`CallError::Busy`].
const REQUESTS_MAX: u32 = 10_000;

/// A request of another node.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name.
    pub from: Arc<str>,
    /// The kind of request: letters.
    pub kind: Box<str>,
    /// The body.
    pub body: Bytes,
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerReply {
    /// It was processed, with this result.
    Taken(Bytes),
    /// Its subject is not here.
    Moved,
    /// Its subject is not here, but may be in the process that takes over from this one: repeat it on another
    /// connection.
    Leaving,
}

/// Why a call has no [`PeerReply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The node has not received the request, and will not.
    Unreachable,
    /// It was not sent: the peer already had as many requests in flight as it accepts.
    Busy,
    /// The node may have received it: the connection or the time ended before its answer.
    Lost,
}

/// Answers the requests to a node.
pub type Handler = Arc<dyn Fn(Call) -> ReplyFuture + Send + Sync>;

/// A future answer.
pub type ReplyFuture = Pin<Box<dyn Future<Output = PeerReply> + Send>>;
