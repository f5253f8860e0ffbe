//! What still counts of ended processes and of ended series is carried on in base segments, so that it is never lost, and
//! the memory of the rest is freed.
//!
//! Rotation: a writer whose segment is mostly made of ended and of folded series moves to a new one, and what still counts
//! of the old one is copied to a base of this process, where folded series are one record. Readers see the old segment
//! until the base replaces it, in one step. The cost is that of copying what still counts, which is at most as much as
//! what has ended.
//!
//! Folding: the counts of ended processes become one base segment, so that the number of segments never grows. A reader
//! over all segments finds the records of the dead and of the old base that still count, and these are added up in the
//! next base. One change of the list (the folder's, or that of inherited segments) then replaces the former by the
//! latter. Gauges and infos are left out: they were true of a process that has ended.

use super::directory::{Directory, DirectoryError, SegmentName};
use crate::declared::DeclaredFamily;
use crate::family::Family;
use crate::labels::LabelPairs;
use crate::reader::{Fold, LiveRecord, Mount, Mounts, Reader, ReaderOptions, Share};
use crate::registry::{Registry, RegistryError, RegistryOptions, SegmentStorage};
use crate::segment::{Segment, SegmentError};
use crate::writer::Writer;
use crate::writer::memory::WriterMemory;
use crate::writer::requests::WriterRequest;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Interval of the checks of how much of each segment counts.
const LOOK_MS: u64 = 5_000;
/// Segments with fewer records are left as they are.
const RECORDS_MIN: usize = 4_096;
/// Number of tombstones beyond which their segment is replaced.
const TOMBSTONES_MIN: usize = 16_384;

/// State of a rotation.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// The segment that its writer is leaving, or that has none.
    leaving: Option<u64>,
    /// The segment to which that writer moves.
    next: Option<Arc<WriterMemory>>,
    next_look_ms: u64,
    /// Number of finished rotations.
    pub(super) done: u64,
}

impl Rotation {
    /// Takes one more step. `own` is the segment of the writer of tombstones. True: there is more to do soon.
    pub(super) fn step(
        &mut self,
        reader: &Reader,
        registry: &Registry,
        own: u64,
        now_ms: u64,
    ) -> Result<bool, RegistryError> {
        if let Some(serial) = self.leaving {
            return self.finish(serial, reader, registry, now_ms);
        }
        if now_ms < self.next_look_ms {
            return Ok(false);
        }
        self.next_look_ms = now_ms + LOOK_MS;
        for memory in registry.memories() {
            let serial = memory.segment.serial;
            let Some(share) = reader.share(registry.process(), serial).filter(|_| serial != own) else { continue };
            let dead = share.all - share.living + share.folded;
            // Half of it; a quarter if memory becomes short.
            let enough = if registry.inner.is_short() { share.all / 4 } else { share.all / 2 };
            if share.all < RECORDS_MIN || (dead < enough && share.folded < RECORDS_MIN) {
                continue;
            }
            if !memory.is_closed() {
                // Both segments exist until the old one goes.
                let next = registry.inner.add_memory(true)?;
                if !memory.inbox.post(WriterRequest::Move(next.clone())) {
                    // The writer is busy with another request; try again later.
                    registry.inner.replace(&[next.segment.serial], None)?;
                    continue;
                }
                self.next = Some(next);
            }
            self.leaving = Some(serial);
            return Ok(true);
        }
        Ok(false)
    }

    /// Finishes once the writer has left, all that it wrote before has been read, and no record in the segment waits to
    /// be exposed once more.
    fn finish(
        &mut self,
        serial: u64,
        reader: &Reader,
        registry: &Registry,
        now_ms: u64,
    ) -> Result<bool, RegistryError> {
        let process = registry.process();
        let is_left = registry.memory(serial).is_none_or(|memory| memory.is_closed());
        match reader.share(process, serial) {
            _ if !is_left => return Ok(true),
            // The writer left after this reader's last look: what it added in between is not in the reader yet.
            Some(Share { is_read: false, .. }) => return Ok(true),
            Some(Share { leaving: 0, .. }) => {}
            // How long that takes depends on the scrapes.
            Some(_) => return Ok(false),
            None => {
                self.end();
                return Ok(false);
            }
        }
        // The process's other bases are merged too, so that only one remains.
        let is_base = |serial: u64| registry.memory(serial).is_some_and(|memory| memory.is_closed());
        let serials = registry.memories().into_iter().map(|memory| memory.segment.serial);
        let is_free =
            |serial: &u64| reader.share(process, *serial).is_some_and(|share| share.is_read && share.leaving == 0);
        let gone: Vec<u64> = serials.filter(|each| *each == serial || is_base(*each)).filter(is_free).collect();
        let base = registry.inner.reserve_serial();
        let memory = write_base(reader, registry, &gone, base, now_ms)?;
        registry.inner.replace(&gone, memory)?;
        self.end();
        self.done += 1;
        Ok(false)
    }
}

