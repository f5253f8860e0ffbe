//! Reads the segments of any number of writers as one exposition, with work in proportion to the changes.
//!
//! ```text
//!  segments ──discover──▶ store: which records are which series ──order──▶ chunks of sorted series, each kept encoded
//!     └──────scan: which values changed──────────────────────────────────────▲ marks          │ encodes what is marked
//!                                                                                    cursor: pieces of an exposition
//! ```
//!
//! A reader belongs to one thread; writers never wait for it and do not know of it. Values are not copied on refresh
//! but read when they are encoded, so each piece of an exposition is as fresh as the moment in which it is produced.

mod anchors;
mod cardinality;
mod chunk;
mod cursor;
mod discover;
mod families;
mod folding;
mod gather;
mod leaving;
mod lookup;
mod mount;
mod order;
mod records;
mod sort;
mod store;
#[cfg(test)]
mod tests;
mod values;
mod visit;

pub use cardinality::{FamilyCardinality, LabelCardinality};
pub use cursor::ExpositionCursor;
pub(crate) use folding::{Fold, FoldedSet};
pub(crate) use lookup::LocatedSeries;
pub(crate) use mount::{Mount, Mounts};
pub(crate) use records::{LiveRecord, Share};

use crate::encode;
use crate::gzip::Deflater;
use crate::protocol;
use crate::segment::SegmentProcess;
use chunk::{ChunkScratch, FORMATS};
use folding::FoldedSegments;
use leaving::{LeavingRecord, Tombstone};
use mount::{MOUNTS_MAX, MountedSegment, RecordLocation};
use order::Order;
use std::fmt;
use std::sync::Arc;
use store::Store;

/// Options of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Optional parts of the exposition.
    pub encode: encode::EncodeOptions,
    /// Bytes of encoded text that are cached; beyond that, chunks are encoded again for each scrape.
    pub cache_bytes_max: usize,
    /// The cache of a format is dropped when the format was not requested for this long.
    pub cache_idle_ms: u64,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        ReaderOptions {
            encode: encode::EncodeOptions::default(),
            cache_bytes_max: 256 << 20,
            cache_idle_ms: 5 * 60 * 1000,
        }
    }
}

/// The result of a refresh.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RefreshSummary {
    /// Number of new series.
    pub series_new: usize,
    /// Number of removed series.
    pub series_gone: usize,
    /// Number of values that may have changed, counted in every segment.
    pub changed: usize,
    /// Families that are not exposed, as a later declaration has their name and another type, unit or buckets.
    pub hidden_families: usize,
    /// Segments that could not be read further; each is named once.
    pub damaged: Vec<DamagedSegment>,
    /// Segments beyond the number that can be read.
    pub unread_segments: usize,
    /// Label sets that count as others from now on, as a label has collapsed.
    pub(crate) folded: Vec<FoldedSet>,
}

/// A segment whose content is not what a writer makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedSegment {
    /// Process that writes it.
    pub process: SegmentProcess,
    /// Serial number of the segment.
    pub serial: u64,
    /// The word of the log at which reading ended.
    pub word: usize,
}

/// Memory of a reader, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderBytes {
    /// Tables: the entries of series.
    pub reader: usize,
    /// Encoded text, and its index.
    pub cache: usize,
}

/// Immutable bytes of an exposition, shared by all responses that send them.
#[derive(Debug, Clone)]
pub struct Piece {
    bytes: Arc<Vec<u8>>,
}

impl Piece {
    fn of(bytes: &[u8]) -> Piece {
        Piece { bytes: Arc::new(bytes.to_vec()) }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The reader of a process.
pub struct Reader {
    options: ReaderOptions,
    store: Store,
    order: Order,
    scratch: ChunkScratch,
    deflater: Deflater,
    /// The version of the mounts that were mounted last.
    mounts_version: Option<u64>,
    refreshes: u64,
    now_ms: u64,
    /// When each format was last requested.
    used_ms: [u64; FORMATS],
    /// Chunks with dead series.
    touched: Vec<u32>,
    /// Tombstones that were not applied yet.
    ended: Vec<Tombstone>,
    leaving: Vec<LeavingRecord>,
    folding: FoldedSegments,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("series", &self.store.len()).finish_non_exhaustive()
    }
}

impl Reader {
    /// Creates a reader that has not read anything yet.
    pub fn new(options: ReaderOptions) -> Reader {
        Reader {
            options,
            store: Store::default(),
            order: Order::default(),
            scratch: ChunkScratch::default(),
            deflater: Deflater::new(),
            mounts_version: None,
            refreshes: 0,
            now_ms: 0,
            used_ms: [0; FORMATS],
            touched: Vec::new(),
            ended: Vec::new(),
            leaving: Vec::new(),
            folding: FoldedSegments::default(),
        }
    }

    /// Reads the changes: segments, series, values. Segments that replace others (a base in place of the dead ones
    /// whose totals it has) are taken in the same step, so that totals never step back.
    pub(crate) fn refresh(&mut self, mounts: &Mounts, now_ms: u64) -> RefreshSummary {
        let mut refreshed = RefreshSummary::default();
        self.refreshes += 1;
        self.now_ms = now_ms;
        self.drop_exposed(&mut refreshed);
        let gone = match self.mounts_version == Some(mounts.version) {
            true => Vec::new(),
            false => self.mount(mounts, &mut refreshed),
        };
        let anchors = self.store.anchors.mount;
        let mounted =
            |mount: &u16| self.store.mounts[*mount as usize].is_some() && !gone.contains(mount) && *mount != anchors;
        let present: Vec<u16> = (0..self.store.mounts.len() as u16).filter(mounted).collect();
        for mount in present {
            // Loaded before anything is checked.
            let epoch = protocol::epoch(&self.store.mounted(mount).segment.header().epoch);
            self.discover(mount, &mut refreshed);
            refreshed.changed += self.scan(mount, epoch, now_ms);
        }
        for series in std::mem::take(&mut self.scratch.unsettled) {
            self.order.mark(&self.store, series);
        }
        self.apply_folds(&mut refreshed);
        self.apply_ended(&mut refreshed);
        gone.iter().for_each(|mount| self.drop_contributions(*mount, &mut refreshed));
        self.put_in_order();
        gone.into_iter().for_each(|mount| self.unmount(mount));
        self.store.forget_anchors();
        self.forget_idle_formats();
        refreshed.hidden_families = self.order.families.hidden();
        refreshed
    }

