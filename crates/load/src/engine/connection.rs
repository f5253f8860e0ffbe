//! One connection of a generator thread: its socket, the request under way on it, and what is kept between two events.
//!
//! Small, because there may be tens of thousands: bytes are kept only where a request was not taken whole or a head
//! came in pieces. It neither waits nor counts.

use super::response::Answer;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with, sockopt,
};
use std::net::{IpAddr, SocketAddr};

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    Connecting,
    /// Open, and nothing is asked.
    Idle,
    /// A request was begun, and its answer is not complete.
    Asked,
}

/// A place for a connection; the sockets in it come and go.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Option<OwnedFd>,
    /// Counts the sockets, so that an event of the last is not taken for one of this.
    pub(super) generation: u32,
    pub(super) stage: Stage,
    /// Whether this socket ever gave an answer.
    pub(super) proven: bool,
    /// Whether the answer has begun.
    pub(super) answering: bool,
    /// Why no more of the request can be written; its answer may have come nonetheless.
    pub(super) send_error: Option<Errno>,
    /// Of the request under way, in its mix.
    pub(super) entry: u32,
    pub(super) intended_ns: u64,
    /// When the send began; of a connection that is being opened, when that began.
    pub(super) sent_ns: u64,
    pub(super) answer: Answer,
    unsent: Option<Box<Rest>>,
    kept: Option<Box<Rest>>,
}

/// All idle connections together must stay small; beside this each has 8 bytes in the idle list.
const CONNECTION_BYTES_MAX: usize = 160;
const _: () = assert!(size_of::<Connection>() <= CONNECTION_BYTES_MAX);

/// Every Linux has it, and requests that wait for their answers have no use for more.
const CONGESTION_CONTROL: &str = "reno";

/// Bytes for later.
#[derive(Debug, Default)]
struct Rest {
    bytes: Vec<u8>,
    done: usize,
}

impl Connection {
    pub(super) fn closed() -> Self {
        Connection {
            socket: None,
            generation: 0,
            stage: Stage::Closed,
            proven: false,
            answering: false,
            send_error: None,
            entry: 0,
            intended_ns: 0,
            sent_ns: 0,
            answer: Answer::default(),
            unsent: None,
            kept: None,
        }
    }

    /// Begins to connect; the socket tells by becoming writable.
    pub(super) fn open(&mut self, to: SocketAddr, from: Option<IpAddr>, now_ns: u64) -> Result<BorrowedFd<'_>, Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if to.ip().is_loopback() {
            // BBR, where it is the system's default, paces sends by a timer and samples rates at each acknowledgement: a
            // quarter of the CPU of a small request. Refused: it costs that. A network is met as other clients meet it.
            let _ = sockopt::set_tcp_congestion(&socket, CONGESTION_CONTROL);
        }
        if let Some(from) = from {
            bind(&socket, &SocketAddr::new(from, 0))?;
        }
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        (self.stage, self.sent_ns, self.proven) = (Stage::Connecting, now_ns, false);
        let socket: &OwnedFd = self.socket.insert(socket);
        Ok(socket.as_fd())
    }

    /// What came of connecting.
    pub(super) fn connected(&self) -> Result<(), Errno> {
        match &self.socket {
            Some(socket) => sockopt::socket_error(socket)?,
            None => Err(Errno::NOTCONN),
        }
    }

    /// Closes it, whatever it was at; the answer is to be reset by its reader.
    pub(super) fn close(&mut self) {
        self.socket = None;
        self.generation = self.generation.wrapping_add(1);
        self.stage = Stage::Closed;
        (self.send_error, self.unsent, self.kept) = (None, None, None);
    }

    /// Writes a request; whether all of it was taken. What was not, [`Connection::flush`] writes when it can.
    #[inline]
    pub(super) fn send(&mut self, request: &[u8]) -> Result<bool, Errno> {
        let written = match self.write(request) {
            Ok(written) => written,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(error),
        };
        if written == request.len() {
            return Ok(true);
        }
        self.unsent = Some(Box::new(Rest { bytes: request[written..].to_vec(), done: 0 }));
        self.flush()
    }

    /// Whether some of the request is still to be written.
    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.unsent.is_some()
    }

    /// Writes on until the system takes no more: only then will it tell when it does again. Whether all was taken.
    pub(super) fn flush(&mut self) -> Result<bool, Errno> {
        let Some(mut rest) = self.unsent.take() else { return Ok(true) };
        while rest.done < rest.bytes.len() {
            match self.write(&rest.bytes[rest.done..]) {
                Ok(written) => rest.done += written,
                Err(Errno::AGAIN) => {
                    self.unsent = Some(rest);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads what has come; zero: the peer will send no more.
    #[inline]
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let Some(socket) = &self.socket else { return Err(Errno::NOTCONN) };
        loop {
            match recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length)) => return Ok(length),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
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

    /// Puts what was kept at the front of the buffer; its length.
    #[inline]
    pub(super) fn restore(&self, buffer: &mut [u8]) -> usize {
        let Some(kept) = &self.kept else { return 0 };
        buffer[..kept.bytes.len()].copy_from_slice(&kept.bytes);
        kept.bytes.len()
    }

    #[inline]
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let Some(socket) = &self.socket else { return Err(Errno::NOTCONN) };
        loop {
            match send(socket, bytes, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }
}
