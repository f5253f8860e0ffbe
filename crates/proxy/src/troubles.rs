//! Tells the log, now and then, that upstreams fail requests: once a while with a count, not once a request.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

/// Between two lines about it.
const REPORT_EVERY_MS: u64 = 10_000;

/// Requests that their upstream did not serve, since the last line.
#[derive(Default)]
pub(crate) struct Troubles {
    requests: Cell<u64>,
    latest: RefCell<Option<Trouble>>,
    reported_ms: Cell<u64>,
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

    /// Writes the line where one is due.
    pub(crate) fn report(&self, now_ms: u64) {
        if self.reported_ms.get() != 0 && now_ms < self.reported_ms.get() + REPORT_EVERY_MS {
            return;
        }
        let Some(Trouble { upstream, message, node }) = self.latest.take() else { return };
        self.reported_ms.set(now_ms);
        let requests = self.requests.take();
        let node = node.map_or("none".to_owned(), |node| node.to_string());
        tracing::warn!(requests, %upstream, node, "requests were not served by their upstream; the latest: {message}");
    }
}
