//! Rounds that threads of a test repeat until the test ends or fails.

use crate::{Client, eventually, is_nightly};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The pause between two requests of a load that only has to be there: several each time something happens. In the nightly there is
/// none.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits between two requests of a load whose rate does not matter to the test, to leave the CPUs to other tests.
pub fn pause_between_requests() {
    if !is_nightly() {
        thread::sleep(PAUSE);
    }
}

/// Rounds of all threads together. Use scoped threads: they end with the value of [`Rounds::until_dropped`].
#[derive(Debug, Default)]
pub struct Rounds {
    done: AtomicU64,
    is_over: AtomicBool,
}

/// Ends the rounds when dropped, also if the test fails: otherwise its scope would wait forever.
#[derive(Debug)]
#[must_use]
pub struct RoundsEnd<'a>(&'a Rounds);

impl Rounds {
    /// Ends them when the returned value is dropped.
    pub fn until_dropped(&self) -> RoundsEnd<'_> {
        RoundsEnd(self)
    }

    /// Lets no thread begin another round.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether to begin another round.
    pub fn go_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Counts a round.
    pub fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of completed rounds.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits for this many more rounds. Each may take as long as the first.
    ///
    /// # Panics
    /// If no more are completed.
    #[track_caller]
    pub fn await_more(&self, count: u64) {
        let (goal, mut done) = (self.done() + count, self.done());
        while done < goal {
            eventually("one more round", || self.done() > done);
            done = self.done();
        }
    }

    /// Sends each `request` in a round until the end, over one connection or over a new one each time, with a pause after each.
    pub fn of_requests(&self, addr: SocketAddr, is_anew: bool, mut request: impl FnMut(&mut Client)) {
        let mut client = Client::connect(addr);
        while self.go_on() {
            if is_anew {
                client = Client::connect(addr);
            }
            request(&mut client);
            self.count();
            pause_between_requests();
        }
    }
}

impl Drop for RoundsEnd<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
