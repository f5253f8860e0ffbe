//! The order in which series are exposed: chunks of some hundred lines, sorted within and among each other by label text.
//!
//! Nothing is ever sorted again. New series are sorted among themselves and merged into the chunks they belong to; a chunk
//! that becomes too long is split, one that becomes short joins its neighbour.

use super::chunk::{Bits, Chunk, FORMATS};
use super::families::{Families, FamilyId};
use super::mount::Declared;
use super::sort::sort_by_text;
use super::store::{NO_CHUNK, SeriesId, Store, grow};
use crate::family::Family;
use std::sync::Arc;

/// Families, chunks, and which series have to be encoded again.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) families: Families,
    pub(super) chunks: Vec<Chunk>,
    /// Chunks that belong to no family.
    free: Vec<u32>,
    /// For each format, by chunk: the series whose encoded text is not of their present value.
    pub(super) dirty: [Vec<Bits>; FORMATS],
    /// Formats of which anything is kept.
    pub(super) active: [bool; FORMATS],
    /// Changes with the lists of families or chunks.
    pub(super) version: u64,
    /// Bytes of what is kept encoded.
    pub(super) cached: usize,
}

impl Order {
    /// The value of this series has changed.
    #[inline]
    pub(super) fn mark(&mut self, store: &Store, series: SeriesId) {
        let at = store.get(series);
        self.mark_slot(at.chunk, at.slot);
    }

    #[inline]
    pub(super) fn mark_slot(&mut self, chunk: u32, slot: u16) {
        for (dirty, active) in self.dirty.iter_mut().zip(self.active) {
            // A series that is in no chunk yet will be encoded anyway.
            if active && let Some(bits) = dirty.get_mut(chunk as usize) {
                bits.set(slot);
            }
        }
    }

    /// The family that this declaration is one of.
    pub(super) fn declare(&mut self, family: Family, created_ms: u64) -> FamilyId {
        self.version += 1;
        let (id, is_void) = self.families.declare(family, created_ms);
        if is_void {
            let chunks = self.families.get(id).chunks.clone();
            chunks.into_iter().for_each(|chunk| self.forget_chunk(chunk));
        }
        id
    }

    /// A segment that declared it has gone.
    pub(super) fn undeclare(&mut self, declared: &Declared) {
        self.version += 1;
        self.families.undeclare(declared);
    }

