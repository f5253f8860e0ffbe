//! Bytes both ways between a client and a node, whatever they mean: what follows a 101, and all of a session of `stream_proxy`.
//!
//! A tunnel is a task of its own, and small: the exchange that it came from returns to the pool, and what the access log and the
//! metrics need of it at the end is the bytes of its head and a few numbers. While nothing moves it has no buffer; one is taken for
//! reading and returned when it has been written. A receiver that takes nothing keeps one buffer, and its sender waits.
//!
//! ```text
//!   exchange ── 101 is out ──▶ Upgraded ── the connection's task ends ──▶ Tunnel ── both FINs, a reset, time ──▶ one record
//!   session ── the node is connected ──▶ ┘
//! ```
//!
//! It ends its sides by FIN if nothing was lost, and by a reset otherwise, as a truncated transfer must not look complete. A reset
//! of one side is passed on as one: it may have destroyed bytes on their way.

mod direction;
mod handover;

use crate::connection::client::ClientConnection;
use crate::connection::stream::Stream;
use crate::exchange::{self, Exchange, UpgradedExchange, UpgradedRequest};
use crate::plan::snapshot::WorkerUpstream;
use crate::plan::{Lease, TunnelBounds};
use crate::telemetry::session::{ClientSession, Ends};
use crate::worker::Open;
use crate::worker::watches::WatchedLease;
use direction::BrokenSide;
pub(crate) use direction::Direction;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use stillgate_wire::{HEAD_BYTES_MAX, HEADERS_MAX, HeadLimits, HeadProgress};

/// The configured limits may be smaller by the time a head is read again.
const HEAD_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: HEAD_BYTES_MAX, target_bytes_max: HEAD_BYTES_MAX, headers_max: HEADERS_MAX };

/// A client's connection and a node's, tied together. Its end, whatever causes it, is recorded as it is dropped.
pub(crate) struct Tunnel {
    client: ClientConnection,
    switched: NewTunnel,
    /// A reset, or a write that failed: bytes may have been lost.
    is_cut: bool,
    /// Only its own sides have ended it.
    is_over: bool,
    /// It continues in another process, where it will be recorded.
    is_given: bool,
    leaving: Option<WatchedLease>,
    /// Dropped last: the connection counts as open until the tunnel has been recorded.
    open: Open,
}

/// When a tunnel ends by itself.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at_ms: u64,
    /// Nothing has moved for long: bytes that have arrived and were not seen yet are a reason to continue.
    is_of_idling: bool,
}

impl Tunnel {
    /// Begins after an exchange.
    pub(crate) fn new(open: Open, client: ClientConnection, switched: NewTunnel) -> Tunnel {
        if let TunnelOrigin::Request(_) = switched.origin {
            open.worker.counters.tunnels_total.add(1);
        }
        Tunnel::begin(open, client, switched)
    }

    fn begin(open: Open, client: ClientConnection, mut switched: NewTunnel) -> Tunnel {
        let worker = &open.worker;
        let mut state = switched.upstream.state.borrow_mut();
        match switched.origin {
            TunnelOrigin::Request(_) => {
                worker.counters.tunnels_open.add(1);
                state.on_tunnel_start(switched.slot);
            }
            // The tunnel is the whole session, so the timeouts of its upstream apply to it.
            TunnelOrigin::Session(_) => {
                worker.counters.stream_sessions_open.add(1);
                state.on_start(switched.slot);
            }
        }
        drop(state);
        let leaving = switched.lease.take().map(|lease| WatchedLease::new(&worker.watches, lease));
        Tunnel { client, switched, is_cut: false, is_over: false, is_given: false, leaving, open }
    }