    /// Mounts new segments; returns those to remove, which still count until all others have been read.
    fn mount(&mut self, mounts: &Mounts, refreshed: &mut RefreshSummary) -> Vec<u16> {
        self.mounts_version = Some(mounts.version);
        let is_listed = |mounted: &MountedSegment| mounts.segments.iter().any(|mount| mounted.is(mount));
        let anchors = usize::from(self.store.anchors.mount);
        let slots = self.store.mounts.iter().enumerate().filter(|(slot, _)| *slot != anchors);
        let gone = slots.filter(|(_, slot)| slot.as_ref().is_some_and(|mounted| !is_listed(mounted)));
        let gone = gone.map(|(slot, _)| slot as u16).collect();
        for mount in &mounts.segments {
            if let Some(known) =
                self.store.mounts.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.is(mount)))
            {
                self.note_death(known as u16, mount.is_alive, refreshed);
                continue;
            }
            let mounted = Some(MountedSegment::new(mount, self.now_ms));
            match self.store.mounts.iter().position(Option::is_none) {
                Some(free) => self.store.mounts[free] = mounted,
                None if self.store.mounts.len() < MOUNTS_MAX => self.store.mounts.push(mounted),
                None => refreshed.unread_segments += 1,
            }
        }
        gone
    }

    /// Drops the gauges of a process that has died, as they are no longer true.
    fn note_death(&mut self, mount: u16, is_alive: bool, refreshed: &mut RefreshSummary) {
        let mounted = self.store.mounted_mut(mount);
        if !mounted.is_alive || is_alive {
            return;
        }
        mounted.is_alive = false;
        for number in 0..self.store.mounted(mount).contributions.len() as u32 {
            let mounted = self.store.mounted(mount);
            let declared = mounted.declared(mounted.contributions[number as usize].record());
            let family = declared.map(|declared| self.order.families.get(declared.family));
            if family.is_some_and(|family| family.family.kind.ends_with_its_process()) {
                self.drop_place(RecordLocation { number, mount }, refreshed);
            }
        }
    }

    /// Removes a segment's records from all series.
    fn drop_contributions(&mut self, mount: u16, refreshed: &mut RefreshSummary) {
        self.leaving.retain(|leaving| leaving.place.mount != mount);
        let mut taken = Vec::new();
        self.store.take_mount(mount, |unlinked| taken.push(unlinked));
        taken.into_iter().for_each(|unlinked| self.note_taken(unlinked, refreshed));
    }

    /// Removes dead series from the order and inserts new ones.
    fn put_in_order(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        if !touched.is_empty() {
            self.order.prune(&mut self.store, touched);
        }
        let mut pending = std::mem::take(&mut self.store.pending);
        pending.retain(|(_, slot)| !slot.is_dead());
        // Stable: this keeps the order of the segments, in which labels are read fastest.
        pending.sort_by_key(|(family, _)| *family);
        for group in pending.chunk_by(|(a, _), (b, _)| a == b) {
            self.order.insert(&mut self.store, group[0].0, group);
        }
    }

    fn unmount(&mut self, mount: u16) {
        if let Some(mounted) = self.store.mounts[mount as usize].take() {
            for declared in mounted.families.iter().flatten() {
                self.folding.undeclare(declared.folds);
                self.order.undeclare(declared);
            }
        }
    }

    fn forget_idle_formats(&mut self) {
        for format in 0..FORMATS {
            let idle_ms = self.now_ms.saturating_sub(self.used_ms[format]);
            if self.order.active[format] && idle_ms > self.options.cache_idle_ms {
                self.order.forget_format(format);
            }
        }
    }

    /// Changes the options, which invalidates the cache.
    pub(crate) fn set_options(&mut self, options: ReaderOptions) {
        if options.encode != self.options.encode {
            (0..FORMATS).for_each(|format| self.order.forget_format(format));
        }
        self.options = options;
    }

    /// Visits the exposed families: name and number of series.
    pub(crate) fn families(&self, mut visit: impl FnMut(&str, usize)) {
        for merged in self.order.families.exposed.iter().map(|id| self.order.families.get(*id)) {
            visit(&merged.name, merged.series);
        }
    }

    /// Whether one of the exposed families is a counter whose type is `unknown` in OpenMetrics.
    pub(crate) fn has_unknown(&self) -> bool {
        let families = &self.order.families;
        families.exposed.iter().any(|id| families.get(*id).family.is_unknown_in_openmetrics())
    }

    /// Number of series, whether their family is exposed or not.
    pub fn series(&self) -> usize {
        self.store.len()
    }

    /// The memory that the reader takes.
    pub fn bytes(&self) -> ReaderBytes {
        let reader = size_of::<Reader>() + self.store.bytes() + self.order.bytes();
        ReaderBytes { reader, cache: self.order.cached + self.order.families.cached() }
    }
}
