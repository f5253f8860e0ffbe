//! One connection: parses requests from its bytes, sends answers, ends in order.

use super::answers::{Answer, Answers, CONTINUE, Content, Persistence};
use super::connections::Token;
use super::delays::Delays;
use super::requests::{Body, ParsedInput, Requests};
use crate::websocket::{self, Opcode, Sender};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// One read takes at most this much.
const INPUT_BYTES_MAX: usize = 64 * 1024;

/// Answers are collected up to about this much before they are written.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// A connection with this many pending answers is not read from.
const ANSWERS_DUE_MAX: u32 = 1024;

/// Most bytes that a client may still send after its last answer, before it is cut off.
const DRAIN_BYTES_MAX: usize = 1024 * 1024;

/// State shared by all connections, one after the other.
#[derive(Debug)]
pub(super) struct ResponderState {
    pub(super) requests: Requests,
    pub(super) answers: Answers,
    /// `None`: answers are due at once.
    pub(super) delays: Option<Delays>,
    /// Requests answered.
    pub(super) answered: u64,
    input: Box<[u8]>,
    output: Vec<u8>,
}

impl ResponderState {
    pub(super) fn new(answers: Answers, delays: Option<Delays>) -> ResponderState {
        ResponderState {
            requests: Requests::new(),
            answers,
            delays,
            answered: 0,
            input: vec![0; INPUT_BYTES_MAX].into_boxed_slice(),
            output: Vec::with_capacity(OUTPUT_BYTES_MAX),
        }
    }
}

/// How close a connection is to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Requests are read.
    Open,
    /// After a WebSocket's handshake: frames are read and answered.
    WebSocket,
    /// The last request was taken, its answer was not sent yet.
    Last,
    /// As `Last`, and the client has closed its side.
    LastHeard,
    /// Everything was sent, including the end of sending. Further input is read and dropped: closing earlier would
    /// reset the connection and could take the last answer away from the client.
    Draining {
        /// Dropped so far.
        bytes: usize,
    },
}

impl Stage {
    /// Whether its input is used.
    fn is_open(self) -> bool {
        matches!(self, Stage::Open | Stage::WebSocket)
    }
}

/// Whether a connection is still usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum State {
    Alive,
    Over,
}

/// A connection. If requests come whole and their answers are read, it owns no memory.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    stage: Stage,
    /// Bytes read but not used yet.
    input: Vec<u8>,
    /// Bytes that the client has not read yet.
    output: Vec<u8>,
    /// The request whose body is arriving.
    body: Option<Box<Body>>,
    /// Answers waiting for their time.
    due: u32,
    /// When the last of them is due.
    due_last: Option<Instant>,
    /// The events registered with epoll.
    pub(super) watched: EventFlags,
}

