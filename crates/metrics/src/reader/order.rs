//! The order in which series are exposed: chunks of some hundred lines, sorted within and among each other by label
//! text.
//!
//! Nothing is ever sorted again. New series are sorted among themselves and merged into the chunks they belong to; a
//! chunk that becomes too long is split, one that becomes short joins its neighbour.

use super::chunk::{Bits, Chunk, FORMATS};
use super::families::Families;
use super::mount::{FamilyDeclaration, FamilyId};
use super::store::{SeriesId, SeriesSlot, Store, grow};
use crate::family::Family;
use std::sync::Arc;

/// Families, chunks, and the series that have to be encoded again.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) families: Families,
    pub(super) chunks: Vec<Chunk>,
    /// Unused chunks.
    free: Vec<u32>,
    /// For each format, by chunk: the series whose cached text does not have their current value.
    pub(super) dirty: [Vec<Bits>; FORMATS],
    /// Formats that have a cache.
    pub(super) active: [bool; FORMATS],
    /// Changes when the list of families or chunks does.
    pub(super) version: u64,
    /// Buffer for series that have changed.
    pub(super) changed: Vec<u32>,
    /// Bytes of the cached text.
    pub(super) cached: usize,
}

impl Order {
    /// Marks a series whose value has changed.
    #[inline]
    pub(super) fn mark(&mut self, store: &Store, series: SeriesId) {
        // A series without a chunk will be encoded anyway.
        let Some((chunk, slot)) = store.exposed(series) else { return };
        for (dirty, active) in self.dirty.iter_mut().zip(self.active) {
            if active && let Some(bits) = dirty.get_mut(chunk as usize) {
                bits.set(slot);
            }
        }
    }

    /// Marks a series that has other records than before: not only its value may have changed.
    pub(super) fn mark_rebuilt(&mut self, store: &Store, series: SeriesId) {
        if let Some((chunk, slot)) = store.exposed(series)
            && let Some(chunk) = self.chunks.get_mut(chunk as usize)
        {
            chunk.encoded.iter_mut().flatten().for_each(|encoded| encoded.forget_value(slot));
        }
        self.mark(store, series);
    }

    /// The family of this declaration.
    pub(super) fn declare(&mut self, family: Family, created_ms: u64) -> FamilyId {
        self.version += 1;
        let (id, is_void) = self.families.declare(family, created_ms);
        if is_void {
            let chunks = self.families.get(id).chunks.clone();
            chunks.into_iter().for_each(|chunk| self.forget_chunk(chunk));
        }
        id
    }

    /// Handles the end of a segment that declared it.
    pub(super) fn undeclare(&mut self, declared: &FamilyDeclaration) {
        self.version += 1;
        self.families.undeclare(declared);
    }

    /// Inserts new series of a family.
    pub(super) fn insert(&mut self, store: &mut Store, family: FamilyId, new: &[(FamilyId, SeriesSlot)]) {
        let mut order: Vec<u32> = (0..new.len() as u32).collect();
        sort_by_text(&mut order, |index| store.text(new[index as usize].1));
        let new: Vec<SeriesSlot> = order.into_iter().map(|index| new[index as usize].1).collect();
        self.version += 1;
        self.families.get_mut(family).series += new.len();
        let mut rest = new.as_slice();
        let mut index = 0;
        let mut merged = Vec::new();
        while let Some(first) = rest.first() {
            let chunks = &self.families.get(family).chunks;
            if chunks.is_empty() {
                let id = self.add_chunk(store, family, Arc::from(&[][..]));
                self.families.get_mut(family).chunks.push(id);
                continue;
            }
            let text = store.text(*first);
            let ahead = chunks[index..].partition_point(|id| *self.chunks[*id as usize].low <= *text);
            index += ahead.saturating_sub(1);
            let chunk = chunks[index];
            let group = match chunks.get(index + 1) {
                Some(next) => {
                    let next = &self.chunks[*next as usize].low;
                    rest.partition_point(|slot| *store.text(*slot) < **next)
                }
                None => rest.len(),
            };
            // The chunk of the lowest texts also takes lower ones.
            let (group, behind) = rest.split_at(group.max(1));
            rest = behind;
            merge(store, &store.slots[chunk as usize], group, &mut merged);
            index += self.fill(store, family, index, &merged);
        }
    }

