//! Requests that wait for one under way to end, in the order they came.
//!
//! Nobody is handed a place: the oldest is woken and looks for itself, and whoever comes while others wait goes behind them.
//! So a wake too many does no harm, and one that meets a task about to end loses no place: who leaves wakes the next.

use std::collections::VecDeque;
use std::task::Waker;

/// Those that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// In the order of their tickets.
    waiting: VecDeque<Waiting>,
    next_ticket: u64,
}

/// What one that waits is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    waker: Waker,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Goes behind all others.
    pub(crate) fn join(&mut self, waker: &Waker) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.push_back(Waiting { ticket, waker: waker.clone() });
        ticket
    }

    /// Whether nobody waits longer.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.front().is_some_and(|first| first.ticket == ticket)
    }

    /// Says who is to be woken from now on.
    pub(crate) fn set_waker(&mut self, ticket: Ticket, waker: &Waker) {
        if let Some(at) = self.position(ticket) {
            self.waiting[at].waker.clone_from(waker);
        }
    }

    /// Waits no more, for whatever reason.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        let Some(at) = self.position(ticket) else { return };
        self.waiting.remove(at);
        if at == 0 {
            self.wake_first();
        }
    }

    /// There may be a place.
    #[inline]
    pub(crate) fn wake_first(&self) {
        if let Some(first) = self.waiting.front() {
            first.waker.wake_by_ref();
        }
    }

    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()
    }
}
