//! One mock device: how it connects, what it reads, and how it responds.
//!
//! An idle one has a descriptor and some counters; input goes through a buffer that all share, unless a frame came in
//! part.

use super::ledger::Ledger;
use super::plan::Ack;
use crate::result::devices::TlsHandshakes;
use crate::websocket::{self, HANDSHAKE_ACCEPT, Opcode, Sender};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt::socket_error;
use serde::Deserialize;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use stillgate_load::{Link, Tickets};
use stillgate_rig::ports;
use stillgate_wire::{HeadLimits, HeadProgress, Method, Name, ResponseHead};

/// More unread input is neither an answer to a handshake nor one of our messages.
const INPUT_BYTES_MAX: usize = 2 << 20;

/// Assumed if Retry-After has no usable number.
const RETRY_AFTER_S: u64 = 1;
const RETRY_AFTER_S_MAX: u64 = 60;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Away,
    Connecting,
    /// In the TLS handshake, where there is TLS.
    Securing,
    Shaking,
    Online,
    /// Its handshake was refused permanently.
    Refused,
}

/// The reason why a connection ended.
#[derive(Debug, PartialEq)]
pub(super) enum ConnectionEnd {
    /// A status other than 101; after this many seconds it may try again.
    Answered { status: u16, retry_after_s: Option<u64> },
    /// The gateway closed it with this code.
    Closed(u16),
    /// It ended without a close frame.
    Gone(String),
    /// The input is not WebSocket.
    Wrong(String),
}

/// A device.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) link: Option<Link>,
    /// With TLS, the tickets for resumption when it reconnects.
    pub(super) tickets: Option<Tickets>,
    pub(super) stage: Stage,
    /// The number of its connections so far; the first is 1.
    pub(super) connection: u32,
    pub(super) begun_ns: u64,
    /// The events registered with epoll.
    pub(super) watched: EventFlags,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Session and token of the last greeting.
    resume: Option<Box<(String, String)>>,
    /// It has sent its token, and a greeting that was already under way is not the answer to it.
    has_shown: bool,
    /// The highest number that it received.
    last: Option<u32>,
}

/// The parts of the fleet that a device needs.
pub(super) struct Surroundings<'a> {
    pub(super) number: u32,
    pub(super) ack: Ack,
    pub(super) resume: bool,
    pub(super) now_ns: u64,
    pub(super) mask: [u8; 4],
    pub(super) ledger: &'a mut Ledger,
    pub(super) head: &'a mut ResponseHead,
    pub(super) seen: &'a mut DeviceTotals,
}

/// What devices received besides our messages.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct DeviceTotals {
    pub(super) pings: u64,
    pub(super) resumed: u64,
    /// TLS handshakes.
    pub(super) tls: TlsHandshakes,
    /// Messages of a broadcast, and the time of the last one.
    pub(super) broadcast: u64,
    pub(super) broadcast_last_ns: u64,
    /// Messages of other senders.
    pub(super) others: u64,
}

/// A message of a gateway.
#[derive(Deserialize)]
struct GatewayMessage<'a> {
    r#type: &'a str,
    id: Option<&'a str>,
    seq: Option<u64>,
    #[serde(default)]
    body: Value,
    session: Option<&'a str>,
    resume: Option<&'a str>,
}

impl Device {
    /// A socket that is being connected, and the handshake to send then.
    pub(super) fn begin(&mut self, link: Link, handshake: Vec<u8>, now_ns: u64) {
        self.link = Some(link);
        self.stage = Stage::Connecting;
        self.connection += 1;
        self.begun_ns = now_ns;
        self.has_shown = false;
        self.input = Vec::new();
        self.output = handshake;
    }

    /// Without a close frame.
    pub(super) fn drop_connection(&mut self, stage: Stage) {
        self.link = None;
        self.stage = stage;
        self.input = Vec::new();
        self.output = Vec::new();
    }

    /// The events that it waits for.
    pub(super) fn wanted(&self) -> EventFlags {
        match self.stage {
            Stage::Connecting => EventFlags::OUT,
            // The output waits for the end of the TLS handshake, which reports its own writes.
            Stage::Securing if self.is_flushed() => EventFlags::IN,
            _ if self.output.is_empty() && self.is_flushed() => EventFlags::IN,
            _ => EventFlags::IN | EventFlags::OUT,
        }
    }

