//! One connection of the back-end: one request of the device API at a time, kept alive.

use super::plan::Api;
use rustix::event::epoll::EventFlags;
use socket2::Socket;
use std::io::{Read as _, Write as _};
use stillgate_wire::{Framing, HeadLimits, Method, Progress, ResponseHead};

/// Most bytes of an answer of the device API, which usually has a few hundred.
const INPUT_BYTES_MAX: usize = 1 << 20;

/// The subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestSubject {
    Message(u32),
    Broadcast,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// A status and the body.
    Status(u16, Vec<u8>),
    /// The connection ended before the answer.
    Broken(String),
    /// The answer is not HTTP, or has no length.
    Wrong(String),
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct BackEnd {
    pub(super) socket: Option<Socket>,
    connected: bool,
    pub(super) asked: Option<RequestSubject>,
    pub(super) sent_ns: u64,
    pub(super) watched: EventFlags,
    input: Vec<u8>,
    output: Vec<u8>,
    head: ResponseHead,
}

impl BackEnd {
    /// A socket that is being connected.
    pub(super) fn begin(&mut self, socket: Socket) {
        *self = BackEnd { socket: Some(socket), ..BackEnd::default() };
    }

    /// Sends a message.
    pub(super) fn send_request(
        &mut self,
        api: &Api,
        asked: RequestSubject,
        path: std::fmt::Arguments<'_>,
        body: &str,
        now_ns: u64,
    ) {
        self.asked = Some(asked);
        self.sent_ns = now_ns;
        self.output.clear();
        api.post(&mut self.output, path, body);
    }

    pub(super) fn wanted(&self) -> EventFlags {
        match (self.connected, self.output.is_empty()) {
            (true, true) => EventFlags::IN,
            (true, false) => EventFlags::IN | EventFlags::OUT,
            (false, _) => EventFlags::OUT,
        }
    }

    /// Called when its socket is ready; returns an answer, when there is one. The end of an idle connection is not
    /// reported.
    pub(super) fn ready(&mut self, buffer: &mut [u8]) -> Option<Answer> {
        if !self.connected {
            if let Some(error) = self.socket.as_ref()?.take_error().ok().flatten() {
                return self.broken(error.to_string());
            }
            self.connected = true;
        }
        if let Some(broken) = self.flush() {
            return Some(broken);
        }
        match receive(self.socket.as_ref()?, buffer) {
            Ok(None) => None,
            Ok(Some(read)) => {
                self.input.extend_from_slice(&buffer[..read]);
                self.take()
            }
            Err(why) => self.broken(why),
        }
    }

    /// Writes as much as it can.
    pub(super) fn flush(&mut self) -> Option<Answer> {
        let mut socket = self.socket.as_ref().filter(|_| self.connected)?;
        while !self.output.is_empty() {
            match socket.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if super::sockets::is_later(&error) => return None,
                Err(error) => return self.broken(error.to_string()),
            }
        }
        None
    }

    fn take(&mut self) -> Option<Answer> {
        self.head.reset();
        let length = match self.head.advance(&self.input, Method::Post, &HeadLimits::default()) {
            Ok(Progress::Partial) if self.input.len() < INPUT_BYTES_MAX => return None,
            Ok(Progress::Partial) => return Some(self.wrong("a head that is too long".to_owned())),
            Ok(Progress::Complete(length)) => length,
            Err(error) => return Some(self.wrong(format!("not HTTP: {error:?}"))),
        };
        let body = match self.head.framing {
            Framing::None => 0,
            Framing::Length(bytes) if bytes <= INPUT_BYTES_MAX as u64 => bytes as usize,
            _ => return Some(self.wrong("an answer without a length, or one that is too long".to_owned())),
        };
        let body = self.input.get(length..length + body)?.to_vec();
        let status = self.head.status;
        if self.asked.take().is_none() {
            return Some(self.wrong("an answer without a request".to_owned()));
        }
        self.input.clear();
        if !self.head.keep_alive {
            self.socket = None;
        }
        Some(Answer::Status(status, body))
    }

    fn broken(&mut self, why: String) -> Option<Answer> {
        self.socket = None;
        self.asked.is_some().then_some(Answer::Broken(why))
    }

    fn wrong(&mut self, why: String) -> Answer {
        self.socket = None;
        Answer::Wrong(why)
    }
}

/// `None`: later.
fn receive(mut socket: &Socket, buffer: &mut [u8]) -> Result<Option<usize>, String> {
    match socket.read(buffer) {
        Ok(0) => Err("the gateway closed the connection".to_owned()),
        Ok(read) => Ok(Some(read)),
        Err(error) if super::sockets::is_later(&error) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