    /// Fills the chunk at this index with these series, and adds chunks behind it if they are too many. Returns the
    /// number of added chunks.
    fn fill(&mut self, store: &mut Store, family: FamilyId, index: usize, slots: &[SeriesSlot]) -> usize {
        let merged = self.families.get(family);
        let chunk = merged.chunks[index];
        let max = merged.chunk_series_max;
        if slots.len() <= max {
            self.set(store, chunk, slots);
            return 0;
        }
        // Not quite full, so that the next new series does not split them again.
        let parts = slots.len().div_ceil((max - max / 8).max(1));
        let part = |index: usize| index * slots.len() / parts;
        self.set(store, chunk, &slots[..part(1)]);
        let mut added = Vec::with_capacity(parts - 1);
        for index in 1..parts {
            let slots = &slots[part(index)..part(index + 1)];
            let low = Arc::from(store.text(slots[0]));
            let id = self.add_chunk(store, family, low);
            self.set(store, id, slots);
            added.push(id);
        }
        let more = added.len();
        self.families.get_mut(family).chunks.splice(index + 1..index + 1, added);
        more
    }

    fn add_chunk(&mut self, store: &mut Store, family: FamilyId, low: Arc<[u8]>) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            let count = self.chunks.len();
            grow(&mut self.chunks, count + 1);
            self.chunks.push(Chunk::default());
            grow(&mut store.slots, count + 1);
            store.slots.push(Vec::new());
            for dirty in &mut self.dirty {
                grow(dirty, count + 1);
                dirty.push(Bits::default());
            }
            count as u32
        });
        let chunk = &mut self.chunks[id as usize];
        (chunk.family, chunk.low) = (family, low);
        id
    }

    /// Gives a chunk its series, which invalidates its cache.
    fn set(&mut self, store: &mut Store, id: u32, slots: &[SeriesSlot]) {
        self.forget_chunk(id);
        store.expose(id, slots);
    }

    fn forget_chunk(&mut self, id: u32) {
        for format in 0..FORMATS {
            self.dirty[format][id as usize] = Bits::default();
            if let Some(encoded) = self.chunks[id as usize].encoded[format].take() {
                self.cached -= encoded.bytes();
            }
        }
    }

    /// Drops the cache of a format.
    pub(super) fn forget_format(&mut self, format: usize) {
        self.active[format] = false;
        self.families.forget(format);
        for chunk in &mut self.chunks {
            if let Some(encoded) = chunk.encoded[format].take() {
                self.cached -= encoded.bytes();
            }
        }
    }

    /// Removes dead series from these chunks.
    pub(super) fn prune(&mut self, store: &mut Store, mut touched: Vec<u32>) {
        touched.sort_unstable();
        touched.dedup();
        let mut families = Vec::new();
        for id in touched {
            let mut slots = std::mem::take(&mut store.slots[id as usize]);
            let before = slots.len();
            slots.retain(|slot| !slot.is_dead());
            let family = self.chunks[id as usize].family;
            self.families.get_mut(family).series -= before - slots.len();
            self.set(store, id, &slots);
            families.push(family);
        }
        families.sort_unstable();
        families.dedup();
        families.into_iter().for_each(|family| self.compact(store, family));
    }

    /// Drops a family's empty chunks, and joins short neighbours.
    fn compact(&mut self, store: &mut Store, family: FamilyId) {
        self.version += 1;
        let merged = self.families.get_mut(family);
        let max = merged.chunk_series_max;
        let chunks = std::mem::take(&mut merged.chunks);
        let mut kept: Vec<u32> = Vec::with_capacity(chunks.len());
        for id in chunks {
            let len = store.slots[id as usize].len();
            let before = kept.last().map(|before| (*before, store.slots[*before as usize].len()));
            match before {
                _ if len == 0 => self.free_chunk(store, id),
                Some((before, before_len)) if before_len + len <= max / 2 => {
                    let both = [&store.slots[before as usize][..], &store.slots[id as usize]].concat();
                    self.free_chunk(store, id);
                    self.set(store, before, &both);
                }
                _ => kept.push(id),
            }
        }
        self.families.get_mut(family).chunks = kept;
    }

    fn free_chunk(&mut self, store: &mut Store, id: u32) {
        store.slots[id as usize] = Vec::new();
        self.forget_chunk(id);
        self.chunks[id as usize] = Chunk::default();
        self.free.push(id);
    }

    /// Bytes of these tables, without the cached text.
    pub(super) fn bytes(&self) -> usize {
        let of_chunk = |chunk: &Chunk| chunk.low.len() + 16;
        let of_dirty = |dirty: &Vec<Bits>| dirty.capacity() * size_of::<Bits>();
        self.families.bytes()
            + self.chunks.capacity() * size_of::<Chunk>()
            + (self.free.capacity() + self.changed.capacity()) * 4
            + self.chunks.iter().map(of_chunk).sum::<usize>()
            + self.dirty.iter().map(of_dirty).sum::<usize>()
    }
}