impl Rotation {
    fn end(&mut self) {
        self.leaving = None;
        if let Some(next) = self.next.take() {
            next.is_exempt.store(false, Ordering::Relaxed);
        }
    }
}

/// Writes a segment with everything that counts in these; `None` if nothing does.
fn write_base(
    reader: &Reader,
    registry: &Registry,
    from: &[u64],
    serial: u64,
    now_ms: u64,
) -> Result<Option<Arc<WriterMemory>>, RegistryError> {
    let process = registry.process();
    let bytes = from.iter().filter_map(|serial| registry.memory(*serial)).map(|memory| memory.bytes().0).sum();
    let place = registry.inner.file_of(serial).map_or(SegmentStorage::Unnamed, SegmentStorage::File);
    let mut base = Base::new(&registry.inner.options, place, serial, bytes, now_ms)?;
    for serial in from {
        reader.records(process, *serial, |record| base.add(&record, reader));
    }
    Ok(base.finish()?.0)
}

/// The tombstones of segments that still exist: all that a new segment for them has to hold.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    tombstones: Vec<(crate::segment::SegmentProcess, u64, usize)>,
    written: usize,
}

impl Tombstones {
    pub(super) fn note(&mut self, process: crate::segment::SegmentProcess, serial: u64, record: usize) {
        self.tombstones.push((process, serial, record));
        self.written += 1;
    }

    /// Moves to a new segment, if most tombstones in the writer's segment are for segments that are gone.
    pub(super) fn compact(
        &mut self,
        reader: &Reader,
        registry: &Registry,
        writer: &mut Writer,
    ) -> Result<(), RegistryError> {
        if self.written < TOMBSTONES_MIN {
            return Ok(());
        }
        self.tombstones.retain(|(process, serial, _)| reader.has_segment(*process, *serial));
        if self.tombstones.len() * 2 > self.written {
            // As many again have to be written before another check pays.
            self.written = self.tombstones.len();
            return Ok(());
        }
        let old = writer.serial();
        let next = registry.inner.add_memory(true)?;
        writer.move_to(next);
        let are_written =
            self.tombstones.iter().all(|(process, serial, record)| writer.tombstone(*process, *serial, *record));
        if are_written {
            registry.inner.replace(&[old], None)?;
        }
        self.written = self.tombstones.len();
        Ok(())
    }
}

// A base: a segment without a writer that replaces others and holds what still counts of them.

/// Extra room for declarations and reserves.
const SLACK_BYTES: usize = 4 << 20;
/// Label sets of a family, as a multiple of what a process may have: those of one process always fit, and the remains
/// of ended processes do not grow without end. Beyond that, the widest label collapses as everywhere.
const SETS_FACTOR: u32 = 2;

/// A base that is being made.
struct Base {
    registry: Registry,
    writer: Writer,
    serial: u64,
    now_ms: u64,
    /// The family of the last record, in its source and as it is declared here.
    last: Option<(Family, Arc<DeclaredFamily>)>,
    series: usize,
    failed: Option<RegistryError>,
}

impl Base {
    /// Creates an empty base, for about so many bytes of records.
    pub(super) fn new(
        options: &RegistryOptions,
        place: SegmentStorage,
        serial: u64,
        bytes: usize,
        now_ms: u64,
    ) -> Result<Base, RegistryError> {
        let options = RegistryOptions {
            memory_bytes: 4 * bytes + SLACK_BYTES,
            series_per_family: options.series_per_family.saturating_mul(SETS_FACTOR),
            shared: None,
            // A series begins when it was first seen, which is before now.
            now_ms,
            ..options.clone()
        };
        let registry = Registry::inline(options, place, serial)?;
        let writer = registry.exempt_writer()?;
        Ok(Base { registry, writer, serial, now_ms, last: None, series: 0, failed: None })
    }

    /// Adds the value of a record of another segment, which `reader` has found.
    pub(super) fn add(&mut self, record: &LiveRecord<'_>, reader: &Reader) {
        if self.failed.is_none()
            && let Err(error) = self.try_add(record, reader)
        {
            self.failed = Some(error);
        }
    }

