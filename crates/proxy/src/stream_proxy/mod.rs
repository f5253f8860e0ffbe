//! Connections without HTTP: TCP, TLS and UDP between clients and nodes, by `stream_routes`.
//!
//! ```text
//!  TCP  accept ─▶ PROXY header? ─▶ TLS here, or a look at its hello ─▶ route ─▶ node ─▶ PROXY header? ─▶ Tunnel ─▶ one record
//!  UDP  datagram ─▶ session of its sender ──────── none yet: route ─▶ node ────────────────────────────▶ one record
//! ```
//!
//! What follows are bytes, which `tunnel` handles, or datagrams, which `udp` and `link` handle.

mod nodes;
mod udp;

use crate::basics::buffer::Buffer;
use crate::basics::clock::Timer;
use crate::connection::client::ClientConnection;
use crate::connection::stream::Stream;
use crate::listen::{handshake, proxy_protocol};
use crate::node::{self, Destination, health};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::plan::{PlanStreamRoute, StreamProperties, TimeoutsMs, TunnelBounds, millis};
use crate::sockets::listener::ConnectionEvent;
use crate::telemetry::session::{ClientSession, Ends, STATUS_SERVED};
use crate::tunnel::{Direction, NewTunnel, Tunnel, TunnelOrigin};
use crate::worker::{FreshConnection, Open, Worker};
use nodes::SessionTries;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;
use stillgate_config::{NodeProtocol, ProxyProtocol};
use stillgate_tls::{FailureReason, Offer};
use stillgate_upstream::TryReport;
use stillgate_wire::proxy_protocol::{write_v1, write_v2};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::spawn_local;
pub(crate) use udp::serve as serve_udp;

/// No route takes the session.
const STATUS_NO_ROUTE: u16 = 404;
/// The session's name requires a client certificate, which the handshake did not request.
const STATUS_MISDIRECTED: u16 = 421;
/// The node refuses what is sent to it.
const STATUS_NODE_FAILED: u16 = 502;
/// The upstream has no node, or has reached its maximum of sessions.
const STATUS_UNAVAILABLE: u16 = 503;

// A TCP connection from accept to its tunnel: what comes before its bytes, its route, its node.

/// Serves a connection just accepted, or closes it: no protocol is known in which to refuse it.
pub(crate) fn admit(
    worker: &Rc<Worker>,
    accepted: FreshConnection,
    tls: bool,
    tls_passthrough: bool,
    proxy_protocol: bool,
) {
    if !worker.has_room() {
        worker.note_connection_event(ConnectionEvent::Refused, &accepted.listener);
        return;
    }
    let open = Open::of_stream(worker);
    spawn_local(async move {
        // On the heap, as it ends soon.
        let beginning = AcceptedTcp { accepted, tls, tls_passthrough, proxy_protocol };
        let begun = Box::pin(beginning.begin(&open.worker)).await;
        // A task of its own, as small as possible.
        if let Some((client, switched)) = begun {
            spawn_local(Tunnel::new(open, client, switched));
        }
    });
}

/// A connection of which nothing has been read, and how its listener was configured then.
struct AcceptedTcp {
    accepted: FreshConnection,
    tls: bool,
    tls_passthrough: bool,
    proxy_protocol: bool,
}

/// Bytes that have been read and belong to the node.
type BufferedBytes = Option<(Buffer, Range<usize>)>;

