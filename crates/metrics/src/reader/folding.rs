//! Folding: when a label collapses, the series that differ only in it become the one in which it is `__other__`.
//!
//! Writers do nothing for that. Their records and handles remain, and keep counting; a reader counts them for another
//! series from the moment in which it reads that the label has collapsed. All records of the process change their
//! series in one refresh, so an exposition shows each count once, and the series with `__other__` begins with the
//! earlier counts: it never jumps.
//!
//! ```text
//!  writer A   x="1"  x="2"  fold(1: x)  x="__other__"        the fold is in front of what was made under it, so a reader that
//!  writer B   x="3"                 x="4"                    reads x="__other__" anywhere has read the fold
//!             ╰──────┴─ all of these count for x="__other__" ─╯   B's records do, until B has written the fold, too
//! ```
//!
//! A fold names the labels that have ever collapsed in its process, so a later reader needs only the last one.

use super::SAMPLES_MAX;
use super::mount::{FamilyDeclaration, FamilyId, RecordLocation};
use super::store::SeriesId;
use super::{Reader, RefreshSummary};
use crate::declared::OTHER;
use crate::labels::{LabelPairs, RawPairs};
use crate::segment::SegmentProcess;
use std::sync::Arc;

/// Time that a running exposition is given to end before series are folded: half of it would be from before.
const EXPOSITION_MS_MAX: u64 = 10_000;

/// A fold, by its generation: 0 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fold {
    pub(crate) generation: u32,
    /// Labels, one bit each, in the family's order.
    pub(crate) labels: u32,
}

/// The folds of one family that the writers of a process have declared alike.
#[derive(Debug)]
pub(super) struct Folds {
    process: SegmentProcess,
    family: FamilyId,
    labels: Vec<String>,
    /// Number of segments that declare it.
    segments: usize,
    /// The last fold that was read.
    known: Fold,
    /// The last fold that was applied to the series of this reader.
    applied: Fold,
    /// Some folded values of each label.
    samples: Vec<Vec<String>>,
}

/// The folds of all processes.
#[derive(Debug, Default)]
pub(super) struct FoldedSegments {
    entries: Vec<Option<Folds>>,
    /// Shared with every exposition in progress.
    pub(super) expositions: Arc<()>,
    /// Since when a fold has been waiting for these.
    waits_since_ms: Option<u64>,
}

/// A label set that no longer has a series of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoldedSet {
    pub(crate) process: SegmentProcess,
    pub(crate) family: Arc<str>,
    /// The label text, as in the segments.
    pub(crate) labels: Vec<u8>,
    /// The label text of the series that it counts for.
    pub(crate) to: Vec<u8>,
}

impl FoldedSegments {
    /// A segment of this process declares a family with these labels; returns the number of its folds' entry.
    pub(super) fn declare(&mut self, process: SegmentProcess, family: FamilyId, labels: &[String]) -> usize {
        let is_it = |folds: &Folds| folds.process == process && folds.family == family && folds.labels == labels;
        if let Some(known) = self.entries.iter().position(|entry| entry.as_ref().is_some_and(is_it)) {
            self.entries[known].iter_mut().for_each(|folds| folds.segments += 1);
            return known;
        }
        let (known, applied, samples) = (Fold::default(), Fold::default(), vec![Vec::new(); labels.len()]);
        let folds = Some(Folds { process, family, labels: labels.to_vec(), segments: 1, known, applied, samples });
        match self.entries.iter().position(Option::is_none) {
            Some(free) => {
                self.entries[free] = folds;
                free
            }
            None => {
                self.entries.push(folds);
                self.entries.len() - 1
            }
        }
    }

