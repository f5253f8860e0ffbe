//! Copies the values of ended processes' series, and writes tombstones.
//!
//! Both are for the code that maintains series; serving requests uses neither.

use super::Writer;
use crate::declared::DeclaredFamily;
use crate::family::{FamilyType, Merge};
use crate::protocol;
use crate::segment::SegmentProcess;
use crate::segment::cells::{self, CellForm};
use crate::segment::layout::{CLOSED, CLOSED_BASE, HEAD_WORDS, RecordHead, RecordKind, TOMBSTONE_WORDS, unpair};
use crate::sync::{AtomicU64, Ordering::Relaxed, ReadOnly, Word};
use crate::value::Distribution;
use std::sync::Arc;

impl Writer {
    /// Adds all cells of another record of the same family; false if there is no room.
    pub(crate) fn restore_cells(
        &mut self,
        family: &Arc<DeclaredFamily>,
        values: &[&[u8]],
        created_ms: u64,
        changed_ms: u64,
        from: &[ReadOnly<AtomicU64>],
    ) -> bool {
        let handle = self.series(family, values);
        if handle == super::Handle::NONE || from.len() < family.shape.words {
            return false;
        }
        let at = handle.at as usize;
        let log = self.segment.own_log();
        let to = &log[at + HEAD_WORDS..];
        let float = f64::from_bits;
        match (&family.shape.form, &family.family().kind) {
            (CellForm::Unsigned, _) => cells::add(&to[0], from[0].get()),
            (_, FamilyType::Gauge(Merge::Max)) => {
                to[0].store(float(to[0].get()).max(float(from[0].get())).to_bits(), Relaxed)
            }
            (_, FamilyType::Info) => to[0].store(from[0].get(), Relaxed),
            (CellForm::Float, _) => cells::add_float(&to[0], float(from[0].get())),
            (CellForm::Last, _) => {
                if from[1].get() >= to[1].get() {
                    to[0].store(from[0].get(), Relaxed);
                    to[1].store(from[1].get(), Relaxed);
                }
            }
            (CellForm::Histogram { bounds, native }, _) => {
                let mut state = Distribution::default();
                // Its writer has left it: it does not change any more.
                cells::read_histogram(from, bounds, native.as_ref(), &mut state);
                cells::restore_histogram(to, bounds, native.as_ref(), &state);
            }
        }
        let mut exemplars = Vec::new();
        family.shape.read_exemplars(from, &mut exemplars);
        for each in &exemplars {
            family.shape.keep_exemplar(to, each.bucket as usize, each.value, each.unix_ms, &each.labels);
        }
        let created = &log[at + HEAD_WORDS - 1];
        created.store(created.load(Relaxed).min(created_ms), Relaxed);
        let (number, _) = unpair(log[at + 1].load(Relaxed));
        let epoch = &self.segment.own_epochs()[number as usize];
        let changed = changed_ms.div_ceil(1000) as u32;
        epoch.store(epoch.load(Relaxed).max(changed), Relaxed);
        true
    }

    /// Closes a segment that [`Writer::restore_cells`] has filled.
    pub(crate) fn close_base(self, now_ms: u64) {
        let segment = self.segment.clone();
        drop(self);
        segment.own_header().epoch.store(now_ms.div_ceil(1000) as u32 + 1, Relaxed);
        segment.own_header().closed.store(CLOSED_BASE, crate::sync::Ordering::Release);
    }

    /// The serial of the segment that it writes.
    pub(crate) fn serial(&self) -> u64 {
        self.segment.serial
    }

    /// Ends the series whose record is there; false if there is no room for the tombstone.
    pub(crate) fn tombstone(&mut self, process: SegmentProcess, serial: u64, record: usize) -> bool {
        let room = self.memory.log.ready() - self.log_used;
        if room < 8 * TOMBSTONE_WORDS + self.reserve {
            self.inner.call_provisioner(&self.memory);
        }
        if room < TOMBSTONE_WORDS + self.reserve && !self.has_memory(TOMBSTONE_WORDS + self.reserve, 0) {
            return false;
        }
        let at = self.log_used;
        let log = &self.segment.own_log()[at..at + TOMBSTONE_WORDS];
        let head = RecordHead { words: TOMBSTONE_WORDS as u32, kind: RecordKind::Tombstone, flags: 0, family: 0 };
        for (word, value) in log.iter().zip([head.pack(), serial, record as u64, u64::from(process.pid), process.start])
        {
            word.store(value, Relaxed);
        }
        self.log_used = at + TOMBSTONE_WORDS;
        self.memory.log.use_up_to(self.log_used);
        protocol::commit(&self.segment.own_header().committed, self.log_used as u64);
        true
    }
}

impl Drop for Writer {
    /// No request to the writer will be executed from now on.
    fn drop(&mut self) {
        self.segment.own_header().closed.store(CLOSED, crate::sync::Ordering::Release);
    }
}