impl AcceptedTcp {
    async fn begin(self, worker: &Rc<Worker>) -> Option<(ClientConnection, NewTunnel)> {
        let mut session = ClientSession::new(NodeProtocol::Tcp);
        let timer = Timer::new();
        let AcceptedTcp { accepted, tls, tls_passthrough, proxy_protocol } = self;
        let FreshConnection { mut stream, mut peer, mut local, listener } = accepted;
        // The addresses in a PROXY header are for nodes and logs: routes match our own addresses.
        let at = local;
        if proxy_protocol
            && let Some(named) = proxy_protocol::begin(worker, &stream, &timer, peer, &listener).await?.endpoints
        {
            (peer, local) = named;
        }
        let mut buffered = None;
        if tls_passthrough {
            let (name, bytes) = look_at_hello(worker, &mut stream, &timer, peer).await?;
            (session.server_name, buffered) = (name, Some(bytes));
        }
        let (stream, tls) = match tls {
            false => (Stream::Plain(stream), None),
            true => {
                let secured = handshake::accept(worker, Offer::Nothing, stream, &timer, peer).await?;
                (secured.stream, Some(secured.facts))
            }
        };
        // Without HTTP, header lines are not forwarded.
        let (tls, lines) = (tls.map(Rc::from), Rc::from([]));
        let client = ClientConnection::with_facts(stream, peer, local, listener, lines, tls, worker.clock.now_ms());
        let snapshot = worker.snapshot();
        match route_and_connect(worker, &client, at, &mut session, &snapshot).await {
            Ok(connected) => {
                let switched = connected.into_tunnel(worker, session, buffered, &snapshot);
                Some((client, switched))
            }
            Err(status) => {
                buffered.into_iter().for_each(|(buffer, _)| worker.buffers.give(buffer));
                session.status = status;
                worker.record_session(&session, ends(&client), 0, 0);
                None
            }
        }
    }
}

fn ends(client: &ClientConnection) -> Ends<'_> {
    Ends { peer: client.peer, local: client.local, tls: client.tls.as_deref() }
}

/// A client and its node.
struct TcpPair<'a> {
    route: &'a PlanStreamRoute,
    upstream: Rc<WorkerUpstream>,
    timeouts: TimeoutsMs,
    node: Stream,
    slot: usize,
}

impl TcpPair<'_> {
    fn into_tunnel(
        self,
        worker: &Worker,
        session: ClientSession,
        buffered: BufferedBytes,
        snapshot: &Snapshot,
    ) -> NewTunnel {
        let TcpPair { route, upstream, timeouts, node, slot } = self;
        let (settings, now_ms) = (&snapshot.plan.settings, worker.clock.now_ms());
        let idle_ms = route.route.timeout.idle.map_or(settings.tcp_idle_ms, millis);
        let received = buffered.as_ref().map_or(0, |(_, held)| held.len() as u64);
        NewTunnel {
            node,
            origin: TunnelOrigin::Session(Box::new(session)),
            upstream,
            slot,
            lease: route.lease.clone(),
            bounds: TunnelBounds::new(idle_ms, timeouts, settings),
            opened_ms: now_ms,
            up: Direction::new(buffered, false, (received, 0), now_ms),
            down: Direction::new(None, false, (0, 0), now_ms),
        }
    }
}

/// Finds the route and connects to one of its nodes; otherwise returns the status.
async fn route_and_connect<'a>(
    worker: &Rc<Worker>,
    client: &ClientConnection,
    at: SocketAddr,
    session: &mut ClientSession,
    snapshot: &'a Snapshot,
) -> Result<TcpPair<'a>, u16> {
    let plan = &snapshot.plan;
    if let (Some(tls), Some(facts)) = (&plan.tls, &client.tls)
        && let now_unix_ms = worker.clock.now_unix_ms()
        && let Some(name) =
            facts.server_name.as_deref().filter(|name| !facts.may_ask_for(tls, name.as_bytes(), now_unix_ms))
    {
        let message = format!("the name {name:?} asks for a certificate that the handshake did not");
        worker.troubles.note_connection(client.peer, message);
        return Err(STATUS_MISDIRECTED);
    }
    let name = client.tls.as_ref().and_then(|tls| tls.server_name.as_deref()).or(session.server_name.as_deref());
    let asked = StreamProperties { client: client.address, local: at, server_name: name };
    let Some(route) = plan.stream_routes.find(NodeProtocol::Tcp, &asked) else {
        let name = name.map_or(String::new(), |name| format!(" and the name {name:?}"));
        let message = format!("no stream route takes one to {at}{name}");
        worker.troubles.note_connection(client.peer, message);
        return Err(STATUS_NO_ROUTE);
    };
    session.route = Some(route.route.clone());
    let Some(upstream) = snapshot.upstreams.get(route.upstream()).cloned() else {
        return Err(STATUS_UNAVAILABLE);
    };
    let timeouts = plan.stream_timeouts(route);
    let began = Instant::now();
    let (node, slot) = connect(worker, client, session, &upstream, timeouts).await?;
    session.connect_us = Some(began.elapsed().as_micros() as u64);
    Ok(TcpPair { route, upstream, timeouts, node, slot })
}