    /// Called when its socket is ready.
    pub(super) fn ready(&mut self, buffer: &mut [u8], around: &mut Surroundings<'_>) -> Result<(), ConnectionEnd> {
        let Some(link) = &mut self.link else { return Ok(()) };
        link.woken(false);
        if self.stage == Stage::Connecting {
            if let Ok(Err(error)) = socket_error(link.socket()) {
                return Err(ConnectionEnd::Gone(io::Error::from(error).to_string()));
            }
            self.stage = Stage::Securing;
        }
        if self.stage == Stage::Securing {
            if !link.shake().map_err(|error| not_secured(&error))? {
                return Ok(());
            }
            around.seen.tls.count(link.is_resumed());
            self.stage = Stage::Shaking;
        } else {
            // Bytes that TLS has already read from the socket cause no event.
            while self.read(buffer, around)? && self.link.as_ref().is_some_and(|link| !link.is_plain()) {}
        }
        self.flush()
    }

    /// Whether there was any input.
    fn read(&mut self, buffer: &mut [u8], around: &mut Surroundings<'_>) -> Result<bool, ConnectionEnd> {
        let Some(link) = self.link.as_mut() else { return Ok(false) };
        let read = match link.read(buffer) {
            Ok(0) => return Err(ConnectionEnd::Gone("the gateway closed the connection".to_owned())),
            Ok(read) => read,
            Err(error) if is_later(&error) => return Ok(false),
            Err(error) => return Err(ConnectionEnd::Gone(error.to_string())),
        };
        if self.input.is_empty() {
            let taken = self.take(&buffer[..read], around)?;
            self.input = buffer[taken..read].to_vec();
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(&buffer[..read]);
            let taken = self.take(&input, around)?;
            input.drain(..taken);
            self.input = if input.is_empty() { Vec::new() } else { input };
        }
        match self.input.len() > INPUT_BYTES_MAX {
            true => Err(ConnectionEnd::Wrong("a head or message that is too long".to_owned())),
            false => Ok(true),
        }
    }

    /// Handles complete frames, and returns their length.
    fn take(&mut self, bytes: &[u8], around: &mut Surroundings<'_>) -> Result<usize, ConnectionEnd> {
        let mut taken = 0;
        if self.stage == Stage::Shaking {
            let Some(head) = self.handshake(bytes, around)? else { return Ok(0) };
            taken = head;
        }
        while let Some(frame) =
            websocket::read(&bytes[taken..], Sender::Server).map_err(|why| ConnectionEnd::Wrong(why.to_owned()))?
        {
            let payload = frame.payload();
            match frame.opcode {
                Opcode::Text => self.handle_message(payload, around)?,
                Opcode::Ping => {
                    around.seen.pings += 1;
                    websocket::write(&mut self.output, Opcode::Pong, payload, around.mask);
                }
                Opcode::Close => return Err(ConnectionEnd::Closed(websocket::close_code(payload))),
                Opcode::Pong => {}
                Opcode::Binary => {
                    return Err(ConnectionEnd::Wrong("a binary frame, where JSON was agreed on".to_owned()));
                }
            }
            taken += frame.length;
        }
        Ok(taken)
    }

    /// The length of the answer to the handshake, once it is complete.
    fn handshake(&mut self, bytes: &[u8], around: &mut Surroundings<'_>) -> Result<Option<usize>, ConnectionEnd> {
        around.head.reset();
        let head = &mut *around.head;
        let wrong = |why: &str| ConnectionEnd::Wrong(format!("the answer to the handshake {why}"));
        let length = match head.advance(bytes, Method::Get, &HeadLimits::default()) {
            Ok(HeadProgress::Partial) => return Ok(None),
            Ok(HeadProgress::Complete(length)) => length,
            Err(error) => return Err(wrong(&format!("is not HTTP: {error:?}"))),
        };
        let field = |name: &str| {
            head.fields.iter().find_map(|field| {
                let is = field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
                is.then(|| field.value.of(bytes))
            })
        };
        if head.status != 101 {
            let seconds = field("retry-after").and_then(|text| std::str::from_utf8(text).ok()?.trim().parse().ok());
            let retry_after_s =
                matches!(head.status, 429 | 503).then(|| seconds.unwrap_or(RETRY_AFTER_S).clamp(1, RETRY_AFTER_S_MAX));
            return Err(ConnectionEnd::Answered { status: head.status, retry_after_s });
        }
        if head.fields.get(bytes, Name::Upgrade).is_none()
            || field("sec-websocket-accept") != Some(HANDSHAKE_ACCEPT.as_bytes())
        {
            return Err(wrong("has a wrong Sec-WebSocket-Accept, or none"));
        }
        if field("sec-websocket-protocol") != Some(b"stillgate.v1") {
            return Err(wrong("does not accept stillgate.v1; is it a route with device-gateway and protocol json?"));
        }
        self.stage = Stage::Online;
        if around.resume
            && let Some(kept) = self.resume.take()
        {
            let hello = serde_json::json!({"type": "hello", "session": kept.0, "resume": kept.1}).to_string();
            websocket::write(&mut self.output, Opcode::Text, hello.as_bytes(), around.mask);
            self.resume = Some(kept);
            self.has_shown = true;
        }
        Ok(Some(length))
    }

