//! A connection of HTTP/2 to a node, shared by all requests that are under way on it.

use super::bounds::*;
use super::frames::Watch;
use super::node_stream::NodeStream;
use super::transport::{Io, Transport};
use crate::mistaken::Mistaken;
use crate::plan::Settings;
use crate::stream::Stream;
use crate::worker::Worker;
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_wire::RequestHead;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

/// What the requests of one connection share.
pub(super) struct Shared {
    /// Requests under way.
    pub(super) live: Cell<usize>,
    /// No further request is to go this way.
    pub(super) is_retired: Cell<bool>,
    /// How many the node allows.
    live_max: Cell<usize>,
    /// What the node seems to speak instead.
    pub(super) mistaken: Cell<Option<Mistaken>>,
    /// Whether calls of gRPC-Web go to the node as such of gRPC.
    pub(super) bridges_web: bool,
    pub(super) scratch: RefCell<Scratch>,
}

impl Shared {
    pub(super) fn new(bridges_web: bool) -> Shared {
        Shared {
            live: Cell::new(0),
            is_retired: Cell::new(false),
            live_max: Cell::new(STREAMS_MAX as usize),
            mistaken: Cell::new(None),
            bridges_web,
            scratch: RefCell::default(),
        }
    }
}

/// Memory for what is put together and parsed at once.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) request: RequestHead,
    pub(super) response: Vec<u8>,
}

/// A connection to a node as the pool keeps it; requests are streams of it. Dropped, it ends when they have.
pub(crate) struct NodeConnection {
    send: SendRequest<Bytes>,
    shared: Rc<Shared>,
    server_name: Option<ServerName<'static>>,
}

impl NodeConnection {
    /// A further request. There must be room for one.
    pub(crate) fn open(&self) -> NodeStream {
        NodeStream::new(self.send.clone(), self.shared.clone())
    }

    /// Whether the node allows no further request at this time.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.live.get() >= self.shared.live_max.get()
    }

    /// Whether it was closed, or is about to be, or a request on it has had no answer in time.
    pub(crate) fn is_dead(&mut self) -> bool {
        self.shared.is_retired.get()
            || matches!(self.send.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// The name that the node has shown a certificate of.
    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }
}

/// Begins HTTP/2 on a connection just made. The node need not have answered for requests to be sent.
pub(crate) async fn connect(worker: &Rc<Worker>, stream: Stream, bridges_web: bool) -> io::Result<NodeConnection> {
    let server_name = stream.server_name().cloned();
    let shared = Rc::new(Shared::new(bridges_web));
    let (tell, begun) = oneshot::channel();
    spawn_local(drive(worker.clone(), stream, shared.clone(), tell));
    let send = begun.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
    Ok(NodeConnection { send, shared, server_name })
}

/// Moves the connection's frames until it ends.
async fn drive(worker: Rc<Worker>, mut stream: Stream, shared: Rc<Shared>, begun: oneshot::Sender<SendRequest<Bytes>>) {
    let transport = Transport::new(&mut stream, &[], Watch::of_node(), &worker.buffers, &worker.clock);
    let builder = builder(&worker.snapshot().plan.settings);
    let Ok((send, mut connection)) = builder.handshake(transport.io()).await else { return };
    if begun.send(send).is_err() {
        return;
    }
    poll_fn(|cx| poll(cx, &mut connection, &transport, &shared)).await;
    // Before the requests on it look why they failed: they are woken, and this task has not paused since.
    shared.mistaken.set(transport.mistaken());
}

fn poll(
    cx: &mut Context<'_>,
    connection: &mut Connection<Io<'_, '_>, Bytes>,
    transport: &Transport<'_>,
    shared: &Shared,
) -> Poll<()> {
    let ended = Pin::new(&mut *connection).poll(cx).is_ready();
    let flushed = transport.poll_flush(cx);
    shared.live_max.set(connection.max_concurrent_send_streams());
    // What waits to be written is bounded, and so is, by its exchange, how long each request waits for its answer.
    if ended || transport.is_flooded() || matches!(flushed, Poll::Ready(Err(_))) {
        return Poll::Ready(());
    }
    Poll::Pending
}

fn builder(settings: &Settings) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(field_section_bytes_max(settings))
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX));
    builder
}
