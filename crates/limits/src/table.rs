//! The table: many buckets in memory that two processes share, and the loop from a key to an answer.

use crate::bucket::{Bucket, BucketContention, TRIES_MAX, ValidEnds};
use crate::key::{CounterKey, KeyHasher, KeyPrefix};
use crate::leaky::{CLOSED, Epoch, Leak, LeakyDecision};
use crate::memory::{BUCKET_BYTES, HEADER_BYTES, MAGIC, Shelf, TableMapping, VERSION, WAYS};
use crate::window::{AlignedWindow, Limit, LimitDecision};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How much later than a window from now a fixed window may end, if clocks of threads differ. One that ends later still
/// was begun before the clock was set back, and is over.
const CLOCKS_DIFFER_MAX_MS: u64 = 1_000;

/// Counters that all workers, and during an upgrade both processes, change together. See the crate's documentation.
#[derive(Debug)]
pub struct Limits {
    mapping: TableMapping,
    /// A copy: the content of the memory is not trusted after its check.
    seeds: [u64; 2],
}

/// Events of a table since it was made, counted by all processes that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableEvents {
    /// Counters that were evicted before their window ended, because too many keys met in one bucket: this many keys
    /// may have been admitted more often than their limit. More memory makes it rarer.
    pub evicted: u64,
    /// Requests that got [`BucketContention`].
    pub contended: u64,
    /// Threads that slept for seconds in the middle of adding a counter: each may have cost another key its counter.
    pub disturbed: u64,
}

