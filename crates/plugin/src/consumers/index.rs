//! An index from the hash of a text to its slot. Two plugins may have the same text: the caller decides which slot is
//! meant.
//!
//! Hashes are SipHash with a secret key, stored whole and compared before the texts are: the duration of a search
//! reveals nothing about other credentials.

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Number of pieces of the index, a power of two. A change copies one of them: for 100,000 consumers about 6 KiB.
const PIECES: usize = 1024;

/// The place of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexSlot {
    hash: u64,
    /// The consumer's place.
    pub(super) place: u32,
    /// Which text of the consumer.
    pub(super) which: u32,
}

const _: () = assert!(size_of::<IndexSlot>() == 16, "one consumer has two or more of them");

#[derive(Clone)]
pub(super) struct CredentialIndex {
    /// Empty until the first text is inserted.
    pieces: Vec<Arc<HashTable<IndexSlot>>>,
    /// Hashes a text as one piece, unlike the standard library's.
    hasher: SipHasher13,
}

impl Default for CredentialIndex {
    fn default() -> Self {
        let random = RandomState::new();
        let hasher = SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1));
        CredentialIndex { pieces: Vec::new(), hasher }
    }
}

impl fmt::Debug for CredentialIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Index")
    }
}

impl CredentialIndex {
    /// The slot that `is_it` accepts, among those with the same hash.
    #[inline]
    pub(super) fn find(&self, text: &[u8], is_it: impl Fn(&IndexSlot) -> bool) -> Option<IndexSlot> {
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
        piece.insert_unique(hash, IndexSlot { hash, place, which }, |slot| slot.hash);
    }

    /// Removes a slot, if it exists.
    pub(super) fn remove(&mut self, text: &[u8], place: u32, which: u32) {
        let slot = IndexSlot { hash: self.hasher.hash(text), place, which };
        let Some(piece) = self.pieces.get_mut(piece_of(slot.hash)) else { return };
        if let Ok(found) = Arc::make_mut(piece).find_entry(slot.hash, |known| *known == slot) {
            found.remove();
        }
    }
}

/// Uses bits that the tables themselves do not use: they use the lowest ones and the highest seven.
fn piece_of(hash: u64) -> usize {
    (hash >> 32) as usize % PIECES
}
