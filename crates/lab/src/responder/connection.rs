//! One connection: parses requests from its bytes, sends answers, ends in order.

use super::ConnectionToken;
use super::Delays;
use super::{Answer, Answers, CONTINUE, Content, Persistence};
use crate::websocket::{self, HANDSHAKE_KEY, Opcode, Sender};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use stillgate_wire::{
    BodyDecoder, ChunkError, Field, HeadLimits, HeadProgress, Method, RequestError, RequestHead, Version,
    leading_empty_lines,
};

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
    pub(super) fn ready(&mut self, flags: EventFlags, token: ConnectionToken, shared: &mut ResponderState) -> State {
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
    pub(super) fn answer_due(&mut self, answer: Answer, token: ConnectionToken, shared: &mut ResponderState) -> State {
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
    fn take_up(&mut self, token: ConnectionToken, shared: &mut ResponderState) -> State {
        let len = self.input.len();
        shared.input[..len].copy_from_slice(&self.input);
        self.input.clear();
        self.use_input(len, token, shared)
    }

    fn read(&mut self, token: ConnectionToken, shared: &mut ResponderState) -> State {
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
    fn use_input(&mut self, len: usize, token: ConnectionToken, shared: &mut ResponderState) -> State {
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
        token: ConnectionToken,
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
    fn answer(
        &mut self,
        answer: Answer,
        token: ConnectionToken,
        arrived: Option<Instant>,
        shared: &mut ResponderState,
    ) {
        if answer.connection == Persistence::Close {
            self.stage = Stage::Last;
        }
        if answer.content == Content::WebSocket {
            self.stage = Stage::WebSocket;
        }
        match (&mut shared.delays, arrived) {
            (Some(delays), Some(arrived)) if self.stage != Stage::WebSocket => {
                let not_before = self.due_last.unwrap_or(arrived);
                self.due_last = Some(delays.schedule(arrived, not_before, token, answer));
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

// Parses requests from the bytes of a connection: where each ends, and which answer it gets.

/// A request up to this length is remembered, to be recognised byte by byte.
const REMEMBERED_BYTES_MAX: usize = 4096;

/// What is at the beginning of some bytes.
#[derive(Debug)]
pub(super) enum ParsedInput {
    /// A request with its length, including the body.
    Whole(usize, Answer),
    /// A head with its length, and a body that continues after the available bytes.
    Head(usize, Body),
    /// A part of a head.
    Partial,
    /// Not a valid request; it can only be refused.
    Refused,
}

/// The rest of a request whose head is complete.
#[derive(Debug)]
pub(super) struct Body {
    decoder: BodyDecoder,
    answer: Answer,
    /// Whether the client waits for 100 Continue before it sends it.
    pub(super) expects_continue: bool,
}

impl Body {
    /// Takes its bytes from the front of `bytes`: returns their number, and the answer once the body is complete.
    pub(super) fn take(&mut self, bytes: &mut [u8]) -> Result<(usize, Option<Answer>), ChunkError> {
        let decoded = self.decoder.decode(bytes)?;
        Ok((decoded.consumed, self.decoder.is_done().then_some(self.answer)))
    }
}

/// Parses requests, and recognises the last one.
///
/// A client that repeats one request is parsed once: if the bytes begin with the last whole request, they are that
/// request, because its end does not depend on the bytes after it.
#[derive(Debug)]
pub(super) struct Requests {
    head: RequestHead,
    limits: HeadLimits,
    remembered: Vec<u8>,
    remembered_answer: Answer,
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests {
            head: RequestHead::default(),
            limits: HeadLimits::default(),
            remembered: Vec::with_capacity(REMEMBERED_BYTES_MAX),
            remembered_answer: Answer { content: Content::BadRequest, connection: Persistence::Close },
        }
    }

    /// Finds what is at the beginning of `bytes`; the body's bytes may be overwritten.
    pub(super) fn find(&mut self, bytes: &mut [u8]) -> ParsedInput {
        if !self.remembered.is_empty() && bytes.starts_with(&self.remembered) {
            return ParsedInput::Whole(self.remembered.len(), self.remembered_answer);
        }
        self.parse(bytes).unwrap_or(ParsedInput::Refused)
    }

    fn parse(&mut self, bytes: &mut [u8]) -> Result<ParsedInput, RequestError> {
        let skipped = leading_empty_lines(bytes)?;
        self.head.reset();
        let HeadProgress::Complete(len) = self.head.advance(&bytes[skipped..], &self.limits)? else {
            return Ok(ParsedInput::Partial);
        };
        let head_end = skipped + len;
        let mut body = Body {
            decoder: BodyDecoder::new(self.head.framing),
            answer: self.answer(&bytes[skipped..]),
            expects_continue: self.head.expects_continue,
        };
        if body.decoder.is_done() {
            self.remember(&bytes[..head_end], body.answer);
            return Ok(ParsedInput::Whole(head_end, body.answer));
        }
        // Decoding overwrites chunk framing, so only a body of given length can be remembered afterwards.
        let chunked = matches!(body.decoder, BodyDecoder::Chunked(_));
        match body.take(&mut bytes[head_end..]) {
            Err(_) => Ok(ParsedInput::Refused),
            Ok((taken, Some(answer))) => {
                if !chunked {
                    self.remember(&bytes[..head_end + taken], answer);
                }
                Ok(ParsedInput::Whole(head_end + taken, answer))
            }
            Ok((taken, None)) => {
                // A client that has begun to send does not wait.
                body.expects_continue &= taken == 0;
                Ok(ParsedInput::Head(head_end + taken, body))
            }
        }
    }

    fn answer(&self, head: &[u8]) -> Answer {
        if self.head.asks_upgrade && self.is_websocket_handshake(head) {
            return Answer { content: Content::WebSocket, connection: Persistence::Kept };
        }
        let content = match self.head.method {
            Method::Head => Content::HeadOnly,
            // CONNECT has no tunnel to open here.
            Method::Connect => return Answer { content: Content::BadRequest, connection: Persistence::Close },
            _ => Content::Full,
        };
        let connection = match (self.head.keep_alive, self.head.version) {
            (false, _) => Persistence::Close,
            (true, Version::Http10) => Persistence::KeptAloud,
            (true, Version::Http11) => Persistence::Kept,
        };
        Answer { content, connection }
    }

    /// Whether it is the handshake of the laboratory's clients, whose key is always the same.
    fn is_websocket_handshake(&self, head: &[u8]) -> bool {
        let is_key = |field: &Field| field.name.of(head).eq_ignore_ascii_case(b"sec-websocket-key");
        let mut fields = self.head.fields.iter().filter(|field| is_key(field));
        fields.next().is_some_and(|field| field.value.of(head) == HANDSHAKE_KEY.as_bytes())
    }

    fn remember(&mut self, bytes: &[u8], answer: Answer) {
        if bytes.len() <= REMEMBERED_BYTES_MAX {
            self.remembered.clear();
            self.remembered.extend_from_slice(bytes);
            self.remembered_answer = answer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Answer = Answer { content: Content::Full, connection: Persistence::Kept };
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    /// Checks three cases: parsed, recognised, and followed by other bytes.
    fn check(text: &str, whole: &str, expected: Answer) {
        let mut requests = Requests::new();
        for behind in ["", "", "GET"] {
            let mut bytes = format!("{text}{behind}").into_bytes();
            match requests.find(&mut bytes) {
                ParsedInput::Whole(len, answer) => assert_eq!((len, answer), (whole.len(), expected), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn whole_requests() {
        check(GET, GET, KEPT);
        check(&format!("\r\n{GET}"), &format!("\r\n{GET}"), KEPT);
        let with_body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        check(with_body, with_body, KEPT);
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        check(chunked, chunked, KEPT);
        let head = "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        check(head, head, Answer { content: Content::HeadOnly, connection: Persistence::Close });
        let old = "GET / HTTP/1.0\r\n\r\n";
        check(old, old, Answer { content: Content::Full, connection: Persistence::Close });
        let old_kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        check(old_kept, old_kept, Answer { content: Content::Full, connection: Persistence::KeptAloud });
    }

    #[test]
    fn handshakes_of_the_laboratory_only() {
        let ours = crate::websocket::request("a", "/tunnel", "");
        check(&ours, &ours, Answer { content: Content::WebSocket, connection: Persistence::Kept });
        let other = ours.replace(HANDSHAKE_KEY, "AAAAAAAAAAAAAAAAAAAAAA==");
        check(&other, &other, KEPT);
    }

    #[test]
    fn bodies_in_pieces() {
        let mut requests = Requests::new();
        let mut head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n".to_vec();
        let ParsedInput::Head(len, mut body) = requests.find(&mut head) else { panic!("no head") };
        assert_eq!((len, body.expects_continue), (head.len(), true));
        assert_eq!(body.take(&mut b"abc".to_vec()), Ok((3, None)));
        assert_eq!(body.take(&mut b"deGET".to_vec()), Ok((2, Some(KEPT))));
    }

    #[test]
    fn what_is_not_http() {
        for text in ["\x16\x03\x01\x02\x00", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n", "GET /\r\n\r\n"] {
            let mut bytes = text.as_bytes().to_vec();
            assert!(matches!(Requests::new().find(&mut bytes), ParsedInput::Refused), "{text:?}");
        }
        for text in ["", "G", "GET / HTTP/1.1\r\nHost: a\r\n"] {
            let mut bytes = text.as_bytes().to_vec();
            assert!(matches!(Requests::new().find(&mut bytes), ParsedInput::Partial), "{text:?}");
        }
    }
}