    /// Handles the end of a segment that declared it.
    pub(super) fn undeclare(&mut self, number: usize) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        entry.iter_mut().for_each(|folds| folds.segments -= 1);
        if entry.as_ref().is_some_and(|folds| folds.segments == 0) {
            *entry = None;
        }
    }

    /// Records a fold that was read; returns false if it is invalid.
    pub(super) fn learn(&mut self, number: usize, fold: Fold) -> bool {
        let Some(folds) = self.entries.get_mut(number).and_then(Option::as_mut) else { return false };
        let labels_max = (1u64 << folds.labels.len()).wrapping_sub(1) as u32;
        if fold.generation == 0 || fold.labels & !labels_max != 0 {
            return false;
        }
        if fold.generation > folds.known.generation {
            folds.known = fold;
        } else if fold.generation == folds.known.generation {
            folds.known.labels |= fold.labels;
        }
        true
    }

    /// Keeps some values of a folded label set, to help people find the label that exploded.
    fn keep_samples(&mut self, number: usize, labels: &[u8]) {
        let Some(folds) = self.entries.get_mut(number).and_then(Option::as_mut) else { return };
        for (label, (samples, (_, value))) in folds.samples.iter_mut().zip(LabelPairs::new(labels)).enumerate() {
            let is_folded = folds.applied.labels & (1 << label) != 0 && value != OTHER;
            if is_folded && samples.len() < SAMPLES_MAX && !samples.iter().any(|sample| *sample == value) {
                samples.push(value.into_owned());
            }
        }
    }

    /// Some folded values of a family's label.
    pub(super) fn samples(&self, family: FamilyId, label: &str) -> impl Iterator<Item = &String> {
        let of_family = self.entries.iter().flatten().filter(move |folds| folds.family == family);
        of_family.flat_map(move |folds| {
            let of_label = folds.labels.iter().zip(&folds.samples).filter(move |(name, _)| *name == label);
            of_label.flat_map(|(_, samples)| samples)
        })
    }

    fn get(&self, number: usize) -> Option<&Folds> {
        self.entries.get(number).and_then(Option::as_ref)
    }

    /// The text of the series that a record with this text counts for, if that is another one.
    pub(super) fn target(&self, declared: &FamilyDeclaration, text: &[u8]) -> Option<Vec<u8>> {
        let folds = self.get(declared.folds)?;
        let applies = declared.generation < folds.applied.generation;
        applies.then(|| fold_text(text, &folds.labels, folds.applied.labels)).flatten()
    }
}

impl Reader {
    /// The last applied fold of a process for this family with these labels.
    pub(crate) fn applied_fold(&self, process: SegmentProcess, family: &str, labels: &[String]) -> Fold {
        let is_it = |folds: &&Folds| {
            folds.process == process && folds.labels == labels && *self.order.families.get(folds.family).name == *family
        };
        self.folding.entries.iter().flatten().filter(is_it).map(|folds| folds.applied).next().unwrap_or_default()
    }

    /// Applies the folds that have been read, once no exposition from before is in progress.
    pub(super) fn apply_folds(&mut self, refreshed: &mut RefreshSummary) {
        let entries = self.folding.entries.iter().enumerate();
        let is_new = |folds: &Folds| folds.known != folds.applied;
        let new: Vec<usize> =
            entries.filter(|(_, entry)| entry.as_ref().is_some_and(is_new)).map(|(number, _)| number).collect();
        if new.is_empty() {
            self.folding.waits_since_ms = None;
            return;
        }
        let since_ms = *self.folding.waits_since_ms.get_or_insert(self.now_ms);
        let is_handed_out = Arc::strong_count(&self.folding.expositions) > 1;
        if is_handed_out && self.now_ms.saturating_sub(since_ms) < EXPOSITION_MS_MAX {
            return;
        }
        self.folding.waits_since_ms = None;
        new.into_iter().for_each(|number| self.apply_fold(number, refreshed));
    }

    /// Moves all records that were made before a fold to the series that it names.
    fn apply_fold(&mut self, number: usize, refreshed: &mut RefreshSummary) {
        let Some(folds) = self.folding.entries[number].as_mut() else { return };
        folds.applied = folds.known;
        let (fold, family, labels, process) = (folds.applied, folds.family, folds.labels.clone(), folds.process);
        // Limits, for each segment, of the series that it covers.
        let limits: Vec<u32> = self
            .store
            .mounts
            .iter()
            .map(|mounted| {
                let families = mounted.iter().flat_map(|mounted| mounted.families.iter().flatten());
                let declared = families.into_iter().find(|declared| declared.folds == number);
                declared.map_or(0, |declared| match declared.generation < fold.generation {
                    true => u32::MAX,
                    false => declared.folded_to,
                })
            })
            .collect();
        let is_before =
            |place: RecordLocation| limits.get(place.mount as usize).is_some_and(|limit| place.number < *limit);
        for (series, to) in self.to_be_folded(family, &labels, fold.labels) {
            let text = self.store.text(self.store.slot(series)).to_vec();
            let (taken, left) = self.store.take(series, is_before);
            if taken.is_empty() {
                continue;
            }
            self.note_taken(left, refreshed);
            for (place, contribution) in taken {
                self.link_folded(family, &to, &text, place, contribution.record() as u32, refreshed);
            }
            self.folding.keep_samples(number, &text);
            self.note_folded(process, family, text, to, refreshed);
        }
    }