    fn handle_message(&mut self, payload: &[u8], around: &mut Surroundings<'_>) -> Result<(), ConnectionEnd> {
        let said: GatewayMessage<'_> = serde_json::from_slice(payload)
            .map_err(|error| ConnectionEnd::Wrong(format!("not a message of stillgate.v1: {error}")))?;
        match said.r#type {
            "hello" => self.greeted(&said, around),
            "message" => self.message(&said, around),
            _ => {}
        }
        Ok(())
    }

    fn greeted(&mut self, said: &GatewayMessage<'_>, around: &mut Surroundings<'_>) {
        if std::mem::take(&mut self.has_shown) {
            return;
        }
        if let (true, Some(session), Some(resume)) = (around.resume, said.session, said.resume) {
            let again = self.resume.as_ref().is_some_and(|kept| kept.0 == session);
            around.seen.resumed += u64::from(again);
            self.resume = Some(Box::new((session.to_owned(), resume.to_owned())));
        }
    }

    fn message(&mut self, said: &GatewayMessage<'_>, around: &mut Surroundings<'_>) {
        let number = said.body.get("n").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        if let Some(number) = number {
            around.ledger.record_message(number, around.number, self.last, around.now_ns);
            self.last = self.last.max(Some(number));
        } else if said.body.get("broadcast").is_some() {
            around.seen.broadcast += 1;
            around.seen.broadcast_last_ns = around.now_ns;
        } else {
            around.seen.others += 1;
        }
        let answer = match (around.ack, said.id, number, said.seq) {
            (Ack::Reply, Some(id), Some(number), _) => {
                serde_json::json!({"type": "reply", "id": id, "body": {"n": number}}).to_string()
            }
            (.., Some(seq)) => format!("{{\"type\":\"ack\",\"seq\":{seq}}}"),
            _ => return,
        };
        websocket::write(&mut self.output, Opcode::Text, answer.as_bytes(), around.mask);
    }

    fn flush(&mut self) -> Result<(), ConnectionEnd> {
        let Some(link) = self.link.as_mut() else { return Ok(()) };
        while !self.output.is_empty() {
            match link.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if is_later(&error) => return Ok(()),
                Err(error) => return Err(ConnectionEnd::Gone(error.to_string())),
            }
        }
        // An idle device keeps no buffer.
        self.output = Vec::new();
        link.flush().map_err(|error| ConnectionEnd::Gone(error.to_string()))
    }

    /// Whether TLS has nothing left to write.
    fn is_flushed(&self) -> bool {
        self.link.as_ref().is_none_or(Link::is_flushed)
    }
}

/// A handshake that TLS itself refuses will be refused again.
fn not_secured(error: &io::Error) -> ConnectionEnd {
    match error.kind() {
        io::ErrorKind::InvalidData => ConnectionEnd::Wrong(format!(
            "TLS: {error}; give the URL of a listener with tls: true, and trust its authority with --cacert FILE or any \
             certificate with --insecure"
        )),
        _ => ConnectionEnd::Gone(error.to_string()),
    }
}

/// For messages of `io`'s errors at connect.
pub(super) fn gone(error: &io::Error) -> ConnectionEnd {
    ConnectionEnd::Gone(error.to_string())
}

/// One in this many of a source's ports is used: beyond half of them Linux takes milliseconds to find a free one, which
/// would be measured as the gateway's time.
const PORTS_SHARE: usize = 3;

/// Source addresses for this many connections to one address: none if one source has enough ports.
///
/// On the loopback network every address of 127.0.0.0/8 belongs to this machine.
pub(super) fn sources(destination: SocketAddr, connections: usize) -> Result<Vec<IpAddr>, String> {
    choose_sources(destination, connections, ports::of_connections().len())
}

fn choose_sources(destination: SocketAddr, connections: usize, ports: usize) -> Result<Vec<IpAddr>, String> {
    let usable = ports / PORTS_SHARE;
    match destination.ip() {
        _ if connections <= usable => Ok(Vec::new()),
        // Slower, but they exist.
        ip if !ip.is_loopback() && connections <= ports => Ok(Vec::new()),
        IpAddr::V4(ip) if ip.is_loopback() => {
            let first = u32::from(Ipv4Addr::LOCALHOST);
            Ok((0..connections.div_ceil(usable.max(1)) as u32)
                .map(|number| Ipv4Addr::from(first + number).into())
                .collect())
        }
        _ => Err(format!(
            "{connections} connections to one address need more ports than this machine's {ports}; \
             run several of these commands on several machines, or widen net.ipv4.ip_local_port_range"
        )),
    }
}

