//! Nodes as this worker sees them: connections to them, and their health as shown by tries. A connection of HTTP/2 is driven by a
//! task of its own while requests are under way on it.

pub(crate) mod health;

use crate::basics::clock::Timer;
use crate::connection::http2::bounds::*;
use crate::connection::http2::transport::{Io, Transport};
use crate::connection::http2::{NodeConnection, NodeShared};
use crate::connection::stream::{Stream, Tls};
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{Peer, handshake_failure};
use stillgate_upstream::{ConnMeta, Failure, Fit, UpstreamState};
use stillgate_wire::HeadLimits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

// Connections to nodes: taking a live one from the pool, or making a new one.

/// Destination of a connection.
pub(crate) struct Destination<'a> {
    /// The upstream of the node.
    pub(crate) upstream: &'a WorkerUpstream,
    pub(crate) address: SocketAddr,
    /// The TLS configuration to use, and the name that the node's certificate must be valid for.
    pub(crate) tls: Option<(&'a Arc<ClientConfig>, ServerName<'static>)>,
    /// Whether to use HTTP/2 with the node.
    pub(crate) http2: bool,
    /// Whether the node speaks gRPC.
    pub(crate) grpc: bool,
    /// Whether it is for a request with a large head, which shares no connection of HTTP/2.
    pub(crate) has_large_head: bool,
    /// Bytes before everything else, TLS included.
    pub(crate) proxy_protocol_header: &'a [u8],
}

/// The youngest idle connection on which nothing has happened since its last response. Connections for which `is_name`, given the
/// name that the node's certificate was verified for and the node's host, does not hold are left alone, and so are those that are
/// for requests with smaller or larger heads.
pub(crate) fn take_live(
    state: &mut UpstreamState<Stream>,
    index: usize,
    is_name: impl Fn(Option<&ServerName<'static>>, &str) -> bool,
    (has_large_head, now_ms): (bool, u64),
) -> Option<(Stream, ConnMeta)> {
    let (stream, meta) = state.take(index, now_ms, |stream, node| match stream.is_for(has_large_head) {
        false => Fit::Reserved,
        true if !is_name(stream.server_name(), node) => Fit::Other,
        true if stream.is_dead() => Fit::Dead,
        true if !stream.is_full() => Fit::Right,
        true if has_large_head => Fit::Reserved,
        _ => Fit::Other,
    })?;
    Some(keep_shared(state, index, stream, meta, now_ms))
}

/// If the connection carries many requests at once, the try gets one of its streams; the connection stays in the pool.
pub(crate) fn keep_shared(
    state: &mut UpstreamState<Stream>,
    index: usize,
    stream: Stream,
    meta: ConnMeta,
    now_ms: u64,
) -> (Stream, ConnMeta) {
    match stream.share() {
        None => (stream, meta),
        Some(one) => {
            drop(state.put(index, stream, meta, now_ms));
            (one, meta)
        }
    }
}

/// Makes a new connection and returns how many microseconds it took, or why it failed and whether that is the node's fault.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    timer: &Timer,
    destination: Destination<'_>,
    timeout_ms: u64,
) -> Result<(Stream, u64), ConnectError> {
    let deadline_ms = worker.clock.now_ms() + timeout_ms;
    let (upstream, began) = (destination.upstream, Instant::now());
    let connecting = Box::pin(open(worker, destination));
    match worker.clock.within(timer, deadline_ms, connecting).await {
        Some(Ok(stream)) => {
            let took = began.elapsed();
            worker.note_connect(upstream, took);
            Ok((stream, took.as_micros() as u64))
        }
        Some(Err(OpenError { error, is_handshake })) => {
            let is_local = is_local(&error);
            Err(ConnectError { failure: Failure::Connect, is_local, is_handshake, error: Some(error) })
        }
        None => {
            let failure = Failure::ConnectTimeout;
            Err(ConnectError { failure, is_local: false, is_handshake: false, error: None })
        }
    }
}

async fn open(worker: &Rc<Worker>, destination: Destination<'_>) -> Result<Stream, OpenError> {
    let (address, is_http2) = (destination.address, destination.http2);
    let purpose = ConnectionUse { bridges_web: destination.grpc, is_exclusive: destination.has_large_head };
    let stream = open_bytes(worker, destination).await?;
    match is_http2 {
        true => Ok(Stream::Http2Pooled(Box::new(begin_http2(worker, stream, address, purpose).await?))),
        false => Ok(stream),
    }
}

async fn open_bytes(worker: &Worker, destination: Destination<'_>) -> Result<Stream, OpenError> {
    let mut stream = TcpStream::connect(destination.address).await?;
    worker.counters.upstream_connects.add(1);
    // Without it only latency suffers; the connection is good.
    let _ = stream.set_nodelay(true);
    if !destination.proxy_protocol_header.is_empty() {
        stream.write_all(destination.proxy_protocol_header).await?;
    }
    let Some((config, name)) = destination.tls else { return Ok(Stream::Plain(stream)) };
    let connector = TlsConnector::from(config.clone());
    let stream = match destination.http2 {
        true => connector.with_alpn(vec![b"h2".to_vec()]).connect(name.clone(), stream).await,
        false => connector.connect(name.clone(), stream).await,
    };
    let in_handshake = |error| OpenError { error, is_handshake: true };
    let stream = stream.map_err(explained).map_err(in_handshake)?;
    if destination.http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(in_handshake(io::Error::other("the node does not speak HTTP/2 (ALPN)")));
    }
    Ok(Stream::Tls(Box::new(Tls { stream: stream.into(), server_name: Some(name) })))
}

