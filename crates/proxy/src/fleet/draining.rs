//! How a worker stops accepting: what waits in its queues is taken first.

use crate::handover::Giving;
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use tokio::net::TcpListener;
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
}