/// Begins a connection; it is established when the socket becomes writable.
pub(super) fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    // Dropping it resets the connection, as when a device loses power; no port stays in TIME_WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}

/// Whether an error means "later".
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device's responses to an input, for any split of it.
    fn responses(ack: Ack, input: &[u8], split: usize) -> (Result<Vec<u8>, ConnectionEnd>, DeviceTotals) {
        let (mut ledger, mut head, mut seen) = (Ledger::new(), ResponseHead::default(), DeviceTotals::default());
        for _ in 0..8 {
            ledger.begin(0, 0, 3, 1);
        }
        let mut around = Surroundings {
            number: 3,
            ack,
            resume: true,
            now_ns: 9,
            mask: [0; 4],
            ledger: &mut ledger,
            head: &mut head,
            seen: &mut seen,
        };
        let mut device = Device { stage: Stage::Shaking, ..Device::default() };
        let mut pending = Vec::new();
        for part in [&input[..split], &input[split..]] {
            pending.extend_from_slice(part);
            match device.take(&pending, &mut around) {
                Ok(taken) => drop(pending.drain(..taken)),
                Err(ended) => return (Err(ended), seen),
            }
        }
        (Ok(device.output), seen)
    }

    fn handshake() -> Vec<u8> {
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: stillgate.v1\r\n\r\n"
            .to_vec()
    }

    fn text(words: &str) -> Vec<u8> {
        [&[0x81, words.len() as u8], words.as_bytes()].concat()
    }

    #[test]
    fn a_message_is_answered_as_asked_at_every_split() {
        let message = text(r#"{"type":"message","id":"a0","seq":4,"body":{"n":7}}"#);
        let input =
            [handshake(), text(r#"{"type":"hello","session":"s","resume":"s.1"}"#), message, vec![0x89, 0]].concat();
        for split in 0..input.len() {
            let (output, seen) = responses(Ack::Device, &input, split);
            let expected = [&[0x81, 0x80 | 21, 0, 0, 0, 0], &br#"{"type":"ack","seq":4}"#[..]].concat();
            let output = output.unwrap();
            assert_eq!(output[6..28], expected[6..28], "split at {split}");
            assert_eq!(output[28..], [0x8a, 0x80, 0, 0, 0, 0], "a pong");
            assert_eq!(seen.pings, 1);
        }
        let (output, _) = responses(Ack::Reply, &input, 0);
        let output = String::from_utf8_lossy(&output.unwrap()).into_owned();
        assert!(output.contains(r#""type":"reply""#) && output.contains(r#"{"n":7}"#), "{output}");
    }

    #[test]
    fn ends_of_connections_are_reported() {
        let ended = |input: &[u8]| responses(Ack::Device, input, 0).0.unwrap_err();
        let later = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(ended(later), ConnectionEnd::Answered { status: 503, retry_after_s: Some(7) });
        let never = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(ended(never), ConnectionEnd::Answered { status: 404, retry_after_s: None });
        assert_eq!(ended(&[handshake(), vec![0x88, 2, 0x03, 0xf4]].concat()), ConnectionEnd::Closed(1012));
        for (input, part) in [
            (b"nonsense\r\n\r\n".to_vec(), "is not HTTP"),
            (String::from_utf8(handshake()).unwrap().replace("s3pP", "xxxx").into_bytes(), "Accept"),
            (String::from_utf8(handshake()).unwrap().replace("stillgate.v1", "other").into_bytes(), "stillgate.v1"),
            ([handshake(), text("nonsense")].concat(), "stillgate.v1"),
            ([handshake(), vec![0x82, 0]].concat(), "binary"),
        ] {
            let ConnectionEnd::Wrong(why) = ended(&input) else { panic!("{part}") };
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn more_connections_than_ports_take_more_sources() {
        let check = |destination: &str, connections, expected: Result<&[&str], &str>| {
            let chosen = choose_sources(destination.parse().unwrap(), connections, 10_000);
            match (chosen, expected) {
                (Ok(chosen), Ok(expected)) => {
                    assert_eq!(chosen.iter().map(IpAddr::to_string).collect::<Vec<_>>(), expected);
                }
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (chosen, expected) => panic!("{chosen:?}, expected {expected:?}"),
            }
        };
        check("127.0.0.1:1", 3_333, Ok(&[]));
        check("127.0.0.1:1", 3_334, Ok(&["127.0.0.1", "127.0.0.2"]));
        check("10.0.0.1:1", 10_000, Ok(&[]));
        check("10.0.0.1:1", 10_001, Err("several machines"));
    }
}