async fn connect(
    worker: &Rc<Worker>,
    client: &ClientConnection,
    session: &mut ClientSession,
    upstream: &WorkerUpstream,
    timeouts: TimeoutsMs,
) -> Result<(Stream, usize), u16> {
    let mut choice = SessionTries::new(worker, upstream, session, ends(client))?;
    let header = proxy_protocol_header(client, upstream.planned.definition.proxy_protocol);
    loop {
        let mut trying = choice.pick(session)?;
        let (address, tls) = {
            let state = upstream.state.borrow();
            let endpoint = state.endpoint(trying.slot);
            let tls = upstream.planned.tls().map(|tls| tls.server_name("", &endpoint.host));
            (endpoint.address, upstream.tls.as_ref().zip(tls))
        };
        let destination = Destination {
            upstream,
            address,
            tls,
            http2: false,
            grpc: false,
            has_large_head: false,
            proxy_protocol_header: &header,
        };
        match node::connect(worker, &client.timer, destination, timeouts.connect).await {
            Ok((stream, connect_us)) => {
                health::report(worker, upstream, trying.slot, TryReport::Opened, String::new);
                trying.connect_us = Some(u32::try_from(connect_us).unwrap_or(u32::MAX));
                session.tries.on_connected(connect_us);
                session.tries.on_answered(STATUS_SERVED);
                return Ok((stream, trying.slot));
            }
            Err(error) => {
                let why = error.error.as_ref().map_or("it took too long".to_owned(), ToString::to_string);
                let slot = trying.slot;
                drop(trying);
                choice.on_failed(session, slot, error.failure, error.is_local, &why)?;
            }
        }
    }
}

/// The header that a node's connection begins with.
fn proxy_protocol_header(client: &ClientConnection, version: Option<ProxyProtocol>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match version {
        None => {}
        Some(ProxyProtocol::V1) => write_v1(client.peer, client.local, &mut bytes),
        Some(ProxyProtocol::V2) => write_v2(client.peer, client.local, &mut bytes),
    }
    bytes
}

/// Why the hello could not be read.
enum HelloFailure {
    /// The connection was closed before its first byte, or we are ending: nothing is wrong.
    Unused,
    /// The connection was closed before the hello was complete.
    Cut,
    /// The hello did not arrive within `gateway.timeouts.head`.
    Late,
    No(HelloError),
    Failed(io::Error),
}

impl HelloFailure {
    fn reason(&self) -> FailureReason {
        match self {
            HelloFailure::Unused | HelloFailure::Cut | HelloFailure::Failed(_) => FailureReason::Closed,
            HelloFailure::Late => FailureReason::Timeout,
            HelloFailure::No(_) => FailureReason::NotTls,
        }
    }
}

impl fmt::Display for HelloFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloFailure::Unused => f.write_str("it was closed before its first byte"),
            HelloFailure::Cut => f.write_str("closed during the TLS ClientHello"),
            HelloFailure::Late => f.write_str("its TLS hello was not complete within gateway.timeouts.head"),
            HelloFailure::No(no) => no.fmt(f),
            HelloFailure::Failed(error) => error.fmt(f),
        }
    }
}

