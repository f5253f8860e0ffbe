//! Ends series: those idle for too long, and those whose route, node or consumer is gone.
//!
//! Ending takes two steps, since a writer may be counting meanwhile. First the writers are asked to forget the series:
//! later observations get a new record. When all have done so, the old records cannot change any more, and they are
//! checked again: a series that was not idle after all lives on, with all of its records. For the others a tombstone is
//! written, and readers expose them once more and drop them.

use super::rotation::Tombstones;
use crate::declared::DeclaredFamily;
use crate::labels::LabelPairs;
use crate::reader::{LocatedSeries, Reader};
use crate::registry::{COLLAPSED, Registry};
use crate::writer::Writer;
use crate::writer::requests::{FORGET_MAX, WriterRequest};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Most values of the same labels that are remembered as gone, so that the counts of a late request for them end too.
/// The oldest are forgotten first.
const GONE_MAX: usize = 10_000;
/// Number of searches for idle series during their time to live.
const LOOKS_PER_TTL: u64 = 8;
const LOOK_MS_MIN: u64 = 1_000;
/// Delay after which new series are checked together: a check goes over all series.
const NEWS_MS: u64 = 5_000;

/// The series to end.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    /// Idle series end after this time.
    pub(crate) expire_ms: Option<u64>,
    /// Removed values, by their labels.
    gone: HashMap<Vec<String>, RemovedValues>,
    /// The labels of the families in use, by name; `None`: all are in use.
    in_use: Option<HashMap<String, Vec<Vec<String>>>>,
    batch: Option<EndingSeries>,
    next_look_ms: u64,
    /// Whether there may be series whose owner is gone.
    has_news: bool,
    /// When to check the series that have appeared since the last look for that.
    next_news_ms: Option<u64>,
    /// Series that have ended so far.
    pub(crate) ended: u64,
    pub(super) tombstones: Tombstones,
}

/// Values of a label, or of several together, that left the configuration.
#[derive(Debug, Default)]
struct RemovedValues {
    values: HashSet<Vec<String>>,
    in_turn: Vec<Vec<String>>,
}

/// Series whose writers are being asked to forget them.
#[derive(Debug)]
struct EndingSeries {
    why: EndReason,
    series: Vec<LocatedSeries>,
    /// Records whose writers have not been asked yet, by segment: a folded series may have many.
    unasked: HashMap<u64, Vec<u32>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EndReason {
    /// They have not changed for so long.
    Idle(u64),
    /// The object named by their values of these labels is gone.
    Removed(Vec<String>),
    /// Their family is no longer in use.
    Unused,
}

impl Endings {
    pub(crate) fn new(expire_ms: Option<u64>) -> Endings {
        Endings { expire_ms, ..Endings::default() }
    }

    /// Records that such a route (node, consumer, …) no longer exists.
    pub(crate) fn remove(&mut self, labels: Vec<String>, values: Vec<Vec<String>>) {
        let gone = self.gone.entry(labels).or_default();
        for value in values {
            if gone.values.insert(value.clone()) {
                gone.in_turn.push(value);
            }
        }
        while gone.in_turn.len() > GONE_MAX {
            gone.values.remove(&gone.in_turn.remove(0));
        }
        self.has_news = true;
    }

    /// Records that it exists again.
    pub(crate) fn restore(&mut self, labels: &[String], values: &[Vec<String>]) {
        if let Some(gone) = self.gone.get_mut(labels) {
            gone.in_turn.retain(|value| !values.contains(value));
            values.iter().for_each(|value| {
                gone.values.remove(value);
            });
        }
    }

    /// Ends series of other families than these.
    pub(crate) fn use_only(&mut self, families: Option<&[Arc<DeclaredFamily>]>) {
        self.in_use = families.map(|families| {
            let mut in_use: HashMap<String, Vec<Vec<String>>> = HashMap::new();
            for family in families.iter().map(|declared| declared.family()) {
                in_use.entry(family.name.clone()).or_default().push(family.labels.clone());
            }
            let of_ours = ["family", "label"].map(str::to_owned).to_vec();
            in_use.entry(COLLAPSED.to_owned()).or_default().push(of_ours);
            in_use
        });
        self.has_news = true;
    }

    /// New series have been found.
    pub(crate) fn schedule_look(&mut self, now_ms: u64) {
        self.next_news_ms.get_or_insert(now_ms + NEWS_MS);
    }

    /// Takes one more step. True: there is more to do, soon. The reader has been refreshed.
    pub(crate) fn step(&mut self, reader: &Reader, registry: &Registry, writer: &mut Writer, now_ms: u64) -> bool {
        // A writer takes one request at a time, whatever it is: a series that it was not asked to forget must not end.
        if registry.memories().iter().any(|memory| memory.inbox.is_pending() && !memory.is_closed()) {
            return true;
        }
        if let Some(batch) = self.batch.as_mut().filter(|batch| !batch.unasked.is_empty()) {
            batch.ask(registry);
            return true;
        }
        if let Some(batch) = self.batch.take() {
            let has_ended = self.finish(&batch, reader, registry, writer);
            // If nothing could be ended, trying again at once would not help.
            self.next_look_ms = if has_ended { self.next_look_ms } else { now_ms + LOOK_MS_MIN };
            // The reader has to see the tombstones before it finds the next series.
            return has_ended;
        }
        self.batch = self.next(reader, registry, now_ms);
        self.batch.is_some()
    }

