//! Keys of counters: 128-bit keyed hashes, so that clients cannot choose which keys share a bucket.
//!
//! The hash is SipHash-1-3 with a key that lives in the table's header: two processes that share a table hash alike,
//! even if they are of different builds. Two counters have equal keys by accident with a probability of 2^-128 a pair.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::OnceLock;

/// Identifies a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterKey(pub(crate) [u64; 2]);

impl CounterKey {
    /// The key of one window of a sliding limit. Distinct windows have distinct keys.
    pub(crate) fn of_window(self, number: u64) -> CounterKey {
        CounterKey([self.0[0], self.0[1].wrapping_add(number)])
    }
}

/// Makes a [`CounterKey`] from its parts: usually the identity of the limit, then the value by which requests are counted.
///
/// It is `Copy`: a limit keeps one that has absorbed its own identity, and adds each request's part to a copy.
#[derive(Debug, Clone, Copy)]
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    pub(crate) fn new(seeds: [u64; 2]) -> KeyHasher {
        KeyHasher(SipHasher13::new_with_keys(seeds[0], seeds[1]))
    }

    /// Adds a part. Parts cannot run into each other: `("a", "bc")` and `("ab", "c")` are different keys.
    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> KeyHasher {
        /// Most bytes of a part that is absorbed together with its length: most parts are the text of an address.
        const SHORT_BYTES: usize = 16;
        let length = (bytes.len() as u64).to_le_bytes();
        match bytes.len() {
            0..SHORT_BYTES => {
                let mut both = [0; size_of::<u64>() + SHORT_BYTES];
                both[..length.len()].copy_from_slice(&length);
                both[length.len()..][..bytes.len()].copy_from_slice(bytes);
                self.0.write(&both[..length.len() + bytes.len()]);
            }
            _ => {
                self.0.write(&length);
                self.0.write(bytes);
            }
        }
        self
    }

    /// The key of the parts so far.
    pub fn finish(self) -> CounterKey {
        let hash = self.0.finish128();
        CounterKey([hash.h1, hash.h2])
    }
}

/// The parts that all keys of a limit begin with, absorbed once.
#[derive(Debug, Default)]
pub struct KeyPrefix(OnceLock<([u64; 2], KeyHasher)>);

impl KeyPrefix {
    /// A hasher of the table with these seeds that has absorbed the parts; `take_in` absorbs them the first time.
    pub(crate) fn hasher(&self, seeds: [u64; 2], take_in: impl Fn(KeyHasher) -> KeyHasher) -> KeyHasher {
        let absorb = || take_in(KeyHasher::new(seeds));
        let (of_seeds, hasher) = self.0.get_or_init(|| (seeds, absorb()));
        // A process has one table, and tests have several.
        if *of_seeds == seeds { *hasher } else { absorb() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seeds: [u64; 2], parts: &[&str]) -> CounterKey {
        parts.iter().fold(KeyHasher::new(seeds), |hasher, part| hasher.part(part.as_bytes())).finish()
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let all: [&[&str]; 7] = [&[], &[""], &["", ""], &["a", "bc"], &["ab", "c"], &["abc"], &["abc", ""]];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(key([1, 2], one) == key([1, 2], other), at == other_at, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_key_depends_on_both_seeds_and_on_nothing_else() {
        assert_eq!(key([1, 2], &["route", "::1"]), key([1, 2], &["route", "::1"]));
        assert_ne!(key([1, 2], &["route", "::1"]), key([1, 3], &["route", "::1"]));
        assert_ne!(key([1, 2], &["route", "::1"]), key([2, 2], &["route", "::1"]));
    }

    #[test]
    fn what_was_taken_in_once_is_as_taken_in_each_time() {
        let begun = KeyPrefix::default();
        let of = |seeds| begun.hasher(seeds, |hasher| hasher.part(b"limit")).part(b"client").finish();
        for seeds in [[1, 2], [1, 2], [3, 4], [1, 2]] {
            assert_eq!(of(seeds), key(seeds, &["limit", "client"]));
        }
    }

    #[test]
    fn another_build_hashes_alike() {
        // Stored in the memory that an upgrade hands over: a change requires a new `memory::VERSION`.
        assert_eq!(key([1, 2], &["route", "::1"]).0, [0x2391_4de5_2116_aec8, 0xe39b_c2ae_f0a3_9dbb]);
    }
}
