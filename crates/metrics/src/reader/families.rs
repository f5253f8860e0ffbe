//! The families of all segments: which declarations are the same family, and which of several with one name is exposed.

use super::chunk::{EncodedChunk, FORMATS};
use super::mount::{FamilyDeclaration, FamilyId};
use super::store::{CHUNK_LINES, CHUNK_SERIES_MAX};
use crate::encode::{EncodeOptions, FamilyEncoder, Format};
use crate::family::{Family, FamilyType};
use crate::segment::cells::Shape;
use std::cmp::Reverse;
use std::sync::Arc;

/// A family, merged over all segments.
#[derive(Debug)]
pub(super) struct MergedFamily {
    pub(super) family: Family,
    pub(super) name: Arc<str>,
    /// Names of the labels that its series have, over all declarations.
    pub(super) labels: Vec<String>,
    /// Distinguishes the family from later ones with its name.
    pub(super) born: u64,
    /// The last declaration: its time and, for equal times, its sequence number.
    declared: (u64, u64),
    /// Number of segments that declare it.
    segments: usize,
    /// Number of series that have a chunk.
    pub(super) series: usize,
    /// Its chunks, in order.
    pub(super) chunks: Vec<u32>,
    /// Most series of a chunk.
    pub(super) chunk_series_max: usize,
    /// How to read its histograms.
    pub(super) shape: Shape,
    heads: [Option<Box<FamilyHead>>; FORMATS],
}

/// The encoder of a family's series, and the bytes that precede them.
#[derive(Debug)]
pub(super) struct FamilyHead {
    pub(super) encoder: FamilyEncoder,
    pub(super) header: EncodedChunk,
}

/// All families.
#[derive(Debug, Default)]
pub(super) struct Families {
    entries: Vec<Option<MergedFamily>>,
    /// Families by name; among those of the same name, the newest first.
    order: Vec<FamilyId>,
    /// The exposed ones, by name.
    pub(super) exposed: Vec<FamilyId>,
    turns: u64,
}

impl Families {
    pub(super) fn get(&self, id: FamilyId) -> &MergedFamily {
        self.entries[id as usize].as_ref().expect("a family stays while a segment that declares it does")
    }

    pub(super) fn get_mut(&mut self, id: FamilyId) -> &mut MergedFamily {
        self.entries[id as usize].as_mut().expect("a family stays while a segment that declares it does")
    }

    /// All families, exposed or not.
    pub(super) fn all(&self) -> impl Iterator<Item = &MergedFamily> {
        self.order.iter().map(|id| self.get(*id))
    }

    /// Number of families that are not exposed, as a newer one of another kind has their name.
    pub(super) fn hidden(&self) -> usize {
        let internal = self.all().filter(|merged| merged.family.is_internal()).count();
        self.order.len() - self.exposed.len() - internal
    }

    /// The family of this name, internal ones included; the newest one if there are several.
    pub(super) fn find(&self, name: &str) -> Option<&MergedFamily> {
        self.of_name(name).first().map(|id| self.get(*id))
    }

    /// The family of this declaration; and whether its cached text is invalid.
    pub(super) fn declare(&mut self, family: Family, created_ms: u64) -> (FamilyId, bool) {
        self.turns += 1;
        let declared = (created_ms, self.turns);
        let known = self.of_name(&family.name).iter().copied().find(|id| self.get(*id).family.agrees_with(&family));
        let mut is_void = false;
        let id = match known {
            Some(id) => {
                let merged = self.get_mut(id);
                merged.segments += 1;
                merged.add_labels(&family);
                let is_latest = declared > merged.declared;
                if is_latest && family.help != merged.family.help {
                    merged.family.help.clone_from(&family.help);
                    merged.heads = Default::default();
                    is_void = true;
                }
                merged.declared = merged.declared.max(declared);
                if family.exemplars && !merged.family.exemplars {
                    merged.family.exemplars = true;
                    merged.heads = Default::default();
                    is_void = true;
                }
                id
            }
            None => {
                let merged = Some(MergedFamily::new(family, declared));
                match self.entries.iter().position(Option::is_none) {
                    Some(free) => {
                        self.entries[free] = merged;
                        free as FamilyId
                    }
                    None => {
                        self.entries.push(merged);
                        (self.entries.len() - 1) as FamilyId
                    }
                }
            }
        };
        if known.is_none() {
            self.order.push(id);
        }
        self.sort();
        (id, is_void)
    }