    fn try_add(&mut self, record: &LiveRecord<'_>, reader: &Reader) -> Result<(), RegistryError> {
        let names = || LabelPairs::new(record.labels).map(|(name, _)| name);
        // Series of one family may differ in their labels: each set of label names is a declaration.
        let is_same = |family: &Family, declared: &DeclaredFamily| {
            family == record.family && names().eq(declared.family().labels.iter().map(String::as_str))
        };
        let known = match self.last.take().filter(|(family, declared)| is_same(family, declared)) {
            Some(last) => last,
            None => {
                let family = Family { labels: names().map(str::to_owned).collect(), ..record.family.clone() };
                let declared = self.registry.declare(family)?;
                self.note_fold(&declared, reader)?;
                (record.family.clone(), declared)
            }
        };
        let values: Vec<_> = LabelPairs::new(record.labels).map(|(_, value)| value).collect();
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
        let added = self.writer.restore_cells(&known.1, &values, record.created_ms, record.changed_ms, record.cells);
        self.last = Some(known);
        self.series += 1;
        // A writer that runs out of memory continues with less exact labels; a base must not be made that way.
        match added && !self.writer.memory.exhausted.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(full()),
        }
    }

    /// Labels folded by this process are folded here already: readers must not fold again, or labels that have opened
    /// since would be lost.
    fn note_fold(&mut self, declared: &Arc<DeclaredFamily>, reader: &Reader) -> Result<(), RegistryError> {
        let process = self.registry.process();
        let family = declared.family();
        let Fold { generation, labels } = reader.applied_fold(process, &family.name, &family.labels);
        match generation == 0 || self.writer.record_policy(declared, generation, labels) {
            true => Ok(()),
            false => Err(full()),
        }
    }

    /// The finished base, with its number of series; `None` if nothing was added.
    pub(super) fn finish(self) -> Result<(Option<Arc<WriterMemory>>, usize), RegistryError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.writer.close_base(self.now_ms);
        let memory = self.registry.memory(self.serial).filter(|_| self.series > 0);
        let memory = memory.map(|memory| memory.without_index()).transpose();
        let memory = memory.map_err(|error| RegistryError::Io("a base segment", error))?;
        Ok((memory.map(Arc::new), self.series))
    }
}

fn full() -> RegistryError {
    RegistryError::Io("a base segment", io::ErrorKind::StorageFull.into())
}

/// The result of folding.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldSummary {
    /// Segments that were replaced.
    pub(crate) segments: usize,
    /// Records that were added to the new base.
    pub(crate) series: usize,
    /// Segments that could not be read, or not in full.
    pub(crate) damaged: usize,
}

/// The reason why the dead were not folded. Nothing has changed then: they are still counted as they are.
#[derive(Debug)]
pub(crate) enum FoldError {
    Directory(DirectoryError),
    Base(RegistryError),
    Remove(io::Error),
}

impl fmt::Display for FoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FoldError::Directory(error) => error.fmt(f),
            FoldError::Base(error) => write!(f, "cannot write the totals of ended processes: {error}"),
            FoldError::Remove(error) => write!(f, "cannot remove the segment of an ended process: {error}"),
        }
    }
}

