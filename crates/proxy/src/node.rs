//! Connections to nodes: taking a live one from the pool, making a new one.

use crate::client::Client;
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use stillgate_upstream::{ConnMeta, Failure, UpstreamState};
use tokio::net::TcpStream;

/// The youngest idle connection on which nothing has happened since its last response.
pub(crate) fn take_live(
    state: &mut UpstreamState<TcpStream>,
    index: usize,
    now_ms: u64,
) -> Option<(TcpStream, ConnMeta)> {
    loop {
        let (stream, meta) = state.take(index, now_ms)?;
        if !is_dead(&stream) {
            return Some((stream, meta));
        }
    }
}

/// Whether an idle connection was closed, or sent something nobody asked for. Costs no system call while nothing
/// happened: the event loop's readiness says so.
pub(crate) fn is_dead(stream: &TcpStream) -> bool {
    !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// A new connection, or why there is none and whether that is the node's fault.
pub(crate) async fn connect(
    worker: &Worker,
    client: &Client,
    address: SocketAddr,
    timeout_ms: u64,
) -> Result<TcpStream, ConnectError> {
    let deadline_ms = worker.clock.now_ms() + timeout_ms;
    let mut connecting = Box::pin(TcpStream::connect(address));
    let connected = poll_fn(|cx| {
        if let Poll::Ready(result) = connecting.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        if worker.clock.now_ms() >= deadline_ms {
            return Poll::Ready(None);
        }
        client.timer.set(&worker.clock, deadline_ms, cx);
        Poll::Pending
    })
    .await;
    match connected {
        Some(Ok(stream)) => {
            worker.counters.upstream_connects.add(1);
            // Without it only latency suffers; the connection is good.
            let _ = stream.set_nodelay(true);
            Ok(stream)
        }
        Some(Err(error)) => {
            Err(ConnectError { failure: Failure::Connect, is_local: is_local(&error), error: Some(error) })
        }
        None => Err(ConnectError { failure: Failure::ConnectTimeout, is_local: false, error: None }),
    }
}

/// Why there is no connection.
pub(crate) struct ConnectError {
    pub(crate) failure: Failure,
    /// We lack descriptors, ports or memory: the node is not to blame and not set aside.
    pub(crate) is_local: bool,
    /// What the system said; none: it took too long.
    pub(crate) error: Option<io::Error>,
}

fn is_local(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL)
    )
}