    /// Asks the writers to forget the next series to end.
    fn next(&mut self, reader: &Reader, registry: &Registry, now_ms: u64) -> Option<EndingSeries> {
        if self.next_news_ms.is_some_and(|at_ms| now_ms >= at_ms) {
            self.next_news_ms = None;
            self.has_news = true;
        }
        if self.has_news {
            for (labels, gone) in &self.gone {
                let found = reader.with_labels(registry.process(), labels, &gone.values, FORGET_MAX);
                if !found.is_empty() {
                    return Some(ask(found, EndReason::Removed(labels.clone()), registry));
                }
            }
            let unused = self.in_use.as_ref().map(|in_use| reader.unused(in_use, registry.process(), FORGET_MAX));
            if let Some(found) = unused.filter(|found| !found.is_empty()) {
                return Some(ask(found, EndReason::Unused, registry));
            }
            self.has_news = false;
        }
        let ttl_ms = self.expire_ms.filter(|_| now_ms >= self.next_look_ms)?;
        let found = reader.idle(registry.process(), ttl_ms, FORGET_MAX);
        if found.is_empty() {
            self.next_look_ms = now_ms + (ttl_ms / LOOKS_PER_TTL).max(LOOK_MS_MIN);
            return None;
        }
        Some(ask(found, EndReason::Idle(ttl_ms), registry))
    }

    /// The writers have forgotten the series of the batch: ends those that still qualify. False: none did.
    fn finish(&mut self, batch: &EndingSeries, reader: &Reader, registry: &Registry, writer: &mut Writer) -> bool {
        let ending: Vec<LocatedSeries> = match &batch.why {
            EndReason::Idle(ttl_ms) => {
                let asked: HashMap<_, _> =
                    batch.series.iter().map(|each| ((&*each.family, &each.labels), each)).collect();
                let idle = reader.idle(registry.process(), *ttl_ms, usize::MAX).into_iter();
                idle.filter(|now| asked.get(&(&*now.family, &now.labels)).is_some_and(|then| *then == now)).collect()
            }
            EndReason::Removed(labels) => {
                // Counts made meanwhile end with it; its writers will be asked in the next step.
                self.has_news = true;
                let Some(gone) = self.gone.get(labels) else { return false };
                batch.still_unused(reader.with_labels(registry.process(), labels, &gone.values, usize::MAX))
            }
            EndReason::Unused => {
                self.has_news = true;
                let Some(in_use) = &self.in_use else { return false };
                batch.still_unused(reader.unused(in_use, registry.process(), usize::MAX))
            }
        };
        let families = registry.families();
        let before = self.ended;
        for series in ending {
            let mut is_told = true;
            for at in &series.records {
                let has_room = writer.tombstone(at.process, at.serial, at.record);
                if has_room {
                    self.tombstones.note(at.process, at.serial, at.record);
                }
                is_told &= has_room;
            }
            if is_told {
                self.ended += 1;
                if let Some((family, hash)) = set_of(&families, registry, &series.family, &series.labels) {
                    family.sets.remove(hash);
                }
            }
        }
        self.ended > before
    }
}

impl EndingSeries {
    /// Asks each writer to forget some more records.
    fn ask(&mut self, registry: &Registry) {
        self.unasked.retain(|serial, places| {
            // A closed segment has no writer any more.
            let Some(memory) = registry.memory(*serial).filter(|memory| !memory.is_closed()) else { return false };
            let rest = places.split_off(places.len().min(FORGET_MAX));
            let is_posted = memory.inbox.post(WriterRequest::Forget(std::mem::replace(places, rest)));
            debug_assert!(is_posted, "nobody else posts, and the last request has been done");
            !places.is_empty()
        });
    }

    /// The series of the batch that are among these, and for which the writers of all records were asked.
    fn still_unused(&self, now: Vec<LocatedSeries>) -> Vec<LocatedSeries> {
        let asked: HashMap<_, _> =
            self.series.iter().map(|each| ((&*each.family, &each.labels), &each.records)).collect();
        let mut now = now;
        now.retain(|each| {
            let then = asked.get(&(&*each.family, &each.labels));
            then.is_some_and(|then| each.records.iter().all(|record| then.contains(record)))
        });
        now
    }
}

/// Asks all writers of this process that have a record of one of these: now for as many as a request may hold, for
/// others in the next steps. Records of ended processes need no request.
fn ask(mut series: Vec<LocatedSeries>, why: EndReason, registry: &Registry) -> EndingSeries {
    let mut places: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut kept = 0;
    for each in &series {
        let own = each.records.iter().filter(|record| record.process == registry.process());
        let full =
            own.clone().any(|record| places.get(&record.serial).is_some_and(|places| places.len() >= FORGET_MAX));
        if full {
            break;
        }
        own.for_each(|record| places.entry(record.serial).or_default().push(record.record as u32));
        kept += 1;
    }
    series.truncate(kept);
    let mut batch = EndingSeries { why, series, unasked: places };
    batch.ask(registry);
    batch
}

/// The family of a series, and the hash by which its label set is counted against the budget.
pub(super) fn set_of<'a>(
    families: &'a [Arc<DeclaredFamily>],
    registry: &Registry,
    family: &str,
    labels: &[u8],
) -> Option<(&'a Arc<DeclaredFamily>, u64)> {
    let names = || LabelPairs::new(labels).map(|(name, _)| name);
    let is_it = |each: &&Arc<DeclaredFamily>| {
        each.family().name == family && names().eq(each.family().labels.iter().map(String::as_str))
    };
    let declared = families.iter().find(is_it)?;
    let values: Vec<_> = LabelPairs::new(labels).map(|(_, value)| value).collect();
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    Some((declared, registry.inner.hash(declared.id, &values)))
}
