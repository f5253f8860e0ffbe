//! The entries of one outlet: collected into batches, which go when they are full or old enough.
//!
//! It does no IO; the time is an argument.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin::outbox::{Entries, Outlet};
use tokio::time::Instant;

/// What a batch takes at most before it goes, however few entries it has.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A line that was full takes entries again when this share of its bound is free.
const FREE_AGAIN: usize = 8;

/// The batches of one outlet.
pub(crate) struct Batches {
    pub(crate) outlet: Arc<Outlet>,
    collecting: Entries,
    /// When the first and the last entry of those came.
    first: Instant,
    last: Instant,
    waiting: VecDeque<Entries>,
    /// Of all entries that came and are not done with, those being delivered among them.
    held_bytes: usize,
    held_entries: usize,
    /// Deliveries that have begun and not ended.
    pub(crate) in_flight: usize,
}

impl Batches {
    pub(crate) fn new(outlet: Arc<Outlet>, now: Instant) -> Batches {
        Batches {
            outlet,
            collecting: Entries::default(),
            first: now,
            last: now,
            waiting: VecDeque::new(),
            held_bytes: 0,
            held_entries: 0,
            in_flight: 0,
        }
    }

    /// Takes an entry; `false`: there is no room for it.
    pub(crate) fn push(&mut self, entry: &[u8], now: Instant) -> bool {
        let bytes = entry_bytes(entry.len());
        let batching = &self.outlet.batching;
        if self.held_bytes + bytes > batching.pending_bytes_max
            || self.held_entries >= self.outlet.pending_entries_max()
        {
            self.outlet.set_full(true);
            return false;
        }
        if self.collecting.is_empty() {
            self.first = now;
        }
        self.last = now;
        self.collecting.push(entry);
        self.held_bytes += bytes;
        self.held_entries += 1;
        let is_full = self.collecting.len() >= self.outlet.batching.entries_max;
        if is_full || self.collecting.bytes() >= BATCH_BYTES_MAX {
            self.close();
        }
        true
    }

    /// What is being collected goes with the next delivery.
    pub(crate) fn close(&mut self) {
        if !self.collecting.is_empty() {
            self.waiting.push_back(std::mem::take(&mut self.collecting));
        }
    }

    /// When what is being collected is to go; `None`: there is nothing.
    pub(crate) fn due(&self) -> Option<Instant> {
        let batching = &self.outlet.batching;
        let due = (self.last + batching.inactive_timeout).min(self.first + batching.buffer_duration);
        (!self.collecting.is_empty()).then_some(due)
    }

    /// The next batch to deliver.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Entries> {
        if self.due().is_some_and(|due| due <= now) {
            self.close();
        }
        self.waiting.pop_front()
    }

    /// A delivery has ended, however it did.
    pub(crate) fn done(&mut self, entries: usize, bytes: usize) {
        self.in_flight -= 1;
        self.held_bytes -= bytes + entries * ENTRY_OVERHEAD;
        self.held_entries -= entries;
        let (bytes_max, entries_max) = (self.outlet.batching.pending_bytes_max, self.outlet.pending_entries_max());
        let has_room = |held: usize, max: usize| held <= max - max / FREE_AGAIN;
        if has_room(self.held_bytes, bytes_max) && has_room(self.held_entries, entries_max) {
            self.outlet.set_full(false);
        }
    }

    /// All entries that wait are given up; how many there are.
    pub(crate) fn abandon(&mut self) -> usize {
        self.close();
        self.waiting.drain(..).map(|entries| entries.len()).sum()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether nothing is left to do, and there was nothing for so long.
    pub(crate) fn is_idle_since(&self, time: Duration, now: Instant) -> bool {
        let is_idle = self.in_flight == 0 && self.waiting.is_empty() && self.collecting.is_empty();
        is_idle && self.last + time <= now
    }
}

/// What an entry takes besides its bytes.
const ENTRY_OVERHEAD: usize = size_of::<usize>();

const fn entry_bytes(bytes: usize) -> usize {
    bytes + ENTRY_OVERHEAD
}

/// How long the next try waits, after so many; each waits twice as long as the one before.
pub(crate) fn backoff(first: Duration, tries: u32) -> Duration {
    const DELAY_MAX: Duration = Duration::from_secs(60);
    first.saturating_mul(1 << tries.min(16)).min(DELAY_MAX.max(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin::Identity;
    use stillgate_plugin::outbox::{Batching, Encode, FileReceiver, Receiver};

    struct Nothing;

    impl Encode for Nothing {
        fn encode(&self, _: &Entries, _: &mut Vec<u8>) {}
    }

    fn batches(pending_bytes_max: usize) -> (Batches, Instant) {
        let batching = Batching {
            entries_max: 3,
            inactive_timeout: Duration::from_secs(5),
            buffer_duration: Duration::from_secs(8),
            retries_max: 0,
            retry_delay: Duration::ZERO,
            pending_bytes_max,
            pending_entries_max: usize::MAX,
        };
        let receiver = Receiver::File(FileReceiver { path: String::new() });
        let outlet = Outlet::new(("a", String::new()), Identity(1), batching, receiver, Box::new(Nothing));
        let now = Instant::now();
        (Batches::new(Arc::new(outlet), now), now)
    }

    #[test]
    fn a_batch_goes_when_it_is_full_or_old_enough() {
        let (mut batches, now) = batches(1000);
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(batches.due(), None);
        assert!(batches.push(b"1", at(0)));
        assert_eq!(batches.due(), Some(at(5)));
        assert!(batches.push(b"2", at(4)));
        assert_eq!(batches.due(), Some(at(8)));
        assert!(batches.next(at(7)).is_none());
        assert_eq!(batches.next(at(8)).unwrap().len(), 2);
        for _ in 0..4 {
            assert!(batches.push(b"3", at(9)));
        }
        assert_eq!(batches.next(at(9)).unwrap().len(), 3);
        assert!(batches.next(at(9)).is_none());
        batches.close();
        assert_eq!(batches.next(at(9)).unwrap().len(), 1);
        assert_eq!(batches.abandon(), 0);
    }

    #[test]
    fn what_waits_is_bounded_by_bytes() {
        let (mut batches, now) = batches(10 * entry_bytes(100));
        let taken = (0..20).filter(|_| batches.push(&[0; 100], now)).count();
        assert_eq!(taken, 10);
        assert!(batches.outlet.is_full());
        let first = batches.next(now).unwrap();
        batches.in_flight += 1;
        assert!(!batches.push(&[0; 100], now), "what is being delivered counts");
        batches.done(first.len(), first.bytes());
        assert!(!batches.outlet.is_full());
        assert!(batches.push(&[0; 100], now));
        assert_eq!(batches.abandon(), 8);
    }

    #[test]
    fn what_waits_is_bounded_by_entries() {
        let (mut batches, now) = batches(usize::MAX);
        batches.outlet.set_pending_entries_max(4);
        assert_eq!((0..20).filter(|_| batches.push(b"a", now)).count(), 4);
        batches.outlet.set_pending_entries_max(6);
        assert_eq!((0..20).filter(|_| batches.push(b"a", now)).count(), 2);
    }

    #[test]
    fn each_try_waits_twice_as_long() {
        let wait = |tries| backoff(Duration::from_secs(1), tries).as_secs();
        assert_eq!([0, 1, 2, 5, 6, 40].map(wait), [1, 2, 4, 32, 60, 60]);
        assert_eq!(backoff(Duration::ZERO, 3), Duration::ZERO);
        assert_eq!(backoff(Duration::from_secs(100), 3), Duration::from_secs(100));
    }
}
