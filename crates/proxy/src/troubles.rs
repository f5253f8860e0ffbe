//! Tells the log, now and then, that upstreams fail requests or clients' connections do not begin as they must: once a
//! while with a count, not once each.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

/// Between two lines about it.
const REPORT_EVERY_MS: u64 = 10_000;

/// What went wrong since the last line about it.
#[derive(Default)]
pub(crate) struct Troubles {
    /// Requests that their upstream did not serve.
    requests: Cell<u64>,
    latest: RefCell<Option<Trouble>>,
    reported_ms: Cell<u64>,
    /// Clients' connections closed before their first request.
    connections: Cell<u64>,
    latest_connection: RefCell<Option<(SocketAddr, String)>>,
    connections_reported_ms: Cell<u64>,
    /// Streams of HTTP/2 reset before they were requests.
    streams: Cell<u64>,
    latest_stream: Cell<Option<(SocketAddr, &'static str)>>,
    streams_reported_ms: Cell<u64>,
}

struct Trouble {
    upstream: String,
    message: String,
    node: Option<SocketAddr>,
}

impl Troubles {
    /// A request failed.
    pub(crate) fn note(&self, upstream: &str, message: &str, node: Option<SocketAddr>) {
        self.requests.set(self.requests.get() + 1);
        let trouble = Trouble { upstream: upstream.to_owned(), message: message.to_owned(), node };
        self.latest.replace(Some(trouble));
    }

    /// A client's connection was closed before its first request.
    pub(crate) fn note_connection(&self, peer: SocketAddr, message: String) {
        self.connections.set(self.connections.get() + 1);
        self.latest_connection.replace(Some((peer, message)));
    }

    /// A client's stream of HTTP/2 was reset before it was a request.
    pub(crate) fn note_stream(&self, peer: SocketAddr, message: &'static str) {
        self.streams.set(self.streams.get() + 1);
        self.latest_stream.set(Some((peer, message)));
    }

    /// Writes the lines that are due.
    pub(crate) fn report(&self, now_ms: u64) {
        if is_due(&self.reported_ms, now_ms)
            && let Some(Trouble { upstream, message, node }) = self.latest.take()
        {
            self.reported_ms.set(now_ms);
            let requests = self.requests.take();
            let node = node.map_or("none".to_owned(), |node| node.to_string());
            tracing::warn!(requests, %upstream, node, "requests or streams were not served by their upstream; the latest: {message}");
        }
        if is_due(&self.connections_reported_ms, now_ms)
            && let Some((peer, message)) = self.latest_connection.take()
        {
            self.connections_reported_ms.set(now_ms);
            let connections = self.connections.take();
            tracing::warn!(connections, %peer, "connections were closed before their first request; the latest: {message}");
        }
        if is_due(&self.streams_reported_ms, now_ms)
            && let Some((peer, message)) = self.latest_stream.take()
        {
            self.streams_reported_ms.set(now_ms);
            let streams = self.streams.take();
            tracing::warn!(streams, %peer, "streams of HTTP/2 were reset before they were requests; the latest: {message}");
        }
    }
}

fn is_due(reported_ms: &Cell<u64>, now_ms: u64) -> bool {
    reported_ms.get() == 0 || now_ms >= reported_ms.get() + REPORT_EVERY_MS
}