impl Limits {
    /// Makes an empty table that takes at most this much memory, and allocates all of it now.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if that is not enough for one bucket (4608 bytes); otherwise the system's error.
    pub fn create(bytes_max: usize) -> io::Result<Limits> {
        let shelves = bytes_max.saturating_sub(HEADER_BYTES) / BUCKET_BYTES;
        if shelves == 0 {
            let least = HEADER_BYTES + BUCKET_BYTES;
            let message = format!("{bytes_max} bytes are too few for a table of limits; give it at least {least}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mapping = TableMapping::create(shelves)?;
        // The standard library's only access to the system's randomness.
        let random = RandomState::new();
        let seeds = [random.hash_one(0), random.hash_one(1)];
        let header = mapping.header();
        header.version.store(VERSION, Relaxed);
        header.buckets.store(shelves as u64, Relaxed);
        for (stored, seed) in header.seeds.iter().zip(seeds) {
            stored.store(seed, Relaxed);
        }
        header.magic.store(MAGIC, Release);
        Ok(Limits { mapping, seeds })
    }

    /// Opens the table of another process, whose [`Limits::as_fd`] this is a copy of. Both may use it at once.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything that is not a table of this version.
    pub fn open(file: OwnedFd) -> io::Result<Limits> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let mapping = TableMapping::open(file)?;
        let header = mapping.header();
        if header.magic.load(Acquire) != MAGIC {
            return refuse("no table of limits".to_owned());
        }
        let version = header.version.load(Relaxed);
        if version != VERSION {
            return refuse(format!("a table of limits of version {version}; this is version {VERSION}"));
        }
        let (buckets, room) = (header.buckets.load(Relaxed), mapping.shelves().len() as u64);
        if buckets != room {
            return refuse(format!("a table of limits with {buckets} buckets in the memory of {room}"));
        }
        let seeds = [header.seeds[0].load(Relaxed), header.seeds[1].load(Relaxed)];
        Ok(Limits { mapping, seeds })
    }

    /// Begins a key of this table. Both processes make equal keys of equal parts.
    pub fn hasher(&self) -> KeyHasher {
        KeyHasher::new(self.seeds)
    }

    /// Like [`Limits::hasher`], for a limit whose keys all begin with the same parts, which `take_in` adds.
    pub fn hasher_of(&self, begun: &KeyPrefix, take_in: impl Fn(KeyHasher) -> KeyHasher) -> KeyHasher {
        begun.hasher(self.seeds, take_in)
    }

    /// Takes `cost` from the fixed window of a key, which begins now if there is none. A cost of 0 only looks:
    /// `remaining` is the amount that fits.
    ///
    /// A key belongs to one limit: a limit whose count or window changes needs new keys.
    ///
    /// # Errors
    ///
    /// [`BucketContention`] if the counter could not be reached; nothing was counted then.
    pub fn take_fixed(
        &self,
        key: CounterKey,
        limit: Limit,
        cost: u64,
        now_ms: u64,
    ) -> Result<LimitDecision, BucketContention> {
        let limit = limit.clamp_to_bounds();
        let end_ms = now_ms.saturating_add(limit.window_ms);
        let life = ValidEnds { now_ms, end_max_ms: end_ms.saturating_add(CLOCKS_DIFFER_MAX_MS) };
        let bucket = self.bucket(key);
        for _ in 0..TRIES_MAX {
            let Some(found) = self.count_contention(bucket.find(key, life))? else {
                self.add(bucket, key, end_ms, life)?;
                continue;
            };
            let verdict = limit.decide_fixed(found.count(), cost, found.end_ms, now_ms);
            if verdict.count == found.count() || bucket.try_set_count(found, verdict.count) {
                return Ok(verdict.taken);
            }
        }
        self.count_contention(Err(BucketContention))
    }

    /// Takes `cost` from the sliding window of a key. A cost of 0 only looks.
    ///
    /// A key belongs to one limit, and to one kind of window.
    ///
    /// # Errors
    ///
    /// [`BucketContention`] where the counter could not be reached; nothing was counted then.
    pub fn take_sliding(
        &self,
        key: CounterKey,
        limit: Limit,
        cost: u64,
        now_ms: u64,
    ) -> Result<LimitDecision, BucketContention> {
        let limit = limit.clamp_to_bounds();
        let at = AlignedWindow::new(limit.window_ms, now_ms);
        let (present, past) = (key.of_window(at.number), key.of_window(at.number.wrapping_sub(1)));
        let life = ValidEnds { now_ms, end_max_ms: u64::MAX };
        let bucket = self.bucket(key);
        for _ in 0..TRIES_MAX {
            let found = self.count_contention(bucket.find(present, life))?;
            // Read in between: if the present counter can be settled, both had these values at that moment.
            let previous = self.count_contention(bucket.find(past, life))?.map_or(0, |found| found.count());
            let count = found.map_or(0, |found| found.count());
            let verdict = limit.decide_sliding(at, previous, count, cost);
            match found {
                // A rejected request leaves no counter behind.
                _ if verdict.count == count => return Ok(verdict.taken),
                Some(found) if bucket.try_set_count(found, verdict.count) => return Ok(verdict.taken),
                Some(_) => {}
                None => self.add(bucket, present, at.end_ms, life)?,
            }
        }
        self.count_contention(Err(BucketContention))
    }

    /// Pours a request into the leaky bucket of a key.
    ///
    /// A key belongs to one limit, and to one kind of limit.
    ///
    /// # Errors
    ///
    /// [`BucketContention`] if the counter could not be reached; nothing was counted then.
    pub fn pour(&self, key: CounterKey, leak: Leak, now_ms: u64) -> Result<LeakyDecision, BucketContention> {
        let bucket = self.bucket(key);
        let life = ValidEnds { now_ms, end_max_ms: u64::MAX };
        let mut epoch = Epoch::of(leak, now_ms);
        for _ in 0..TRIES_MAX {
            let Some(found) = self.count_contention(bucket.find(key.of_window(epoch.number), life))? else {
                self.add(bucket, key.of_window(epoch.number), epoch.end_ms, life)?;
                continue;
            };
            let level = match found.count() {
                // It has not counted yet: its level is that of the previous epoch, which no longer changes.
                0 => match self.count_contention(bucket.find(key.of_window(epoch.number.wrapping_sub(1)), life))? {
                    None => 0,
                    Some(before) if before.count() & CLOSED != 0 => leak.carried_level(before.count()),
                    Some(before) => {
                        bucket.try_set_count(before, before.count() | CLOSED);
                        continue;
                    }
                },
                level if level & CLOSED != 0 && epoch.is_over_elsewhere() => {
                    epoch = epoch.next(leak);
                    continue;
                }
                level => level & !CLOSED,
            };
            let (poured, after) = leak.pour(level, epoch.since_ms);
            if after.is_none_or(|level| bucket.try_set_count(found, level)) {
                return Ok(poured);
            }
        }
        self.count_contention(Err(BucketContention))
    }

    /// The number of counters that fit. A key with a fixed window needs one, with a sliding one two.
    pub fn counters_max(&self) -> usize {
        self.mapping.shelves().len() * WAYS
    }

    /// The number of counters whose window has not ended. Reads all of the memory: not for the thread of a request.
    pub fn counters(&self, now_ms: u64) -> usize {
        self.mapping.shelves().iter().map(|shelf| shelf.0.count_running(now_ms)).sum()
    }

    /// Events since the table was made.
    pub fn events(&self) -> TableEvents {
        let header = self.mapping.header();
        TableEvents {
            evicted: header.evicted.load(Relaxed),
            contended: header.contended.load(Relaxed),
            disturbed: header.disturbed.load(Relaxed),
        }
    }

    /// Only the base of a key selects the bucket: a sliding limit's two counters are in one bucket.
    fn bucket(&self, key: CounterKey) -> &Bucket<WAYS> {
        let shelves: &[Shelf] = self.mapping.shelves();
        let at = (u128::from(key.0[0]) * shelves.len() as u128) >> 64;
        &shelves[at as usize].0
    }

    fn add(
        &self,
        bucket: &Bucket<WAYS>,
        key: CounterKey,
        end_ms: u64,
        life: ValidEnds,
    ) -> Result<(), BucketContention> {
        let added = bucket.add(key, end_ms, life);
        let header = self.mapping.header();
        if added.has_evicted {
            header.evicted.fetch_add(1, Relaxed);
        }
        if added.is_disturbed {
            header.disturbed.fetch_add(1, Relaxed);
            // The caller searches again.
            return Ok(());
        }
        self.count_contention(if added.is_there { Ok(()) } else { Err(BucketContention) })
    }

    fn count_contention<T>(&self, outcome: Result<T, BucketContention>) -> Result<T, BucketContention> {
        if outcome.is_err() {
            self.mapping.header().contended.fetch_add(1, Relaxed);
        }
        outcome
    }
}

impl AsFd for Limits {
    /// The memory, to be passed to the process that takes over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.file().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::TableHeader;
    use std::os::fd::OwnedFd;

