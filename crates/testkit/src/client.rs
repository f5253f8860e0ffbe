//! A client that decides where its bytes are split.

use crate::connection::BufferedSocket;
use crate::message::{Message, MessageError};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};

/// After this many pieces the other side no longer gets the core after each: on a machine where others compute all the
/// time, that costs milliseconds each time, and minutes for seventy thousand pieces.
const YIELDS_MAX: usize = 1_000;

/// How a message is cut into writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one write.
    Whole,
    /// A write for every byte.
    Bytewise,
    /// A write after every LF, and between CR and LF.
    AtLineEnds,
}

impl Delivery {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Whole, Self::Bytewise, Self::AtLineEnds];

    fn pieces(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Self::Whole => vec![bytes],
            Self::Bytewise => bytes.chunks(1).collect(),
            Self::AtLineEnds => bytes
                .split_inclusive(|&byte| byte == b'\r')
                .flat_map(|piece| piece.split_inclusive(|&byte| byte == b'\n'))
                .collect(),
        }
    }
}

/// A connection to the gateway; it dereferences to [`BufferedSocket`].
#[derive(Debug)]
pub struct Client(BufferedSocket);

impl Client {
    /// Connects.
    ///
    /// # Panics
    /// If nothing listens there.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Self {
        Self(BufferedSocket::new(TcpStream::connect(addr).expect("connect to the gateway")))
    }

    /// Sends `bytes` in pieces. Stops without an error when the peer has closed: it may refuse half-way.
    pub fn deliver(&mut self, bytes: &[u8], how: Delivery) {
        for (at, piece) in how.pieces(bytes).into_iter().enumerate() {
            if self.0.try_send(piece).is_err() {
                return;
            }
            if at < YIELDS_MAX {
                std::thread::yield_now();
            }
        }
    }

    /// One `GET` and its response, on this connection.
    ///
    /// # Panics
    /// If there is no complete response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Message {
        self.request("GET", target, b"")
    }

    /// One request with a body of known length (none if it is empty), and its response.
    ///
    /// # Panics
    /// If there is no complete response.
    #[track_caller]
    pub fn request(&mut self, method: &str, target: &str, body: &[u8]) -> Message {
        self.try_request(method, target, body).unwrap_or_else(|broken| panic!("{method} {target}: {broken:?}"))
    }

    /// As [`Client::request`].
    ///
    /// # Errors
    /// If there is no complete response.
    pub fn try_request(&mut self, method: &str, target: &str, body: &[u8]) -> Result<Message, MessageError> {
        let length = match body.len() {
            0 => String::new(),
            len => format!("Content-Length: {len}\r\n"),
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n");
        let sent = self.0.try_send([head.as_bytes(), body].concat());
        // A response may come before the whole body was sent; it counts.
        let response = self.0.read_response(method);
        if sent.is_err() && response.is_err() { Err(MessageError::Reset(Vec::new())) } else { response }
    }

    /// An accepted connection, to deliver responses in pieces, too.
    pub fn from_connection(connection: BufferedSocket) -> Self {
        Self(connection)
    }

    /// Returns the connection.
    pub fn into_connection(self) -> BufferedSocket {
        self.0
    }
}

impl Deref for Client {
    type Target = BufferedSocket;

    fn deref(&self) -> &BufferedSocket {
        &self.0
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut BufferedSocket {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up() {
        let bytes = b"GET / HTTP/1.1\r\nA: b\n\r\n";
        for how in Delivery::ALL {
            assert_eq!(how.pieces(bytes).concat(), bytes);
        }
        assert_eq!(Delivery::AtLineEnds.pieces(b"a\r\nb\nc"), [&b"a\r"[..], b"\n", b"b\n", b"c"]);
    }
}
