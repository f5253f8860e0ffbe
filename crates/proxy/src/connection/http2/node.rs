//! A connection of HTTP/2 to a node, shared by all requests that are under way on it.

use super::bodies::Bodies;
use super::bounds::*;
use super::field_watch::Marked;
use super::node_stream::NodeStream;
use super::transport::{Io, Transport};
use crate::connection::mistaken::Mistaken;
use crate::connection::stream::Stream;
use crate::plan::Settings;
use crate::worker::Worker;
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
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
    /// How many there may be at once.
    live_max: Cell<usize>,
    /// What the node seems to speak instead.
    pub(super) mistaken: Cell<Option<Mistaken>>,
    /// Whether calls of gRPC-Web go to the node as such of gRPC.
    pub(super) bridges_web: bool,
    pub(super) bodies: Rc<Bodies>,
    /// Streams whose head or trailers are malformed.
    pub(super) marked: Rc<Marked>,
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
            bodies: Rc::default(),
            marked: Rc::default(),
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

/// Begins HTTP/2 on a connection just made to `node`, which need not have answered for requests to be sent.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    stream: Stream,
    node: SocketAddr,
    bridges_web: bool,
) -> io::Result<NodeConnection> {
    let server_name = stream.server_name().cloned();
    let shared = Rc::new(Shared::new(bridges_web));
    let (tell, begun) = oneshot::channel();
    spawn_local(drive(worker.clone(), stream, node, shared.clone(), tell));
    let send = begun.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
    Ok(NodeConnection { send, shared, server_name })
}

/// Moves the connection's frames until it ends.
async fn drive(
    worker: Rc<Worker>,
    mut stream: Stream,
    node: SocketAddr,
    shared: Rc<Shared>,
    begun: oneshot::Sender<SendRequest<Bytes>>,
) {
    let transport = Transport::to_node(&mut stream, shared.marked.clone(), &worker.buffers, &worker.clock);
    let builder = builder(&worker.snapshot().plan.settings);
    let Ok((send, mut connection)) = builder.handshake(transport.io()).await else { return };
    if begun.send(send).is_err() {
        return;
    }
    let fault = poll_fn(|cx| poll(cx, &mut connection, &transport, &shared)).await;
    // Before the requests on it look why they failed: they are woken, and this task has not paused since.
    shared.mistaken.set(transport.mistaken());
    if let Some(fault) = fault {
        worker.troubles.note_node_connection(node, fault);
    }
}

/// Ready when the connection has ended, with the node's fault where it was one of HTTP/2.
fn poll(
    cx: &mut Context<'_>,
    connection: &mut Connection<Io<'_, '_>, Bytes>,
    transport: &Transport<'_>,
    shared: &Shared,
) -> Poll<Option<String>> {
    let ended = loop {
        let polled = Pin::new(&mut *connection).poll(cx);
        if polled.is_ready() || !transport.take_gathering_due() {
            break polled;
        }
        shared.bodies.gather();
    };
    // Whatever is asked is served before its answer comes.
    shared.marked.forget_unserved();
    let flushed = transport.poll_flush(cx);
    // However many the node allows, the window has room for so many.
    shared.live_max.set(connection.max_concurrent_send_streams().min(STREAMS_MAX as usize));
    // What waits to be written is bounded, and so is, by its exchange, how long each request waits for its answer.
    match ended {
        Poll::Ready(Err(error)) if error.is_library() => Poll::Ready(Some(error.to_string())),
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending if transport.is_flooded() => Poll::Ready(Some("a flood of frames that move nothing".to_owned())),
        Poll::Pending if matches!(flushed, Poll::Ready(Err(_))) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    }
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
        .data_frame_budget(SMALL_FRAMES_BUDGET)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        // Each is a request of ours, so there are no more than we send.
        .max_local_error_reset_streams(None);
    builder
}
