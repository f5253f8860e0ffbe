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

mod appended;
mod chunk;
mod cursor;
mod families;
mod folding;
mod gather;
mod mount;
mod order;
mod store;
#[cfg(test)]
mod tests;

use crate::family::{Family, FamilyType};
use crate::gzip::Deflater;
use crate::labels::{LabelPairs, value_of};
use crate::segment::SegmentProcess;
use crate::segment::layout::HEAD_WORDS;
use crate::sync::{AtomicU64, ReadOnly};
use crate::{encode, protocol};
use appended::{LeavingRecord, Tombstone};
use chunk::{ChunkScratch, FORMATS};
pub use cursor::ExpositionCursor;
use families::MergedFamily;
use folding::FoldedSegments;
pub(crate) use folding::{Fold, FoldedSet};
use mount::{FamilyId, MOUNTS_MAX, MountedSegment, NO_SERIES, RecordLocation};
pub(crate) use mount::{Mount, Mounts};
use order::Order;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use store::{SeriesSlot, Store};

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
            let epoch = protocol::epoch(&self.store.mount(mount).segment.header().epoch);
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
        let mounted = self.store.mount_mut(mount);
        if !mounted.is_alive || is_alive {
            return;
        }
        mounted.is_alive = false;
        for number in 0..self.store.mount(mount).contributions.len() as u32 {
            let mounted = self.store.mount(mount);
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

// One segment's share of a reader's series: how many of its records still count, and the records one by one.

/// How much of a segment still counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Records that count.
    pub(crate) living: usize,
    /// All records of series.
    pub(crate) all: usize,
    /// Number of those that have ended and wait to be exposed once more.
    pub(crate) leaving: usize,
    /// Number of those that count for another label set than their own.
    pub(crate) folded: usize,
    /// Whether all records that have been committed by now were read.
    pub(crate) is_read: bool,
}

/// A record that counts.
pub(crate) struct LiveRecord<'a> {
    pub(crate) family: &'a Family,
    /// Labels of the series that it counts for.
    pub(crate) labels: &'a [u8],
    pub(crate) created_ms: u64,
    /// A time after which it has not changed.
    pub(crate) changed_ms: u64,
    pub(crate) cells: &'a [ReadOnly<AtomicU64>],
}

impl Reader {
    fn mounted_as(&self, process: SegmentProcess, serial: u64) -> Option<&MountedSegment> {
        let is_it = |mounted: &&MountedSegment| mounted.segment.process == process && mounted.segment.serial == serial;
        self.store.mounts.iter().flatten().find(is_it)
    }

    /// Whether the segment exists.
    pub(crate) fn has_segment(&self, process: SegmentProcess, serial: u64) -> bool {
        self.mounted_as(process, serial).is_some()
    }

    /// How much of a segment counts; `None` if it is not read, or not in full.
    pub(crate) fn share(&self, process: SegmentProcess, serial: u64) -> Option<Share> {
        let mounted = self.mounted_as(process, serial).filter(|mounted| !mounted.is_damaged)?;
        let living = mounted.contributions.iter().filter(|each| each.series != NO_SERIES);
        let leaving = living.clone().filter(|each| each.is_leaving()).count();
        let folded = living.clone().filter(|each| each.is_folded()).count();
        let is_read = mounted.read_to >= mounted.segment.committed().min(mount::LOG_WORDS_MAX);
        Some(Share { living: living.count(), all: mounted.contributions.len(), leaving, folded, is_read })
    }

    /// Visits the records of a segment that count.
    pub(crate) fn records(&self, process: SegmentProcess, serial: u64, mut visit: impl FnMut(LiveRecord<'_>)) {
        let Some(mounted) = self.mounted_as(process, serial) else { return };
        let records = mounted.contributions.iter().enumerate();
        for (number, contribution) in records.filter(|(_, each)| each.series != NO_SERIES) {
            let at = contribution.record();
            let Some(declared) = mounted.declared(at) else { continue };
            let cells = &mounted.segment.log()[at + HEAD_WORDS..][..declared.shape.words];
            let family = &self.order.families.get(declared.family).family;
            let changed_ms = mounted.changed_ms(number as u32, self.now_ms);
            let labels = match contribution.is_folded() {
                true => self.store.text(self.store.slot(contribution.series)),
                false => mounted.text(at),
            };
            visit(LiveRecord { family, labels, created_ms: mounted.created_ms(at), changed_ms, cells });
        }
    }
}

// Finds the series to end: those that have not changed for long, and those of an owner that is gone.
//
// This only finds them; ending a series needs its writers' consent. It takes time in proportion to all series, and is
// called only now and then.

/// Location of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordAddress {
    pub(crate) process: SegmentProcess,
    /// Serial number of the segment.
    pub(crate) serial: u64,
    /// Position in words of its log, as in a tombstone.
    pub(crate) record: usize,
}

