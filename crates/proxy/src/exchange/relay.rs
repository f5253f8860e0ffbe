//! Moves one exchange's bytes: the request from client to node and the response from node to client, both at once.
//!
//! One poll function drives both directions, so that a response may begin, and end, while the request is still arriving. Each
//! direction has one buffer; it is read into again only when its previous content was written, and that is the backpressure. The
//! relay makes no decisions: whatever needs one ends the poll with an [`RelayEvent`].

use super::body_pipe::BrokenBody;
use super::target::ExchangeBounds;
use super::{Exchange, RequestContext};
use crate::basics::min_rate::{self, MinRate};
use crate::connection::client::ClientConnection;
use crate::connection::http2;
use crate::connection::stream::Stream;
use crate::worker::Worker;
use std::task::{Context, Poll};
use stillgate_upstream::Failure;
use stillgate_wire::{ChunkError, HeadProgress, Version};

/// How long a client that closed its sending side is taken to be merely half-closed before it is probed, and again before the
/// result of the probe is read.
const HALF_CLOSE_PROBE_MS: u64 = 250;
/// How long a client waits for the node's permission to send its body before it gets ours: many nodes ignore `Expect`, and wait for
/// the body. curl waits for the same time.
const PERMISSION_WAIT_MS: u64 = 1_000;
/// The interim response that probes whether the client is there, and permits it to send its body. It does not count as bytes of the
/// response.
pub(crate) const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What stopped the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayEvent {
    /// A whole response head, interim or final, was parsed.
    Head,
    /// The response has been written to its end.
    Finished,
    /// The node failed before its final response head.
    NodeFailed(Failure),
    /// The node switches to another protocol, and the client did not ask for it, or not in a valid way.
    Disagreed,
    /// The node sends a part of a body that a filter must see whole.
    Part,
    /// The response broke off after its head had been passed on.
    Cut,
    /// The client closed or reset its connection, or did not read its response in time.
    ClientGone,
    /// The request's body did not arrive in time.
    BodyTimeout,
    /// The request's body is malformed.
    BadBody(ChunkError),
    /// A base64 body is not valid base64.
    BadBase64,
    /// The node speaks HTTP/2, which cannot express the request.
    Inexpressible,
    /// A filter does not let the request's body go on.
    BrokenRequest(BrokenBody),
    /// A filter does not let the response's body go on.
    BrokenResponse(BrokenBody),
    /// A plugin panicked at the response's head.
    PluginFailed,
    /// The client's deadline for the call has passed.
    Deadline,
}

/// What has been awaited for longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayWait {
    NodeSend,
    NodeRead,
    ClientBody,
    /// The node's permission to send the body.
    Permission,
    ClientSend,
    HalfClosed,
    Try,
    /// The client's own deadline.
    Deadline,
}

/// State of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayPhase {
    Head,
    Body,
    /// A 101 is staged, and nothing follows it.
    Switch,
}

