//! A TCP connection from accept to its tunnel: what comes before its bytes, its route, its node.

use super::client_hello::{CLIENT_HELLO_BYTES_MAX, HelloReader, NoHello, ParsedHello};
use super::nodes::SessionTries;
use super::{STATUS_MISDIRECTED, STATUS_NO_ROUTE, STATUS_UNAVAILABLE};
use crate::basics::buffer::Buffer;
use crate::basics::clock::Timer;
use crate::connection::client::ClientConnection;
use crate::connection::stream::Stream;
use crate::listen::handshake;
use crate::listen::proxy_protocol;
use crate::node::health;
use crate::node::{self, Destination};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::plan::{PlanStreamRoute, StreamProperties, TimeoutsMs, TunnelBounds, millis};
use crate::sockets::listener::ConnectionEvent;
use crate::telemetry::session::{ClientSession, Ends, STATUS_SERVED};
use crate::tunnel::{Direction, NewTunnel, Tunnel, TunnelOrigin};
use crate::worker::{FreshConnection, Open, Worker};
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
type Early = Option<(Buffer, Range<usize>)>;

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
        let mut early = None;
        if tls_passthrough {
            let (name, bytes) = look_at_hello(worker, &mut stream, &timer, peer).await?;
            (session.server_name, early) = (name, Some(bytes));
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
        match to_node(worker, &client, at, &mut session, &snapshot).await {
            Ok(connected) => {
                let switched = connected.switched(worker, session, early, &snapshot);
                Some((client, switched))
            }
            Err(status) => {
                early.into_iter().for_each(|(buffer, _)| worker.buffers.give(buffer));
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
    fn switched(self, worker: &Worker, session: ClientSession, early: Early, snapshot: &Snapshot) -> NewTunnel {
        let TcpPair { route, upstream, timeouts, node, slot } = self;
        let (settings, now_ms) = (&snapshot.plan.settings, worker.clock.now_ms());
        let idle_ms = route.route.timeout.idle.map_or(settings.tcp_idle_ms, millis);
        let received = early.as_ref().map_or(0, |(_, held)| held.len() as u64);
        NewTunnel {
            node,
            origin: TunnelOrigin::Session(Box::new(session)),
            upstream,
            slot,
            lease: route.lease.clone(),
            bounds: TunnelBounds::new(idle_ms, timeouts, settings),
            opened_ms: now_ms,
            up: Direction::new(early, false, (received, 0), now_ms),
            down: Direction::new(None, false, (0, 0), now_ms),
        }
    }
}

/// Finds the route and connects to one of its nodes; otherwise returns the status.
async fn to_node<'a>(
    worker: &Rc<Worker>,
    client: &ClientConnection,
    at: SocketAddr,
    session: &mut ClientSession,
    snapshot: &'a Snapshot,
) -> Result<TcpPair<'a>, u16> {
    let plan = &snapshot.plan;
    if let (Some(tls), Some(facts)) = (&plan.tls, &client.tls)
        && let Some(name) = facts.server_name.as_deref().filter(|name| !facts.may_ask_for(tls, name.as_bytes()))
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
    let preface = preface(client, upstream.planned.definition.proxy_protocol);
    loop {
        let mut trying = choice.pick(session)?;
        let (address, tls) = {
            let state = upstream.state.borrow();
            let endpoint = state.endpoint(trying.slot);
            let tls = upstream.planned.tls().map(|tls| tls.server_name("", &endpoint.host));
            (endpoint.address, upstream.tls.as_ref().zip(tls))
        };
        let destination = Destination { upstream, address, tls, http2: false, grpc: false, preface: &preface };
        match node::connect(worker, &client.timer, destination, timeouts.connect).await {
            Ok((stream, connect_us)) => {
                health::report(worker, upstream, trying.slot, TryReport::Opened, String::new);
                trying.connect_us = Some(u32::try_from(connect_us).unwrap_or(u32::MAX));
                session.tries.connected(connect_us);
                session.tries.answered(STATUS_SERVED);
                return Ok((stream, trying.slot));
            }
            Err(error) => {
                let why = error.error.as_ref().map_or("it took too long".to_owned(), ToString::to_string);
                let slot = trying.slot;
                drop(trying);
                choice.failed(session, slot, error.failure, error.is_local, &why)?;
            }
        }
    }
}

/// The header that a node's connection begins with.
fn preface(client: &ClientConnection, version: Option<ProxyProtocol>) -> Vec<u8> {
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
    No(NoHello),
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
