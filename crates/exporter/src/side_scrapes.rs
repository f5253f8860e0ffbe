//! Scrapes over connections from another thread of the process, for a route of the gateway, or its admin address, that
//! serves the metrics.
//!
//! Such a connection carries one request. Its other end forwards data as fast as the client takes it, so pieces are
//! made no faster. The clients of a gateway may be anybody: scrapes on routes have a limit of their own, which reserves
//! places for scrapes over the admin address or the exporter's, and each has a deadline.

use crate::answer::answer_scrape;
use crate::server::{BUFFER_BYTES_MAX, HEAD_TIMEOUT};
use crate::source::ExpositionSource;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::debug;

/// Most concurrent scrapes of each entrance.
const SCRAPES_MAX: usize = 16;

/// Deadline of a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(300);

/// The entrance of a scrape.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entrance {
    Routes,
    Admin,
}

/// Answers such scrapes.
#[derive(Debug)]
pub(crate) struct SideScrapes {
    /// Indexed by [`Entrance`].
    places: [Arc<Semaphore>; 2],
    /// Another process exposes more than this one knows of.
    pub(crate) is_closed: bool,
}

impl Default for SideScrapes {
    fn default() -> SideScrapes {
        SideScrapes { places: std::array::from_fn(|_| Arc::new(Semaphore::new(SCRAPES_MAX))), is_closed: false }
    }
}

impl SideScrapes {
    /// Answers the request on a connection, or closes it.
    pub(crate) fn serve(&self, connection: UnixStream, entrance: Entrance, source: &Arc<ExpositionSource>) {
        let place = self.places[entrance as usize].clone().try_acquire_owned();
        let (false, Ok(place)) = (self.is_closed, place) else { return source.tally.refused() };
        let stream = connection.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(connection));
        let (stream, source) = match stream {
            Ok(stream) => (stream, source.clone()),
            Err(error) => return debug!(%error, "exporter: a connection within the process"),
        };
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(|request: Request<Incoming>| {
                let source = &source;
                async move { Ok::<_, Infallible>(answer_scrape(&request, source).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .keep_alive(false)
                .max_buf_size(BUFFER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), answer);
            match tokio::time::timeout(SCRAPE_TIMEOUT, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "exporter: a scrape within the process failed"),
                Err(_) => debug!("exporter: a scrape within the process took too long"),
            }
        });
    }
}
