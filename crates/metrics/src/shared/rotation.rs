//! Frees the memory of ended and of folded series: a writer whose segment is mostly made of them moves to a new one,
//! and what still counts of the old one is copied to a base of this process, where folded series are one record.
//!
//! Readers see the old segment until the base replaces it, in one step. The cost is that of copying what still counts,
//! which is at most as much as what has ended.

use super::base::Base;
use crate::reader::{Reader, Share};
use crate::registry::{Registry, RegistryError, SegmentStorage};
use crate::writer::Writer;
use crate::writer::memory::WriterMemory;
use crate::writer::requests::WriterRequest;
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

    /// Finishes once the writer has left, and no record in the segment waits to be exposed once more.
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
        let is_free = |serial: &u64| reader.share(process, *serial).is_some_and(|share| share.leaving == 0);
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
