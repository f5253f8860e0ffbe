//! A worker's cache of the routes that took requests.
//!
//! The key is the values of all fields that some route reads (see [`crate::Matcher`]), so a cached result is always
//! what the matcher would find. Keys come from clients: they are compared whole, and their effect is bounded. A lookup
//! reads a set of few slots, never a chain; keys are in a ring of fixed size, whose oldest are overwritten.
//!
//! ```text
//!  hash of key ──▶ set of 4 slots: tag, position of the key, match
//!                                     │
//!  ring:   … free │ tail: oldest … [slot, length, key] … newest :head │ free …
//! ```
//!
//! Positions only grow, so that everything before the tail is known to be gone without being visited; clearing the
//! cache just moves the tail. A key that is found in the older half of the ring is written once more at the head: so
//! keys in use stay, roughly as by least recent use. Nothing is allocated after [`RouteCache::new`].

use crate::Match;
use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hasher};

/// The longest key that is kept.
pub const CACHE_KEY_BYTES_MAX: usize = 2048;

/// Slots of a set.
const WAYS: usize = 4;
/// In front of each key in the ring: its slot and its length.
const HEADER_BYTES: usize = 8;
/// The header's slot where the rest of the ring is left empty, because the next record did not fit there.
const PADDING: u32 = u32::MAX;
/// The route of a slot which records that no route takes the request.
const NO_ROUTE: u32 = u32::MAX;

/// Remembers which route took the requests seen last, and which requests no route took.
#[derive(Debug)]
pub struct RouteCache {
    slots: Box<[CacheSlot]>,
    /// Slots that one key can be in; [`WAYS`], unless there are fewer slots.
    ways: usize,
    ring: Box<[u8]>,
    /// Positions of the oldest record and of the next one; the ring's bytes between them are records.
    tail: u64,
    head: u64,
    /// Slots whose key is in the ring.
    len: usize,
    hits: u64,
    misses: u64,
    state: FixedState,
}

#[derive(Debug, Clone, Copy)]
struct CacheSlot {
    /// Position of its record; the slot is free if that is before the tail.
    position: u64,
    /// Offset of the key in the ring.
    offset: u32,
    key_bytes: u16,
    /// Some bits of the key's hash.
    tag: u16,
    route: u32,
    path: u16,
    /// It was found since another slot of its set was displaced.
    is_used: bool,
}

impl RouteCache {
    /// Takes at most this many entries and this many bytes, half of them at most for the table. `seed` must be random,
    /// so that clients cannot know which keys displace each other.
    pub fn new(entries_max: usize, bytes_max: usize, seed: u64) -> RouteCache {
        let entries = entries_max.min(bytes_max / 2 / size_of::<CacheSlot>()).min(PADDING as usize - 1);
        let ways = entries.min(WAYS);
        let slots = entries.checked_div(ways).unwrap_or_default() * ways;
        let ring = (bytes_max - slots * size_of::<CacheSlot>()).min(u32::MAX as usize);
        RouteCache {
            slots: vec![CacheSlot::FREE; slots].into(),
            ways,
            ring: vec![0; if slots == 0 { 0 } else { ring }].into(),
            // The tail is behind the position of free slots, which is 0.
            tail: 1,
            head: 1,
            len: 0,
            hits: 0,
            misses: 0,
            state: FixedState::with_seed(seed),
        }
    }

