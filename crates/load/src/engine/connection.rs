//! One connection of a generator thread: its link, the request under way on it, and its state between two events.
//!
//! Small, because there may be tens of thousands: bytes are kept only if a request was not taken whole or a head came
//! in pieces. It neither waits nor counts.
//!
//! The link to a target is a non-blocking socket, with TLS on it or without. It is registered once and edge-triggered, so
//! every event must be consumed: without TLS a short read shows that it was; with TLS the link itself keeps track, since a
//! read of it returns earlier bytes. Level-triggered users call [`Link::woken`] before each turn, too, and read until
//! nothing is left: bytes that TLS holds back cause no event.

use super::response::Answer;
use crate::tls::Tls;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with, sockopt,
};
use rustls::{ClientConnection, HandshakeKind};
use std::io::{self, Read, Write};
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
    pub(super) fn continue_connect(&mut self, tls: Option<&Tls>) -> io::Result<bool> {
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

/// An open socket, and its TLS.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    /// Boxed: without it connections stay small.
    secured: Option<Box<TlsSession>>,
}

#[derive(Debug)]
struct TlsSession {
    session: ClientConnection,
    /// Whether the socket gave less than was requested since its last event, so that reading again would be useless.
    is_drained: bool,
    /// Whether the peer will send no more, so that only the end shows that all was read.
    is_ending: bool,
}

impl Link {
    /// A link without TLS.
    pub fn new(socket: OwnedFd) -> Self {
        Link { socket, secured: None }
    }

    /// The socket, to wait for and to close.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether a short read means that all was read.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.secured.is_none()
    }

    /// Begins or continues the handshake; returns whether it is over.
    pub(super) fn handshake(&mut self, tls: &Tls) -> io::Result<bool> {
        if self.secured.is_none() {
            self.secure(tls)?;
        }
        self.shake()
    }

    /// Switches to TLS; nothing is written yet.
    pub fn secure(&mut self, tls: &Tls) -> io::Result<()> {
        let session = tls.connection().map_err(refused)?;
        self.secured = Some(Box::new(TlsSession { session, is_drained: false, is_ending: false }));
        Ok(())
    }

    /// Continues the handshake of a secured link; returns whether it is over. Without TLS there is none.
    pub fn shake(&mut self) -> io::Result<bool> {
        match &mut self.secured {
            None => Ok(true),
            Some(secured) => secured.handshake(&self.socket),
        }
    }

    /// Whether the handshake resumed an earlier session; `None` without TLS.
    pub fn is_resumed(&self) -> Option<bool> {
        let secured = self.secured.as_ref()?;
        Some(secured.session.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    /// The protocol that both sides agreed on.
    pub(super) fn protocol(&self) -> Option<&[u8]> {
        self.secured.as_ref().and_then(|secured| secured.session.alpn_protocol())
    }

    /// The socket reported an event; `ending`: the peer will send no more.
    #[inline]
    pub fn woken(&mut self, ending: bool) {
        if let Some(secured) = &mut self.secured {
            (secured.is_drained, secured.is_ending) = (false, ending);
        }
    }

    /// Reads the available bytes; zero if the peer will send no more.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.secured {
            None => received(&self.socket, buffer),
            Some(secured) => secured.read(&self.socket, buffer),
        }
    }

    /// Writes some of it.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.secured {
            None => sent(&self.socket, bytes),
            Some(secured) => secured.write(&self.socket, bytes),
        }
    }

    /// Whether the socket took all that was written.
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.secured.as_ref().is_none_or(|secured| !secured.session.wants_write())
    }

    /// Writes the bytes that the socket did not accept before.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.secured {
            None => Ok(()),
            Some(secured) => secured.flush(&self.socket),
        }
    }
}

impl TlsSession {
    fn handshake(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        loop {
            self.flush(socket)?;
            if !self.session.is_handshaking() {
                return Ok(true);
            }
            match self.fill(socket) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed in the TLS handshake")),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It ended without notice: the length of the answer shows whether that is an error.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.fill(socket)?;
        }
    }

    /// Takes the bytes of the socket; zero if it has ended.
    fn fill(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        if self.is_drained {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut raw = Raw { socket, was_short: false };
        let length = self.session.read_tls(&mut raw)?;
        self.is_drained = raw.was_short && !self.is_ending;
        let processed = self.session.process_new_packets();
        // An alert about an error, or an answer to a change of keys. If it fails, the socket has ended, and reading
        // reports that.
        let _ = self.flush(socket);
        processed.map(|_| length).map_err(refused)
    }

    fn write(&mut self, socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.session.writer().write(bytes)?;
        self.flush(socket)?;
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Raw { socket, was_short: false }) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The socket in the form that rustls requires.
struct Raw<'a> {
    socket: &'a OwnedFd,
    /// Whether it gave less than was requested.
    was_short: bool,
}

impl Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = received(self.socket, buffer)?;
        self.was_short = length < buffer.len();
        Ok(length)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sent(self.socket, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[inline]
fn received(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Ok((_, length)) => return Ok(length),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[inline]
fn sent(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}

/// An error of the peer's TLS.
fn refused(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