    /// The series of a family that a fold of these labels may affect, each with the text that it is folded into.
    fn to_be_folded(&self, family: FamilyId, labels: &[String], folded: u32) -> Vec<(SeriesId, Vec<u8>)> {
        let chunks = &self.order.families.get(family).chunks;
        let exposed = chunks.iter().flat_map(|chunk| &self.store.slots[*chunk as usize]);
        let pending = self.store.pending.iter().filter(|(of, _)| *of == family).map(|(_, slot)| slot);
        let living = exposed.chain(pending).filter(|slot| !slot.is_dead());
        let folded = living.filter_map(|slot| {
            let to = fold_text(self.store.text(*slot), labels, folded)?;
            Some((self.store.series_of(*slot), to))
        });
        folded.collect()
    }

    /// Adds a record to the series that it is folded into; if memory for that runs out, to the series of its own text.
    pub(super) fn link_folded(
        &mut self,
        family: FamilyId,
        to: &[u8],
        text: &[u8],
        place: RecordLocation,
        record: u32,
        refreshed: &mut RefreshSummary,
    ) {
        let kind = &self.order.families.get(family).family.kind;
        let linked = self.store.link_folded((family, kind), to, place, record);
        let (series, is_new) = linked.unwrap_or_else(|| self.store.link(family, text, place, record));
        match is_new {
            true => refreshed.series_new += 1,
            false => self.order.mark_rebuilt(&self.store, series),
        }
    }

    /// Records for the family's budget that a label set no longer counts for itself.
    pub(super) fn note_folded(
        &self,
        process: SegmentProcess,
        family: FamilyId,
        labels: Vec<u8>,
        to: Vec<u8>,
        refreshed: &mut RefreshSummary,
    ) {
        let family = self.order.families.get(family).name.clone();
        refreshed.folded.push(FoldedSet { process, family, labels, to });
    }
}

/// The label text with `__other__` for these labels; `None` if its labels are different, or nothing changes.
fn fold_text(text: &[u8], labels: &[String], folded: u32) -> Option<Vec<u8>> {
    let mut to = Vec::new();
    let mut names = labels.iter();
    for (index, (name, value)) in (RawPairs { rest: text }).enumerate() {
        if names.next().is_none_or(|label| label.as_bytes() != name) {
            return None;
        }
        let value = if folded & (1 << index) != 0 { OTHER.as_bytes() } else { value };
        to.extend_from_slice(if index == 0 { b"" } else { b"," });
        to.extend_from_slice(name);
        to.extend_from_slice(b"=\"");
        to.extend_from_slice(value);
        to.push(b'"');
    }
    (names.next().is_none() && to != text).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folded_labels_change() {
        let check = |text: &str, folded: u32, expected: Option<&str>| {
            let labels = ["a", "b"].map(str::to_owned);
            assert_eq!(
                fold_text(text.as_bytes(), &labels, folded),
                expected.map(|text| text.as_bytes().to_vec()),
                "{text}"
            );
        };
        check("a=\"1\",b=\"2\"", 0b10, Some("a=\"1\",b=\"__other__\""));
        check("a=\"1\",b=\"2\"", 0b11, Some("a=\"__other__\",b=\"__other__\""));
        check("a=\"\\\"\\\\,b=\",b=\"\"", 0b10, Some("a=\"\\\"\\\\,b=\",b=\"__other__\""));
        check("a=\"1\",b=\"__other__\"", 0b10, None);
        check("a=\"1\",b=\"2\"", 0, None);
        check("a=\"1\"", 0b01, None);
        check("a=\"1\",b=\"2\",c=\"3\"", 0b01, None);
        check("b=\"1\",a=\"2\"", 0b01, None);
        check("", 0b01, None);
    }
}
