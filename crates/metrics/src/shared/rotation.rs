//! Getting the memory of ended and of folded series back: a writer whose segment is mostly of such goes on in a new one, and
//! what still counts of the old one is put together in a base of this process, where folded series are one record.
//!
//! Readers see the old segment until the base takes its place, in one step. It costs what still counts, at most as much
//! as what has ended.

use super::base::Base;
use crate::reader::{Reader, Share};
use crate::registry::{Registry, RegistryError, SegmentStorage};
use crate::writer::Writer;
use crate::writer::memory::Memory;
use crate::writer::requests::Request;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Between two looks at how much of each segment counts.
const LOOK_MS: u64 = 5_000;
/// Segments of fewer records are left as they are.
const RECORDS_MIN: usize = 4_096;
/// Tombstones beyond which the segment that holds them is made anew.
const TOMBSTONES_MIN: usize = 16_384;

/// Where a rotation stands.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// The segment that its writer is leaving, or that has none.
    leaving: Option<u64>,
    /// Where that writer goes on.
    next: Option<Arc<Memory>>,
    next_look_ms: u64,
    /// Rotations so far.
    pub(super) done: u64,
}

impl Rotation {
    /// Goes one step further. `own` is the segment of the one who writes the tombstones. True: there is more to do soon.
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
            // Half of it; where memory becomes short, a quarter.
            let enough = if registry.inner.is_short() { share.all / 4 } else { share.all / 2 };
            if share.all < RECORDS_MIN || (dead < enough && share.folded < RECORDS_MIN) {
                continue;
            }
            if !memory.is_closed() {
                // Until the old one goes there are both.
                let next = registry.inner.add_memory(true)?;
                if !memory.inbox.post(Request::Move(next.clone())) {
                    // It is busy with something else; another time.
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

    /// Once the writer has left, and nothing in the segment waits to be exposed once more.
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
            // Whoever scrapes decides how long that takes.
            Some(_) => return Ok(false),
            None => {
                self.end();
                return Ok(false);
            }
        }
        // What the process's other bases hold goes along, so that there is one.
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

/// A segment with everything that counts in these; `None` where nothing does.
fn write_base(
    reader: &Reader,
    registry: &Registry,
    from: &[u64],
    serial: u64,
    now_ms: u64,
) -> Result<Option<Arc<Memory>>, RegistryError> {
    let process = registry.process();
    let bytes = from.iter().filter_map(|serial| registry.memory(*serial)).map(|memory| memory.bytes().0).sum();
    let place = registry.inner.file_of(serial).map_or(SegmentStorage::Unnamed, SegmentStorage::File);
    let mut base = Base::new(&registry.inner.options, place, serial, bytes, now_ms)?;
    for serial in from {
        reader.records(process, *serial, |record| base.add(&record, reader));
    }
    Ok(base.finish()?.0)
}

/// The tombstones of segments that are still there: all that a new segment for them has to hold.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    told: Vec<(crate::segment::Process, u64, usize)>,
    written: usize,
}

impl Tombstones {
    pub(super) fn note(&mut self, process: crate::segment::Process, serial: u64, record: usize) {
        self.told.push((process, serial, record));
        self.written += 1;
    }

    /// Goes on in a new segment, where most of what the writer's one holds is of segments that are gone.
    pub(super) fn compact(
        &mut self,
        reader: &Reader,
        registry: &Registry,
        writer: &mut Writer,
    ) -> Result<(), RegistryError> {
        if self.written < TOMBSTONES_MIN {
            return Ok(());
        }
        self.told.retain(|(process, serial, _)| reader.has_segment(*process, *serial));
        if self.told.len() * 2 > self.written {
            // As many again have to be written before another look pays.
            self.written = self.told.len();
            return Ok(());
        }
        let old = writer.serial();
        let next = registry.inner.add_memory(true)?;
        writer.move_to(next);
        let told = self.told.iter().all(|(process, serial, record)| writer.tombstone(*process, *serial, *record));
        if told {
            registry.inner.replace(&[old], None)?;
        }
        self.written = self.told.len();
        Ok(())
    }
}
