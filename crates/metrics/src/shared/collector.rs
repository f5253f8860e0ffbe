//! The public interface of reading: all values of an exposition, whatever their source, and the maintenance of series.
//!
//! A collector belongs to one thread of low priority. It scrapes on request ([`Collector::refresh`], then a
//! [`ExpositionCursor`]), and maintains the metrics once in a while ([`Collector::tend`]): ending series, ended processes, events
//! for the operator.

use super::directory::{Directory, DirectoryError, SegmentName};
use super::ending::{Endings, set_of};
use super::rotation::{Rotation, fold, fold_inherited};
use crate::declared::DeclaredFamily;
use crate::encode::Format;
use crate::family::Family;
use crate::reader::{
    DamagedSegment, ExpositionCursor, FamilyCardinality, FoldedSet, Mount, Mounts, Piece, Reader, ReaderOptions,
};
use crate::registry::{Registry, RegistryError, SegmentStorage};
use crate::segment::{Segment, SegmentError};
use crate::value::Value;
use crate::writer::Writer;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of records, some thousand series, that are read within a few hundred microseconds even if all are new.
const SMALL_BYTES: usize = 256 << 10;
/// Interval of the checks for ended processes.
const FOLD_MS: u64 = 2_000;

/// Options of a collector.
#[derive(Debug, Clone, Default)]
pub struct CollectorOptions {
    /// Options of its reader.
    pub reader: ReaderOptions,
    /// Counters and histograms that do not change for so long end; `None`: never.
    pub expire_ms: Option<u64>,
    /// The gauge of series by `family`, to be kept up to date.
    pub series: Option<Arc<DeclaredFamily>>,
    /// The gauge of bytes by `part`, to be kept up to date.
    pub bytes: Option<Arc<DeclaredFamily>>,
    /// The families in use; series of other families, declared earlier, are exposed once more and end. `None`: all are
    /// in use.
    pub in_use: Option<Vec<Arc<DeclaredFamily>>>,
}

/// The reason why there is nothing to expose.
#[derive(Debug)]
pub enum CollectError {
    /// The shared folder does not exist (yet), or cannot be read.
    Directory(DirectoryError),
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectError::Directory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CollectError {}

/// An event for the operator, reported once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CollectorEvent {
    /// A label has so many values that they are counted as `__other__`.
    Collapsed {
        /// The family.
        family: String,
        /// The label.
        label: String,
        /// About how many distinct values it has had.
        distinct: u64,
    },
    /// The file system of the shared folder is full, so that new label values are counted as `__other__`.
    StorageFull(String),
    /// A segment cannot be read, or only up to some place.
    Damaged(String),
    /// Totals of ended processes could not be folded.
    NotFolded(String),
    /// Totals of ended processes have been folded.
    Folded {
        /// Segments that were replaced.
        segments: usize,
        /// Series carried on.
        series: usize,
    },
    /// Families are not exposed, as others of another kind have their name.
    Hidden(usize),
}

impl fmt::Display for CollectorEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectorEvent::Collapsed { family, label, distinct } => write!(
                f,
                "the label {label} of {family} has had about {distinct} values: all are counted as __other__ from now on; \
                 leave the label out, or raise gateway.metrics.series_per_family; docs/monitoring.md, \"Labels that explode\", says how far"
            ),
            CollectorEvent::StorageFull(folder) => write!(
                f,
                "the disk or tmpfs of gateway.metrics.shared, {folder}, is full: new values of labels are counted as \
                 __other__; make room there"
            ),
            CollectorEvent::Damaged(what) => write!(f, "{what}; the rest of it is not exposed"),
            CollectorEvent::NotFolded(why) => write!(f, "totals of ended processes stay in their segments: {why}"),
            CollectorEvent::Folded { segments, series } => {
                write!(f, "totals of ended processes are carried on: {series} series of {segments} segments")
            }
            CollectorEvent::Hidden(families) => {
                write!(f, "{families} families are not exposed: later declarations use their names")
            }
        }
    }
}

