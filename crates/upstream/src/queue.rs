//! Requests that wait for one under way to end, in the order of arrival.
//!
//! A place is not handed over: the oldest waiting request is woken and checks itself, and new requests queue behind
//! waiting ones. So a superfluous wake is harmless, and one that reaches a task about to end loses no place: a request
//! that leaves wakes the next.

use std::collections::VecDeque;
use std::task::Waker;

/// The waiting requests.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// In the order of their tickets.
    waiting: VecDeque<QueueEntry>,
    next_ticket: u64,
}

/// Identifies a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
struct QueueEntry {
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

    /// Appends a request to the queue.
    pub(crate) fn join(&mut self, waker: &Waker) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.push_back(QueueEntry { ticket, waker: waker.clone() });
        ticket
    }

    /// Whether no request has waited longer.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.front().is_some_and(|first| first.ticket == ticket)
    }

    /// Replaces the waker of a waiting request.
    pub(crate) fn set_waker(&mut self, ticket: Ticket, waker: &Waker) {
        if let Some(at) = self.position(ticket) {
            self.waiting[at].waker.clone_from(waker);
        }
    }

    /// Removes a request from the queue, for any reason.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        let Some(at) = self.position(ticket) else { return };
        self.waiting.remove(at);
        if at == 0 {
            self.wake_first();
        }
    }

    /// Wakes the first request, since there may be a place.
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
