//! The exporter's listener and its connections, each with a bound on everything a scraper could hold.

use crate::answer::answer;
use crate::source::ExpositionSource;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use stillgate_door::{ConnectionSlot, ConnectionSlots, accept};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tracing::debug;

/// The head of a request has to arrive within this time, on new and on kept connections.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// After this a connection gets no further request, so that nobody holds a place for good.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// The time for a connection to finish once it is too old.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that is to end gets so long for its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// A scraper that reads nothing for so long is gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes waiting to be sent on a connection, besides one piece; also the longest head of a request.
pub(crate) const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Size of the kernel's send buffer, which it doubles. Its default would take megabytes for each slow scraper.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// The connections of a server that accepts no more.
pub(crate) struct Connections {
    places: ConnectionSlots,
}

impl Connections {
    /// Waits until the last one has finished its work.
    pub(crate) async fn wait_until_idle(self) {
        self.places.all_free().await;
    }
}

/// Serves until `stopping` is true or dropped; then connections finish their work, and no others are accepted.
pub(crate) async fn serve(
    listener: TcpListener,
    source: Arc<ExpositionSource>,
    stopping: watch::Receiver<bool>,
) -> Connections {
    let places = ConnectionSlots::default();
    // Other addresses are open beyond this machine anyway, under any name.
    let is_on_loopback = listener.local_addr().is_ok_and(|at| at.ip().to_canonical().is_loopback());
    let accepting = accept(&listener, &places, "exporter", |stream, peer, place| {
        let (source, stopping) = (source.clone(), stopping.clone());
        tokio::spawn(serve_connection(stream, peer, place, source, is_on_loopback, stopping));
    });
    tokio::select! {
        // A connection that would be accepted just now may be meant for another process.
        biased;
        () = wait_for_stop(stopping.clone()) => {}
        () = accepting => {}
    }
    Connections { places }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    _place: ConnectionSlot,
    source: Arc<ExpositionSource>,
    is_on_loopback: bool,
    stopping: watch::Receiver<bool>,
) {
    if let Err(error) = prepare(&stream) {
        // It has been closed already, or the kernel is old: then age is the bound.
        debug!(%peer, %error, "exporter: socket options");
    }
    let asked = Notify::new();
    let service = service_fn(|request: Request<Incoming>| {
        asked.notify_one();
        let source = &source;
        async move { Ok::<_, Infallible>(answer(&request, source, is_on_loopback).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        // Data that has arrived is read before the connection counts as idle.
        biased;
        ended = connection.as_mut() => Some(ended),
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => None,
        () = async {
            wait_for_stop(stopping).await;
            // A client that has just connected gets time to send its first request.
            let _ = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, asked.notified()).await;
        } => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            // A connection that does not even end in this time is dropped, which closes it.
            tokio::time::timeout(CONNECTION_END_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "exporter: connection failed");
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    // Counts from when the scraper last read something, also while its window is closed (tcp(7)).
    socket.set_tcp_user_timeout(Some(SEND_TIMEOUT))
}

async fn wait_for_stop(mut stopping: watch::Receiver<bool>) {
    // If the sender is dropped, it is to stop as well.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
