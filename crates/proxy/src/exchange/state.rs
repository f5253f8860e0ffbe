//! The memory of one exchange, and a worker's pool of free exchanges, which own no buffers. The last one is used first.

use super::body_pipe::{BodyPipe, FilteredBody, Trailers};
use super::chain::Chains;
use super::facts::{RequestFacts, facts_of};
use super::receiver::Receiver;
use super::relay::PROBE;
use super::sender::{BodyDelimiting, Sender};
use super::upgraded_exchange::Switch;
use crate::connection::client::ClientConnection;
use crate::connection::stream::NodeProtocolGuess;
use crate::plan::Plan;
use crate::telemetry::access_log::ResponseFields;
use crate::telemetry::outcome::{RequestOutcome, Timing};
use crate::worker::Worker;
use std::cell::RefCell;
use std::time::Duration;
use stillgate_plugin_api::Facts;
use stillgate_plugin_api::record::{NodeTries, RequestId};
use stillgate_upstream::TriedEndpoints;
use stillgate_wire::{Framing, Method, RequestEdits, RequestHead, ResponseEdits, ResponseError, ResponseHead};

/// The memory of one exchange, reused from request to request and from connection to connection.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) from_client: Receiver,
    /// Changes of the request's body.
    pub(crate) request_body: FilteredBody,
    pub(crate) to_node: Sender,
    pub(crate) response: ResponseHead,
    pub(crate) from_node: Receiver,
    /// Changes of the response's body.
    pub(crate) response_body: FilteredBody,
    pub(crate) to_client: Sender,
    /// Facts of the request, made once.
    pub(crate) known: RequestFacts,
    pub(crate) chains: Chains,
    /// Whether fields of the header may have determined the route.
    pub(super) is_matched_by_header: bool,
    pub(crate) request_edits: RequestEdits,
    pub(crate) response_edits: ResponseEdits,
    /// The method that the node gets.
    pub(crate) method_sent: Method,
    /// How the node sees the end of the request's body.
    pub(crate) framing_sent: Framing,
    /// Whether the node gets a `Host` line of ours.
    pub(crate) sets_host: bool,
    /// Whether the node is informed that the client requests another protocol.
    pub(crate) passes_upgrade: bool,
    /// Whether a filter may have to see the whole body of the response.
    pub(super) needs_whole: bool,
    /// Whether there is a value for the consistent hash, and the value.
    pub(crate) has_key: bool,
    pub(crate) key: Vec<u8>,
    /// Room for the value of a variable that has to be built.
    pub(super) value: Vec<u8>,
    pub(crate) matching: stillgate_route::Scratch,
    pub(crate) tried: TriedEndpoints,
    /// Result of each try.
    pub(crate) tries: NodeTries,
    /// Header fields of the response that the access log shows.
    pub(crate) fields: ResponseFields,
    /// An interim response has probed whether a client that closed its sending side is still there.
    pub(crate) probed: bool,
    /// Interim responses of this request so far.
    pub(crate) interims: u32,
    /// Why the node's response was refused.
    pub(crate) bad_response: Option<ResponseError>,
    /// What the node that was tried last, and did not answer, seems to speak.
    pub(crate) mistaken: Option<NodeProtocolGuess>,
    pub(crate) outcome: RequestOutcome,
    /// How long the request has waited for a place at its upstream; set only if the outcome's timing says that it has.
    pub(crate) queued: Duration,
    /// When the client's deadline for its call passes, once the request has waited for a plugin.
    pub(crate) call_deadline_ms: Option<u64>,
    /// Its id, once a log contains it.
    pub(crate) id: RequestId,
    /// The rest of the exchange if it has turned the connection into something else.
    pub(crate) upgraded: Option<Switch>,
}

/// What becomes of the client's connection; a greater value is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectionNext {
    KeepAlive,
    Close,
    /// Close, but read and discard for a while first.
    Linger,
    /// It continues as an HTTP/2 connection.
    Http2,
    /// Both sides speak another protocol from here on.
    Tunnel,
}

impl Exchange {
    /// Begins the next request of the connection.
    pub(crate) fn begin(&mut self, timing: Timing) {
        self.request.reset();
        self.from_client.begin();
        self.to_client.total = 0;
        self.to_client.coding = BodyDelimiting::Raw;
        self.known.forget();
        self.request_edits.fields.clear();
        if self.chains.is_on() {
            self.forget_plugins();
        }
        self.probed = false;
        self.interims = 0;
        self.tries.clear();
        self.fields.clear();
        self.id.take();
        // Even if the last request had plugins that are with its tunnel now.
        self.call_deadline_ms = None;
        self.outcome = RequestOutcome { timing, ..RequestOutcome::default() };
        if self.from_client.has_leftover() {
            self.outcome.note_arrival();
        }
    }