/// Reads segments, and maintains series.
pub struct Collector {
    source: SegmentSource,
    reader: Reader,
    /// For tombstones and the collector's own gauges, where the registry is this process's.
    writer: Option<Writer>,
    endings: Endings,
    options: CollectorOptions,
    rotation: Rotation,
    next_fold_ms: u64,
    now_ms: u64,
    /// Families whose number of series was in the last report.
    reported: HashSet<String>,
    seen_events: HashSet<CollectorEvent>,
    events: Vec<CollectorEvent>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl Collector {
    /// Creates a collector for this process's registry, and for all processes that share its folder.
    pub fn of_registry(registry: Arc<Registry>, options: CollectorOptions) -> Result<Collector, RegistryError> {
        let writer = registry.exempt_writer()?;
        Ok(Collector::new(SegmentSource::of(registry), Some(writer), options))
    }

    /// Creates a collector for a folder that other processes write to, which need not exist yet.
    pub fn open(folder: &Path, options: CollectorOptions) -> Collector {
        Collector::new(SegmentSource::Folder(Folder::new(folder.to_owned(), None)), None, options)
    }

    fn new(source: SegmentSource, writer: Option<Writer>, options: CollectorOptions) -> Collector {
        let mut endings = Endings::new(options.expire_ms);
        endings.use_only(options.in_use.as_deref());
        Collector {
            source,
            reader: Reader::new(options.reader),
            writer,
            endings,
            options,
            rotation: Rotation::default(),
            next_fold_ms: 0,
            now_ms: 0,
            reported: HashSet::new(),
            seen_events: HashSet::new(),
            events: Vec::new(),
        }
    }

    /// Reads the changes since the last call.
    pub fn refresh(&mut self, now_ms: u64) -> Result<(), CollectError> {
        self.now_ms = now_ms;
        let mut unreadable: Vec<SegmentError> = Vec::new();
        let mounts = self.source.mounts(now_ms, &mut unreadable);
        unreadable.into_iter().for_each(|error| self.report_once(CollectorEvent::Damaged(error.to_string())));
        let refreshed = self.reader.refresh(&mounts.map_err(CollectError::Directory)?, now_ms);
        if refreshed.series_new > 0 {
            self.endings.schedule_look(now_ms);
        }
        self.settle(&refreshed.folded);
        for DamagedSegment { process, serial, word } in refreshed.damaged {
            let what = format!("segment {serial} of process {} holds no record at word {word}", process.pid);
            self.report_once(CollectorEvent::Damaged(what));
        }
        if refreshed.hidden_families > 0 {
            self.report_once(CollectorEvent::Hidden(refreshed.hidden_families));
        }
        Ok(())
    }

    /// Takes folded label sets out of the budgets of their families, and counts the sets that they were folded into.
    fn settle(&self, folded: &[FoldedSet]) {
        let Some(registry) = self.source.registry() else { return };
        let families = registry.families();
        let process = registry.process();
        for set in folded.iter().filter(|set| set.process == process) {
            if let Some((family, hash)) = set_of(&families, registry, &set.family, &set.labels) {
                family.sets.remove(hash);
            }
            if let Some((family, hash)) = set_of(&families, registry, &set.family, &set.to) {
                family.sets.insert(hash);
            }
        }
        for family in families.iter().filter(|family| !family.is_settled(family.policy())) {
            let Family { name, labels, .. } = family.family();
            family.settle(self.reader.applied_fold(process, name, labels).generation);
        }
    }

    /// Reads the changes since the last call, and encodes all series. Programs with many series write the pieces of a
    /// [`Collector::cursor`] one by one instead.
    pub fn exposition(&mut self, format: Format, now_ms: u64) -> Result<Vec<u8>, CollectError> {
        self.refresh(now_ms)?;
        let mut cursor = self.cursor(format, false, None);
        let mut text = Vec::new();
        while let Some(piece) = self.next(&mut cursor) {
            text.extend_from_slice(piece.as_ref());
        }
        Ok(text)
    }

    /// Begins an exposition of the state of the last refresh; of some families only, if `names` are given.
    pub fn cursor(&mut self, format: Format, gzip: bool, names: Option<Vec<String>>) -> ExpositionCursor {
        self.reader.cursor(format, gzip, names)
    }

    /// The next piece of an exposition.
    pub fn next(&mut self, cursor: &mut ExpositionCursor) -> Option<Piece> {
        self.reader.next(cursor)
    }

    /// Whether maintaining everything is no more work than waking another thread for it.
    pub fn is_small(&self) -> bool {
        self.source.registry().is_some_and(|registry| registry.record_bytes() <= SMALL_BYTES)
    }

    /// Maintains everything that takes time. True: there is more to do, soon; otherwise in a second.
    pub fn tend(&mut self, now_ms: u64) -> bool {
        let Some(registry) = self.source.registry().cloned() else {
            // Refreshing now saves time in the next scrape, which also reports an error.
            let _ = self.refresh(now_ms);
            return false;
        };
        self.beat(&registry, now_ms);
        if registry.inner.is_handed_over() {
            // The successor maintains them.
            return false;
        }
        self.carry_on(&registry, now_ms);
        // Without the folder there is nothing to maintain.
        if self.refresh(now_ms).is_err() {
            return false;
        }
        self.report_collapses(&registry);
        let Some(writer) = &mut self.writer else { return false };
        let is_busy = self.endings.step(&self.reader, &registry, writer, now_ms);
        let rotated = match is_busy {
            true => Ok(true),
            false => self.rotation.step(&self.reader, &registry, writer.serial(), now_ms),
        };
        if !registry.inner.is_short() {
            registry.families().iter().for_each(|family| family.reopen(now_ms));
        }
        let compacted = self.endings.tombstones.compact(&self.reader, &registry, writer);
        self.report(&registry);
        match rotated.and_then(|is_busy| compacted.map(|()| is_busy)) {
            Ok(is_busy) => is_busy,
            Err(error) => {
                self.report_once(CollectorEvent::NotFolded(error.to_string()));
                false
            }
        }
    }

    /// Ends the series with these values of a label, or of several labels together, whose object (a route, a node of an
    /// upstream) is gone: they are exposed once more and end.
    pub fn remove(&mut self, labels: Vec<String>, values: Vec<Vec<String>>) {
        self.endings.remove(labels, values);
    }

    /// Cancels [`Collector::remove`] for values that exist (again).
    pub fn restore(&mut self, labels: &[String], values: &[Vec<String>]) {
        self.endings.restore(labels, values);
    }

    /// Changes the options that can change while it runs.
    pub fn set_options(&mut self, options: CollectorOptions) {
        self.endings.expire_ms = options.expire_ms;
        self.endings.use_only(options.in_use.as_deref());
        if options.reader != self.options.reader {
            self.reader.set_options(options.reader);
        }
        self.options = options;
    }

    /// Whether the text format says more than OpenMetrics: there are, or will be, counters whose type is `unknown`
    /// there, and no exemplars, which text does not have.
    pub fn ranks_text_first(&self) -> bool {
        let mut in_use = self.options.in_use.iter().flatten().map(|declared| declared.family());
        let has_unknown = in_use.clone().any(Family::is_unknown_in_openmetrics) || self.reader.has_unknown();
        has_unknown && !in_use.any(|family| family.exemplars)
    }

    /// Number of exposed series.
    pub fn series(&self) -> usize {
        self.reader.series()
    }

    /// Number of series that have ended, by expiry or removal.
    pub fn ended(&self) -> u64 {
        self.endings.ended
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<CollectorEvent> {
        std::mem::take(&mut self.events)
    }

    /// Each family's series, bytes and labels, the largest first.
    pub fn cardinality(&mut self) -> Vec<FamilyCardinality> {
        let mut families = self.reader.cardinality();
        let declared = self.source.registry().map(|registry| registry.families()).unwrap_or_default();
        for family in &mut families {
            for label in &mut family.labels {
                for (distinct, is_collapsed) in
                    declared.iter().filter_map(|each| each.label_cardinality(&family.name, &label.name))
                {
                    label.distinct = label.distinct.max(distinct);
                    label.collapsed |= is_collapsed;
                }
            }
        }
        families
    }

    /// Visits every series of an exposed family: labels, as [`labels::Pairs`](crate::labels::Pairs) reads them, and
    /// value. `None`: there is no family of this name.
    pub fn visit(&self, family: &str, visit: impl FnMut(&[u8], Value<'_>)) -> Option<&Family> {
        self.reader.visit(family, visit)
    }

    /// Records that this process is alive.
    fn beat(&mut self, registry: &Registry, now_ms: u64) {
        let SegmentStorage::Shared(directory) = &registry.inner.place else { return };
        if let Err(error) = directory.beat(registry.process(), now_ms) {
            self.report_once(CollectorEvent::NotFolded(error.to_string()));
        }
    }

    /// Carries on the totals of processes that have ended.
    fn carry_on(&mut self, registry: &Registry, now_ms: u64) {
        if now_ms < self.next_fold_ms {
            return;
        }
        self.next_fold_ms = now_ms + FOLD_MS;
        let folded = match &registry.inner.place {
            SegmentStorage::Shared(directory) => fold(directory, &registry.inner.options, now_ms),
            _ => fold_inherited(registry, now_ms),
        };
        match folded {
            Ok(folded) if folded.segments > 0 => {
                // Series of another process may belong to a route, or a family, that is gone.
                self.endings.schedule_look(now_ms);
                if folded.damaged > 0 {
                    let what = format!("{} segments of ended processes were damaged; see *.damaged", folded.damaged);
                    self.report_once(CollectorEvent::Damaged(what));
                }
                self.events.push(CollectorEvent::Folded { segments: folded.segments, series: folded.series });
            }
            Ok(_) => {}
            Err(error) => {
                self.report_once(CollectorEvent::NotFolded(error.to_string()));
            }
        }
    }

    /// A collapse for want of room on the disk says nothing about the label.
    fn report_collapses(&mut self, registry: &Registry) {
        let full_folder = registry.inner.full_folder().map(|folder| folder.display().to_string());
        if let Some(folder) = &full_folder {
            self.report_once(CollectorEvent::StorageFull(folder.clone()));
        }
        for declared in registry.families() {
            let collapsed = declared.collapsed();
            let labels = declared.family().labels.iter().enumerate();
            for (index, label) in labels.filter(|(index, _)| collapsed & (1 << index) != 0) {
                let (family, label) = (declared.family().name.clone(), label.clone());
                let key = CollectorEvent::Collapsed { family: family.clone(), label: label.clone(), distinct: 0 };
                if self.seen_events.insert(key) && full_folder.is_none() {
                    self.events.push(CollectorEvent::Collapsed { family, label, distinct: declared.distinct()[index] });
                }
            }
        }
    }

    /// Sets the collector's own gauges.
    fn report(&mut self, registry: &Registry) {
        let Some(writer) = &mut self.writer else { return };
        let mut set = |family: &Arc<DeclaredFamily>, value: &str, number: usize| {
            let handle = writer.series(family, &[value.as_bytes()]);
            // Refused only if there was no memory for the series.
            let _ = writer.set(handle, number as f64);
        };
        if let Some(family) = &self.options.bytes {
            let (log, index) = registry.bytes();
            let reader = self.reader.bytes();
            for (part, bytes) in [("log", log), ("index", index), ("reader", reader.reader), ("cache", reader.cache)] {
                set(family, part, bytes);
            }
        }
        if let Some(family) = &self.options.series {
            let mut gone = std::mem::take(&mut self.reported);
            self.reader.families(|name, series| {
                set(family, name, series);
                gone.remove(name);
                self.reported.insert(name.to_owned());
            });
            // A family without series is not exposed; the fact that it has none is.
            gone.iter().for_each(|name| set(family, name, 0));
        }
        writer.tick(self.now_ms);
    }

    /// Reports an event, unless it was reported before.
    fn report_once(&mut self, event: CollectorEvent) {
        if self.seen_events.len() < EVENTS_MAX && self.seen_events.insert(event.clone()) {
            self.events.push(event);
        }
    }
}

/// Most distinct events in the life of a collector.
const EVENTS_MAX: usize = 10_000;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

// The source of segments: the registry of this process, a shared folder, or both.

/// A list may change while its segments are opened; after so many tries something else is wrong.
const LIST_TRIES: usize = 16;

/// The segments that a collector reads.
pub(super) enum SegmentSource {
    /// The segments of this process, and those that it has inherited.
    Own(Arc<Registry>),
    /// All segments of a folder; those of this process, if it writes there too, are not mapped twice.
    Folder(Folder),
}

pub(super) struct Folder {
    path: PathBuf,
    pub(super) registry: Option<Arc<Registry>>,
    /// Opened when it exists, with the identity of its file.
    directory: Option<(Directory, (u64, u64))>,
    generation: Option<u64>,
    open: HashMap<SegmentName, Arc<Segment>>,
    mounts: Mounts,
}

impl SegmentSource {
    pub(super) fn of(registry: Arc<Registry>) -> SegmentSource {
        match &registry.inner.place {
            SegmentStorage::Shared(directory) => {
                let path = directory.folder().to_owned();
                SegmentSource::Folder(Folder::new(path, Some(registry)))
            }
            _ => SegmentSource::Own(registry),
        }
    }

    pub(super) fn registry(&self) -> Option<&Arc<Registry>> {
        match self {
            SegmentSource::Own(registry) => Some(registry),
            SegmentSource::Folder(folder) => folder.registry.as_ref(),
        }
    }

    /// All segments; errors of unreadable ones are appended to `damaged`, each time the list changes.
    pub(super) fn mounts(&mut self, now_ms: u64, damaged: &mut Vec<SegmentError>) -> Result<Mounts, DirectoryError> {
        match self {
            SegmentSource::Own(registry) => Ok(registry.mounts()),
            SegmentSource::Folder(folder) => folder.mounts(now_ms, damaged),
        }
    }
}

impl Folder {
    pub(super) fn new(path: PathBuf, registry: Option<Arc<Registry>>) -> Folder {
        let (open, mounts) = (HashMap::new(), Mounts { version: 0, segments: Vec::new() });
        Folder { path, registry, directory: None, generation: None, open, mounts }
    }

    /// The folder's list, once it exists. It is opened again if the file was replaced.
    fn directory(&mut self) -> Result<&Directory, DirectoryError> {
        let is = identity(&self.path.join("directory"))?;
        let is_same = self.directory.as_ref().is_some_and(|(_, was)| *was == is);
        if !is_same {
            self.generation = None;
            self.directory = None;
            self.directory = Some((Directory::open(&self.path)?, is));
        }
        Ok(&self.directory.as_ref().expect("opened just now").0)
    }

    fn mounts(&mut self, now_ms: u64, damaged: &mut Vec<SegmentError>) -> Result<Mounts, DirectoryError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (generation, entries) = self.directory()?.entries();
            let is_new = self.generation != Some(generation);
            if is_new && !self.open_all(&entries, damaged, tries == LIST_TRIES) {
                continue;
            }
            let own = self.registry.as_ref().map(|registry| registry.process());
            let directory = self.directory()?;
            let is_alive =
                |entry: &SegmentName| own == Some(entry.process) || directory.is_alive(entry.process, now_ms);
            let alive: Vec<bool> = entries.iter().map(|entry| !entry.is_base() && is_alive(entry)).collect();
            let listed = entries.iter().zip(alive);
            let segments = listed.filter_map(|(entry, is_alive)| {
                self.open.get(entry).map(|segment| Mount { segment: segment.clone(), is_alive })
            });
            let segments: Vec<Mount> = segments.collect();
            let same =
                |(old, new): (&Mount, &Mount)| Arc::ptr_eq(&old.segment, &new.segment) && old.is_alive == new.is_alive;
            let is_same =
                segments.len() == self.mounts.segments.len() && self.mounts.segments.iter().zip(&segments).all(same);
            if !is_same {
                self.mounts = Mounts { version: self.mounts.version + 1, segments };
            }
            self.generation = Some(generation);
            return Ok(self.mounts.clone());
        }
    }

    /// Opens new segments and closes removed ones. False: a file is gone, so the list must have changed meanwhile.
    fn open_all(&mut self, entries: &[SegmentName], damaged: &mut Vec<SegmentError>, is_last_try: bool) -> bool {
        self.open.retain(|entry, _| entries.contains(entry));
        for entry in entries {
            if self.open.contains_key(entry) {
                continue;
            }
            let own = self.registry.as_ref().filter(|registry| registry.process() == entry.process);
            let segment = match own.and_then(|registry| registry.segment(entry.serial)) {
                Some(segment) => segment,
                None => match Segment::open(&entry.path(&self.path)) {
                    Ok(segment) => Arc::new(segment),
                    Err(SegmentError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound && !is_last_try => {
                        return false;
                    }
                    Err(error) => {
                        damaged.push(error);
                        continue;
                    }
                },
            };
            self.open.insert(*entry, segment);
        }
        true
    }
}

/// Identity of the file.
fn identity(path: &Path) -> Result<(u64, u64), DirectoryError> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino())),
        Err(error) => Err(DirectoryError::Io("open", path.to_owned(), error)),
    }
}