impl Connection {
    /// For an accepted non-blocking socket, watched for input.
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            stage: Stage::Open,
            input: Vec::new(),
            output: Vec::new(),
            body: None,
            due: 0,
            due_last: None,
            watched: EventFlags::IN,
        }
    }

    /// The events to wait for: never more input while a client does not read its answers.
    pub(super) fn wanted(&self) -> EventFlags {
        match self.stage {
            _ if !self.output.is_empty() => EventFlags::OUT,
            Stage::Draining { .. } => EventFlags::IN,
            stage if stage.is_open() && self.due < ANSWERS_DUE_MAX => EventFlags::IN,
            _ => EventFlags::empty(),
        }
    }

    /// Called after an event.
    pub(super) fn ready(&mut self, flags: EventFlags, token: Token, shared: &mut ResponderState) -> State {
        if flags.contains(EventFlags::ERR) {
            return State::Over;
        }
        if flags.contains(EventFlags::OUT) && self.write_on() == State::Over {
            return State::Over;
        }
        if flags.contains(EventFlags::OUT) && self.output.is_empty() {
            // No event will come for bytes that were read before.
            return self.take_up(token, shared);
        }
        match flags.intersects(EventFlags::IN | EventFlags::HUP) {
            true => self.read(token, shared),
            false => State::Alive,
        }
    }

    /// Called when an answer is due.
    pub(super) fn answer_due(&mut self, answer: Answer, token: Token, shared: &mut ResponderState) -> State {
        self.due -= 1;
        shared.answered += 1;
        shared.output.extend_from_slice(shared.answers.bytes(answer));
        if self.flush(shared) == State::Over {
            return State::Over;
        }
        match self.input.is_empty() {
            true => self.end_if_done(),
            false => self.take_up(token, shared),
        }
    }

    /// Uses input that was left over.
    fn take_up(&mut self, token: Token, shared: &mut ResponderState) -> State {
        let len = self.input.len();
        shared.input[..len].copy_from_slice(&self.input);
        self.input.clear();
        self.use_input(len, token, shared)
    }

    fn read(&mut self, token: Token, shared: &mut ResponderState) -> State {
        let kept = self.input.len();
        match recv(&self.socket, &mut shared.input[kept..], RecvFlags::empty()) {
            Ok((0, _)) if matches!(self.stage, Stage::Draining { .. }) => State::Over,
            Ok((0, _)) => {
                self.stage = Stage::LastHeard;
                self.end_if_done()
            }
            Ok((count, _)) => {
                shared.input[..kept].copy_from_slice(&self.input);
                self.input.clear();
                self.use_input(kept + count, token, shared)
            }
            Err(Errno::AGAIN | Errno::INTR) => State::Alive,
            Err(_) => State::Over,
        }
    }

    /// Parses requests from the first `len` bytes of the shared input, and keeps the bytes that cannot be used yet.
    fn use_input(&mut self, len: usize, token: Token, shared: &mut ResponderState) -> State {
        if let Stage::Draining { bytes } = &mut self.stage {
            *bytes += len;
            return if *bytes > DRAIN_BYTES_MAX { State::Over } else { State::Alive };
        }
        // Read once for all requests that came together, and not at all if answers are due at once.
        let arrived = shared.delays.as_ref().map(|_| Instant::now());
        let mut at = 0;
        while at < len && self.stage.is_open() && self.due < ANSWERS_DUE_MAX && self.output.is_empty() {
            let Some(used) = self.use_once(at, len, token, arrived, shared) else { break };
            at += used;
            if shared.output.len() >= OUTPUT_BYTES_MAX && self.flush(shared) == State::Over {
                return State::Over;
            }
        }
        if self.stage.is_open() {
            self.input.extend_from_slice(&shared.input[at..len]);
        }
        match self.flush(shared) {
            State::Over => State::Over,
            State::Alive => self.end_if_done(),
        }
    }

    /// Uses bytes for one step and returns their number; `None` if more are needed first.
    fn use_once(
        &mut self,
        at: usize,
        len: usize,
        token: Token,
        arrived: Option<Instant>,
        shared: &mut ResponderState,
    ) -> Option<usize> {
        const REFUSAL: Answer = Answer { content: Content::BadRequest, connection: Persistence::Close };
        let bytes = &mut shared.input[at..len];
        if self.stage == Stage::WebSocket {
            return self.use_frame(at, len, shared);
        }
        let (used, answer) = match &mut self.body {
            Some(body) => match body.take(bytes) {
                Ok((used, answer)) => (used, answer),
                Err(_) => (bytes.len(), Some(REFUSAL)),
            },
            None => match shared.requests.find(bytes) {
                ParsedInput::Whole(used, answer) => (used, Some(answer)),
                ParsedInput::Head(used, body) => {
                    // It may overtake answers to earlier requests: clients do not pipeline such a request.
                    if body.expects_continue {
                        shared.output.extend_from_slice(CONTINUE);
                    }
                    self.body = Some(Box::new(body));
                    (used, None)
                }
                ParsedInput::Partial => return None,
                ParsedInput::Refused => (bytes.len(), Some(REFUSAL)),
            },
        };
        if let Some(answer) = answer {
            self.body = None;
            self.answer(answer, token, arrived, shared);
        }
        Some(used)
    }

    /// Answers a frame, never with a delay: a ping by a pong, a message by itself, a close by a close.
    fn use_frame(&mut self, at: usize, len: usize, shared: &mut ResponderState) -> Option<usize> {
        let Ok(frame) = websocket::read(&shared.input[at..len], Sender::Client) else {
            self.stage = Stage::Last;
            return Some(len - at);
        };
        let frame = frame?;
        let answer = match frame.opcode {
            Opcode::Ping => Some(Opcode::Pong),
            Opcode::Pong => None,
            opcode => Some(opcode),
        };
        if let Some(opcode) = answer {
            websocket::write_plain(&mut shared.output, opcode, &frame.unmasked());
        }
        if frame.opcode == Opcode::Close {
            self.stage = Stage::Last;
        }
        Some(frame.length)
    }

    /// Answers now, or when it is due.
    fn answer(&mut self, answer: Answer, token: Token, arrived: Option<Instant>, shared: &mut ResponderState) {
        if answer.connection == Persistence::Close {
            self.stage = Stage::Last;
        }
        if answer.content == Content::WebSocket {
            self.stage = Stage::WebSocket;
        }
        match (&mut shared.delays, arrived) {
            (Some(delays), Some(arrived)) if self.stage != Stage::WebSocket => {
                let not_before = self.due_last.unwrap_or(arrived);
                self.due_last = Some(delays.put(arrived, not_before, token, answer));
                self.due += 1;
            }
            _ => {
                shared.answered += 1;
                shared.output.extend_from_slice(shared.answers.bytes(answer));
            }
        }
    }

    /// Writes the shared output, keeping what the client does not take.
    fn flush(&mut self, shared: &mut ResponderState) -> State {
        if shared.output.is_empty() {
            return State::Alive;
        }
        let state = match self.output.is_empty() {
            true => match send(&self.socket, &shared.output, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.output.extend_from_slice(&shared.output[count..]);
                    State::Alive
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.output.extend_from_slice(&shared.output);
                    State::Alive
                }
                Err(_) => State::Over,
            },
            false => {
                self.output.extend_from_slice(&shared.output);
                State::Alive
            }
        };
        shared.output.clear();
        state
    }

    /// Writes the kept output.
    fn write_on(&mut self) -> State {
        match send(&self.socket, &self.output, SendFlags::NOSIGNAL) {
            Ok(count) => {
                self.output.drain(..count);
                State::Alive
            }
            Err(Errno::AGAIN | Errno::INTR) => State::Alive,
            Err(_) => State::Over,
        }
    }

    /// Ends the connection after its last answer.
    fn end_if_done(&mut self) -> State {
        let is_done = self.due == 0 && self.output.is_empty();
        match self.stage {
            Stage::LastHeard if is_done => State::Over,
            Stage::Last if is_done => match shutdown(&self.socket, Shutdown::Write) {
                Ok(()) => {
                    self.stage = Stage::Draining { bytes: 0 };
                    State::Alive
                }
                Err(_) => State::Over,
            },
            _ => State::Alive,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