    /// Forgets everything that the plugins of the last request have set.
    #[cold]
    fn forget_plugins(&mut self) {
        self.chains.forget();
        for body in [&mut self.request_body, &mut self.response_body] {
            body.clear();
            body.end_capture();
        }
        self.request_edits.clear();
    }

    /// The known facts of the request.
    pub(crate) fn facts<'a>(&'a self, client: &'a ClientConnection, plan: &'a Plan) -> Facts<'a> {
        let head = self.from_client.head();
        facts_of(&self.known, &self.request, head, client, plan, self.outcome.route)
    }

    /// The path of the request's body.
    #[inline]
    pub(crate) fn request_pipe(&mut self) -> BodyPipe<'_> {
        let trailers = if self.guards_header() { Trailers::Drop } else { Trailers::Pass };
        BodyPipe {
            receiver: &mut self.from_client,
            filtered: &mut self.request_body,
            sender: &mut self.to_node,
            trailers,
        }
    }

    /// Whether the request has passed because of fields in its header, or of what plugins made of them.
    fn guards_header(&self) -> bool {
        self.is_matched_by_header || self.chains.guards_request()
    }

    /// Whether the node gets none of the client's trailer fields.
    pub(super) fn drops_trailers(&self) -> bool {
        self.guards_header() || !self.request_body.is_empty()
    }

    /// Trailer fields of the request that do not reach the node.
    #[inline]
    pub(super) fn dropped_trailers(&self) -> usize {
        let lines = self.from_client.trailers();
        let others =
            if lines.is_empty() || !self.drops_trailers() { 0 } else { lines.split(|byte| *byte == b'\n').count() - 1 };
        self.from_client.dropped_trailers() + others
    }

    /// The path of the response's body.
    #[inline]
    pub(crate) fn response_pipe(&mut self) -> BodyPipe<'_> {
        BodyPipe {
            receiver: &mut self.from_node,
            filtered: &mut self.response_body,
            sender: &mut self.to_client,
            trailers: Trailers::Filter(&self.response_edits.fields),
        }
    }

    /// Whether the request could be sent again from its beginning.
    #[inline]
    pub(crate) fn is_replayable(&self) -> bool {
        self.request_body.is_replayable(&self.from_client)
    }

    /// The response's head is staged, and waits for the filters' output for its body: the client has seen nothing yet.
    #[inline]
    pub(crate) fn holds_response(&self) -> bool {
        !self.response_body.is_empty() && !self.response_body.has_begun()
    }

    /// Bytes received for this request; those after the message belong to the next one.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.from_client.total.saturating_sub(self.from_client.unparsed().len() as u64)
    }

    /// Bytes of the response that are out, including interim ones of the node; our own probe of the client does not count.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.to_client.total.saturating_sub(if self.probed { PROBE.len() as u64 } else { 0 })
    }

    /// Returns all buffers.
    pub(crate) fn release(&mut self, worker: &Worker) {
        self.from_client.release(&worker.buffers);
        self.from_node.release(&worker.buffers);
        self.to_node.release(&worker.buffers);
        self.to_client.release(&worker.buffers);
        self.request_body.clear();
        self.response_body.clear();
    }
}

/// Free exchanges kept by a worker.
const EXCHANGES_FREE_MAX: usize = 256;

thread_local! {
    /// Free exchanges of the worker that runs on this thread.
    #[expect(clippy::vec_box, reason = "taking and giving back moves a pointer, not a kilobyte")]
    static FREE: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
}

impl Exchange {
    /// Takes a free exchange, or makes a new one.
    pub(crate) fn take() -> Box<Exchange> {
        FREE.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Returns it to the pool, with its buffers.
    pub(crate) fn give(mut self: Box<Exchange>, worker: &Worker) {
        self.release(worker);
        FREE.with_borrow_mut(|free| {
            if free.len() < EXCHANGES_FREE_MAX {
                free.push(self);
            }
        });
    }

    /// Drops free exchanges above this number.
    pub(crate) fn keep(count: usize) {
        FREE.with_borrow_mut(|free| free.truncate(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tunnel keeps the plugins of its request, so that these are not forgotten here.
    #[test]
    fn a_request_has_no_deadline_of_the_one_before() {
        let mut exchange = Exchange { call_deadline_ms: Some(1), ..Exchange::default() };
        assert!(!exchange.chains.is_on());
        exchange.begin(Timing::default());
        assert_eq!(exchange.call_deadline_ms, None);
    }
}
