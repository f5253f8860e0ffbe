//! An HTTP/2 connection to a node, driven by a task of its own while requests are under way on it.

use crate::connection::http2::bounds::*;
use crate::connection::http2::transport::{Io, Transport};
use crate::connection::http2::{NodeConnection, NodeShared};
use crate::connection::stream::Stream;
use crate::worker::Worker;
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use stillgate_wire::HeadLimits;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

/// What a connection is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionUse {
    /// gRPC-Web calls go to the node as gRPC calls.
    pub(crate) bridges_web: bool,
    /// It carries one request with a large head at a time.
    pub(crate) is_exclusive: bool,
}

/// Begins HTTP/2 on a new connection to `node`, which need not have answered for requests to be sent.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    stream: Stream,
    node: SocketAddr,
    ConnectionUse { bridges_web, is_exclusive }: ConnectionUse,
) -> io::Result<NodeConnection> {
    let server_name = stream.server_name().cloned();
    let shared = Rc::new(NodeShared::new(bridges_web, is_exclusive));
    let (tell, begun) = oneshot::channel();
    spawn_local(drive(worker.clone(), stream, node, shared.clone(), tell));
    let send = begun.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
    Ok(NodeConnection::new(send, shared, server_name))
}

/// Drives the connection until it ends.
async fn drive(
    worker: Rc<Worker>,
    mut stream: Stream,
    node: SocketAddr,
    shared: Rc<NodeShared>,
    begun: oneshot::Sender<SendRequest<Bytes>>,
) {
    let transport = Transport::to_node(&mut stream, shared.marked.clone(), &worker.buffers, &worker.clock);
    let builder = builder(&worker.snapshot().plan.settings.request_limits);
    let Ok((send, mut connection)) = builder.handshake(transport.io()).await else { return };
    if begun.send(send).is_err() {
        return;
    }
    let fault = poll_fn(|cx| poll(cx, &mut connection, &transport, &shared)).await;
    // Before its requests check why they failed: they have been woken, and this task has not paused since.
    shared.mistaken.set(transport.mistaken());
    if let Some(fault) = fault {
        worker.troubles.note_node_connection(node, fault);
    }
}

/// Ready when the connection has ended, with the node's fault if it was an HTTP/2 error.
fn poll(
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

fn builder(limits: &HeadLimits) -> Builder {
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