/// One try of one exchange, from the staged request to the end of the response.
pub(crate) struct Relay<'a> {
    pub(crate) serving: RequestContext<'a>,
    pub(crate) node: &'a mut Stream,
    bounds: ExchangeBounds,
    phase: RelayPhase,
    /// All of the request is written.
    pub(crate) request_sent: bool,
    /// No more of the request goes to the node: writing failed, or its response has begun and the rest does not come. Its response
    /// may still be on its way: a server that refuses a body answers and closes.
    pub(crate) node_deaf: bool,
    /// The client waits for permission to send its body (RFC 9110 section 10.1.1): if neither it nor the node sends anything,
    /// neither is at fault.
    awaits_continue: bool,
    /// Start of `timeout.per_try`: the start of the try, or when the client last sent a part of the body.
    pub(crate) try_began_ms: u64,
    request_moved_ms: u64,
    response_moved_ms: u64,
    /// How fast the node takes the waiting part of the request, and the client the waiting part of the response.
    node_takes: Option<MinRate>,
    client_takes: Option<MinRate>,
    /// When the end of the client's sending was seen, or last probed; zero: not yet.
    half_closed_ms: u64,
    /// Whether the client's connection is kept after the response; known from its head on.
    pub(crate) keep_alive: bool,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        serving: RequestContext<'a>,
        node: &'a mut Stream,
        bounds: ExchangeBounds,
        try_began_ms: u64,
    ) -> Relay<'a> {
        let now = serving.worker.clock.now_ms();
        // The end may have been seen while an earlier request, or an earlier try, was under way.
        let half_closed_ms = if serving.client.eof { now } else { 0 };
        let exchange = &*serving.exchange;
        let awaits_continue = exchange.request.expects_continue && exchange.from_client.content().is_empty();
        Relay {
            serving,
            node,
            bounds,
            phase: RelayPhase::Head,
            request_sent: false,
            node_deaf: false,
            awaits_continue,
            try_began_ms,
            request_moved_ms: now,
            response_moved_ms: now,
            node_takes: None,
            client_takes: None,
            half_closed_ms,
            keep_alive: false,
        }
    }

    /// Whether part of the final response may have reached the client.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != RelayPhase::Head && !self.serving.exchange.holds_response()
    }

    /// A 100 was passed on: if the client waited for it, its body is what is awaited now.
    pub(crate) fn continue_passed(&mut self) {
        self.awaits_continue = false;
        self.request_moved_ms = self.serving.worker.clock.now_ms();
    }

    /// The final response head is staged: what follows is its body.
    pub(crate) fn enter_body(&mut self) {
        self.phase = RelayPhase::Body;
    }

    /// The head of a 101 is staged: it is the last of the exchange.
    pub(crate) fn enter_switch(&mut self) {
        self.phase = RelayPhase::Switch;
    }

    /// Moves what can be moved. To be called again after every event that does not end the try.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEvent> {
        match self.poll_pumps(cx) {
            Ok(()) => Poll::Pending,
            Err(event) => Poll::Ready(event),
        }
    }

    fn poll_pumps(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        if !self.request_sent && !self.node_deaf {
            self.pump_request(cx)?;
        }
        match self.phase {
            RelayPhase::Head => self.pump_head(cx)?,
            RelayPhase::Body => self.pump_body(cx)?,
            RelayPhase::Switch => {
                if self.flush_to_client(cx)?.is_ready() {
                    return Err(RelayEvent::Finished);
                }
            }
        }
        if !self.serving.client.eof && self.serving.exchange.from_client.is_done() {
            self.watch_client(cx)?;
        }
        self.wait(cx)
    }

    /// Moves bytes from client to node, until it has to wait for one of them.
    fn pump_request(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        loop {
            if !self.serving.exchange.to_node.is_idle() {
                let before = self.serving.exchange.to_node.total;
                let RequestContext { worker, exchange, .. } = &mut self.serving;
                let flushed = exchange.request_pipe().poll_flush(cx, self.node, &worker.buffers);
                let now_ms = self.serving.worker.clock.now_ms();
                if self.serving.exchange.to_node.total != before {
                    self.request_moved_ms = now_ms;
                }
                let total = self.serving.exchange.to_node.total;
                self.node_takes =
                    measure_taking(self.node_takes, flushed.is_pending(), now_ms, [before, total], min_rate::BYTES_MIN);
                match flushed {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) if http2::is_bad_base64(&error) => return Err(RelayEvent::BadBase64),
                    Poll::Ready(Err(error)) if http2::is_inexpressible(&error) => {
                        return Err(RelayEvent::Inexpressible);
                    }
                    Poll::Ready(Err(_)) => {
                        self.node_deaf = true;
                        return Ok(());
                    }
                }
            }
            if !self.serving.exchange.request_body.is_empty() && self.wait_for_request_filters(cx)?.is_pending() {
                return Ok(());
            }
            if self.serving.exchange.request_pipe().has_more() {
                self.stage_request_body()?;
                continue;
            }
            if self.serving.exchange.from_client.is_done() {
                self.request_sent = true;
                return Ok(());
            }
            if self.read_request_body(cx)?.is_pending() {
                return Ok(());
            }
        }
    }

    /// Filters of the request work on other threads, or have worked for long enough.
    #[cold]
    fn wait_for_request_filters(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, RelayEvent> {
        let RequestContext { worker, exchange, .. } = &mut self.serving;
        let was_waiting = exchange.request_body.is_waiting();
        match exchange.request_pipe().wait_for_filters(cx, worker) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => {
                if was_waiting {
                    self.request_moved_ms = worker.clock.now_ms();
                    self.try_began_ms = self.request_moved_ms;
                }
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(broken)) => Err(RelayEvent::BrokenRequest(broken)),
        }
    }

    fn read_request_body(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, RelayEvent> {
        let buffers = &self.serving.worker.buffers;
        let exchange = &mut *self.serving.exchange;
        match exchange.from_client.poll_read_body(true, cx, &mut self.serving.client.stream, buffers) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(Ok(0))) | Poll::Ready(Err(_)) => Err(RelayEvent::ClientGone),
            Poll::Ready(Ok(Err(_))) if self.phase == RelayPhase::Body => {
                self.node_deaf = true;
                Ok(Poll::Pending)
            }
            Poll::Ready(Ok(Err(malformed))) => Err(RelayEvent::BadBody(malformed)),
            Poll::Ready(Ok(Ok(_))) => {
                self.request_moved_ms = self.serving.worker.clock.now_ms();
                self.try_began_ms = self.request_moved_ms;
                self.awaits_continue = false;
                self.stage_request_body()?;
                Ok(Poll::Ready(()))
            }
        }
    }

    #[inline]
    fn stage_request_body(&mut self) -> Result<(), RelayEvent> {
        let RequestContext { worker, exchange, .. } = &mut self.serving;
        match exchange.request_pipe().stage(worker) {
            Ok(()) => Ok(()),
            Err(_) if self.phase == RelayPhase::Body => {
                self.node_deaf = true;
                Ok(())
            }
            Err(broken) => Err(RelayEvent::BrokenRequest(broken)),
        }
    }

    /// Reads the response's head. An interim response passed on before must have been sent first.
    fn pump_head(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        if self.flush_to_client(cx)?.is_pending() {
            return Ok(());
        }
        loop {
            let exchange = &mut *self.serving.exchange;
            if exchange.from_node.has_leftover() {
                match exchange.response.advance(
                    exchange.from_node.unparsed(),
                    exchange.method_sent,
                    &self.bounds.response_head,
                ) {
                    Ok(HeadProgress::Complete(_)) => return Err(RelayEvent::Head),
                    Ok(HeadProgress::Partial) => {}
                    Err(error) => {
                        exchange.bad_response = Some(error);
                        return Err(RelayEvent::NodeFailed(Failure::BadResponse));
                    }
                }
            }
            match exchange.from_node.poll_read_head(cx, self.node, &self.serving.worker.buffers) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Err(RelayEvent::NodeFailed(Failure::Reset)),
                Poll::Ready(Ok(_)) => self.response_moved_ms = self.serving.worker.clock.now_ms(),
            }
        }
    }

    /// Moves bytes from node to client, until it has to wait for one of them.
    fn pump_body(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        loop {
            if !self.serving.exchange.holds_response() && self.flush_to_client(cx)?.is_pending() {
                return Ok(());
            }
            if self.wait_for_filters(cx)?.is_pending() {
                return Ok(());
            }
            let pipe = self.serving.exchange.response_pipe();
            if pipe.has_more() {
                self.stage_response_body()?;
                continue;
            }
            if pipe.is_over() {
                return Err(RelayEvent::Finished);
            }
            let RequestContext { worker, exchange, .. } = &mut self.serving;
            match exchange.from_node.poll_read_body(false, cx, self.node, &worker.buffers) {
                Poll::Pending if exchange.response_body.is_empty() => return Ok(()),
                Poll::Pending => match self.pause_response()? {
                    true => continue,
                    false => return Ok(()),
                },
                // The end of a body that ends with the connection; for any other it is a truncation.
                Poll::Ready(Ok(Ok(0))) if exchange.response.framing == stillgate_wire::Framing::UntilClose => {
                    exchange.from_node.finish()
                }
                Poll::Ready(Ok(Ok(0) | Err(_)) | Err(_)) => return Err(self.cut()),
                Poll::Ready(Ok(Ok(_))) => self.response_moved_ms = worker.clock.now_ms(),
            }
            if exchange.from_node.is_done() {
                exchange.outcome.node_ended();
            }
            self.stage_response_body()?;
        }
    }

    /// Filters of the response work on other threads, or have worked for long enough.
    #[inline]
    fn wait_for_filters(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, RelayEvent> {
        if self.serving.exchange.response_body.is_empty() {
            return Ok(Poll::Ready(()));
        }
        let RequestContext { worker, exchange, .. } = &mut self.serving;
        let was_waiting = exchange.response_body.is_waiting();
        match exchange.response_pipe().wait_for_filters(cx, worker) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => {
                if was_waiting {
                    self.response_moved_ms = worker.clock.now_ms();
                }
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(broken)) => Err(self.stop(RelayEvent::BrokenResponse(broken))),
        }
    }

    /// The node has nothing more for now: returns whether filters have.
    #[cold]
    fn pause_response(&mut self) -> Result<bool, RelayEvent> {
        let RequestContext { worker, exchange, .. } = &mut self.serving;
        exchange.response_pipe().pause(worker).map_err(|broken| self.stop(RelayEvent::BrokenResponse(broken)))
    }

    #[inline]
    fn stage_response_body(&mut self) -> Result<(), RelayEvent> {
        let RequestContext { worker, exchange, .. } = &mut self.serving;
        exchange.response_pipe().stage(worker).map_err(|broken| self.stop(RelayEvent::BrokenResponse(broken)))
    }

    /// The node's response broke off; where something else takes its place, nothing is lost.
    #[cold]
    fn cut(&mut self) -> RelayEvent {
        match self.serving.exchange.response_body.is_end_staged() {
            true => RelayEvent::Finished,
            false => self.stop(RelayEvent::Cut),
        }
    }

    /// The response cannot continue. Its head may still wait for its body: then it is as if it had not arrived.
    #[cold]
    fn stop(&mut self, event: RelayEvent) -> RelayEvent {
        let RequestContext { worker, client, exchange, .. } = &mut self.serving;
        if exchange.holds_response() {
            exchange.to_client.release(&worker.buffers);
            client.ends_with_connection = false;
        }
        event
    }

    fn flush_to_client(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, RelayEvent> {
        let exchange = &mut *self.serving.exchange;
        if exchange.to_client.is_idle() {
            return Ok(Poll::Ready(()));
        }
        let before = exchange.to_client.total;
        let (stream, buffers) = (&mut self.serving.client.stream, &self.serving.worker.buffers);
        let flushed = exchange.response_pipe().poll_flush(cx, stream, buffers);
        let now_ms = self.serving.worker.clock.now_ms();
        if exchange.to_client.total != before {
            self.response_moved_ms = now_ms;
        }
        let (counts, bytes_min) = ([before, exchange.to_client.total], self.bounds.client_send_bytes_min);
        self.client_takes = measure_taking(self.client_takes, flushed.is_pending(), now_ms, counts, bytes_min);
        match flushed {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(_)) => Err(RelayEvent::ClientGone),
        }
    }

    /// Reads ahead on the client's connection while it waits for its response: a pipelined request, or the end.
    fn watch_client(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        let Some(read) = self.serving.exchange.from_client.poll_read_ahead(
            cx,
            &mut self.serving.client.stream,
            &self.serving.worker.buffers,
        ) else {
            return Ok(());
        };
        match read {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(0)) => {
                self.serving.client.eof = true;
                self.half_closed_ms = self.serving.worker.clock.now_ms();
                Ok(())
            }
            Poll::Ready(Ok(_)) => self.watch_client(cx),
            Poll::Ready(Err(_)) => Err(RelayEvent::ClientGone),
        }
    }

    /// Sets the timer to the nearest deadline, or handles its expiry.
    fn wait(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        loop {
            let (deadline_ms, wait) = self.deadline();
            if deadline_ms > self.serving.worker.clock.now_ms() {
                self.serving.client.timer.set(&self.serving.worker.clock, deadline_ms, cx);
                return Ok(());
            }
            match wait {
                RelayWait::NodeSend if self.phase == RelayPhase::Head => {
                    return Err(RelayEvent::NodeFailed(Failure::SendTimeout));
                }
                RelayWait::Try => return Err(RelayEvent::NodeFailed(Failure::TryTimeout)),
                RelayWait::NodeRead if self.phase == RelayPhase::Head => {
                    return Err(RelayEvent::NodeFailed(Failure::ReadTimeout));
                }
                RelayWait::NodeRead => return Err(self.cut()),
                RelayWait::ClientBody if self.phase == RelayPhase::Head => return Err(RelayEvent::BodyTimeout),
                // The response is on its way: a side that stopped reading or sending the request does not need the rest of it.
                RelayWait::NodeSend | RelayWait::ClientBody => self.node_deaf = true,
                RelayWait::ClientSend => return Err(RelayEvent::ClientGone),
                RelayWait::Deadline => return Err(self.stop(RelayEvent::Deadline)),
                RelayWait::HalfClosed => self.probe_half_closed(cx)?,
                RelayWait::Permission => self.permit_body(cx)?,
            }
        }
    }

    fn deadline(&self) -> (u64, RelayWait) {
        let mut nearest = (self.bounds.deadline_ms, RelayWait::Deadline);
        let mut consider = |deadline_ms: u64, wait: RelayWait| {
            if deadline_ms < nearest.0 {
                nearest = (deadline_ms, wait);
            }
        };
        let sending = !self.request_sent && !self.node_deaf;
        if sending && !self.serving.exchange.to_node.is_idle() {
            let since_ms = self.node_takes.map_or(self.request_moved_ms, |uptake| uptake.since_ms());
            consider(since_ms + self.bounds.node.send, RelayWait::NodeSend);
        } else if sending && self.awaits_continue {
            if self.phase == RelayPhase::Head {
                consider(self.request_moved_ms.max(self.response_moved_ms) + PERMISSION_WAIT_MS, RelayWait::Permission);
            }
        } else if sending && !self.serving.exchange.request_body.is_waiting() {
            consider(self.request_moved_ms + self.bounds.client_body_ms, RelayWait::ClientBody);
        }
        if !self.serving.exchange.to_client.is_idle() && !self.serving.exchange.holds_response() {
            let since_ms = self.client_takes.map_or(self.response_moved_ms, |uptake| uptake.since_ms());
            consider(since_ms + self.bounds.client_send_ms, RelayWait::ClientSend);
        } else if self.serving.exchange.response_body.is_waiting() {
            // The filters have a limit of their own.
        } else if !sending || self.awaits_continue || self.phase == RelayPhase::Body {
            let moved_ms = self.request_moved_ms.max(self.response_moved_ms);
            consider(moved_ms + self.bounds.node.read, RelayWait::NodeRead);
        }
        if self.phase == RelayPhase::Head && !self.awaits_client() {
            consider(self.try_began_ms + self.bounds.node.per_try, RelayWait::Try);
        }
        if self.half_closed_ms != 0 && !self.has_begun() {
            consider(self.half_closed_ms + HALF_CLOSE_PROBE_MS, RelayWait::HalfClosed);
        }
        nearest
    }

    /// Whether the node has everything that arrived of the request, and more is to come: the behaviour of the node then depends on
    /// the client. That includes a client that waits for permission to send its body, as it may never send it.
    pub(crate) fn awaits_client(&self) -> bool {
        let sending = !self.request_sent && !self.node_deaf;
        sending && self.serving.exchange.to_node.is_idle()
    }

    /// The node does not say whether it accepts the body: the gateway permits the client to send it, as it may (RFC 9110 section
    /// 10.1.1). The node's silence counts against it only after the whole request.
    #[cold]
    fn permit_body(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        self.continue_passed();
        let RequestContext { worker, exchange, .. } = &mut self.serving;
        // Another try does not wait again.
        exchange.request.expects_continue = false;
        if !exchange.probed {
            exchange.probed = true;
            exchange.to_client.head(&worker.buffers).extend_from_slice(PROBE);
            exchange.to_client.stage(&[], None, &worker.buffers);
        }
        self.flush_to_client(cx).map(|_| ())
    }

    fn probe_half_closed(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEvent> {
        self.half_closed_ms = self.serving.worker.clock.now_ms();
        let before = self.serving.exchange.to_client.total;
        if !is_still_there(self.serving.worker, self.serving.client, self.serving.exchange, cx) {
            return Err(RelayEvent::ClientGone);
        }
        if self.serving.exchange.to_client.total != before {
            self.response_moved_ms = self.half_closed_ms;
        }
        Ok(())
    }
}

