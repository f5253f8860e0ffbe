//! The link to a target: a non-blocking socket, with TLS on it or without.
//!
//! Registered once and edge-triggered, so every event must be consumed: without TLS a short read shows that it was;
//! with TLS the link itself keeps track, since a read of it returns earlier bytes. Level-triggered users call
//! [`Link::woken`] before each turn, too, and read until nothing is left: bytes that TLS holds back cause no event.

use crate::tls::Tls;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ClientConnection, HandshakeKind};
use std::io::{self, Read, Write};

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