    const LIMIT: Limit = Limit { count: 2, window_ms: 1_000 };
    const NOW_MS: u64 = 1_000_000;

    fn copy(limits: &Limits) -> OwnedFd {
        limits.as_fd().try_clone_to_owned().unwrap()
    }

    /// The smallest table: one bucket.
    fn one_bucket() -> Limits {
        Limits::create(HEADER_BYTES + BUCKET_BYTES).unwrap()
    }

    fn key(limits: &Limits, number: usize) -> CounterKey {
        limits.hasher().part(&number.to_le_bytes()).finish()
    }

    #[test]
    fn a_size_is_a_bound() {
        assert_eq!(Limits::create(4_607).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for (bytes_max, counters_max) in [(4_608, 15), (5_119, 15), (5_120, 30), (1 << 20, 2_040 * 15)] {
            assert_eq!(Limits::create(bytes_max).unwrap().counters_max(), counters_max, "{bytes_max}");
        }
    }

    #[test]
    fn two_tables_count_as_one() {
        let one = Limits::create(64 << 10).unwrap();
        let other = Limits::open(copy(&one)).unwrap();
        for (limits, admitted, remaining) in [(&one, true, 1), (&other, true, 0), (&one, false, 0), (&other, false, 0)]
        {
            let taken = limits.take_fixed(key(limits, 7), LIMIT, 1, NOW_MS).unwrap();
            assert_eq!((taken.admitted, taken.remaining), (admitted, remaining));
        }
        drop(one);
        assert_eq!(other.counters(NOW_MS), 1);
    }

    #[test]
    fn what_is_not_a_table_is_refused() {
        let check = |change: fn(&TableHeader), wanted: &str| {
            let limits = Limits::create(64 << 10).unwrap();
            change(limits.mapping.header());
            let error = Limits::open(copy(&limits)).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::InvalidData, wanted));
        };
        check(|header| header.magic.store(1, Relaxed), "no table of limits");
        check(|header| header.version.store(9, Relaxed), "a table of limits of version 9; this is version 1");
        check(|header| header.buckets.store(9, Relaxed), "a table of limits with 9 buckets in the memory of 120");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let error = Limits::open(file.into()).unwrap_err();
        assert_eq!(error.to_string(), "no file of memory that is sealed against shrinking");
    }