/// Folds the segments of all ended processes, if there are any. `options` are those of the folding process.
pub(crate) fn fold(directory: &Directory, options: &RegistryOptions, now_ms: u64) -> Result<FoldSummary, FoldError> {
    let own = options.process;
    let is_dead =
        |entry: &SegmentName| !entry.is_base() && entry.process != own && !directory.is_alive(entry.process, now_ms);
    if !directory.entries().1.iter().any(is_dead) {
        return Ok(FoldSummary::default());
    }
    let lock = directory.lock().map_err(FoldError::Directory)?;
    let (generation, entries) = directory.entries();
    let (replaced, mut kept): (Vec<SegmentName>, Vec<SegmentName>) =
        entries.into_iter().partition(|entry| entry.is_base() || is_dead(entry));
    if !replaced.iter().any(is_dead) {
        return Ok(FoldSummary::default());
    }
    // All are read, as tombstones of dead processes' series are in segments of the living; only the dead's records are
    // added.
    let mut segments = Vec::new();
    let mut damaged = Vec::new();
    for entry in replaced.iter().chain(&kept) {
        match Segment::open(&entry.path(directory.folder())) {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(SegmentError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => damaged.push(*entry),
        }
    }
    let mount = |segment: Arc<Segment>| Mount { is_alive: !replaced.contains(&segment.entry()), segment };
    let mounts = Mounts { version: 1, segments: segments.into_iter().map(mount).collect() };

    // A generation never occurs twice, so neither does the name; an existing file of this name is of a process that was
    // killed right here.
    let base = SegmentName::base(generation + 1);
    let path = base.path(directory.folder());
    remove(&path).map_err(FoldError::Remove)?;
    let totals = add_up(&mounts, base, SegmentStorage::File(path.clone()), options, now_ms).map_err(|error| {
        // The unfinished file is useless, and takes scarce room; if removing fails, it is swept later.
        let _ = remove(&path);
        FoldError::Base(error)
    })?;
    damaged.extend(totals.damaged);
    damaged.retain(|entry| replaced.contains(entry));
    kept.push(base);
    directory.replace(&lock, &kept).map_err(FoldError::Directory)?;
    for entry in &replaced {
        let path = entry.path(directory.folder());
        // Segments that could not be read in full are left for inspection.
        let done = match damaged.contains(entry) {
            true => std::fs::rename(&path, path.with_extension("damaged")),
            false => remove(&path),
        };
        done.map_err(FoldError::Remove)?;
    }
    sweep(directory, &kept, now_ms).map_err(FoldError::Remove)?;
    Ok(FoldSummary { segments: replaced.len(), series: totals.series, damaged: damaged.len() })
}

/// Folds inherited segments of ended processes, if there are any.
pub(crate) fn fold_inherited(registry: &Registry, now_ms: u64) -> Result<FoldSummary, FoldError> {
    let mounts = registry.mounts();
    let ended = || mounts.segments.iter().filter(|mount| !mount.is_alive);
    // The result of earlier folding is in a segment of this process.
    if ended().all(|mount| mount.segment.process == registry.process()) {
        return Ok(FoldSummary::default());
    }
    let base = SegmentName { process: registry.process(), serial: registry.inner.reserve_serial() };
    let options = &registry.inner.options;
    let totals = add_up(&mounts, base, SegmentStorage::Unnamed, options, now_ms).map_err(FoldError::Base)?;
    let replaced: Vec<Arc<Segment>> = ended().map(|mount| mount.segment.clone()).collect();
    registry.inner.replace_inherited(&replaced, totals.memory.map(|memory| memory.segment.clone()));
    // The reader reports damage, as it has met it too; no file is left to inspect.
    Ok(FoldSummary { segments: replaced.len(), series: totals.series, damaged: 0 })
}

/// Removes segments that are not in the list: their processes were killed while they made or removed them. The caller
/// holds the lock.
fn sweep(directory: &Directory, listed: &[SegmentName], now_ms: u64) -> io::Result<()> {
    for file in std::fs::read_dir(directory.folder())? {
        let Some(entry) = SegmentName::of_file(&file?.file_name().to_string_lossy()) else { continue };
        // A live process may be just making it; bases are made under the lock.
        let is_wanted = listed.contains(&entry) || (!entry.is_base() && directory.is_alive(entry.process, now_ms));
        if !is_wanted {
            remove(&entry.path(directory.folder()))?;
        }
    }
    Ok(())
}

/// The sum of several segments.
struct Totals {
    /// `None`: nothing counted any more.
    memory: Option<Arc<WriterMemory>>,
    series: usize,
    /// Damaged segments among all that were read.
    damaged: Vec<SegmentName>,
}

/// Adds up what counts in the segments of ended processes into a base; those of the living are read along.
fn add_up(
    mounts: &Mounts,
    base: SegmentName,
    place: SegmentStorage,
    options: &RegistryOptions,
    now_ms: u64,
) -> Result<Totals, RegistryError> {
    let mut reader = Reader::new(ReaderOptions::default());
    let refreshed = reader.refresh(mounts, now_ms);
    let ended = || mounts.segments.iter().filter(|mount| !mount.is_alive).map(|mount| &mount.segment);
    let bytes = ended().map(|segment| segment.committed() * 8).sum();
    let options = RegistryOptions { process: base.process, ..options.clone() };
    let mut totals = Base::new(&options, place, base.serial, bytes, now_ms)?;
    for from in ended() {
        reader.records(from.process, from.serial, |record| totals.add(&record, &reader));
    }
    let (memory, series) = totals.finish()?;
    let damaged = refreshed.damaged.iter().map(|at| SegmentName { process: at.process, serial: at.serial });
    Ok(Totals { memory, series, damaged: damaged.collect() })
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
