//! Logs now and then that upstreams fail requests, or that clients' connections do not begin as they must: once in a while with a
//! count, not once each.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use stillgate_plugin_api::record::NodeTries;

/// Minimum time between two log lines about it.
const REPORT_EVERY_MS: u64 = 10_000;

/// Pairs of an upstream and a message that are counted separately; messages can name what a node has sent.
const PAIRS_MAX: usize = 32;

/// Kinds of trouble, each counted by itself.
#[derive(Default)]
pub(crate) struct Troubles {
    /// Requests that their upstream did not serve.
    requests: UpstreamTroubles,
    /// Connections and sessions of stream routes that their upstream did not serve.
    streams_unserved: UpstreamTroubles,
    /// Clients' connections closed before their first request.
    connections: TroubleKind<(SocketAddr, String)>,
    /// TLS handshakes with clients that failed.
    handshakes: TroubleKind<(SocketAddr, Option<Box<str>>, String)>,
    /// Datagrams dropped for lack of a session.
    datagrams: TroubleKind<(SocketAddr, String)>,
    /// HTTP/2 streams refused before they became requests.
    streams: TroubleKind<(SocketAddr, &'static str)>,
    /// HTTP/2 connections to nodes that ended after an error, with all requests on them.
    node_connections: TroubleKind<(SocketAddr, String)>,
    /// Heads and bodies that plugins refused.
    plugins: TroubleKind<(&'static str, &'static str)>,
    /// Connections that another process would take, but that cannot be handed over.
    kept: TroubleKind<io::Error>,
}

/// Troubles of upstreams. One that fails often must not hide the others: each pair of an upstream and a message has its count.
#[derive(Default)]
struct UpstreamTroubles {
    /// At most `PAIRS_MAX`. Empty while nothing fails.
    pairs: RefCell<Vec<UpstreamTrouble>>,
    /// For which there was no room; the latest.
    others: TroubleKind<(String, String)>,
}

struct UpstreamTrouble {
    upstream: String,
    message: String,
    /// The nodes that were tried for the latest.
    nodes: String,
    count: u64,
    /// 0: not yet.
    reported_ms: u64,
}

impl UpstreamTroubles {
    #[cold]
    fn note(&self, upstream: &str, message: &str, tries: &NodeTries) {
        let mut pairs = self.pairs.borrow_mut();
        if let Some(pair) = pairs.iter_mut().find(|pair| pair.upstream == upstream && pair.message == message) {
            pair.count += 1;
            pair.nodes.clear();
            // Writing to a String cannot fail.
            let _ = write!(pair.nodes, "{tries}");
        } else if pairs.len() < PAIRS_MAX {
            let (upstream, message, nodes) = (upstream.to_owned(), message.to_owned(), tries.to_string());
            pairs.push(UpstreamTrouble { upstream, message, nodes, count: 1, reported_ms: 0 });
        } else {
            self.others.note(1, (upstream.to_owned(), message.to_owned()));
        }
    }

    /// Passes on the pairs that are due, and forgets those that no longer fail.
    fn report(&self, now_ms: u64, mut write: impl FnMut(&UpstreamTrouble)) {
        self.pairs.borrow_mut().retain_mut(|pair| {
            if pair.reported_ms != 0 && now_ms < pair.reported_ms + REPORT_EVERY_MS {
                return true;
            }
            if pair.count == 0 {
                return false;
            }
            write(pair);
            (pair.count, pair.reported_ms) = (0, now_ms);
            true
        });
    }
}

/// What has gone wrong since the last line about it.
struct TroubleKind<T> {
    count: Cell<u64>,
    latest: RefCell<Option<T>>,
    reported_ms: Cell<u64>,
}

impl<T> Default for TroubleKind<T> {
    fn default() -> TroubleKind<T> {
        TroubleKind { count: Cell::new(0), latest: RefCell::new(None), reported_ms: Cell::new(0) }
    }
}

impl<T> TroubleKind<T> {
    fn note(&self, count: u64, latest: T) {
        self.count.set(self.count.get() + count);
        self.latest.replace(Some(latest));
    }

    /// The count and the latest trouble, if a report is due.
    fn due(&self, now_ms: u64) -> Option<(u64, T)> {
        let is_due = self.reported_ms.get() == 0 || now_ms >= self.reported_ms.get() + REPORT_EVERY_MS;
        let latest = self.latest.borrow_mut().take_if(|_| is_due)?;
        self.reported_ms.set(now_ms);
        Some((self.count.take(), latest))
    }
}

impl Troubles {
    /// A request failed.
    pub(crate) fn note_request(&self, upstream: &str, message: &str, tries: &NodeTries) {
        self.requests.note(upstream, message, tries);
    }

    /// A connection or session of a stream route failed.
    pub(crate) fn note_stream(&self, upstream: &str, message: &str, tries: &NodeTries) {
        self.streams_unserved.note(upstream, message, tries);
    }

    /// A client's connection was closed before its first request.
    pub(crate) fn note_connection(&self, peer: SocketAddr, message: String) {
        self.connections.note(1, (peer, message));
    }

    /// A client that requested this name, if it sent one, got no TLS.
    pub(crate) fn note_handshake(&self, peer: SocketAddr, name: Option<Box<str>>, message: String) {
        self.handshakes.note(1, (peer, name, message));
    }

    /// A datagram got no session.
    pub(crate) fn note_datagram(&self, peer: SocketAddr, message: String) {
        self.datagrams.note(1, (peer, message));
    }

    /// A client's HTTP/2 streams were refused before they became requests.
    pub(crate) fn note_streams(&self, peer: SocketAddr, count: u64, message: &'static str) {
        self.streams.note(count, (peer, message));
    }

