//! Where what stands, by the hash of a text. Two plugins may have the same text: who searches says which slot is meant.
//!
//! Hashes are SipHash with a key that nobody knows, kept whole and compared before the texts are: how long a search takes tells
//! nothing of a credential that is not the one searched for.

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Pieces of the index, a power of two. A change copies one of them: of 100,000 consumers about 6 KiB.
const PIECES: usize = 1024;

/// Where something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    hash: u64,
    /// Place of a consumer.
    pub(super) place: u32,
    /// What of it.
    pub(super) which: u32,
}

const _: () = assert!(size_of::<Slot>() == 16, "one consumer has two or more of them");

#[derive(Clone)]
pub(super) struct Index {
    /// Empty until the first is inserted.
    pieces: Vec<Arc<HashTable<Slot>>>,
    /// Takes a text in as one piece, which the standard library's does not.
    hasher: SipHasher13,
}

impl Default for Index {
    fn default() -> Self {
        let random = RandomState::new();
        let hasher = SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1));
        Index { pieces: Vec::new(), hasher }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Index")
    }
}

impl Index {
    /// The slot for which `is_it` holds, among those with the same hash.
    #[inline]
    pub(super) fn find(&self, text: &[u8], is_it: impl Fn(&Slot) -> bool) -> Option<Slot> {
        let hash = self.hasher.hash(text);
        let piece = self.pieces.get(piece_of(hash))?;
        piece.find(hash, |slot| slot.hash == hash && is_it(slot)).copied()
    }

    pub(super) fn insert(&mut self, text: &[u8], place: u32, which: u32) {
        if self.pieces.is_empty() {
            self.pieces = vec![Arc::default(); PIECES];
        }
        let hash = self.hasher.hash(text);
        let piece = Arc::make_mut(&mut self.pieces[piece_of(hash)]);
        piece.insert_unique(hash, Slot { hash, place, which }, |slot| slot.hash);
    }

    /// Takes a slot out, if it is there.
    pub(super) fn remove(&mut self, text: &[u8], place: u32, which: u32) {
        let slot = Slot { hash: self.hasher.hash(text), place, which };
        let Some(piece) = self.pieces.get_mut(piece_of(slot.hash)) else { return };
        if let Ok(found) = Arc::make_mut(piece).find_entry(slot.hash, |known| *known == slot) {
            found.remove();
        }
    }
}

/// By bits that the tables themselves do not use: they take the lowest ones and the highest seven.
fn piece_of(hash: u64) -> usize {
    (hash >> 32) as usize % PIECES
}
