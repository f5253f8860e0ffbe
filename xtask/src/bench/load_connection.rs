//! One kept connection of a load generator: sends requests without waiting, and counts whole responses as they arrive.
//!
//! Nonblocking, so that one thread drives many: on two CPUs one thread per connection would measure the scheduler. It parses what
//! the measured gateways send (200, `Content-Length`) and refuses the rest.

use crate::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The most bytes of a response.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Bytes per read; after a full buffer it reads again.
const READ_BYTES: usize = 16 * 1024;

/// An open connection.
pub(super) struct LoadConnection {
    stream: TcpStream,
    unsent: Vec<u8>,
    received: Vec<u8>,
}

/// What has arrived.
#[derive(Default)]
pub(super) struct Received {
    /// Number of whole responses, all of them 200.
    pub(super) answers: u64,
    /// Whether the gateway closes the connection after the last of them.
    pub(super) closes: bool,
}

impl LoadConnection {
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, unsent: Vec::new(), received: Vec::new() })
    }

    /// Writes what the socket accepts now; the rest follows when it is writable.
    pub(super) fn send(&mut self, requests: &[u8]) -> Result {
        self.unsent.extend_from_slice(requests);
        self.flush()
    }

    /// Writes pending data, and handles the responses that have arrived.
    pub(super) fn progress(&mut self) -> Result<Received> {
        self.flush()?;
        let mut part = [0; READ_BYTES];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(format!("closed after {} bytes of an answer", self.received.len()).into()),
                Ok(length) => {
                    self.received.extend_from_slice(&part[..length]);
                    if length < READ_BYTES {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.take_answers()
    }

    fn flush(&mut self) -> Result {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take_answers(&mut self) -> Result<Received> {
        let mut all = Received::default();
        let mut rest = self.received.as_slice();
        while let Some(answer) = answer(rest)?
            && rest.len() >= answer.whole
        {
            rest = &rest[answer.whole..];
            all.answers += 1;
            all.closes |= answer.closes;
        }
        let (taken, left) = (self.received.len() - rest.len(), rest.len());
        if left > ANSWER_BYTES_MAX {
            return Err("an answer without end".into());
        }
        self.received.drain(..taken);
        Ok(all)
    }

    fn awaited(&self) -> PollFd<'_> {
        let flags = if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        PollFd::new(&self.stream, flags)
    }
}

/// Waits until some of the connections are ready, for `limit` at most; returns their indexes.
pub(super) fn wait<'a>(
    connections: impl Iterator<Item = (usize, &'a LoadConnection)>,
    limit: Duration,
) -> Result<Vec<usize>> {
    let (numbers, mut awaited): (Vec<usize>, Vec<PollFd<'a>>) =
        connections.map(|(number, connection)| (number, connection.awaited())).unzip();
    let limit = Timespec::try_from(limit)?;
    match poll(&mut awaited, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ready = numbers.into_iter().zip(&awaited).filter(|(_, awaited)| !awaited.revents().is_empty());
    Ok(ready.map(|(number, _)| number).collect())
}

/// The first response in the received bytes.
struct Answer {
    /// Bytes of head and body.
    whole: usize,
    closes: bool,
}

/// The first response, once its head is complete.
fn answer(received: &[u8]) -> Result<Option<Answer>> {
    let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&received[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200") {
        return Err(status.to_owned().into());
    }
    let (mut length, mut closes) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>()?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.trim().eq_ignore_ascii_case("close");
        }
    }
    let length = length.ok_or("an answer without Content-Length")?;
    Ok(Some(Answer { whole: end + 4 + length, closes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn answer_length_and_end() {
        assert!(answer(b"HTTP/1.1 200 OK\r\n").unwrap().is_none());
        let kept = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc").unwrap().unwrap();
        assert_eq!((kept.whole, kept.closes), (41, false));
        let last = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap().unwrap();
        assert!(last.closes);
        assert!(answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(answer(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n").is_err());
    }

    #[test]
    fn answers_in_any_pieces() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connection = LoadConnection::open(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        connection.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answered = 0;
        for piece in ["HTTP/1.1 200 OK\r\nContent-Le", "ngth: 2\r\n\r\nabHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
        {
            peer.write_all(piece.as_bytes()).unwrap();
            while wait([(7, &connection)].into_iter(), Duration::from_secs(5)).unwrap() != [7] {}
            answered += connection.progress().unwrap().answers;
        }
        assert_eq!(answered, 2);
        drop(peer);
        while wait([(7, &connection)].into_iter(), Duration::from_secs(5)).unwrap() != [7] {}
        assert!(connection.progress().is_err());
    }
}