    /// Puts new series of a family into their places.
    pub(super) fn insert(&mut self, store: &mut Store, family: FamilyId, mut new: Vec<SeriesId>) {
        sort_by_text(&mut new, |series| store.text(series));
        self.version += 1;
        self.families.get_mut(family).series += new.len();
        let mut rest = new.as_slice();
        let mut index = 0;
        let mut merged = Vec::new();
        while let Some(first) = rest.first() {
            let chunks = &self.families.get(family).chunks;
            if chunks.is_empty() {
                let id = self.add_chunk(family, Arc::from(&[][..]));
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
                    rest.partition_point(|series| *store.text(*series) < **next)
                }
                None => rest.len(),
            };
            // The chunk of the lowest texts takes those that are lower still.
            let (group, behind) = rest.split_at(group.max(1));
            rest = behind;
            merge(store, &self.chunks[chunk as usize].series, group, &mut merged);
            index += self.fill(store, family, index, &merged);
        }
    }

    /// Makes these the series of the chunk at this index, and of new ones behind it where they are too many. Returns how
    /// many there are more.
    fn fill(&mut self, store: &mut Store, family: FamilyId, index: usize, series: &[SeriesId]) -> usize {
        let merged = self.families.get(family);
        let chunk = merged.chunks[index];
        let max = merged.chunk_series_max;
        if series.len() <= max {
            self.set(store, chunk, series);
            return 0;
        }
        // Not quite full, so that the next new series does not split them again.
        let parts = series.len().div_ceil((max - max / 8).max(1));
        let part = |index: usize| index * series.len() / parts;
        self.set(store, chunk, &series[..part(1)]);
        let mut added = Vec::with_capacity(parts - 1);
        for index in 1..parts {
            let series = &series[part(index)..part(index + 1)];
            let id = self.add_chunk(family, Arc::from(store.text(series[0])));
            self.set(store, id, series);
            added.push(id);
        }
        let more = added.len();
        self.families.get_mut(family).chunks.splice(index + 1..index + 1, added);
        more
    }

    fn add_chunk(&mut self, family: FamilyId, low: Arc<[u8]>) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            let count = self.chunks.len();
            grow(&mut self.chunks, count + 1);
            self.chunks.push(Chunk::default());
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

    /// Gives a chunk its series; what was encoded of it is void.
    fn set(&mut self, store: &mut Store, id: u32, series: &[SeriesId]) {
        self.forget_chunk(id);
        let chunk = &mut self.chunks[id as usize];
        chunk.series.clear();
        grow(&mut chunk.series, series.len());
        chunk.series.extend_from_slice(series);
        for (slot, series) in series.iter().enumerate() {
            store.expose(*series, id, slot as u16);
        }
    }

    fn forget_chunk(&mut self, id: u32) {
        for format in 0..FORMATS {
            self.dirty[format][id as usize] = Bits::default();
            if let Some(encoded) = self.chunks[id as usize].encoded[format].take() {
                self.cached -= encoded.bytes();
            }
        }
    }

    /// Forgets everything that is encoded in a format.
    pub(super) fn forget_format(&mut self, format: usize) {
        self.active[format] = false;
        self.families.forget(format);
        for chunk in &mut self.chunks {
            if let Some(encoded) = chunk.encoded[format].take() {
                self.cached -= encoded.bytes();
            }
        }
    }

    /// Takes dead series out of these chunks.
    pub(super) fn prune(&mut self, store: &mut Store, mut touched: Vec<u32>) {
        touched.sort_unstable();
        touched.dedup();
        let mut families = Vec::new();
        for id in touched.into_iter().filter(|id| *id != NO_CHUNK) {
            let mut series = std::mem::take(&mut self.chunks[id as usize].series);
            let before = series.len();
            series.retain(|series| {
                let is_dead = store.is_dead(*series);
                if is_dead {
                    store.release(*series);
                }
                !is_dead
            });
            let family = self.chunks[id as usize].family;
            self.families.get_mut(family).series -= before - series.len();
            self.set(store, id, &series);
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
            let len = self.chunks[id as usize].series.len();
            let before = kept.last().map(|before| (*before, self.chunks[*before as usize].series.len()));
            match before {
                _ if len == 0 => self.free_chunk(id),
                Some((before, before_len)) if before_len + len <= max / 2 => {
                    let both = [&self.chunks[before as usize].series[..], &self.chunks[id as usize].series].concat();
                    self.free_chunk(id);
                    self.set(store, before, &both);
                }
                _ => kept.push(id),
            }
        }
        self.families.get_mut(family).chunks = kept;
    }

    fn free_chunk(&mut self, id: u32) {
        self.forget_chunk(id);
        self.chunks[id as usize] = Chunk::default();
        self.free.push(id);
    }

    /// Bytes of all this, but for what is encoded.
    pub(super) fn bytes(&self) -> usize {
        let of_chunk = |chunk: &Chunk| chunk.series.capacity() * size_of::<SeriesId>() + chunk.low.len() + 16;
        let of_dirty = |dirty: &Vec<Bits>| dirty.capacity() * size_of::<Bits>();
        self.families.bytes()
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.free.capacity() * 4
            + self.chunks.iter().map(of_chunk).sum::<usize>()
            + self.dirty.iter().map(of_dirty).sum::<usize>()
    }
}

/// Two sorted lists as one. Most often the second is short: each of its series is looked for.
fn merge(store: &Store, known: &[SeriesId], new: &[SeriesId], out: &mut Vec<SeriesId>) {
    out.clear();
    out.reserve(known.len() + new.len());
    let mut rest = known;
    for series in new {
        if !rest.is_empty() {
            let text = store.text(*series);
            let (before, behind) = rest.split_at(rest.partition_point(|known| store.text(*known) < text));
            out.extend_from_slice(before);
            rest = behind;
        }
        out.push(*series);
    }
    out.extend_from_slice(rest);
}