    /// Moves what can be moved; ready at the end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &self.open.worker;
        let NewTunnel { node, up, down, .. } = &mut self.switched;
        let now_ms = worker.clock.now_ms();
        let sent = up.poll_pump(cx, &mut self.client.stream, node, &worker.buffers, now_ms);
        // Also if the node takes no more: what it sent before belongs to the client.
        let received = down.poll_pump(cx, node, &mut self.client.stream, &worker.buffers, now_ms);
        let broken = match (sent, received) {
            (Ok(()), Ok(())) if up.is_done() && down.is_done() => return Poll::Ready(()),
            (Ok(()), Ok(())) => return Poll::Pending,
            // A side that ended in order has stopped listening: that is no more than its end.
            (Err(BrokenSide::Receiver), Ok(())) => !down.is_done(),
            (Ok(()), Err(BrokenSide::Receiver)) => !up.is_done(),
            _ => true,
        };
        up.abandon(&worker.buffers);
        down.abandon(&worker.buffers);
        self.is_cut = broken;
        Poll::Ready(())
    }

    fn deadline(&self) -> Deadline {
        let NewTunnel { up, down, bounds, opened_ms, .. } = &self.switched;
        let moved_ms = up.moved_ms.max(down.moved_ms);
        let mut nearest = Deadline { at_ms: moved_ms + bounds.idle_ms, is_of_idling: true };
        let mut consider = |at_ms: u64, is_of_idling: bool| {
            if at_ms < nearest.at_ms {
                nearest = Deadline { at_ms, is_of_idling };
            }
        };
        if up.is_stuck() {
            consider(up.moved_ms + bounds.node_send_ms, false);
        }
        if down.is_stuck() {
            consider(down.moved_ms + bounds.client_send_ms, false);
        }
        consider(opened_ms + bounds.total_ms, false);
        consider(self.client.listener.end_ms(), false);
        if let Some((at_ms, is_of_idling)) =
            self.leaving.as_ref().and_then(|leaving| leaving.end_ms(moved_ms, bounds.drain_ms))
        {
            consider(at_ms, is_of_idling);
        }
        nearest
    }

    /// Sets the timer, or ends the tunnel if a deadline has passed.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let clock = &self.open.worker.clock;
        if let Some(leaving) = &mut self.leaving {
            leaving.look(cx, clock.now_ms());
        }
        let deadline = self.deadline();
        if deadline.at_ms > clock.now_ms() {
            self.client.timer.set(clock, deadline.at_ms, cx);
            return Poll::Pending;
        }
        if deadline.is_of_idling && self.has_unread() {
            // The event loop has not seen it yet; it will on its next turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Whether bytes have arrived that were not read, although nothing holds them up.
    fn has_unread(&self) -> bool {
        let NewTunnel { node, up, down, .. } = &self.switched;
        let may_read = |direction: &Direction| direction.is_flowing() && !direction.is_stuck();
        may_read(up) && self.client.stream.has_arrived() || may_read(down) && node.has_arrived()
    }

    /// Writes the line in the access log and the observation in the metrics.
    fn record(&mut self) {
        let worker = self.open.worker.clone();
        let NewTunnel { origin, up, down, .. } = &mut self.switched;
        let UpgradedRequest { head, outcome, tries, fields, chains } = match origin {
            TunnelOrigin::Request(request) => &mut **request,
            TunnelOrigin::Session(session) => {
                let ends = Ends { peer: self.client.peer, local: self.client.local, tls: self.client.tls.as_deref() };
                return worker.record_session(session, ends, up.read, down.written);
            }
        };
        let snapshot = worker.snapshot();
        let mut exchange = Exchange::take();
        exchange.begin(outcome.timing);
        exchange.outcome = std::mem::take(outcome);
        exchange.tries.clone_from(tries);
        exchange.fields.clone_from(fields);
        exchange.outcome.node_ended();
        exchange.outcome.forget_moved_route(&snapshot.plan);
        exchange.from_client.recall(head, up.read, &worker.buffers);
        exchange.to_client.total = down.written;
        if let Ok(HeadProgress::Complete(_)) = exchange.request.advance(head, &HEAD_LIMITS) {
            // The request was routed by its path.
            let _ = exchange.known.make(&exchange.request, head);
            exchange::end_upgraded(&worker, &mut self.client, &mut exchange, &snapshot, chains.take());
        } else {
            unreachable!("the head was parsed before");
        }
        exchange.give(&worker);
    }
}

