//! The exporter's listener and its connections, each with a bound on everything a scraper could hold.

use crate::answer::answer;
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::door;
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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tracing::debug;

/// Within this a request's head has to be there, on a new connection as on one that is kept.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// After this a connection gets no further request, so that nobody holds a place for good.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// What a connection has to finish in, once it is too old.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that is to end gets so long for its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// A scraper that takes nothing for so long is gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// What waits to be sent on a connection, beside one piece; and the longest head of a request.
pub(crate) const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// What the kernel keeps of that, of which it takes the double. It would take megabytes for each scraper that is slow.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// The connections of a server that accepts no more.
pub(crate) struct Connections {
    places: ConnectionSlots,
}

impl Connections {
    /// Waits until the last one has finished what it was at.
    pub(crate) async fn ended(self) {
        self.places.all_free().await;
    }
}

/// Serves until `stopping` is true or dropped; then connections finish what they are at, and nobody accepts any more.
pub(crate) async fn serve(
    listener: TcpListener,
    source: Arc<ExpositionSource>,
    stopping: watch::Receiver<bool>,
) -> Connections {
    let places = ConnectionSlots::default();
    // Otherwise it is open to others than those on this machine anyway, under whatever name they know.
    let is_on_loopback = listener.local_addr().is_ok_and(|at| at.ip().to_canonical().is_loopback());
    let accepting = door::accept(&listener, &places, "exporter", |stream, peer, place| {
        let (source, stopping) = (source.clone(), stopping.clone());
        tokio::spawn(serve_connection(stream, peer, place, source, is_on_loopback, stopping));
    });
    tokio::select! {
        // Who would be accepted just now may be another process's to serve.
        biased;
        () = stop(stopping.clone()) => {}
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
        // What has come is read before it is said that nothing has.
        biased;
        ended = connection.as_mut() => Some(ended),
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => None,
        () = async {
            stop(stopping).await;
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
    // Counts from when the scraper last took something, also while its window is closed (tcp(7)).
    socket.set_tcp_user_timeout(Some(SEND_TIMEOUT))
}

async fn stop(mut stopping: watch::Receiver<bool>) {
    // Where nobody is left to say so, it is to stop too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
