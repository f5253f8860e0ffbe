//! How a worker comes to its end: it accepts no more, finishes what it has, and gives away what another process takes.

use super::Worker;
use super::clock::Timer;
use crate::client::{Client, DRAINING_FIRST_REQUEST_MS};
use crate::handover::{GIVING_MS, Giving};
use crate::listen::sockets::ListenPlace;
use std::future::{pending, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::Poll;
use tokio::io::ReadBuf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

impl Worker {
    /// Closes the listeners. Connections that wait in their queues would be reset by that: they are taken first, unless a
    /// successor has the same sockets.
    pub(crate) async fn start_draining(
        self: &Rc<Self>,
        mut listeners: Vec<(usize, Rc<TcpListener>)>,
        accepting: &[AbortHandle],
        receiving: &[(usize, AbortHandle)],
        giving: Option<Rc<Giving>>,
    ) {
        accepting.iter().for_each(AbortHandle::abort);
        if let Some(giving) = &giving {
            listeners.retain(|(index, _)| !giving.leaves_listener(self.place(*index)));
            // Of one socket it is the successor who reads. Others are read on for the sessions that there are.
            let left = receiving.iter().filter(|(index, _)| giving.leaves_listener(self.place(*index)));
            left.for_each(|(_, receiving)| receiving.abort());
        }
        // A turn of the event loop, so that it has seen what came in until now; and no budget, so that all of it is taken.
        tokio::task::yield_now().await;
        let take_all = poll_fn(|cx| {
            for (index, listener) in &listeners {
                while let Poll::Ready(accepted) = listener.poll_accept(cx) {
                    match accepted {
                        Ok((stream, peer)) => self.admit(stream, peer, *index),
                        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                        Err(_) => break,
                    }
                }
            }
            Poll::Ready(())
        });
        tokio::task::coop::unconstrained(take_all).await;
        self.draining.set(true);
        let gives_nothing = giving.is_none();
        self.giving.replace(giving);
        // Those who give themselves up are woken a few at a time.
        if gives_nothing {
            self.clock.wake_all();
        }
    }

    /// Where a listener is.
    pub(crate) fn place(&self, listener: usize) -> ListenPlace {
        let address = self.addresses[listener];
        let is_udp = listener >= self.listeners.len() + self.stream_listeners.len();
        if is_udp { ListenPlace::udp(address) } else { ListenPlace::tcp(address) }
    }

    /// What is being given away to whom; `None`: nothing.
    pub(crate) fn giving(&self) -> Option<Rc<Giving>> {
        self.giving.borrow().clone()
    }

    /// Has some connections give themselves up.
    pub(crate) async fn give_some(&self) {
        match self.giving() {
            Some(giving) => giving.turn(self).await,
            None => pending().await,
        }
    }

    /// Whether its end waits for nothing that can be given away.
    pub(crate) fn has_given(&self, deadline_ms: u64) -> bool {
        let is_late = self.clock.now_ms() >= deadline_ms + GIVING_MS;
        is_late || self.giving().is_none_or(|giving| giving.is_over())
    }

    /// Whether it is to end as soon as it can: nobody is waited for who is idle and cannot be given away.
    pub(crate) fn is_ending(&self) -> bool {
        self.draining.get() && self.giving.borrow().as_ref().is_none_or(|giving| giving.is_hurried)
    }

    /// Whether this connection goes to another process.
    pub(crate) fn gives(&self, client: &Client) -> bool {
        self.giving().is_some_and(|giving| giving.takes(self, client))
    }

    /// Waits until there is something to read from a connection just accepted. False: it has not come within
    /// `gateway.timeouts.head`, or we are ending and nothing has come for a while.
    pub(crate) async fn hears(&self, stream: &TcpStream, timer: &Timer) -> bool {
        let begun_ms = self.clock.now_ms();
        let head_ms = self.snapshot().plan.settings.head_ms;
        poll_fn(|cx| {
            // A look into the socket: the event loop takes a new one for readable.
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

    /// Whether a client is told that its connection ends with this response.
    pub(crate) fn parts_with(&self, client: &Client) -> bool {
        self.draining.get() && (self.is_ending() || !self.gives(client))
    }
}