impl Future for Tunnel {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let tunnel = &mut *self;
        if tunnel.give() {
            return Poll::Ready(());
        }
        match tunnel.poll_bytes(cx) {
            Poll::Ready(()) => {
                tunnel.is_over = true;
                Poll::Ready(())
            }
            Poll::Pending => tunnel.poll_time(cx),
        }
    }
}

impl Drop for Tunnel {
    /// Runs whatever ended it: its sides, time, the worker's end or a bug.
    fn drop(&mut self) {
        let worker = self.open.worker.clone();
        let is_unread = !self.is_over && !self.is_given && self.has_unread();
        let NewTunnel { node, up, down, slot, .. } = &mut self.switched;
        if self.is_given {
            // Its sockets belong to another process.
        } else if self.is_cut || is_unread || up.is_stuck() || down.is_stuck() {
            self.client.ends_with_connection = true;
            node.reset_when_closed();
        } else {
            self.client.stream.send_close_notify();
            node.send_close_notify();
        }
        up.abandon(&worker.buffers);
        down.abandon(&worker.buffers);
        let slot = *slot;
        let now_ms = worker.clock.now_ms();
        match self.switched.origin {
            TunnelOrigin::Request(_) => {
                worker.counters.tunnels_open.sub(1);
                self.switched.upstream.state.borrow_mut().on_tunnel_finish(slot, now_ms);
            }
            TunnelOrigin::Session(_) => {
                worker.counters.stream_sessions_open.sub(1);
                self.switched.upstream.state.borrow_mut().on_finish(slot, None, now_ms);
            }
        }
        if let Some(leaving) = &self.leaving {
            leaving.end(&worker.watches);
        }
        // After a panic the state is unknown, so nothing is recorded.
        if !self.is_given && !std::thread::panicking() {
            self.record();
        }
    }
}

// The beginning of a tunnel: what an exchange or a session of `stream_proxy` has left.

/// Everything in a tunnel except the client's connection.
pub(crate) struct NewTunnel {
    pub(crate) node: Stream,
    pub(crate) origin: TunnelOrigin,
    pub(crate) upstream: Rc<WorkerUpstream>,
    /// The node's slot in the upstream's state.
    pub(crate) slot: usize,
    /// `None`: the route does not care what becomes of its tunnels.
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) bounds: TunnelBounds,
    pub(crate) opened_ms: u64,
    /// Client to node.
    pub(crate) up: Direction,
    /// Node to client.
    pub(crate) down: Direction,
}

/// Origin of a tunnel, which the access log and the metrics record at its end.
pub(crate) enum TunnelOrigin {
    /// A request that was answered 101.
    Request(Box<UpgradedRequest>),
    /// A connection of `stream_proxy`.
    Session(Box<ClientSession>),
}

impl From<UpgradedExchange> for NewTunnel {
    fn from(upgraded: UpgradedExchange) -> NewTunnel {
        let UpgradedExchange {
            node, request, upstream, slot, lease, bounds, opened_ms, from_client, from_node, ..
        } = upgraded;
        let (received, sent) = (upgraded.received, upgraded.sent);
        NewTunnel {
            node,
            origin: TunnelOrigin::Request(request),
            upstream,
            slot,
            lease,
            bounds,
            opened_ms,
            up: Direction::new(from_client, upgraded.client_has_ended, (received, 0), opened_ms),
            down: Direction::new(from_node, false, (0, sent), opened_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_of_a_tunnel_is_small() {
        const TUNNEL_BYTES_MAX: usize = 1024;
        let bytes = size_of::<Tunnel>();
        assert!(bytes <= TUNNEL_BYTES_MAX, "{bytes} bytes, and 4 KiB are all that a tunnel may take");
    }
}
