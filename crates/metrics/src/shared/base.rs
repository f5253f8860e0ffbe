//! A base: a segment without a writer that replaces others and holds what still counts of them.

use crate::declared::DeclaredFamily;
use crate::family::Family;
use crate::labels::LabelPairs;
use crate::reader::{Fold, LiveRecord, Reader};
use crate::registry::{Registry, RegistryError, RegistryOptions, SegmentStorage};
use crate::writer::Writer;
use crate::writer::memory::WriterMemory;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
