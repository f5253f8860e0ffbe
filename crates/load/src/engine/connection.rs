//! One connection of a generator thread: its socket, the request under way on it, and its state between two events.
//!
//! Small, because there may be tens of thousands: bytes are kept only if a request was not taken whole or a head came
//! in pieces. It neither waits nor counts.

use super::link::Link;
use super::response::Answer;
use crate::tls::Tls;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    /// Includes TLS and the beginning of HTTP/2.
    Connecting,
    /// Open, without a request; with HTTP/2, requests are on its streams only.
    Idle,
    /// A request was begun, and its answer is not complete.
    Asked,
}

/// State of a request under way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Request {
    /// Index of its entry in the mix.
    pub(super) entry: u32,
    /// Whether the answer has begun.
    pub(super) answering: bool,
    pub(super) intended_ns: u64,
    /// When the send began.
    pub(super) sent_ns: u64,
}

/// A slot for a connection; its sockets come and go.
#[derive(Debug)]
pub(super) struct Connection {
    link: Option<Link>,
    /// Counts the sockets, so that an event of an earlier socket is not mistaken for one of the current.
    pub(super) generation: u32,
    pub(super) stage: Stage,
    /// Whether this socket ever gave an answer.
    pub(super) proven: bool,
    /// Why no more of the request can be written; its answer may have come anyway.
    pub(super) send_error: Option<io::Error>,
    /// The request under way; while a connection is being opened, `sent_ns` is the time when that began.
    pub(super) request: Request,
    pub(super) answer: Answer,
    unsent: Option<Box<PendingBytes>>,
    kept: Option<Box<PendingBytes>>,
}

/// All idle connections together must stay small; each needs another 8 bytes in the idle list.
const CONNECTION_BYTES_MAX: usize = 160;
const _: () = assert!(size_of::<Connection>() <= CONNECTION_BYTES_MAX);

/// Every Linux has it, and requests that wait for their answers need nothing better.
const CONGESTION_CONTROL: &str = "reno";

/// Bytes kept for later.
#[derive(Debug, Default)]
struct PendingBytes {
    bytes: Vec<u8>,
    done: usize,
}

impl Connection {
    pub(super) fn closed() -> Self {
        Connection {
            link: None,
            generation: 0,
            stage: Stage::Closed,
            proven: false,
            send_error: None,
            request: Request::default(),
            answer: Answer::default(),
            unsent: None,
            kept: None,
        }
    }

    /// Begins to connect; the socket becomes writable when that has finished.
    pub(super) fn open(&mut self, to: SocketAddr, from: Option<IpAddr>, now_ns: u64) -> Result<&OwnedFd, Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if to.ip().is_loopback() {
            // BBR, where it is the system's default, paces sends by a timer and samples rates at each acknowledgement:
            // a quarter of the CPU of a small request. If the call fails, only that CPU time is lost. On a network the
            // default stays, as for other clients.
            let _ = sockopt::set_tcp_congestion(&socket, CONGESTION_CONTROL);
        }
        if let Some(from) = from {
            bind(&socket, &SocketAddr::new(from, 0))?;
        }
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        (self.stage, self.request.sent_ns, self.proven) = (Stage::Connecting, now_ns, false);
        Ok(self.link.insert(Link::new(socket)).socket())
    }

    /// Continues to connect; returns whether that is over, TLS included.
    pub(super) fn connected(&mut self, tls: Option<&Tls>) -> io::Result<bool> {
        let link = self.link.as_mut().ok_or(Errno::NOTCONN)?;
        sockopt::socket_error(link.socket())??;
        match tls {
            None => Ok(true),
            Some(tls) => link.handshake(tls),
        }
    }

    /// Gives its link away, to speak HTTP/2 on it.
    pub(super) fn take_link(&mut self) -> Option<Link> {
        self.link.take()
    }

    /// The socket reported an event; `ending`: the peer will send no more.
    #[inline]
    pub(super) fn woken(&mut self, ending: bool) {
        if let Some(link) = &mut self.link {
            link.woken(ending);
        }
    }

    /// Whether a short read means that all was read.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_plain)
    }

    /// Closes it in any state; the caller must reset the answer through its reader.
    pub(super) fn close(&mut self) {
        self.link = None;
        self.generation = self.generation.wrapping_add(1);
        self.stage = Stage::Closed;
        (self.send_error, self.unsent, self.kept) = (None, None, None);
    }

    /// Writes a request; returns whether all of it was taken. [`Connection::flush`] writes the rest when possible.
    #[inline]
    pub(super) fn send(&mut self, request: &[u8]) -> io::Result<bool> {
        let link = self.link.as_mut().ok_or(Errno::NOTCONN)?;
        let written = match link.write(request) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if written == request.len() {
            return Ok(link.is_flushed());
        }
        self.unsent = Some(Box::new(PendingBytes { bytes: request[written..].to_vec(), done: 0 }));
        self.flush()
    }

    /// Whether some of the request is still to be written.
    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.unsent.is_some() || self.link.as_ref().is_some_and(|link| !link.is_flushed())
    }

    /// Writes until the system takes no more: only then does the system report when it does again. Returns whether all
    /// was taken.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let link = self.link.as_mut().ok_or(Errno::NOTCONN)?;
        link.flush()?;
        let Some(mut rest) = self.unsent.take() else { return Ok(link.is_flushed()) };
        while rest.done < rest.bytes.len() {
            match link.write(&rest.bytes[rest.done..]) {
                Ok(written) => rest.done += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent = Some(rest);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(link.is_flushed())
    }

    /// Reads the available bytes; zero if the peer will send no more.
    #[inline]
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.link.as_mut().ok_or(Errno::NOTCONN)?.read(buffer)
    }

    /// Keeps the beginning of a head for the next read.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.kept = None;
            return;
        }
        let kept = self.kept.get_or_insert_default();
        kept.bytes.clear();
        kept.bytes.extend_from_slice(bytes);
    }

    /// Puts the kept bytes at the front of the buffer; returns their number.
    #[inline]
    pub(super) fn restore(&self, buffer: &mut [u8]) -> usize {
        let Some(kept) = &self.kept else { return 0 };
        buffer[..kept.bytes.len()].copy_from_slice(&kept.bytes);
        kept.bytes.len()
    }
}