    /// The last value put under a key, unless it has been displaced.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Option<Option<Match>> {
        let known = self.place(key).and_then(|(set, tag)| Some((self.find(set, tag, key)?, tag)));
        let Some((index, tag)) = known else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let slot = &mut self.slots[index];
        slot.is_used = true;
        let (found, age) = (slot.to_match(), self.head - slot.position);
        if age > self.ring.len() as u64 / 2 {
            self.write(index, key, tag);
        }
        Some(found)
    }

    /// Stores the result for a key. Keys longer than [`CACHE_KEY_BYTES_MAX`] are not kept.
    pub fn put(&mut self, key: &[u8], found: Option<Match>) {
        let Some((set, tag)) = self.place(key) else { return };
        let (route, path) = match found {
            None => (NO_ROUTE, 0),
            Some(Match { route, path }) => match (u32::try_from(route), u16::try_from(path)) {
                (Ok(route), Ok(path)) => (route, path),
                // So many routes or paths of one route hardly exist; but a former answer must not stay.
                _ => return self.forget(set, tag, key),
            },
        };
        let index = match self.find(set, tag, key) {
            Some(index) => index,
            None => {
                let index = self.displace(set);
                if !self.write(index, key, tag) {
                    return;
                }
                index
            }
        };
        let slot = &mut self.slots[index];
        (slot.route, slot.path) = (route, path);
    }

    /// Forgets everything, at once.
    pub fn clear(&mut self) {
        self.tail = self.head;
        self.len = 0;
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of lookups that found their key, since the beginning.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// The number of lookups that did not find their key.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Size of the table and of the keys in the ring.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + (self.head - self.tail) as usize
    }

    /// The first slot of the key's set, and its tag; `None` if the key cannot be cached at all.
    #[inline]
    fn place(&self, key: &[u8]) -> Option<(usize, u16)> {
        if key.len() > CACHE_KEY_BYTES_MAX || self.slots.is_empty() {
            return None;
        }
        let mut hasher = self.state.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        let sets = (self.slots.len() / self.ways) as u64;
        // The upper half chooses the set, the lowest bits are the tag.
        let set = ((hash >> 32) * sets) >> 32;
        Some((set as usize * self.ways, hash as u16))
    }

    #[inline]
    fn find(&self, set: usize, tag: u16, key: &[u8]) -> Option<usize> {
        (set..set + self.ways).find(|index| {
            let slot = &self.slots[*index];
            slot.tag == tag && slot.position >= self.tail && self.key_of(slot) == key
        })
    }

    /// The slot of a set to use next: a free one, or else the oldest of those that were not found again.
    fn displace(&mut self, set: usize) -> usize {
        let tail = self.tail;
        let slots = &mut self.slots[set..][..self.ways];
        let is_used = |slot: &CacheSlot| slot.is_used && slot.position >= tail;
        if slots.iter().all(is_used) {
            slots.iter_mut().for_each(|slot| slot.is_used = false);
        }
        let unused = slots.iter().enumerate().filter(|(_, slot)| !is_used(slot));
        let oldest = unused.min_by_key(|(_, slot)| slot.position).map(|(index, _)| index);
        set + oldest.expect("a set has a slot, and not all are used")
    }

    #[cold]
    fn forget(&mut self, set: usize, tag: u16, key: &[u8]) {
        if let Some(index) = self.find(set, tag, key) {
            self.slots[index].position = 0;
            self.len -= 1;
        }
    }

    #[inline]
    fn key_of(&self, slot: &CacheSlot) -> &[u8] {
        &self.ring[slot.offset as usize..][..usize::from(slot.key_bytes)]
    }

    /// Writes a record for the slot at the head, in the place of older ones; false where the ring is too small for it.
    fn write(&mut self, index: usize, key: &[u8], tag: u16) -> bool {
        let (capacity, needed) = (self.ring.len() as u64, record_bytes(key.len()));
        if needed > capacity {
            return false;
        }
        let was_live = self.slots[index].position >= self.tail;
        if was_live {
            // Its old record belongs to no slot from here on.
            self.slots[index].position = 0;
            self.len -= 1;
        }
        let room = capacity - self.head % capacity;
        if room < needed {
            self.make_room(room);
            if room >= HEADER_BYTES as u64 {
                self.write_header(PADDING, 0);
            }
            self.head += room;
        }
        self.make_room(needed);
        let offset = (self.head % capacity) as usize;
        self.write_header(index as u32, key.len() as u32);
        self.ring[offset + HEADER_BYTES..][..key.len()].copy_from_slice(key);
        let slot = &mut self.slots[index];
        slot.position = self.head;
        slot.offset = (offset + HEADER_BYTES) as u32;
        slot.key_bytes = key.len() as u16;
        slot.tag = tag;
        slot.is_used = was_live && slot.is_used;
        self.head += needed;
        self.len += 1;
        true
    }

    /// Moves the tail until this many bytes are free behind the head.
    fn make_room(&mut self, bytes: u64) {
        let capacity = self.ring.len() as u64;
        while self.head + bytes > self.tail + capacity {
            let room = capacity - self.tail % capacity;
            let (index, key_bytes) = match room < HEADER_BYTES as u64 {
                true => (PADDING, 0),
                false => self.read_header(self.tail),
            };
            if index == PADDING {
                self.tail += room;
                continue;
            }
            if self.slots[index as usize].position == self.tail {
                self.len -= 1;
            }
            self.tail += record_bytes(key_bytes as usize);
        }
    }

    fn write_header(&mut self, index: u32, key_bytes: u32) {
        let offset = (self.head % self.ring.len() as u64) as usize;
        self.ring[offset..][..4].copy_from_slice(&index.to_ne_bytes());
        self.ring[offset + 4..][..4].copy_from_slice(&key_bytes.to_ne_bytes());
    }

    fn read_header(&self, position: u64) -> (u32, u32) {
        let offset = (position % self.ring.len() as u64) as usize;
        let number = |at: usize| {
            let bytes: [u8; 4] = self.ring[at..at + 4].try_into().expect("four bytes are taken");
            u32::from_ne_bytes(bytes)
        };
        (number(offset), number(offset + 4))
    }
}

impl CacheSlot {
    const FREE: CacheSlot =
        CacheSlot { position: 0, offset: 0, key_bytes: 0, tag: 0, route: 0, path: 0, is_used: false };

    #[inline]
    fn to_match(self) -> Option<Match> {
        (self.route != NO_ROUTE).then_some(Match { route: self.route as usize, path: usize::from(self.path) })
    }
}

fn record_bytes(key_bytes: usize) -> u64 {
    (HEADER_BYTES + key_bytes) as u64
}

