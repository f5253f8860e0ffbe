//! A socket that messages are read from, strictly.
//!
//! Reading waits, with a deadline, for exactly the requested amount; further bytes are kept for the next read. The ends
//! of a connection are distinguished: orderly, in the middle of a message, or by a reset.

use crate::PATIENCE;
use crate::message::{
    Fields, Framing, Head, Message, MessageError, encode, find, framing, is_status_line, parse_field,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A longer head is a failure of the peer.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// One socket, with the bytes that were read too far.
#[derive(Debug)]
pub struct BufferedSocket {
    stream: TcpStream,
    buffer: Vec<u8>,
    patience: Duration,
}

impl BufferedSocket {
    /// Takes over a socket.
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(false).expect("set a live socket blocking");
        stream.set_nodelay(true).expect("TCP_NODELAY on a live socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
        Self { stream, buffer: Vec::new(), patience: PATIENCE }
    }

    /// Takes over a socket and the bytes already read from it.
    pub(crate) fn resume(stream: TcpStream, received: Vec<u8>) -> Self {
        Self { buffer: received, ..Self::new(stream) }
    }

    /// Changes how long reads wait.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// If the peer has gone or does not read.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends all of `bytes`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("send to the gateway or upstream under test");
    }

    /// Closes our direction only.
    pub fn half_close(&self) {
        // The peer may have reset it already, which also ends it.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection with RST.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
    }

    /// Reads a response to a request with this method, including interim ones.
    ///
    /// # Errors
    /// If it is not complete.
    pub fn read_response(&mut self, method: &str) -> Result<Message, MessageError> {
        let mut interim = Vec::new();
        loop {
            let head = self.read_head()?;
            if !is_status_line(&head.start) {
                return Err(MessageError::Malformed(format!("status line {:?}", head.start)));
            }
            match head.status() {
                100..=199 if head.status() != 101 => interim.push(head),
                _ => {
                    let message = self.read_response_body(head, method)?;
                    return Ok(Message { interim, ..message });
                }
            }
        }
    }

    /// Reads the rest of a final response whose head was read by [`BufferedSocket::read_head`].
    ///
    /// # Errors
    /// If it is not complete.
    pub fn read_response_body(&mut self, head: Head, method: &str) -> Result<Message, MessageError> {
        let bodyless = method == "HEAD" || matches!(head.status(), 101 | 204 | 304);
        self.read_rest(head, bodyless, Framing::Close)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If it is not complete.
    pub fn read_request(&mut self) -> Result<Message, MessageError> {
        let head = self.read_head()?;
        self.read_request_body(head)
    }

    /// Reads the rest of a request whose head was read by [`BufferedSocket::read_head`].
    ///
    /// # Errors
    /// If it is not complete.
    pub fn read_request_body(&mut self, head: Head) -> Result<Message, MessageError> {
        let words = head.start.split(' ').count();
        if words != 3 || !head.start.ends_with(" HTTP/1.1") && !head.start.ends_with(" HTTP/1.0") {
            return Err(MessageError::Malformed(format!("request line {:?}", head.start)));
        }
        if head.all("host").len() != 1 {
            return Err(MessageError::Malformed(format!("not exactly one Host: {head:?}")));
        }
        self.read_rest(head, false, Framing::None)
    }

    /// Reads a request.
    ///
    /// # Panics
    /// If it is not complete.
    #[track_caller]
    pub fn expect_request(&mut self) -> Message {
        self.read_request().unwrap_or_else(|broken| panic!("no request reached the upstream: {broken:?}"))
    }

    /// Reads a response.
    ///
    /// # Panics
    /// If it is not complete.
    #[track_caller]
    pub fn expect_response(&mut self, method: &str) -> Message {
        self.read_response(method).unwrap_or_else(|broken| panic!("no response came: {broken:?}"))
    }

    /// Reads one head.
    ///
    /// # Errors
    /// If it is not complete or breaks a rule.
    pub fn read_head(&mut self) -> Result<Head, MessageError> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                let bytes: Vec<u8> = self.buffer.drain(..at + 4).collect();
                let explain = |why| MessageError::Malformed(format!("{why} in:\n{}", encode(&bytes)));
                return Head::parse(&bytes).map_err(explain);
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(MessageError::Malformed("endless head".to_owned()));
            }
            self.fill(deadline)?;
        }
    }

    /// Exactly `len` bytes.
    ///
    /// # Errors
    /// If they do not come.
    pub fn read_exactly(&mut self, len: usize) -> Result<Vec<u8>, MessageError> {
        let mut deadline = Instant::now() + self.patience;
        while self.buffer.len() < len {
            self.fill(deadline)?;
            deadline = Instant::now() + self.patience;
        }
        Ok(self.buffer.drain(..len).collect())
    }

    /// Everything up to an orderly end.
    ///
    /// # Errors
    /// On a reset, or if the end does not come.
    pub fn read_to_end(&mut self) -> Result<Vec<u8>, MessageError> {
        let mut deadline = Instant::now() + self.patience;
        loop {
            match self.fill(deadline) {
                Ok(()) => deadline = Instant::now() + self.patience,
                Err(MessageError::Closed) => return Ok(Vec::new()),
                Err(MessageError::Truncated(bytes)) => return Ok(bytes),
                Err(other) => return Err(other),
            }
        }
    }

    /// Whether the peer has ended or reset it; bytes that have come meanwhile are kept.
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.fill(Instant::now()) {
                Ok(()) => {}
                Err(MessageError::Timeout(bytes)) => {
                    self.buffer = bytes;
                    return false;
                }
                Err(MessageError::Truncated(bytes) | MessageError::Reset(bytes)) => {
                    self.buffer = bytes;
                    return true;
                }
                Err(_) => return true,
            }
        }
    }

    /// Bytes that have come and were not read yet, without waiting.
    pub fn pending(&mut self) -> Vec<u8> {
        self.is_closed();
        std::mem::take(&mut self.buffer)
    }

    /// # Panics
    /// If the peer sends anything more, or leaves the connection open.
    #[track_caller]
    pub fn expect_close(&mut self) {
        match self.read_to_end() {
            Ok(rest) => assert!(rest.is_empty(), "more came:\n{}", encode(&rest)),
            Err(MessageError::Reset(rest)) if rest.is_empty() => {}
            Err(broken) => panic!("not closed: {broken:?}"),
        }
    }

    fn read_rest(&mut self, head: Head, bodyless: bool, default: Framing) -> Result<Message, MessageError> {
        let framing = framing(&head, default).map_err(MessageError::Malformed)?;
        let (framing, body, trailers) = match framing {
            _ if bodyless => (Framing::None, Vec::new(), Vec::new()),
            Framing::None => (framing, Vec::new(), Vec::new()),
            Framing::Length => {
                let len = head.get("content-length").and_then(|len| len.parse().ok());
                let len = len.expect("framing() checked it");
                (framing, self.read_exactly(len)?, Vec::new())
            }
            Framing::Chunked => {
                let (body, trailers) = self.read_chunked()?;
                (framing, body, trailers)
            }
            Framing::Close => (framing, self.read_to_end()?, Vec::new()),
        };
        Ok(Message { interim: Vec::new(), head, body, trailers, framing })
    }

    fn read_chunked(&mut self) -> Result<(Vec<u8>, Fields), MessageError> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let size = line.split(';').next().unwrap_or("");
            let is_hex = !size.is_empty() && size.chars().all(|c| c.is_ascii_hexdigit());
            let size = usize::from_str_radix(size, 16)
                .ok()
                .filter(|_| is_hex)
                .ok_or_else(|| MessageError::Malformed(format!("chunk size {line:?}")))?;
            if size == 0 {
                break;
            }
            body.extend(self.read_exactly(size)?);
            if self.read_exactly(2)? != b"\r\n" {
                return Err(MessageError::Malformed("no CRLF after a chunk".to_owned()));
            }
        }
        let mut trailers = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok((body, trailers));
            }
            trailers.push(parse_field(&line).map_err(MessageError::Malformed)?);
        }
    }

    fn read_line(&mut self) -> Result<String, MessageError> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line = self.buffer[..at].iter().map(|&b| char::from(b)).collect();
                self.buffer.drain(..at + 2);
                return Ok(line);
            }
            self.fill(deadline)?;
        }
    }

    /// Reads once. An error contains the buffer, which nothing can complete any more.
    fn fill(&mut self, deadline: Instant) -> Result<(), MessageError> {
        let mut chunk = [0; 64 * 1024];
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = left.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(wait)).expect("a positive read timeout");
        let taken = |buffer: &mut Vec<u8>| std::mem::take(buffer);
        match self.stream.read(&mut chunk) {
            Ok(0) if self.buffer.is_empty() => Err(MessageError::Closed),
            Ok(0) => Err(MessageError::Truncated(taken(&mut self.buffer))),
            Ok(len) => {
                self.buffer.extend_from_slice(&chunk[..len]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(MessageError::Timeout(taken(&mut self.buffer))),
                ErrorKind::Interrupted => Ok(()),
                _ => Err(MessageError::Reset(taken(&mut self.buffer))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn reading(bytes: &[u8], method: &str) -> Result<Message, MessageError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.write_all(bytes).unwrap();
        drop(sender);
        BufferedSocket::new(listener.accept().unwrap().0).read_response(method)
    }

    #[test]
    fn reads_every_framing() {
        let check = |text: &str, method: &str, framing, body: &str| {
            let message = reading(&crate::decode(text), method).expect(text);
            assert_eq!(message.framing, framing, "{text}");
            assert_eq!(message.body, body.as_bytes(), "{text}");
        };
        check("HTTP/1.1 200 OK\nContent-Length: 2\n\nhi\\", "GET", Framing::Length, "hi");
        check("HTTP/1.1 200 OK\nContent-Length: 2\n\n", "HEAD", Framing::None, "");
        check("HTTP/1.1 304 Not Modified\nContent-Length: 2\n\n", "GET", Framing::None, "");
        check("HTTP/1.1 200 OK\n\nhi\\", "GET", Framing::Close, "hi");
        let chunked = "HTTP/1.1 103 Early\n\nHTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2;x=1\nhi\n0\nA: b\n\n";
        check(chunked, "GET", Framing::Chunked, "hi");
        let message = reading(&crate::decode(chunked), "GET").unwrap();
        assert_eq!(message.trailers, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(message.interim[0].status(), 103);
    }

    #[test]
    fn refuses_what_two_readers_could_read_differently() {
        let refuse = |text: &str| {
            let result = reading(&crate::decode(text), "GET");
            assert!(matches!(result, Err(MessageError::Malformed(_))), "{text}: {result:?}");
        };
        refuse("HTTP/1.1 200 OK\nContent-Length: 2\nContent-Length: 2\n\nhi\\");
        refuse("HTTP/1.1 200 OK\nContent-Length: +2\n\nhi\\");
        refuse("HTTP/1.1 200 OK\nContent-Length: 2\nTransfer-Encoding: chunked\n\nhi\\");
        refuse("HTTP/1.1 200 OK\nTransfer-Encoding: gzip, chunked\n\n0\n\n");
        refuse("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n+2\nhi\n0\n\n");
        refuse("HTTP/1.1 200 OK\nA : b\n\n");
        refuse("HTTP/1.1 200\n\n");
    }

    #[test]
    fn distinguishes_truncation_from_silence() {
        let cut = reading(&crate::decode("HTTP/1.1 200 OK\nContent-Length: 9\n\nhi\\"), "GET");
        assert_eq!(cut, Err(MessageError::Truncated(b"hi".to_vec())));
        assert_eq!(reading(b"", "GET"), Err(MessageError::Closed));
    }
}
