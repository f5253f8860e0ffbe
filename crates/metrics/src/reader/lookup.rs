//! Finds the series that are to end: those that nobody has changed for long, and those of an owner that is gone.
//!
//! Looking is all that is done here; ending a series needs its writers' consent. It takes time in proportion to all
//! series, and is asked for now and then only.

use super::Reader;
use super::store::Slot;
use crate::labels::value_of;
use crate::segment::Process;
use std::collections::HashSet;
use std::sync::Arc;

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) process: Process,
    /// Of the segment.
    pub(crate) serial: u64,
    /// In words of its log: what a tombstone says.
    pub(crate) record: usize,
}

/// A series, with all of its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocatedSeries {
    pub(crate) family: Arc<str>,
    /// As in the segments: escaped and joined.
    pub(crate) labels: Vec<u8>,
    pub(crate) records: Vec<Located>,
}

impl Reader {
    /// Up to `max` series whose value no writer has changed for `ttl_ms` before the last refresh, as far as can be told
    /// from the writers' ticks since this reader began: never one that was changed later.
    pub(crate) fn idle(&self, ttl_ms: u64, max: usize) -> Vec<LocatedSeries> {
        let Some(before_ms) = self.now_ms.checked_sub(ttl_ms) else { return Vec::new() };
        self.located(max, None, |series| {
            self.store.places(series).all(|(place, _)| self.store.mounted(place.mount).is_idle(place.number, before_ms))
        })
    }

    /// Up to `max` series of all families that have one of these values in this label.
    pub(crate) fn with_label(&self, label: &str, values: &HashSet<String>, max: usize) -> Vec<LocatedSeries> {
        self.located(max, Some(label), |series| {
            value_of(self.store.text(series), label).is_some_and(|value| values.contains(value.as_ref()))
        })
    }

    fn located(&self, max: usize, label: Option<&str>, wanted: impl Fn(Slot) -> bool) -> Vec<LocatedSeries> {
        let has_label = |labels: &[String]| label.is_none_or(|label| labels.iter().any(|each| each == label));
        let families = self.order.families.all().filter(|merged| has_label(&merged.labels));
        let series = families.flat_map(|merged| {
            let slots = merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]);
            slots.map(move |slot| (merged, *slot))
        });
        let is_wanted = |series: Slot| !self.store.places(series).all(|(_, each)| each.is_leaving()) && wanted(series);
        let found = series.filter(|(_, series)| is_wanted(*series)).take(max);
        found.map(|(merged, series)| self.locate(merged.name.clone(), series)).collect()
    }

    fn locate(&self, family: Arc<str>, series: Slot) -> LocatedSeries {
        let records = self.store.places(series).filter(|(_, each)| !each.is_leaving());
        let located = records.map(|(place, contribution)| {
            let segment = &self.store.mounted(place.mount).segment;
            Located { process: segment.process, serial: segment.serial, record: contribution.record() }
        });
        LocatedSeries { family, labels: self.store.text(series).to_vec(), records: located.collect() }
    }
}