/// Reads the hello, which then goes to the node, for the name in it. `None` if the connection is to be closed.
async fn look_at_hello(
    worker: &Worker,
    stream: &mut TcpStream,
    timer: &Timer,
    peer: SocketAddr,
) -> Option<(Option<Box<str>>, (Buffer, Range<usize>))> {
    let deadline_ms = worker.clock.now_ms() + worker.snapshot().plan.settings.head_ms;
    // No memory is held for a silent client.
    let hears = worker.hears(stream, timer).await;
    let mut buffer = worker.buffers.take();
    let read = match hears {
        true => {
            let reading = Box::pin(read_hello(stream, &mut buffer));
            worker.clock.within(timer, deadline_ms, reading).await.unwrap_or(Err(HelloFailure::Late))
        }
        false if worker.is_ending() => Err(HelloFailure::Unused),
        false => Err(HelloFailure::Late),
    };
    match read {
        Ok((name, len)) => return Some((name, (buffer, 0..len))),
        Err(HelloFailure::Unused) => {}
        Err(error) => {
            worker.counters.tls_handshakes_failed[error.reason() as usize].add(1);
            worker.troubles.note_connection(peer, error.to_string());
        }
    }
    worker.buffers.give(buffer);
    None
}

async fn read_hello(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(Option<Box<str>>, usize), HelloFailure> {
    let (mut hello, mut len) = (HelloReader::default(), 0);
    loop {
        match stream.read(&mut buffer[len..CLIENT_HELLO_BYTES_MAX]).await {
            Ok(0) if len == 0 => return Err(HelloFailure::Unused),
            Ok(0) => return Err(HelloFailure::Cut),
            Ok(n) => len += n,
            Err(error) if len == 0 && error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(HelloFailure::Unused);
            }
            Err(error) => return Err(HelloFailure::Failed(error)),
        }
        if let ParsedHello::Complete(name) = hello.advance(&buffer[..len]).map_err(HelloFailure::No)? {
            return Ok((name, len));
        }
    }
}

// The server name that a client requests in its TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3).
//
// The handshake itself is the node's, so the only requirement for the hello is that its lengths fit together: what versions and
// ciphers it offers is between the client and the node. (rustls' `Acceptor` refuses those that rustls could not serve.)

/// Maximum size of a hello and the records that contain it.
const CLIENT_HELLO_BYTES_MAX: usize = crate::basics::buffer::BUFFER_BYTES;

const RECORD_HEADER_BYTES: usize = 5;
/// RFC 8446 section 5.1.
const RECORD_BYTES_MAX: usize = 1 << 14;
const CONTENT_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const HANDSHAKE_HEADER_BYTES: usize = 4;
const RANDOM_BYTES: usize = 32;
const EXTENSION_SERVER_NAME: u16 = 0;
const NAME_TYPE_HOST: u8 = 0;
/// The longest DNS name.
const NAME_BYTES_MAX: usize = 255;

/// Result of parsing the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
enum ParsedHello {
    /// All bytes belong to a hello that is incomplete.
    Partial,
    /// The hello is complete; contains the server name in lower case, if there is one.
    Complete(Option<Box<str>>),
}

/// Why the bytes are not a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HelloError {
    /// They begin with something else.
    NotTls,
    /// The lengths do not fit together, or a record is empty.
    Malformed,
    /// The hello has more than [`CLIENT_HELLO_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::NotTls => f.write_str("it does not begin with a TLS handshake"),
            HelloError::Malformed => f.write_str("its TLS hello is malformed"),
            HelloError::TooLong => write!(f, "its TLS hello is longer than {CLIENT_HELLO_BYTES_MAX} bytes"),
        }
    }
}

/// State of an incomplete hello. Complete records are looked at once, however many pieces the bytes arrive in.
#[derive(Default)]
struct HelloReader {
    /// Beginning of the first incomplete record.
    at: usize,
    /// The first bytes of the content of the records before it, and how long that content is.
    header: Vec<u8>,
    content_bytes: usize,
}