/// A series, with all of its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocatedSeries {
    pub(crate) family: Arc<str>,
    /// The label text as in the segments: escaped and joined.
    pub(crate) labels: Vec<u8>,
    pub(crate) records: Vec<RecordAddress>,
}

impl Reader {
    /// Up to `max` counters and histograms whose value no writer has changed for `ttl_ms` before the last refresh, as
    /// far as the writers' ticks since this reader began show: never one that was changed later. A gauge that does not
    /// change is as true as one that does.
    pub(crate) fn idle(&self, own: SegmentProcess, ttl_ms: u64, max: usize) -> Vec<LocatedSeries> {
        let Some(before_ms) = self.now_ms.checked_sub(ttl_ms) else { return Vec::new() };
        let counts = |merged: &MergedFamily| !matches!(merged.family.kind, FamilyType::Gauge(_) | FamilyType::Info);
        self.locate_series(own, max, counts, |_, series| {
            self.store.places(series).all(|(place, _)| self.store.mount(place.mount).is_idle(place.number, before_ms))
        })
    }

    /// Up to `max` series of all families that have one of these values in these labels, which must be as many as there
    /// are labels.
    pub(crate) fn with_labels(
        &self,
        own: SegmentProcess,
        labels: &[String],
        values: &HashSet<Vec<String>>,
        max: usize,
    ) -> Vec<LocatedSeries> {
        let has_labels = |merged: &MergedFamily| labels.iter().all(|label| merged.labels.contains(label));
        // Looked up without an allocation for each series.
        let found = RefCell::new(vec![String::new(); labels.len()]);
        self.locate_series(own, max, has_labels, |_, series| {
            let mut found = found.borrow_mut();
            let text = self.store.text(series);
            let are_there = labels.iter().zip(found.iter_mut()).all(|(label, found)| {
                found.clear();
                value_of(text, label).map(|value| found.push_str(&value)).is_some()
            });
            are_there && values.contains(&found[..])
        })
    }

    /// Up to `max` series of this process, and of ended ones, whose family is not in use: `in_use` has the labels of
    /// each family by name.
    pub(crate) fn unused(
        &self,
        in_use: &HashMap<String, Vec<Vec<String>>>,
        own: SegmentProcess,
        max: usize,
    ) -> Vec<LocatedSeries> {
        let known = |merged: &MergedFamily| in_use.get(&*merged.name).map_or(&[][..], Vec::as_slice);
        // Usually a family has the expected labels, and its series need not be checked.
        let may_be = |merged: &MergedFamily| !matches!(known(merged), [labels] if *labels == merged.labels);
        self.locate_series(own, max, may_be, |merged, series| {
            let names = || LabelPairs::new(self.store.text(series)).map(|(name, _)| name);
            !known(merged).iter().any(|labels| names().eq(labels.iter().map(String::as_str)))
        })
    }

    /// Live series of another process are skipped: only that process can ask its writers.
    fn locate_series(
        &self,
        own: SegmentProcess,
        max: usize,
        may_be: impl Fn(&MergedFamily) -> bool,
        wanted: impl Fn(&MergedFamily, SeriesSlot) -> bool,
    ) -> Vec<LocatedSeries> {
        let families = self.order.families.all().filter(|merged| may_be(merged));
        let series = families.flat_map(|merged| {
            let slots = merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]);
            slots.map(move |slot| (merged, *slot))
        });
        let lives = |series: SeriesSlot| !self.store.places(series).all(|(_, each)| each.is_leaving());
        let is_ours = |series: SeriesSlot| {
            let mut mounts = self.store.places(series).map(|(at, _)| self.store.mount(at.mount));
            mounts.all(|mounted| mounted.segment.process == own || !mounted.is_alive)
        };
        let found =
            series.filter(|(merged, series)| lives(*series) && wanted(merged, *series) && is_ours(*series)).take(max);
        found.map(|(merged, series)| self.locate(merged.name.clone(), series)).collect()
    }

    fn locate(&self, family: Arc<str>, series: SeriesSlot) -> LocatedSeries {
        let records = self.store.places(series).filter(|(_, each)| !each.is_leaving());
        let located = records.map(|(place, contribution)| {
            let segment = &self.store.mount(place.mount).segment;
            RecordAddress { process: segment.process, serial: segment.serial, record: contribution.record() }
        });
        LocatedSeries { family, labels: self.store.text(series).to_vec(), records: located.collect() }
    }
}

