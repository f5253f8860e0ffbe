//! The ring that a thread's signal handler writes samples into.
//!
//! One writer, one reader, no lock: the writer owns `head`, the reader owns `tail`. A record that does not fit is lost
//! and counted; nothing is ever overwritten. The words are allocated by the first profile, not by the thread, and stay
//! until the thread ends, so a late signal still has room.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of 8 bytes: 512 KiB per thread, a third of a second of samples at the usual highest rate (250 Hz) even if
/// every stack has full depth.
const WORDS: usize = 1 << 16;

/// Records of words, each after its length.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    words: OnceLock<Box<[AtomicU64]>>,
    /// Words written since the start.
    head: AtomicU64,
    /// Words read since the start; never more than `head`, never less than `head - WORDS`.
    tail: AtomicU64,
    lost: AtomicU64,
}

impl Ring {
    /// Allocates the words. Must not be called by the handler.
    pub(crate) fn prepare(&self) {
        self.words.get_or_init(|| (0..WORDS).map(|_| AtomicU64::new(0)).collect());
    }

    /// Adds a record of several parts. For the handler: it cannot panic, wait or allocate.
    #[inline]
    pub(crate) fn push(&self, parts: &[&[u64]]) {
        let Some(words) = self.words.get() else { return };
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Acquire));
        if (head - tail) as usize + length + 1 > WORDS {
            self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        let mut at = head;
        let mut put = |word: u64| {
            if let Some(place) = words.get(at as usize % WORDS) {
                place.store(word, Ordering::Relaxed);
            }
            at += 1;
        };
        put(length as u64);
        for part in parts {
            for word in *part {
                put(*word);
            }
        }
        self.head.store(at, Ordering::Release);
    }

    /// Takes the oldest record; `false` if there is none. Only one thread may do so at a time.
    pub(crate) fn pop(&self, record: &mut Vec<u64>) -> bool {
        record.clear();
        let Some(words) = self.words.get() else { return false };
        let (head, tail) = (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Relaxed));
        if head == tail {
            return false;
        }
        let word = |at: u64| words[at as usize % WORDS].load(Ordering::Relaxed);
        let length = word(tail);
        record.extend((tail + 1..=tail + length).map(word));
        self.tail.store(tail + 1 + length, Ordering::Release);
        true
    }

    /// Records that did not fit, since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn without_words_nothing_is_kept() {
        let ring = Ring::default();
        ring.push(&[&[1, 2]]);
        assert!(!ring.pop(&mut Vec::new()));
        assert_eq!(ring.lost(), 0);
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted_and_the_rest_stays() {
        let ring = Ring::default();
        ring.prepare();
        let record = [7; 999];
        let fitting = WORDS / 1000;
        for _ in 0..fitting + 3 {
            ring.push(&[&record[..1], &record[1..]]);
        }
        assert_eq!(ring.lost(), 3);
        let mut taken = Vec::new();
        for _ in 0..fitting {
            assert!(ring.pop(&mut taken));
            assert_eq!(taken, record);
        }
        assert!(!ring.pop(&mut taken));
        ring.push(&[&[1]]);
        assert!(ring.pop(&mut taken) && taken == [1]);
    }

    /// Goes round the ring many times, with a reader in parallel to the writer.
    #[test]
    fn records_arrive_in_order_and_whole() {
        let ring = Ring::default();
        ring.prepare();
        let records = 200_000_u64;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..records {
                    let rest = vec![number; (number % 17) as usize];
                    let lost = ring.lost();
                    ring.push(&[&[number], &rest]);
                    while ring.lost() != lost {
                        ring.lost.store(lost, Ordering::Relaxed);
                        thread::yield_now();
                        ring.push(&[&[number], &rest]);
                    }
                }
            });
            let mut record = Vec::new();
            for number in 0..records {
                while !ring.pop(&mut record) {
                    thread::yield_now();
                }
                assert_eq!(record.len(), 1 + (number % 17) as usize);
                assert!(record.iter().all(|word| *word == number), "{number}: {record:?}");
            }
        });
    }
}