/// Explains why a handshake failed. If we lack something, the system's error number says what.
fn explained(error: io::Error) -> io::Error {
    match is_local(&error) {
        true => error,
        false => {
            io::Error::new(error.kind(), format!("TLS with the node failed: {}", handshake_failure(&error, Peer::Node)))
        }
    }
}

/// Why connecting failed.
pub(crate) struct ConnectError {
    pub(crate) failure: Failure,
    /// We lack descriptors, ports or memory: the node is not to blame and not set aside.
    pub(crate) is_local: bool,
    /// The node could be connected to, but TLS with it failed.
    pub(crate) is_handshake: bool,
    /// The system's error; `None`: it took too long.
    pub(crate) error: Option<io::Error>,
}

impl ConnectError {
    /// The reason for the log.
    pub(crate) fn reason(&self) -> String {
        self.error.as_ref().map_or("it took too long".to_owned(), ToString::to_string)
    }
}

/// Why a connection could not be opened.
struct OpenError {
    error: io::Error,
    is_handshake: bool,
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError { error, is_handshake: false }
    }
}

pub(crate) fn is_local(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        // The last two: no port is left, as reported by TCP and by UDP.
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL | libc::EADDRINUSE)
    )
}

/// What a connection is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionUse {
    /// gRPC-Web calls go to the node as gRPC calls.
    pub(crate) bridges_web: bool,
    /// It carries one request with a large head at a time.
    pub(crate) is_exclusive: bool,
}

/// Begins HTTP/2 on a new connection to `node`, which need not have answered for requests to be sent.
pub(crate) async fn begin_http2(
    worker: &Rc<Worker>,
    stream: Stream,
    node: SocketAddr,
    ConnectionUse { bridges_web, is_exclusive }: ConnectionUse,
) -> io::Result<NodeConnection> {
    let server_name = stream.server_name().cloned();
    let shared = Rc::new(NodeShared::new(bridges_web, is_exclusive));
    let (tell, begun) = oneshot::channel();
    spawn_local(drive_http2(worker.clone(), stream, node, shared.clone(), tell));
    let send = begun.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
    Ok(NodeConnection::new(send, shared, server_name))
}

/// Drives the connection until it ends.
async fn drive_http2(
    worker: Rc<Worker>,
    mut stream: Stream,
    node: SocketAddr,
    shared: Rc<NodeShared>,
    begun: oneshot::Sender<SendRequest<Bytes>>,
) {
    let transport = Transport::to_node(&mut stream, shared.marked.clone(), &worker.buffers, &worker.clock);
    let builder = http2_builder(&worker.snapshot().plan.settings.request_limits);
    let Ok((send, mut connection)) = builder.handshake(transport.io()).await else { return };
    if begun.send(send).is_err() {
        return;
    }
    let fault = poll_fn(|cx| poll_http2(cx, &mut connection, &transport, &shared)).await;
    // Before its requests check why they failed: they have been woken, and this task has not paused since.
    shared.mistaken.set(transport.mistaken());
    if let Some(fault) = fault {
        worker.troubles.note_node_connection(node, fault);
    }
}

/// Ready when the connection has ended, with the node's fault if it was an HTTP/2 error.
fn poll_http2(
    cx: &mut Context<'_>,
    connection: &mut Connection<Io<'_, '_>, Bytes>,
    transport: &Transport<'_>,
    shared: &NodeShared,
) -> Poll<Option<String>> {
    let ended = loop {
        let polled = Pin::new(&mut *connection).poll(cx);
        if polled.is_ready() || !transport.take_gathering_due() {
            break polled;
        }
        shared.bodies.gather();
    };
    // Every request is served before its answer comes.
    shared.marked.forget_unserved();
    let flushed = transport.poll_flush(cx);
    // However many the node allows, the window has room for this many.
    shared.live_max.set(connection.max_concurrent_send_streams().min(STREAMS_MAX as usize));
    // Waiting output is bounded, and so is, by its exchange, how long each request waits for its response.
    match ended {
        Poll::Ready(Err(error)) if error.is_library() => Poll::Ready(Some(error.to_string())),
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending if transport.is_flooded() => {
            Poll::Ready(Some("a flood of frames that move nothing, or of interim responses".to_owned()))
        }
        Poll::Pending if matches!(flushed, Poll::Ready(Err(_))) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    }
}

fn http2_builder(limits: &HeadLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(field_section_bytes_max(limits))
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .data_frame_budget(SMALL_FRAMES_BUDGET)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        // Each is a request of ours, so there are no more than we send.
        .max_local_error_reset_streams(None);
    builder
}
