//! What follows a 101: bytes both ways between a client and a node, whatever protocol they speak from here on.
//!
//! A tunnel is a task of its own, and small: the exchange it came from goes back to the pool, and what the access log and the
//! metrics need of it at the end is the bytes of its head and a few numbers. While nothing moves it has no buffer; one is
//! taken to read into and given back when it is written. A receiver that takes nothing keeps one buffer, and its sender waits.
//!
//! ```text
//!   exchange ── 101 is out ──▶ Switched ── the connection's task ends ──▶ Tunnel ── both FINs, a reset, time ──▶ one record
//! ```
//!
//! How it ends its sides: by FIN where nothing was lost, by a reset where something was, as what is cut must not look
//! complete. A reset of one side is passed on as one: it may have destroyed bytes on their way.

mod direction;
mod opening;
mod watch;

pub(crate) use opening::{Switched, agree};
pub(crate) use watch::Watches;

use crate::accept::Open;
use crate::client::Client;
use crate::plan::Lease;
use direction::Broken;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use stillgate_config::OnChange;
use stillgate_wire::{HEAD_BYTES_MAX, HEADERS_MAX, HeadLimits, Progress};
use watch::Watch;

/// How long nothing must have moved in a tunnel for `on_change: drain` to close it.
const QUIET_MS: u64 = 1_000;
/// Those of the configuration may be smaller by the time a head is read again.
const HEAD_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: HEAD_BYTES_MAX, target_bytes_max: HEAD_BYTES_MAX, headers_max: HEADERS_MAX };

/// A client's connection and a node's, tied together. Its end, whatever brings it about, is recorded as it is dropped.
pub(crate) struct Tunnel {
    client: Client,
    switched: Switched,
    /// A reset, or a write that failed: bytes may have been lost.
    is_cut: bool,
    leaving: Option<Leaving>,
    /// Dropped last: the connection counts as open until the tunnel has been recorded.
    open: Open,
}

/// How a tunnel learns that its route was changed.
struct Leaving {
    lease: Arc<Lease>,
    watch: Rc<Watch>,
    /// When it was first seen to be revoked.
    since_ms: Option<u64>,
}

/// When a tunnel ends by itself.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at_ms: u64,
    /// Nothing has moved for long: bytes that have come and not been seen yet are a reason to go on.
    is_of_idling: bool,
}

impl Tunnel {
    /// Begins where an exchange has ended.
    pub(crate) fn new(open: Open, client: Client, mut switched: Switched) -> Tunnel {
        let worker = &open.worker;
        worker.counters.tunnels_open.add(1);
        worker.counters.tunnels_total.add(1);
        switched.upstream().state.borrow_mut().on_tunnel_start(switched.slot);
        let leaving = switched.lease.take().map(|lease| {
            let watch = worker.watches.add(lease.clone());
            Leaving { lease, watch, since_ms: None }
        });
        Tunnel { client, switched, is_cut: false, leaving, open }
    }

    /// Moves what can be moved; ready at the end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &self.open.worker;
        let Switched { node, up, down, .. } = &mut self.switched;
        let now_ms = worker.clock.now_ms();
        let sent = up.poll_pump(cx, &mut self.client.stream, node, &worker.buffers, now_ms);
        // Also where the node takes no more: what it said before is the client's.
        let received = down.poll_pump(cx, node, &mut self.client.stream, &worker.buffers, now_ms);
        let broken = match (sent, received) {
            (Ok(()), Ok(())) if up.is_done() && down.is_done() => return Poll::Ready(()),
            (Ok(()), Ok(())) => return Poll::Pending,
            // A side that ended in order does not listen any more: that is no more than its end.
            (Err(Broken::Receiver), Ok(())) => !down.is_done(),
            (Ok(()), Err(Broken::Receiver)) => !up.is_done(),
            _ => true,
        };
        up.abandon(&worker.buffers);
        down.abandon(&worker.buffers);
        self.is_cut = broken;
        Poll::Ready(())
    }

    fn deadline(&self) -> Deadline {
        let Switched { up, down, bounds, opened_ms, .. } = &self.switched;
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
        if let Some(Leaving { lease, since_ms: Some(since_ms), .. }) = &self.leaving {
            match lease.policy {
                OnChange::Keep => {}
                OnChange::Drain => {
                    consider(moved_ms.max(*since_ms) + QUIET_MS, true);
                    consider(since_ms + bounds.drain_ms, false);
                }
                OnChange::Close => consider(0, false),
            }
        }
        nearest
    }

    /// Sets the timer, or ends the tunnel where a deadline has passed.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let clock = &self.open.worker.clock;
        if let Some(leaving) = &mut self.leaving {
            leaving.watch.wakes(cx);
            if leaving.since_ms.is_none() && leaving.lease.is_revoked() {
                leaving.since_ms = Some(clock.now_ms());
            }
        }
        let deadline = self.deadline();
        if deadline.at_ms > clock.now_ms() {
            self.client.timer.set(clock, deadline.at_ms, cx);
            return Poll::Pending;
        }
        let Switched { node, up, down, .. } = &self.switched;
        let may_read = |direction: &direction::Direction| direction.is_flowing() && !direction.is_stuck();
        if deadline.is_of_idling
            && (may_read(up) && self.client.stream.has_arrived() || may_read(down) && node.has_arrived())
        {
            // The event loop has not seen it yet; it will on its next turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// The one line of the access log and the one observation of the metrics.
    fn record(&mut self) {
        let worker = self.open.worker.clone();
        let Switched { head, outcome, up, down, .. } = &mut self.switched;
        let snapshot = worker.snapshot();
        let mut x = worker.take_exchange();
        x.begin(outcome.timing);
        x.outcome = std::mem::take(outcome);
        x.outcome.node_ended();
        x.outcome.forget_moved_route(&snapshot.plan);
        x.from_client.recall(head, up.read, &worker.buffers);
        x.to_client.total = down.written;
        if let Ok(Progress::Complete(_)) = x.request.advance(head, &HEAD_LIMITS) {
            worker.record(&self.client, &mut x, &snapshot);
        } else {
            debug_assert!(false, "the head was parsed before");
        }
        worker.give_exchange(x);
    }
}

impl Future for Tunnel {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let tunnel = &mut *self;
        match tunnel.poll_bytes(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => tunnel.poll_time(cx),
        }
    }
}

impl Drop for Tunnel {
    /// Whatever ended it: its sides, time, the worker's end or a bug.
    fn drop(&mut self) {
        let worker = self.open.worker.clone();
        let Switched { node, up, down, slot, .. } = &mut self.switched;
        if self.is_cut || up.is_stuck() || down.is_stuck() {
            self.client.ends_with_connection = true;
            node.reset_when_closed();
        } else {
            self.client.stream.say_end();
            node.say_end();
        }
        up.abandon(&worker.buffers);
        down.abandon(&worker.buffers);
        let slot = *slot;
        self.switched.upstream().state.borrow_mut().on_tunnel_finish(slot, worker.clock.now_ms());
        if let Some(leaving) = &self.leaving {
            worker.watches.remove(&leaving.watch);
        }
        worker.counters.tunnels_open.sub(1);
        // After a bug nobody knows what there would be to tell.
        if !std::thread::panicking() {
            self.record();
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
