//! A worker's cache about credentials: that they were verified, and how often they were wrong. It is keyed by digest,
//! so that the credentials themselves are not kept, and bounded.
//!
//! Digests are SipHash-2-4 of 128 bits under a key that is generated for each worker and never leaves it: without the
//! key it is infeasible to find two texts with one digest. It is several times as fast as SHA-256 on a CPU without
//! instructions for that.

use aws_lc_rs::rand;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// Number of sets, a power of two, of [`WAYS`] entries each.
const SETS: usize = 1024;
/// Entries of a set, of which the least recently used is replaced.
const WAYS: usize = 4;

/// Values by digest.
pub(crate) struct DigestCache<V> {
    key: [u8; 16],
    /// Empty until the first value is stored.
    sets: Vec<DigestSet<V>>,
    /// Grows with each use.
    turn: u64,
}

/// Digests come first, in one cache line: reading that is enough to miss.
#[repr(C, align(64))]
struct DigestSet<V> {
    digests: [u128; WAYS],
    used: [u64; WAYS],
    /// A free entry has digest and use 0.
    values: [Option<V>; WAYS],
}

impl<V> DigestCache<V> {
    /// Creates an empty cache with a key of its own.
    pub(crate) fn new() -> DigestCache<V> {
        let mut key = [0; 16];
        rand::fill(&mut key).expect("the system has randomness");
        DigestCache { key, sets: Vec::new(), turn: 0 }
    }

    /// The digest of parts, each with its length, so that different lists of parts differ.
    pub(crate) fn digest(&self, parts: &[&[u8]]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        hasher.finish128().as_u128()
    }

    /// The stored value.
    #[inline]
    pub(crate) fn get(&mut self, digest: u128) -> Option<&V> {
        self.turn += 1;
        let set = self.sets.get_mut(set_of(digest))?;
        let way = set.digests.iter().position(|one| *one == digest)?;
        set.used[way] = self.turn;
        set.values[way].as_ref()
    }

    /// Stores a value.
    pub(crate) fn put(&mut self, digest: u128, value: V) {
        if self.sets.is_empty() {
            self.sets.resize_with(SETS, DigestSet::empty);
        }
        self.turn += 1;
        let set = &mut self.sets[set_of(digest)];
        let place = set.digests.iter().position(|one| *one == digest);
        let place = place.or_else(|| (0..WAYS).min_by_key(|way| set.used[*way])).unwrap_or(0);
        set.digests[place] = digest;
        set.used[place] = self.turn;
        set.values[place] = Some(value);
    }
}

impl<V> DigestSet<V> {
    fn empty() -> DigestSet<V> {
        DigestSet { digests: [0; WAYS], used: [0; WAYS], values: [const { None }; WAYS] }
    }
}

fn set_of(digest: u128) -> usize {
    digest as usize % SETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let mut all = DigestCache::new();
        assert_eq!(all.get(0), None);
        // Digests that fall into one set.
        let digest = |at: usize| (at * SETS) as u128;
        (0..WAYS).for_each(|at| all.put(digest(at), at));
        assert_eq!(all.get(digest(0)), Some(&0));
        all.put(digest(WAYS), WAYS);
        assert_eq!(all.get(digest(1)), None);
        assert_eq!(all.get(digest(0)), Some(&0));
        all.put(digest(0), 100);
        assert_eq!(all.get(digest(0)), Some(&100));
        assert_eq!(all.get(digest(2)), Some(&2));
        for at in 0..100_000 {
            all.put(all.digest(&[&usize::to_le_bytes(at)]), at);
        }
        let entries = all.sets.iter().flat_map(|set| &set.values).flatten().count();
        assert_eq!(entries, SETS * WAYS);
    }

    #[test]
    fn digests_tell_lists_apart_and_depend_on_the_key() {
        let (one, other) = (DigestCache::<()>::new(), DigestCache::<()>::new());
        let all =
            [one.digest(&[b"ab", b"c"]), one.digest(&[b"a", b"bc"]), one.digest(&[b"abc"]), other.digest(&[b"abc"])];
        for (at, digest) in all.iter().enumerate() {
            assert!(!all[..at].contains(digest));
        }
        assert_eq!(one.digest(&[b"ab", b"c"]), all[0]);
    }
}