/// Measures how fast waiting bytes are taken, after a write that moved the count from the first to the second value; `None` if
/// nothing waits any more.
fn measure_taking(
    earlier: Option<MinRate>,
    is_waiting: bool,
    now_ms: u64,
    counts: [u64; 2],
    bytes_min: u64,
) -> Option<MinRate> {
    is_waiting.then(|| {
        let mut uptake = earlier.unwrap_or_else(|| MinRate::begin(now_ms, counts[0]));
        uptake.update(now_ms, counts[1], bytes_min);
        uptake
    })
}

/// Whether a client that closed its sending side waits for its response. Its FIN looks the same if it is gone. Sending something
/// shows the difference: a closed peer answers with a reset, which is seen at the next call. An interim response may be sent at any
/// time to a client of HTTP/1.1 (RFC 9110 section 15.2); others are assumed to be there.
pub(crate) fn is_still_there(
    worker: &Worker,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    cx: &mut Context<'_>,
) -> bool {
    if client.stream.has_failed() {
        return false;
    }
    if exchange.probed || exchange.request.version != Version::Http11 {
        return true;
    }
    // A head that waits for its body has not begun: the probe goes before it.
    let waiting = exchange.holds_response().then(|| exchange.to_client.set_aside());
    let is_there = !exchange.to_client.is_idle() || probe(worker, client, exchange, cx);
    if let Some(head) = waiting {
        exchange.to_client.resume(head, &worker.buffers);
    }
    is_there
}

/// Whether the client may be sent [`PROBE`].
fn probe(worker: &Worker, client: &mut ClientConnection, exchange: &mut Exchange, cx: &mut Context<'_>) -> bool {
    exchange.probed = true;
    exchange.to_client.head(&worker.buffers).extend_from_slice(PROBE);
    exchange.to_client.stage(&[], None, &worker.buffers);
    let flushed = exchange.to_client.poll_flush(cx, &mut client.stream, &[], &worker.buffers);
    !matches!(flushed, Poll::Ready(Err(_)))
}
