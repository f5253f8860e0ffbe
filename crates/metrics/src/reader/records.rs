//! One segment's share of a reader's series: how many of its records still count, and the records one by one.

use super::Reader;
use super::mount::{MountedSegment, NO_SERIES};
use crate::family::Family;
use crate::segment::SegmentProcess;
use crate::segment::layout::HEAD_WORDS;
use crate::sync::{AtomicU64, ReadOnly};

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
        Some(Share { living: living.count(), all: mounted.contributions.len(), leaving, folded })
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