    /// An HTTP/2 connection to a node ended after an error.
    pub(crate) fn note_node_connection(&self, node: SocketAddr, message: String) {
        self.node_connections.note(1, (node, message));
    }

    /// A plugin refused a head or a body.
    pub(crate) fn note_plugin(&self, plugin: &'static str, reason: &'static str) {
        self.plugins.note(1, (plugin, reason));
    }

    /// A connection cannot be handed over now.
    pub(crate) fn note_kept(&self, error: io::Error) {
        self.kept.note(1, error);
    }

    /// Writes the lines that are due.
    pub(crate) fn report(&self, now_ms: u64) {
        self.requests.report(now_ms, |UpstreamTrouble { upstream, message, nodes, count, .. }| {
            tracing::warn!(requests = *count, %upstream, node = nodes, "requests were not served by their upstream: {message}");
        });
        if let Some((requests, (upstream, message))) = self.requests.others.due(now_ms) {
            tracing::warn!(requests, upstream = "others", latest = %upstream, "requests were not served by other upstreams; the latest: {message}");
        }
        self.streams_unserved.report(now_ms, |UpstreamTrouble { upstream, message, nodes, count, .. }| {
            tracing::warn!(streams = *count, %upstream, node = nodes, "streams were not served by their upstream: {message}");
        });
        if let Some((streams, (upstream, message))) = self.streams_unserved.others.due(now_ms) {
            tracing::warn!(streams, upstream = "others", latest = %upstream, "streams were not served by other upstreams; the latest: {message}");
        }
        if let Some((connections, (peer, message))) = self.connections.due(now_ms) {
            tracing::warn!(connections, %peer, "connections were closed before their first request; the latest: {message}");
        }
        if let Some((handshakes, (peer, name, message))) = self.handshakes.due(now_ms) {
            let server_name = name.as_deref().unwrap_or("none");
            // Any client can cause it, and most often nothing here needs to be fixed.
            tracing::info!(handshakes, %peer, server_name, "TLS handshakes with clients failed; the latest: {message}");
        }
        if let Some((datagrams, (peer, message))) = self.datagrams.due(now_ms) {
            tracing::warn!(datagrams, %peer, "datagrams were dropped, as there is no session for them; the latest: {message}");
        }
        if let Some((streams, (peer, message))) = self.streams.due(now_ms) {
            tracing::warn!(streams, %peer, "streams of HTTP/2 were refused before they were requests; the latest: {message}");
        }
        if let Some((connections, (node, message))) = self.node_connections.due(now_ms) {
            tracing::warn!(connections, %node, "HTTP/2 connections to nodes were ended after an error; the latest: {message}");
        }
        if let Some((refused, (plugin, reason))) = self.plugins.due(now_ms) {
            tracing::warn!(
                refused,
                plugin,
                reason,
                "plugins did not let heads or bodies go on; plugin and reason are the latest"
            );
        }
        if let Some((attempts, error)) = self.kept.due(now_ms) {
            tracing::warn!(attempts, %error, "connections cannot be handed over to the new process now; they are served here and tried again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_reported_now_and_then_with_its_count() {
        let kind = TroubleKind::default();
        assert_eq!(kind.due(1_000), None);
        kind.note(1, "first");
        kind.note(2, "second");
        assert_eq!(kind.due(1_000), Some((3, "second")));
        kind.note(1, "third");
        assert_eq!(kind.due(1_000 + REPORT_EVERY_MS - 1), None);
        kind.note(1, "fourth");
        assert_eq!(kind.due(1_000 + REPORT_EVERY_MS), Some((2, "fourth")));
        assert_eq!(kind.due(u64::MAX / 2), None);
    }

    /// What is reported at this time: upstream, message and count.
    fn reported(troubles: &UpstreamTroubles, now_ms: u64) -> Vec<(String, String, u64)> {
        let mut reported = Vec::new();
        let mut write = |of: &UpstreamTrouble| reported.push((of.upstream.clone(), of.message.clone(), of.count));
        troubles.report(now_ms, &mut write);
        reported
    }

    #[test]
    fn each_upstream_is_reported_with_its_own_count() {
        let of = |upstream: &str, message: &str, count: u64| (upstream.to_owned(), message.to_owned(), count);
        let (troubles, tries) = (UpstreamTroubles::default(), NodeTries::default());
        for (upstream, message) in [("one", "closed"), ("two", "closed"), ("one", "closed"), ("one", "timed out")] {
            troubles.note(upstream, message, &tries);
        }
        let first = [of("one", "closed", 2), of("two", "closed", 1), of("one", "timed out", 1)];
        assert_eq!(reported(&troubles, 1_000), first);
        troubles.note("two", "closed", &tries);
        assert_eq!(reported(&troubles, 1_000 + REPORT_EVERY_MS - 1), []);
        // One that begins to fail does not wait for the others.
        troubles.note("three", "closed", &tries);
        assert_eq!(reported(&troubles, 1_000 + REPORT_EVERY_MS - 1), [of("three", "closed", 1)]);
        assert_eq!(reported(&troubles, 1_000 + REPORT_EVERY_MS), [of("two", "closed", 1)]);
        assert_eq!(reported(&troubles, u64::MAX / 2), []);
        assert_eq!(troubles.pairs.borrow().len(), 0);
    }

    #[test]
    fn pairs_beyond_the_bound_are_counted_together() {
        let (troubles, tries) = (UpstreamTroubles::default(), NodeTries::default());
        for at in 0..PAIRS_MAX + 3 {
            troubles.note(&at.to_string(), "closed", &tries);
        }
        assert_eq!(reported(&troubles, 1_000).len(), PAIRS_MAX);
        let latest = ((PAIRS_MAX + 2).to_string(), "closed".to_owned());
        assert_eq!(troubles.others.due(1_000), Some((3, latest)));
    }
}