    /// Handles the end of a segment that declared it, whose series have gone.
    pub(super) fn undeclare(&mut self, declared: &FamilyDeclaration) {
        let id = declared.family;
        let merged = self.get_mut(id);
        merged.segments -= 1;
        if merged.segments == 0 {
            debug_assert!(merged.chunks.is_empty(), "series go before their segment's families do");
            self.entries[id as usize] = None;
            self.order.retain(|each| *each != id);
            self.sort();
        }
    }

    fn of_name(&self, name: &str) -> &[FamilyId] {
        let from = self.order.partition_point(|id| self.get(*id).name.as_ref() < name);
        let to = from + self.order[from..].iter().take_while(|id| self.get(**id).name.as_ref() == name).count();
        &self.order[from..to]
    }

    fn sort(&mut self) {
        let Families { entries, order, exposed, .. } = self;
        let key = |id: &FamilyId| {
            let merged = entries[*id as usize].as_ref().expect("what is in order exists");
            (merged.name.clone(), Reverse(merged.declared))
        };
        order.sort_by_cached_key(key);
        exposed.clone_from(order);
        exposed.retain(|id| entries[*id as usize].as_ref().is_some_and(|merged| !merged.family.is_internal()));
        exposed.dedup_by(|later, first| {
            let name = |id: u32| entries[id as usize].as_ref().map(|merged| merged.name.clone());
            name(*later) == name(*first)
        });
    }

    /// Index of the first exposed family whose name is not less.
    pub(super) fn seek(&self, name: &str) -> usize {
        self.exposed.partition_point(|id| self.get(*id).name.as_ref() < name)
    }

    /// Drops the encoders of a format that is no longer requested.
    pub(super) fn forget(&mut self, format: usize) {
        self.entries.iter_mut().flatten().for_each(|merged| merged.heads[format] = None);
    }

    /// Bytes of the encoded headers.
    pub(super) fn cached(&self) -> usize {
        let heads = self.entries.iter().flatten().flat_map(|merged| merged.heads.iter().flatten());
        heads.map(|head| head.header.bytes()).sum()
    }

    /// Shortens chunks, so that a test has many chunks of few series.
    #[cfg(test)]
    pub(super) fn shorten_chunks(&mut self, series_max: usize) {
        self.entries.iter_mut().flatten().for_each(|merged| merged.chunk_series_max = series_max);
    }

    pub(super) fn bytes(&self) -> usize {
        let of_entries = self.entries.iter().flatten().map(|merged| {
            let texts = merged.family.help.capacity() + 2 * merged.name.len();
            let labels = merged.labels.iter().map(|label| 2 * (label.capacity() + size_of::<String>())).sum::<usize>();
            let encoders = merged.heads.iter().flatten().count() * size_of::<FamilyHead>();
            texts + labels + encoders + merged.chunks.capacity() * 4
        });
        of_entries.sum::<usize>()
            + self.entries.capacity() * size_of::<Option<MergedFamily>>()
            + (self.order.capacity() + self.exposed.capacity()) * 4
    }
}

impl MergedFamily {
    fn new(family: Family, declared: (u64, u64)) -> MergedFamily {
        let lines = match &family.kind {
            FamilyType::Histogram(buckets) => buckets.classic.len() + 3,
            _ => 1,
        };
        let mut merged = MergedFamily {
            name: family.name.as_str().into(),
            labels: Vec::new(),
            born: declared.1,
            declared,
            segments: 1,
            series: 0,
            chunks: Vec::new(),
            chunk_series_max: (CHUNK_LINES / lines).clamp(1, CHUNK_SERIES_MAX),
            shape: Shape::of(&family),
            heads: Default::default(),
            family,
        };
        let family = merged.family.clone();
        merged.add_labels(&family);
        merged
    }

    fn add_labels(&mut self, family: &Family) {
        for label in &family.labels {
            if !self.labels.contains(label) {
                self.labels.push(label.clone());
            }
        }
    }

    /// The head, which is made on first use.
    pub(super) fn head(&mut self, format: Format, options: EncodeOptions) -> &mut FamilyHead {
        let family = &self.family;
        self.heads[format as usize].get_or_insert_with(|| {
            let encoder = FamilyEncoder::new(family, format, options);
            let mut header = Vec::new();
            encoder.header(&mut header);
            Box::new(FamilyHead { encoder, header: EncodedChunk::new(header, Vec::new()) })
        })
    }

    /// The family with the encoder of its series.
    pub(super) fn encoder(&mut self, format: Format, options: EncodeOptions) -> (&MergedFamily, &FamilyEncoder) {
        self.head(format, options);
        let head = self.heads[format as usize].as_ref().expect("made above");
        (self, &head.encoder)
    }
}