impl HelloReader {
    /// Looks at all bytes that have arrived so far, including those of the last time; whatever comes after the hello may be among
    /// them. A hello that is invalid, or too long, is refused as early as it shows.
    fn advance(&mut self, bytes: &[u8]) -> Result<ParsedHello, HelloError> {
        while let Some((content, behind)) = record(&bytes[self.at..])? {
            self.at = bytes.len() - behind.len();
            self.content_bytes += content.len();
            extend_header(&mut self.header, content);
            if let Some(total) = hello_bytes(&self.header)?.filter(|total| self.content_bytes >= *total) {
                return server_name(&collect(bytes, total)?[HANDSHAKE_HEADER_BYTES..]).map(ParsedHello::Complete);
            }
        }
        let mut header = self.header.clone();
        extend_header(&mut header, bytes[self.at..].get(RECORD_HEADER_BYTES..).unwrap_or_default());
        hello_bytes(&header)?;
        if bytes.len() >= CLIENT_HELLO_BYTES_MAX { Err(HelloError::TooLong) } else { Ok(ParsedHello::Partial) }
    }
}

fn extend_header(header: &mut Vec<u8>, content: &[u8]) {
    let missing = HANDSHAKE_HEADER_BYTES - header.len();
    header.extend_from_slice(&content[..content.len().min(missing)]);
}

/// Length of the hello, by its first bytes; `None`: there are too few.
fn hello_bytes(header: &[u8]) -> Result<Option<usize>, HelloError> {
    match *header {
        [kind, ..] if kind != HANDSHAKE_CLIENT_HELLO => Err(HelloError::NotTls),
        [_, high, middle, low] => {
            let total = HANDSHAKE_HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize;
            if total > CLIENT_HELLO_BYTES_MAX { Err(HelloError::TooLong) } else { Ok(Some(total)) }
        }
        _ => Ok(None),
    }
}

/// Collects so many bytes of content, without the records around them.
fn collect(bytes: &[u8], total: usize) -> Result<Vec<u8>, HelloError> {
    let (mut hello, mut rest) = (Vec::with_capacity(total), bytes);
    while hello.len() < total {
        let (content, behind) = record(rest)?.ok_or(HelloError::Malformed)?;
        hello.extend_from_slice(&content[..content.len().min(total - hello.len())]);
        rest = behind;
    }
    Ok(hello)
}

/// A record's content, and the bytes after it.
type Record<'a> = (&'a [u8], &'a [u8]);

/// The first record; `None`: it is incomplete.
fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, HelloError> {
    let is_start = match bytes {
        [] => true,
        [kind] => *kind == CONTENT_HANDSHAKE,
        [kind, major, ..] => (*kind, *major) == (CONTENT_HANDSHAKE, 3),
    };
    if !is_start {
        return Err(HelloError::NotTls);
    }
    let Some(&[_, _, _, high, low]) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len == 0 || len > RECORD_BYTES_MAX {
        return Err(HelloError::Malformed);
    }
    Ok(bytes[RECORD_HEADER_BYTES..].split_at_checked(len))
}

fn server_name(hello: &[u8]) -> Result<Option<Box<str>>, HelloError> {
    let mut hello = ByteReader(hello);
    hello.take(2 + RANDOM_BYTES)?;
    hello.block(1)?;
    hello.block(2)?;
    hello.block(1)?;
    if hello.0.is_empty() {
        // RFC 5246 section 7.4.1.2: extensions are optional.
        return Ok(None);
    }
    let mut extensions = ByteReader(hello.block(2)?);
    if !hello.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take(2)?;
        let content = extensions.block(2)?;
        if kind == EXTENSION_SERVER_NAME.to_be_bytes() {
            // Two parties could choose different ones.
            if found.is_some() {
                return Err(HelloError::Malformed);
            }
            found = Some(host_name(content)?);
        }
    }
    Ok(found.flatten())
}