    #[test]
    fn counters_that_are_over_make_room_for_others() {
        let limits = one_bucket();
        for round in 0..10 {
            for number in 0..15 {
                let now_ms = NOW_MS + round * 1_001;
                let taken = limits.take_fixed(key(&limits, number + 100 * round as usize), LIMIT, 1, now_ms).unwrap();
                assert_eq!(taken.remaining, 1);
            }
            assert_eq!(limits.counters(NOW_MS + round * 1_001), 15);
        }
        assert_eq!(limits.counters(NOW_MS + 60_000), 0);
        assert_eq!(limits.events().evicted, 0);
    }

    #[test]
    fn where_there_is_no_room_the_one_that_ends_soonest_goes_and_is_counted() {
        let limits = one_bucket();
        let full = |number: usize| limits.take_fixed(key(&limits, number), LIMIT, 2, NOW_MS + number as u64).unwrap();
        assert!((0..15).all(|number| full(number).admitted));
        assert!((0..15).all(|number| !full(number).admitted));
        assert_eq!(limits.events().evicted, 0);
        assert!(full(15).admitted);
        assert_eq!(limits.events().evicted, 1);
        assert!((1..16).all(|number| !full(number).admitted));
        assert_eq!(limits.events().evicted, 1);
        assert!(full(0).admitted);
        assert_eq!(limits.events(), TableEvents { evicted: 2, contended: 0, disturbed: 0 });
    }

    #[test]
    fn a_window_counts_to_its_last_millisecond_and_no_longer() {
        let limits = one_bucket();
        let take = |now_ms: u64| limits.take_fixed(key(&limits, 0), LIMIT, 1, now_ms).unwrap();
        for (now_ms, admitted, reset_ms) in [
            (NOW_MS, true, 1_000),
            (NOW_MS + 1, true, 999),
            // As in nginx's dictionaries: a value expires after its time, not at it.
            (NOW_MS + 1_000, false, 0),
            (NOW_MS + 1_001, true, 1_000),
            (NOW_MS + 1_002, true, 999),
            // A clock that is slightly behind is in the same window.
            (NOW_MS + 2, false, 1_000),
            // A clock that was set back begins another window.
            (NOW_MS - 360_000, true, 1_000),
            (NOW_MS - 360_000, true, 1_000),
            (NOW_MS - 360_000, false, 1_000),
        ] {
            let taken = take(now_ms);
            assert_eq!((taken.admitted, taken.reset_ms), (admitted, reset_ms), "{now_ms}");
        }
        assert_eq!(limits.counters(0), 1);
    }

    #[test]
    fn a_rejected_request_of_a_sliding_window_leaves_no_counter() {
        let limits = one_bucket();
        let take = |now_ms: u64| limits.take_sliding(key(&limits, 0), LIMIT, 1, now_ms).unwrap().admitted;
        assert!(take(NOW_MS) && take(NOW_MS) && !take(NOW_MS));
        assert_eq!(limits.counters(NOW_MS), 1);
        assert!(!take(NOW_MS + 1_000));
        assert_eq!(limits.counters(NOW_MS), 1);
        assert!(take(NOW_MS + 1_500));
        assert_eq!(limits.counters(NOW_MS), 2);
    }
}
