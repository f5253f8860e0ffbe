//! A worker's free exchanges, the last one used first. They own no buffers.

use super::Exchange;
use crate::worker::Worker;
use std::cell::RefCell;

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
