//! Maps the small numbers that identify a request's series to the handles of those series.
//!
//! The table is bounded, and never has to grow at once: if a bucket is full, its entries are replaced in turn, and a replaced one
//! is looked up by its labels again. All entries are forgotten at once by changing the stamp.
//!
//! ```text
//!  directory ──▶ bucket: keys × 5, consumers × 5, stamp   a cache line
//!   (hash)               handles × 5                      one of them is read
//! ```

use crate::plan::metrics::RequestMetric;
use stillgate_metrics::Handle;

/// Buckets of a table; with all in use it takes 3 MiB.
const BUCKETS: usize = 8192;
/// Entries of a bucket: their keys and the stamp fill a cache line.
const ENTRIES: usize = 5;

/// What distinguishes the series of one request from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeriesKey {
    /// Its route, its node, its method and its status. Not zero.
    pub(crate) request: u64,
    /// The slot of its consumer; zero: it has none, or no label contains it.
    pub(crate) consumer: u32,
}

/// The series of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handles {
    pub(crate) of: [Handle; RequestMetric::ALL.len()],
    /// The request metrics whose handles are valid for the next request, too.
    pub(crate) kept: u8,
}

impl Handles {
    pub(crate) const NONE: Handles = Handles { of: [Handle::NONE; RequestMetric::ALL.len()], kept: 0 };
}

/// A worker's handles.
#[derive(Debug)]
pub(crate) struct HandleCache {
    buckets: Box<[Option<Box<Bucket>>]>,
    /// Entries with another stamp are invalid.
    stamp: u32,
}

/// The order matters, as the first three are looked at together.
#[derive(Debug)]
#[repr(C, align(64))]
struct Bucket {
    /// [`SeriesKey::request`]; zero: free.
    requests: [u64; ENTRIES],
    /// [`SeriesKey::consumer`] of the same entries.
    consumers: [u32; ENTRIES],
    stamp: u32,
    handles: [Handles; ENTRIES],
    /// The entry to be replaced next.
    next: u8,
}

impl Default for HandleCache {
    fn default() -> HandleCache {
        HandleCache { buckets: (0..BUCKETS).map(|_| None).collect(), stamp: 1 }
    }
}

impl HandleCache {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        // Buckets are not cleared: a stamp that recurs after four billion reloads could match one as old.
        self.stamp = self.stamp.wrapping_add(1);
    }

    /// The handles kept under a key.
    #[inline]
    pub(crate) fn get(&self, key: SeriesKey) -> Option<&Handles> {
        let bucket = self.buckets[place(key)].as_deref().filter(|bucket| bucket.stamp == self.stamp)?;
        let mut keys = bucket.requests.iter().zip(&bucket.consumers);
        let index = keys.position(|(request, consumer)| *request == key.request && *consumer == key.consumer)?;
        Some(&bucket.handles[index])
    }

    /// Keeps handles under a key that is not in the table.
    pub(crate) fn insert(&mut self, key: SeriesKey, handles: Handles) {
        assert!(key.request != 0 && self.get(key).is_none());
        let stamp = self.stamp;
        let fresh = || Bucket {
            requests: [0; ENTRIES],
            consumers: [0; ENTRIES],
            stamp,
            handles: [Handles::NONE; ENTRIES],
            next: 0,
        };
        let bucket = self.buckets[place(key)].get_or_insert_with(|| Box::new(fresh()));
        if bucket.stamp != stamp {
            **bucket = fresh();
        }
        let index = usize::from(bucket.next);
        bucket.requests[index] = key.request;
        bucket.consumers[index] = key.consumer;
        bucket.handles[index] = handles;
        bucket.next = ((index + 1) % ENTRIES) as u8;
    }
}

/// Keys consist of numbers counted from zero, not of what clients send: multiplying spreads them well enough.
#[inline]
fn place(key: SeriesKey) -> usize {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];
    let mixed = key.request.wrapping_mul(ODD[0]).wrapping_add(u64::from(key.consumer).wrapping_mul(ODD[1]));
    (mixed >> (64 - BUCKETS.trailing_zeros())) as usize
}

const _: () = assert!(BUCKETS.is_power_of_two());
const _: () = assert!(std::mem::offset_of!(Bucket, handles) == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn handles(kept: u8) -> Handles {
        Handles { kept, ..Handles::NONE }
    }

    fn key(request: u64) -> SeriesKey {
        SeriesKey { request, consumer: 0 }
    }

    #[test]
    fn keeps_what_it_was_given_until_it_is_cleared() {
        let mut table = HandleCache::default();
        for request in 1..=1000 {
            assert!(table.get(key(request)).is_none());
            table.insert(key(request), handles(request as u8));
        }
        let is_kept = |request: &u64| table.get(key(*request)).is_some_and(|found| found.kept == *request as u8);
        assert_eq!((1..=1000).filter(is_kept).count(), 1000);
        table.clear();
        assert!((1..=1000).all(|request| table.get(key(request)).is_none()));
        table.insert(key(7), handles(1));
        assert_eq!((1..=1000).filter(|request| table.get(key(*request)).is_some()).count(), 1);
    }

    #[test]
    fn consumers_have_handles_of_their_own() {
        let mut table = HandleCache::default();
        let keys = (0..100).flat_map(|consumer| (1..=10).map(move |request| SeriesKey { request, consumer }));
        for (kept, key) in keys.clone().enumerate() {
            assert!(table.get(key).is_none());
            table.insert(key, handles(kept as u8));
        }
        assert!(keys.enumerate().all(|(kept, key)| table.get(key).is_some_and(|found| found.kept == kept as u8)));
        let last = SeriesKey { request: u64::MAX, consumer: u32::MAX };
        table.insert(last, handles(1));
        assert!(table.get(last).is_some() && table.get(SeriesKey { consumer: 0, ..last }).is_none());
    }

    #[test]
    fn is_bounded_and_replaces_in_turn() {
        let mut table = HandleCache::default();
        let crowd = (1..).map(key).filter(|each| place(*each) == place(key(1)));
        let crowd: Vec<SeriesKey> = crowd.take(ENTRIES + 2).collect();
        for key in &crowd {
            table.insert(*key, handles(0));
        }
        let kept: Vec<bool> = crowd.iter().map(|key| table.get(*key).is_some()).collect();
        assert_eq!(kept, [false, false, true, true, true, true, true]);
        for key in (10_000..300_000).map(key) {
            if table.get(key).is_none() {
                table.insert(key, handles(0));
            }
        }
        let filled = (10_000..300_000).filter(|request| table.get(key(*request)).is_some()).count();
        assert!(filled > BUCKETS * ENTRIES * 9 / 10 && filled <= BUCKETS * ENTRIES, "{filled}");
    }
}