// The number of series of each family, to find the label that explodes.

/// Series of a family that are shown with all labels.
const EXAMPLES_MAX: usize = 5;

/// Most distinct values of a label that are shown.
const SAMPLES_MAX: usize = 5;
/// Most series of a family that are searched for them, spread over all.
const LOOKED_AT_MAX: usize = 20_000;

/// One family's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyCardinality {
    /// The family's name.
    pub name: String,
    /// Its series, merged over all writers.
    pub series: usize,
    /// Bytes of their records in the segments.
    pub bytes: usize,
    /// Its labels, in the order of the declaration.
    pub labels: Vec<LabelCardinality>,
    /// Labels and values of some of the newest series.
    pub examples: Vec<Vec<(String, String)>>,
}

/// A label of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelCardinality {
    /// The label's name.
    pub name: String,
    /// About how many distinct values it has had, including values that are counted as `__other__`; 0: not known here.
    pub distinct: u64,
    /// Whether its values are counted as `__other__`.
    pub collapsed: bool,
    /// Some of its values.
    pub samples: Vec<String>,
}

impl LabelCardinality {
    fn of(name: &str) -> LabelCardinality {
        LabelCardinality { name: name.to_owned(), distinct: 0, collapsed: false, samples: Vec::new() }
    }
}

impl Reader {
    /// All exposed families, sorted by the memory of their records, largest first: folded series still take some.
    pub fn cardinality(&self) -> Vec<FamilyCardinality> {
        let families = self.order.families.exposed.iter().map(|id| (*id, self.order.families.get(*id)));
        let mut all: Vec<FamilyCardinality> = families.map(|(id, merged)| self.cardinality_of(id, merged)).collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        all
    }

    fn cardinality_of(&self, id: FamilyId, merged: &MergedFamily) -> FamilyCardinality {
        let series = || merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]).copied();
        let records = series().flat_map(|series| self.store.places(series));
        let words = records.map(|(place, each)| {
            let head = self.store.mount(place.mount).head(each.record());
            // The epoch word of the series belongs to it.
            head.map_or(0, |head| head.words as usize * 8 + 4)
        });
        let label = |name: &String| {
            let samples = self.folding.samples(id, name).take(SAMPLES_MAX).cloned().collect();
            LabelCardinality { samples, ..LabelCardinality::of(name) }
        };
        let mut labels: Vec<LabelCardinality> = merged.labels.iter().map(label).collect();
        let step = merged.series.div_ceil(LOOKED_AT_MAX).max(1);
        for series in series().step_by(step) {
            if labels.iter().all(|label| label.samples.len() == SAMPLES_MAX) {
                break;
            }
            for (name, value) in LabelPairs::new(self.store.text(series)) {
                let label = labels.iter_mut().find(|label| label.name == name);
                if let Some(label) = label.filter(|label| label.samples.len() < SAMPLES_MAX)
                    && !label.samples.iter().any(|sample| *sample == value)
                {
                    label.samples.push(value.into_owned());
                }
            }
        }
        let newest = series().skip(merged.series.saturating_sub(EXAMPLES_MAX));
        let pairs = |series| {
            let labels = LabelPairs::new(self.store.text(series));
            labels.map(|(name, value)| (name.to_owned(), value.into_owned())).collect()
        };
        FamilyCardinality {
            name: merged.family.name.clone(),
            series: merged.series,
            bytes: words.sum(),
            labels,
            examples: newest.map(pairs).collect(),
        }
    }
}
