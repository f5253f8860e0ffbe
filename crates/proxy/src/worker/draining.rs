//! What a worker that comes to its end requests from its connections: to finish soon, or to give themselves to another process.

use super::Worker;
use crate::basics::clock::Timer;
use crate::connection::client::ClientConnection;
use crate::handover::{ConnectionState, GIVING_MS, HandedState, LeavingWorker, Parcel, share};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// How long a connection that was accepted just before the worker began to drain has for its first request.
pub(crate) const DRAINING_FIRST_REQUEST_MS: u64 = 500;

impl Worker {
    /// What is being given away to which process; `None`: nothing.
    pub(crate) fn handover(&self) -> Option<Rc<LeavingWorker>> {
        self.giving.borrow().clone()
    }

    /// Makes some connections hand themselves over.
    pub(crate) async fn give_some(&self) {
        match self.handover() {
            Some(giving) => giving.turn(&self.clock).await,
            None => pending().await,
        }
    }

    /// Whether nothing that can be handed over delays its end.
    pub(crate) fn has_given(&self, deadline_ms: u64) -> bool {
        let is_late = self.clock.now_ms() >= deadline_ms + GIVING_MS;
        is_late || self.handover().is_none_or(|giving| giving.is_over())
    }

    /// Whether it is to end as soon as it can: it does not wait for connections that are idle and cannot be given away.
    pub(crate) fn is_ending(&self) -> bool {
        self.draining.get() && self.giving.borrow().as_ref().is_none_or(|giving| giving.is_hurried)
    }

    /// Time is up: whatever is still open ends with the worker, and is counted.
    pub(crate) fn cut_off(&self) {
        self.is_cutting.set(true);
        let counters = &self.counters;
        counters.cut_requests.add(counters.requests_in_flight.get());
        counters.cut_tunnels.add(counters.tunnels_open.get());
        counters.cut_streams.add(counters.stream_sessions_open.get());
    }

    /// Whether this connection goes to another process.
    pub(crate) fn gives(&self, client: &ClientConnection) -> bool {
        self.handover().is_some_and(|giving| giving.takes(&client.stream, client.listener.bound))
    }

    /// Hands over a connection that waits for a request. True: it belongs to the other process, and ours is to be dropped.
    pub(crate) fn give_idle(&self, client: &ClientConnection) -> bool {
        // Nearly always true, so it is checked first.
        if !self.draining.get() {
            return false;
        }
        let Some(giving) = self.handover() else { return false };
        // If the listener takes something else by now, it is not known whose connection it would be.
        client.listener.is_http()
            && giving.takes(&client.stream, client.listener.bound)
            && giving.send(&self.troubles, || {
                let state = HandedState::Connection(self.state_of(client));
                Ok(Parcel { state, bytes: Vec::new(), sockets: vec![share(&client.stream)?] })
            })
    }

    /// A connection's state, as it is sent to another process.
    pub(crate) fn state_of(&self, client: &ClientConnection) -> ConnectionState {
        ConnectionState {
            peer: client.peer,
            local: client.local,
            listener: client.listener.bound.address,
            is_https: client.is_https,
            is_new: client.is_new,
            quiet_ms: self.clock.now_ms().saturating_sub(client.quiet_since_ms),
        }
    }

    /// Waits until there is something to read from a connection just accepted. False: nothing has arrived within
    /// `gateway.timeouts.head`, or we are ending and nothing has arrived for a while.
    pub(crate) async fn hears(&self, stream: &TcpStream, timer: &Timer) -> bool {
        let begun_ms = self.clock.now_ms();
        let head_ms = self.snapshot().plan.settings.head_ms;
        poll_fn(|cx| {
            // Looks into the socket: the event loop considers a new one readable.
            if stream.poll_peek(cx, &mut ReadBuf::new(&mut [0])).is_ready() {
                return Poll::Ready(true);
            }
            let patience_ms = if self.is_ending() { head_ms.min(DRAINING_FIRST_REQUEST_MS) } else { head_ms };
            if self.clock.now_ms() >= begun_ms + patience_ms {
                return Poll::Ready(false);
            }
            timer.set(&self.clock, begun_ms + patience_ms, cx);
            Poll::Pending
        })
        .await
    }

    /// Whether a client is informed that its connection ends with this response.
    pub(crate) fn parts_with(&self, client: &ClientConnection) -> bool {
        client.listener.is_removed() || self.draining.get() && (self.is_ending() || !self.gives(client))
    }
}