// Lengths of keys fit their number.
const _: () = assert!(CACHE_KEY_BYTES_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use allocation_counter::measure;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn found(route: usize) -> Option<Match> {
        Some(Match { route, path: route % 3 })
    }

    #[test]
    fn answers_what_was_put_also_that_there_is_nothing() {
        let mut cache = RouteCache::new(1000, 1 << 20, 7);
        assert_eq!(cache.get(b"a"), None);
        cache.put(b"a", found(4));
        cache.put(b"b", None);
        cache.put(b"", found(5));
        assert_eq!((cache.get(b"a"), cache.get(b"b"), cache.get(b"")), (Some(found(4)), Some(None), Some(found(5))));
        cache.put(b"a", None);
        assert_eq!((cache.get(b"a"), cache.len()), (Some(None), 3));
        cache.clear();
        assert_eq!((cache.get(b"a"), cache.get(b""), cache.is_empty()), (None, None, true));
        assert_eq!((cache.hits(), cache.misses()), (4, 3));
    }

    #[test]
    fn bounds_are_kept_to_whatever_they_are() {
        let check = |entries: usize, bytes: usize, expected: usize| {
            let mut cache = RouteCache::new(entries, bytes, 1);
            for number in 0..10_000usize {
                cache.put(format!("key {number}").as_bytes(), found(number));
                assert!(cache.len() <= entries && cache.bytes() <= bytes, "{} {}", cache.len(), cache.bytes());
            }
            assert!(cache.len() >= expected, "{entries} {bytes}: {}", cache.len());
        };
        check(0, 1 << 20, 0);
        check(1, 1 << 20, 1);
        check(3, 1 << 20, 3);
        check(1000, 0, 0);
        check(1000, 64, 1);
        check(1000, 1 << 20, 950);
        check(1 << 20, 100_000, 1500);
    }

    #[test]
    fn long_keys_are_not_kept() {
        let mut cache = RouteCache::new(100, 1 << 20, 1);
        let key = vec![b'x'; CACHE_KEY_BYTES_MAX + 1];
        cache.put(&key, found(1));
        assert_eq!(cache.get(&key), None);
        cache.put(&key[1..], found(1));
        assert_eq!(cache.get(&key[1..]), Some(found(1)));
        let mut small = RouteCache::new(4, 1024, 1);
        small.put(&key[1..], found(1));
        assert_eq!((small.get(&key[1..]), small.len()), (None, 0));
    }

    #[test]
    fn what_is_in_use_stays() {
        let mut cache = RouteCache::new(1024, 64 << 10, 3);
        let hot: Vec<String> = (0..50).map(|number| format!("hot {number}")).collect();
        let (mut asked, mut hits) = (0, 0);
        for cold in 0..100_000usize {
            cache.put(format!("cold {cold}").as_bytes(), None);
            let key = hot[cold % hot.len()].as_bytes();
            asked += 1;
            match cache.get(key) {
                Some(_) => hits += 1,
                None => cache.put(key, found(cold)),
            }
        }
        assert!(hits * 100 > asked * 98, "{hits} of {asked}");
    }

    #[test]
    fn nothing_is_allocated() {
        let mut cache = RouteCache::new(1000, 64 << 10, 1);
        let keys: Vec<String> = (0..5000).map(|number| format!("/a/path/{number}")).collect();
        let counted = measure(|| {
            for (number, key) in keys.iter().enumerate() {
                if cache.get(key.as_bytes()).is_none() {
                    cache.put(key.as_bytes(), found(number));
                }
                assert_eq!(cache.get(key.as_bytes()), Some(found(number)));
            }
        });
        assert_eq!(counted.count_total, 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Get(Vec<u8>),
        Put(Vec<u8>, Option<usize>),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few and short keys, so that they come again; and long ones, so that the ring comes round.
        let key = || prop_oneof![4 => prop::collection::vec(0u8..3, 0..4), 1 => prop::collection::vec(0u8..2, 0..90)];
        prop_oneof![
            10 => key().prop_map(Step::Get),
            10 => (key(), prop::option::of(0usize..9)).prop_map(|(key, found)| Step::Put(key, found)),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_model_agrees(
            steps in prop::collection::vec(step(), 0..300),
            entries in 0usize..40,
            bytes in 0usize..2000,
            seed: u64,
        ) {
            let mut cache = RouteCache::new(entries, bytes, seed);
            let mut model: HashMap<Vec<u8>, Option<Match>> = HashMap::new();
            for step in steps {
                match step {
                    Step::Get(key) => {
                        let kept = cache.get(&key);
                        prop_assert!(kept.is_none() || kept == model.get(&key).copied());
                    }
                    Step::Put(key, route) => {
                        let found = route.and_then(found);
                        cache.put(&key, found);
                        let kept = cache.get(&key);
                        prop_assert!(kept.is_none() || kept == Some(found));
                        model.insert(key, found);
                    }
                    Step::Clear => {
                        cache.clear();
                        model.clear();
                    }
                }
                prop_assert!(cache.len() <= entries && cache.bytes() <= bytes);
                let live = cache.slots.iter().filter(|slot| slot.position >= cache.tail).count();
                prop_assert_eq!(live, cache.len());
            }
        }
    }
}
