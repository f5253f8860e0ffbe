//! Finds the series to end: those that have not changed for long, and those of an owner that is gone.
//!
//! This only finds them; ending a series needs its writers' consent. It takes time in proportion to all series, and is
//! called only now and then.

use super::Reader;
use super::families::MergedFamily;
use super::store::SeriesSlot;
use crate::family::FamilyType;
use crate::labels::{LabelPairs, value_of};
use crate::segment::SegmentProcess;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

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
        self.located(own, max, counts, |_, series| {
            self.store.places(series).all(|(place, _)| self.store.mounted(place.mount).is_idle(place.number, before_ms))
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
        self.located(own, max, has_labels, |_, series| {
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
        self.located(own, max, may_be, |merged, series| {
            let names = || LabelPairs::new(self.store.text(series)).map(|(name, _)| name);
            !known(merged).iter().any(|labels| names().eq(labels.iter().map(String::as_str)))
        })
    }

    /// Live series of another process are skipped: only that process can ask its writers.
    fn located(
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
            let mut mounts = self.store.places(series).map(|(at, _)| self.store.mounted(at.mount));
            mounts.all(|mounted| mounted.segment.process == own || !mounted.is_alive)
        };
        let found =
            series.filter(|(merged, series)| lives(*series) && wanted(merged, *series) && is_ours(*series)).take(max);
        found.map(|(merged, series)| self.locate(merged.name.clone(), series)).collect()
    }

    fn locate(&self, family: Arc<str>, series: SeriesSlot) -> LocatedSeries {
        let records = self.store.places(series).filter(|(_, each)| !each.is_leaving());
        let located = records.map(|(place, contribution)| {
            let segment = &self.store.mounted(place.mount).segment;
            RecordAddress { process: segment.process, serial: segment.serial, record: contribution.record() }
        });
        LocatedSeries { family, labels: self.store.text(series).to_vec(), records: located.collect() }
    }
}