/// The host among the names of the extension.
fn host_name(content: &[u8]) -> Result<Option<Box<str>>, HelloError> {
    let mut content = ByteReader(content);
    let mut names = ByteReader(content.block(2)?);
    // RFC 6066 section 3: there is at least one.
    if names.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    let mut found = None;
    while !names.0.is_empty() {
        let kind = names.take(1)?[0];
        let name = names.block(2)?;
        if kind != NAME_TYPE_HOST {
            continue;
        }
        let is_name = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
        let name = str::from_utf8(name).map_err(|_| HelloError::Malformed)?;
        let name = name.strip_suffix('.').unwrap_or(name);
        if !is_name || name.is_empty() || found.is_some() {
            return Err(HelloError::Malformed);
        }
        found = Some(name.to_ascii_lowercase().into());
    }
    if content.0.is_empty() { Ok(found) } else { Err(HelloError::Malformed) }
}

/// Takes bytes from the front.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes the block that follows a length of so many bytes.
    fn block(&mut self, length_bytes: usize) -> Result<&'a [u8], HelloError> {
        let len = self.take(length_bytes)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<ParsedHello, HelloError> {
        HelloReader::default().advance(bytes)
    }

    fn block(length_bytes: usize, content: &[u8]) -> Vec<u8> {
        let len = (content.len() as u32).to_be_bytes();
        [&len[4 - length_bytes..], content].concat()
    }

    fn server_names(names: &[u8]) -> Vec<u8> {
        [&[0, 0][..], &block(2, &block(2, names))].concat()
    }

    fn host(name: &[u8]) -> Vec<u8> {
        server_names(&[&[0][..], &block(2, name)].concat())
    }

    /// A hello with these extensions; `None`: without any.
    fn hello(extensions: Option<&[u8]>) -> Vec<u8> {
        let mut body =
            [&[3, 3][..], &[7; RANDOM_BYTES], &block(1, &[1; 32]), &block(2, &[0x13, 1]), &block(1, &[0])].concat();
        extensions.into_iter().for_each(|extensions| body.extend(block(2, extensions)));
        [&[HANDSHAKE_CLIENT_HELLO][..], &block(3, &body)].concat()
    }

    fn records(handshake: &[u8], bytes: usize) -> Vec<u8> {
        handshake.chunks(bytes).flat_map(|part| [&[22, 3, 1][..], &block(2, part)].concat()).collect()
    }

    fn complete(name: Option<&str>) -> Result<ParsedHello, HelloError> {
        Ok(ParsedHello::Complete(name.map(Into::into)))
    }

    #[test]
    fn the_name_is_found_in_any_split_of_records_and_bytes() {
        let padding = [&[0, 21][..], &block(2, &[0; 300])].concat();
        let whole = hello(Some(&[padding, host(b"A.Example.TEST.")].concat()));
        for of_record in [1, 2, 3, 5, 100, 16384] {
            let bytes = records(&whole, of_record);
            let mut reader = HelloReader::default();
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len]), Ok(ParsedHello::Partial), "{of_record} {len}");
                assert_eq!(reader.advance(&bytes[..len]), Ok(ParsedHello::Partial), "{of_record} {len}");
            }
            assert_eq!(reader.advance(&bytes), complete(Some("a.example.test")));
            assert_eq!(parse(&bytes), complete(Some("a.example.test")));
            assert_eq!(parse(&[&bytes[..], b"what follows"].concat()), complete(Some("a.example.test")));
        }
    }

    #[test]
    fn a_hello_without_a_name_is_one() {
        assert_eq!(parse(&records(&hello(None), 999)), complete(None));
        assert_eq!(parse(&records(&hello(Some(&[])), 999)), complete(None));
        let other = server_names(&[&[9][..], &block(2, b"x")].concat());
        assert_eq!(parse(&records(&hello(Some(&other)), 999)), complete(None));
    }

    /// RFC 8701: unknown values are skipped, wherever they occur.
    #[test]
    fn what_is_not_known_is_passed_over() {
        let grease = |kind: u8, content: &[u8]| [&[kind, kind][..], &block(2, content)].concat();
        let extensions = [grease(0x0a, b""), host(b"a.test"), grease(0xfa, b"\0")].concat();
        assert_eq!(parse(&records(&hello(Some(&extensions)), 999)), complete(Some("a.test")));
        // A name of another kind does not count as a second host.
        let names = [&[9][..], &block(2, b"x"), &[0], &block(2, b"a.test"), &[9], &block(2, b"")].concat();
        assert_eq!(parse(&records(&hello(Some(&server_names(&names))), 999)), complete(Some("a.test")));
    }

    #[test]
    fn a_hello_may_be_long_and_not_too_long() {
        let long_one = |bytes: usize| {
            let half = [&[0x7f, 0][..], &block(2, &vec![0; bytes / 2])].concat();
            let other = [&[0x7f, 1][..], &block(2, &vec![0; bytes / 2])].concat();
            hello(Some(&[half, other, host(b"a.test")].concat()))
        };
        let with = |bytes: usize| records(&long_one(bytes), 16384);
        assert_eq!(parse(&with(40_000)), complete(Some("a.test")));
        let long = with(CLIENT_HELLO_BYTES_MAX);
        assert_eq!(parse(&long), Err(HelloError::TooLong));
        assert_eq!(parse(&long[..100]), Err(HelloError::TooLong), "told as early as it is known");
        // Many records of one byte each are as long.
        let small = records(&long_one(20_000), 1);
        assert_eq!(parse(&small[..CLIENT_HELLO_BYTES_MAX - 1]), Ok(ParsedHello::Partial));
        assert_eq!(parse(&small[..CLIENT_HELLO_BYTES_MAX]), Err(HelloError::TooLong));
    }

    #[test]
    fn what_is_not_a_hello_is_refused() {
        let check = |bytes: &[u8], expected: HelloError| assert_eq!(parse(bytes), Err(expected), "{bytes:?}");
        check(b"GET / HTTP/1.1\r\n", HelloError::NotTls);
        check(b"\x16\x02", HelloError::NotTls);
        check(b"\x80\x2e\x01\x03\x01", HelloError::NotTls);
        check(&[22, 3, 1, 0, 0], HelloError::Malformed);
        check(&[22, 3, 1, 0x40, 1], HelloError::Malformed);
        // Another handshake message, and an alert.
        check(&records(&[2, 0, 0, 0], 99), HelloError::NotTls);
        check(&[21, 3, 1, 0, 2, 1, 0], HelloError::NotTls);
        check(&records(&[1, 0xff, 0xff, 0xff], 99), HelloError::TooLong);
        check(&records(&[1, 0, 0, 0], 99), HelloError::Malformed);
        for name in [&b""[..], b".", b"a b", b"\xff", b"a\0b", &[b'a'; 256]] {
            check(&records(&hello(Some(&host(name))), 999), HelloError::Malformed);
        }
        let twice = [host(b"a.test"), host(b"b.test")].concat();
        check(&records(&hello(Some(&twice)), 999), HelloError::Malformed);
        // Without any name, even of another kind.
        check(&records(&hello(Some(&server_names(b""))), 999), HelloError::Malformed);
        check(&records(&hello(Some(&[0, 0, 0, 0])), 999), HelloError::Malformed);
        let two = [&[0][..], &block(2, b"a.test"), &[0], &block(2, b"b.test")].concat();
        check(&records(&hello(Some(&server_names(&two))), 999), HelloError::Malformed);
    }

    /// Lengths are never trusted.
    #[test]
    fn cut_and_changed_hellos_do_no_harm() {
        let whole = hello(Some(&host(b"a.test")));
        for at in 1..whole.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                // Whatever the bytes are, it must not panic.
                let _ = parse(&records(&bytes, 999));
            }
            let mut cut = whole[..at.max(4)].to_vec();
            let len = (cut.len() as u32 - 4).to_be_bytes();
            cut[1..4].copy_from_slice(&len[1..]);
            let _ = parse(&records(&cut, 999));
        }
    }
}
