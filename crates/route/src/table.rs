//! A read-only map from byte strings to numbers: exact hosts, host suffixes and exact paths.
//!
//! All keys share one piece of memory, so that an entry costs 16 bytes and its text. The hash is foldhash with a fixed
//! seed. That is safe although clients choose the lookups: only the configuration's keys are ever *in* the table, so
//! no client can make a bucket long; and it keeps the matcher free of randomness.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// Keys are pairs of a number and a text, so that one table serves the paths of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: HashTable<TextSlot>,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct TextSlot {
    /// Range of the key's text in [`Table::text`].
    start: u32,
    len: u32,
    space: u32,
    value: u32,
}

/// The hash of a key's text, kept for lookups in several spaces.
#[derive(Clone, Copy)]
pub(crate) struct TextHash(u64);

const SEED: u64 = 0x5111_1647;

impl TextHash {
    pub(crate) fn new(text: &[u8]) -> TextHash {
        let mut hasher = FixedState::with_seed(SEED).build_hasher();
        hasher.write(text);
        TextHash(hasher.finish())
    }

    fn in_space(self, space: u32) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 ^ u64::from(space).wrapping_mul(ODD)
    }
}

impl Table {
    /// Adds a key that is not in the table; the texts of all keys together must stay below 4 GiB.
    pub(crate) fn insert(&mut self, space: u32, text: &[u8], value: u32) {
        let Table { slots, text: pool } = self;
        let slot = TextSlot { start: pool.len() as u32, len: text.len() as u32, space, value };
        pool.extend_from_slice(text);
        slots.insert_unique(TextHash::new(text).in_space(space), slot, |slot| {
            TextHash::new(slot.text(pool)).in_space(slot.space)
        });
    }

    /// The value of a key. `hash` is the hash of `text`.
    pub(crate) fn get(&self, space: u32, text: &[u8], hash: TextHash) -> Option<u32> {
        let found = self.slots.find(hash.in_space(space), |slot| slot.space == space && slot.text(&self.text) == text);
        found.map(|slot| slot.value)
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        let Table { slots, text } = self;
        text.shrink_to_fit();
        slots.shrink_to_fit(|slot| TextHash::new(slot.text(text)).in_space(slot.space));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.allocation_size() + self.text.capacity()
    }
}

impl TextSlot {
    fn text(self, pool: &[u8]) -> &[u8] {
        &pool[self.start as usize..][..self.len as usize]
    }
}
