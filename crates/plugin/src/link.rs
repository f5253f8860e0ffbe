//! Connections of plugins to servers that do not use HTTP: bytes are sent, and bytes received until a reader finds the
//! reply complete.
//!
//! The plugin interprets the bytes; connecting, TLS, timeouts and idle connections are handled by [`crate::Io`].

use crate::calls::{CallError, CallOrigin, Keep};
use crate::work::LocalFuture;
use std::sync::Arc;
use std::time::Duration;

/// Destination of a connection.
#[derive(Debug, Clone)]
pub struct LinkTo {
    /// The server.
    pub origin: Arc<CallOrigin>,
    /// Name of the pool: idle connections are reused by server and pool.
    pub pool: Box<str>,
    /// Timeout of connecting, TLS included.
    pub timeout: Duration,
}

/// Length of the reply; `None`: it is not complete yet. Gets all bytes received so far.
pub type Whole = Box<dyn FnMut(&[u8]) -> Result<Option<usize>, CallError>>;

/// A message, and how its reply is read.
pub struct Exchange {
    /// The message to send.
    pub message: Vec<u8>,
    /// Timeout of sending.
    pub send_timeout: Duration,
    /// Timeout of the whole reply.
    pub read_timeout: Duration,
    /// Largest reply.
    pub reply_bytes_max: usize,
    /// Finds the end of the reply.
    pub whole: Whole,
}

/// The reply, and the connection for the next message.
pub type Exchanged = Result<(Vec<u8>, Box<dyn Link>), CallError>;

/// A connection, which is closed when it is dropped.
pub trait Link {
    /// How often it has been reused.
    fn reused(&self) -> u32;

    /// Sends a message and waits for its reply. After an error the connection is closed: later bytes could not be
    /// assigned to a request.
    fn exchange(self: Box<Self>, exchange: Exchange) -> LocalFuture<Exchanged>;

    /// Keeps the connection for the next caller that connects to the same server and pool.
    fn keep(self: Box<Self>, keep: Keep);
}
