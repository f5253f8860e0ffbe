//! What threads of a test repeat until the test says that it is enough, or fails.

use crate::{Client, eventually};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Rounds of all threads together. The threads are to be scoped: they end with what [`Rounds::until_dropped`] gives.
#[derive(Debug, Default)]
pub struct Rounds {
    done: AtomicU64,
    is_over: AtomicBool,
}

/// Ends the rounds as it is dropped, also where the test fails: otherwise its scope would wait forever.
#[derive(Debug)]
#[must_use]
pub struct RoundsEnd<'a>(&'a Rounds);

impl Rounds {
    /// Ends them as the returned value is dropped.
    pub fn until_dropped(&self) -> RoundsEnd<'_> {
        RoundsEnd(self)
    }

    /// No thread begins another one.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether there is to be another one.
    pub fn go_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// One was done.
    pub fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until so many more were done. Each is waited for as long as the first, however many there are.
    ///
    /// # Panics
    /// When none is done any more.
    #[track_caller]
    pub fn await_more(&self, count: u64) {
        let (goal, mut done) = (self.done() + count, self.done());
        while done < goal {
            eventually("one more round", || self.done() > done);
            done = self.done();
        }
    }

    /// Makes a round of each `request` until the end, over one connection or over a new one each time.
    pub fn of_requests(&self, addr: SocketAddr, is_anew: bool, mut request: impl FnMut(&mut Client)) {
        let mut client = Client::connect(addr);
        while self.go_on() {
            if is_anew {
                client = Client::connect(addr);
            }
            request(&mut client);
            self.count();
        }
    }
}

impl Drop for RoundsEnd<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
