//! From the small numbers that tell a request's series, to the handles of those series.
//!
//! Bounded, and without a moment at which it grows: where a bucket is full, its entries are replaced in turn, and what
//! was replaced is looked up by its labels once more. All entries are forgotten at once by changing the stamp.
//!
//! ```text
//!  directory ──▶ bucket: stamp, keys × 7   a cache line
//!   (hash)               handles × 7       one of them is read
//! ```

use super::Aspect;
use stillgate_metrics::Handle;

/// Buckets of a table; with all in use it takes 2 MiB.
const BUCKETS: usize = 4096;
/// Entries of a bucket: their keys and the stamp fill a cache line.
const ENTRIES: usize = 7;

/// The series of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handles {
    pub(crate) of: [Handle; Aspect::ALL.len()],
    /// The aspects whose handles are good for the next request too.
    pub(crate) kept: u8,
}

impl Handles {
    pub(crate) const NONE: Handles = Handles { of: [Handle::NONE; Aspect::ALL.len()], kept: 0 };
}

/// A worker's handles.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: Box<[Option<Box<Bucket>>]>,
    /// Entries with another one are none.
    stamp: u64,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket {
    stamp: u64,
    /// Zero: free.
    keys: [u64; ENTRIES],
    handles: [Handles; ENTRIES],
    /// Whose turn it is to be replaced.
    next: u8,
}

impl Default for Table {
    fn default() -> Table {
        Table { buckets: (0..BUCKETS).map(|_| None).collect(), stamp: 1 }
    }
}

impl Table {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.stamp += 1;
    }

    /// What was kept under a key that is not zero.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&Handles> {
        let bucket = self.buckets[place(key)].as_deref().filter(|bucket| bucket.stamp == self.stamp)?;
        let index = bucket.keys.iter().position(|have| *have == key)?;
        Some(&bucket.handles[index])
    }

    /// Keeps handles under a key that is not there.
    pub(crate) fn insert(&mut self, key: u64, handles: Handles) {
        debug_assert!(key != 0 && self.get(key).is_none());
        let stamp = self.stamp;
        let fresh = || Bucket { stamp, keys: [0; ENTRIES], handles: [Handles::NONE; ENTRIES], next: 0 };
        let bucket = self.buckets[place(key)].get_or_insert_with(|| Box::new(fresh()));
        if bucket.stamp != stamp {
            **bucket = fresh();
        }
        let index = usize::from(bucket.next);
        bucket.keys[index] = key;
        bucket.handles[index] = handles;
        bucket.next = ((index + 1) % ENTRIES) as u8;
    }
}

/// Keys are made of numbers counted from zero, not of what clients send: multiplying spreads them well enough.
#[inline]
fn place(key: u64) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (key.wrapping_mul(ODD) >> (64 - BUCKETS.trailing_zeros())) as usize
}

const _: () = assert!(BUCKETS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    fn handles(kept: u8) -> Handles {
        Handles { kept, ..Handles::NONE }
    }

    #[test]
    fn keeps_what_it_was_given_until_it_is_cleared() {
        let mut table = Table::default();
        for key in 1..=1000 {
            assert!(table.get(key).is_none());
            table.insert(key, handles(key as u8));
        }
        let found = (1..=1000).filter(|key| table.get(*key).is_some_and(|found| found.kept == *key as u8)).count();
        assert_eq!(found, 1000);
        table.clear();
        assert!((1..=1000).all(|key| table.get(key).is_none()));
        table.insert(7, handles(1));
        assert_eq!((1..=1000).filter(|key| table.get(*key).is_some()).count(), 1);
    }

    #[test]
    fn is_bounded_and_replaces_in_turn() {
        let mut table = Table::default();
        let crowd: Vec<u64> = (1u64..).filter(|key| place(*key) == place(1)).take(ENTRIES + 2).collect();
        for key in &crowd {
            table.insert(*key, handles(0));
        }
        let kept: Vec<bool> = crowd.iter().map(|key| table.get(*key).is_some()).collect();
        assert_eq!(kept, [false, false, true, true, true, true, true, true, true]);
        for key in 10_000..200_000u64 {
            if table.get(key).is_none() {
                table.insert(key, handles(0));
            }
        }
        let filled = (10_000..200_000).filter(|key| table.get(*key).is_some()).count();
        assert!(filled > BUCKETS * ENTRIES * 9 / 10 && filled <= BUCKETS * ENTRIES, "{filled}");
    }
}
