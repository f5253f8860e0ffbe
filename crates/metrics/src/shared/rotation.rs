//! Frees the memory of ended and of folded series: a writer whose segment is mostly made of them moves to a new one,
//! and what still counts of the old one is copied to a base of this process, where folded series are one record.
//!
//! Readers see the old segment until the base replaces it, in one step. The cost is that of copying what still counts,
//! which is at most as much as what has ended.

use crate::declared::DeclaredFamily;
use crate::family::Family;
use crate::labels::LabelPairs;
use crate::reader::{Fold, LiveRecord, Reader, Share};
use crate::registry::{Registry, RegistryError, RegistryOptions, SegmentStorage};
use crate::writer::Writer;
use crate::writer::memory::WriterMemory;
use crate::writer::requests::WriterRequest;
use std::io;
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
pub(super) struct Base {
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
        match generation == 0 || self.writer.made_under(declared, generation, labels) {
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