/// Merges two sorted lists. Most often the second is short: the place of each of its series is searched.
fn merge(store: &Store, known: &[SeriesSlot], new: &[SeriesSlot], out: &mut Vec<SeriesSlot>) {
    out.clear();
    out.reserve(known.len() + new.len());
    let mut rest = known;
    for slot in new {
        if !rest.is_empty() {
            let text = store.text(*slot);
            let (before, behind) = rest.split_at(rest.partition_point(|known| store.text(*known) < text));
            out.extend_from_slice(before);
            rest = behind;
        }
        out.push(*slot);
    }
    out.extend_from_slice(rest);
}

// Sorts many label texts, which share long prefixes.
//
// A comparison sort would read two texts, far apart in memory, for each of its comparisons. This one reads eight bytes
// of every text in turn, sorts by these, and continues with the texts that are equal so far.

/// A text by its number, and the eight bytes of it that are compared.
#[derive(Debug, Clone, Copy)]
struct SortKey {
    bytes: u64,
    item: u32,
}

const STEP: usize = 8;
/// Fewer texts than this are sorted by plain comparison.
const FEW: usize = 12;

/// Sorts items by their texts, bytewise.
pub(super) fn sort_by_text<'a>(items: &mut [u32], text: impl Fn(u32) -> &'a [u8]) {
    let mut keys: Vec<SortKey> = items.iter().map(|item| SortKey { bytes: 0, item: *item }).collect();
    // Ranges of texts that are equal up to a depth.
    let mut open = vec![(0, keys.len(), 0)];
    while let Some((from, to, depth)) = open.pop().filter(|(from, to, _)| from < to) {
        let range = &mut keys[from..to];
        let depth = depth + common(range, depth, &text);
        let mut ends = false;
        for key in range.iter_mut() {
            let rest = rest(text(key.item), depth);
            ends |= rest.len() < STEP;
            key.bytes = leading(rest);
        }
        // Zeros that pad a short text look like zeros in a text: these are compared in full.
        if range.len() <= FEW || (ends && range.iter().all(|key| key.bytes == range[0].bytes)) {
            range.sort_unstable_by(|a, b| {
                a.bytes.cmp(&b.bytes).then_with(|| rest(text(a.item), depth).cmp(rest(text(b.item), depth)))
            });
            continue;
        }
        range.sort_unstable_by_key(|key| key.bytes);
        let mut start = 0;
        for end in 1..=range.len() {
            if end == range.len() || range[end].bytes != range[start].bytes {
                if end - start > 1 {
                    // Not a step further, because of texts that end: `common` skips it.
                    open.push((from + start, from + end, depth));
                }
                start = end;
            }
        }
    }
    items.iter_mut().zip(&keys).for_each(|(item, key)| *item = key.item);
}

/// Number of further bytes that all of them share.
fn common<'a>(range: &[SortKey], depth: usize, text: &impl Fn(u32) -> &'a [u8]) -> usize {
    let first = rest(text(range[0].item), depth);
    range[1..].iter().fold(first.len(), |common, key| {
        let other = rest(text(key.item), depth);
        if common <= other.len() && first[..common] == other[..common] {
            return common;
        }
        first[..common].iter().zip(other).take_while(|(a, b)| a == b).count()
    })
}

fn rest(text: &[u8], depth: usize) -> &[u8] {
    text.get(depth..).unwrap_or(&[])
}

/// The first eight bytes, padded with zeros, so that numbers compare as texts do.
fn leading(text: &[u8]) -> u64 {
    match text.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut bytes = [0; STEP];
            bytes[..text.len()].copy_from_slice(text);
            u64::from_be_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(texts: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut items: Vec<u32> = (0..texts.len() as u32).collect();
        sort_by_text(&mut items, |item| &texts[item as usize]);
        items.iter().map(|item| texts[*item as usize].clone()).collect()
    }

    proptest! {
        #[test]
        fn as_a_plain_sort_does(
            texts in prop::collection::vec(
                (0usize..3, prop::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b')], 0..30)), 0..200,
            ),
        ) {
            let prefixes: [&[u8]; 3] = [b"", b"a common beginning", b"a common beginning\0\0"];
            let texts: Vec<Vec<u8>> =
                texts.into_iter().map(|(prefix, rest)| [prefixes[prefix], &rest].concat()).collect();
            let mut plain = texts.clone();
            plain.sort();
            prop_assert_eq!(sorted(&texts), plain);
        }
    }

    #[test]
    fn hardly_different_texts() {
        let mut texts: Vec<Vec<u8>> = (0..100).map(|zeros| [b"x".as_slice(), &vec![0; zeros]].concat()).collect();
        let expected = texts.clone();
        texts.reverse();
        assert_eq!(sorted(&texts), expected);
        assert_eq!(sorted(&vec![b"same".to_vec(); 50]).len(), 50);
    }
}
