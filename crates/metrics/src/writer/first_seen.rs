//! Handles a new label set: checks the budget, and writes a record or collapses a label.
//!
//! A set gets a series of its own while its family is within its budget and memory is left. Otherwise the label with
//! the most distinct values is replaced by `__other__`, for this set and all new ones of all writers; if that is not
//! enough, the next label; finally all new sets share one series. So the sum over a family is always correct.
//!
//! Existing series keep their records, and handles to them stay valid: readers fold them into the series with
//! `__other__`. They do so because of a fold, which a writer puts into its segment before the first series that it
//! makes under a new policy.
//!
//! If a label has collapsed for want of memory and the memory that this frees has not come back yet, the same happens
//! for this one observation, without a lasting decision. Memory that is only late changes no label: if the provisioner
//! has not come yet, the writer prepares a few pages itself, in some 20 µs.

use super::index::Pages;
use super::memory::{NeededMemory, PAGES_OWN};
use super::{LocalFamily, Writer};
use crate::declared::{DeclaredFamily, OTHER};
use crate::family::LABELS_MAX;
use crate::labels;
use crate::protocol::{self, CollapseState};
use crate::segment::cells::to_word;
use crate::segment::layout::{
    self, FLAG_COLLAPSED, FLAG_ESCAPED, FOLD_WORDS, HEAD_WORDS, RECORD_WORDS_MAX, RecordHead, RecordKind, WORD, pair,
};
use crate::sync::Ordering::Relaxed;
use std::sync::Arc;

/// Words of the log reserved for label sets with a collapsed label, when memory has run out: some hundred series.
const COLLAPSED_RESERVE_WORDS: usize = 2048;

/// The reason why a record could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteRefusal {
    /// There is no place for this label set: it is too long, or its hash is that of too many others.
    NoPlace,
    /// Memory has run out.
    Exhausted,
}

impl Writer {
    /// The place of the series for a label set that the index does not have. `None`: memory has run out even for the
    /// family's declaration; the observation is lost, and counted as lost.
    #[cold]
    #[inline(never)]
    pub(super) fn first_seen(&mut self, family: &Arc<DeclaredFamily>, given: &[&[u8]], hash: u64) -> Option<u32> {
        if !self.know(family) {
            self.memory.lost.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return None;
        }
        if given.iter().all(|value| is_canonical(value)) {
            family.note(given.iter().map(|value| self.inner.hash_value(value)));
            return Some(self.admit(family, given, hash));
        }
        let canonical: Vec<Vec<u8>> = given.iter().map(|value| canonical(value)).collect();
        let values: Vec<&[u8]> = canonical.iter().map(Vec::as_slice).collect();
        let hash = self.inner.hash(family.id, &values);
        if let Some(at) = self.find(family, &values, hash) {
            return Some(at);
        }
        family.note(values.iter().map(|value| self.inner.hash_value(value)));
        Some(self.admit(family, &values, hash))
    }

    /// Finds or makes the series, with as few labels collapsed as the budget allows.
    fn admit(&mut self, family: &Arc<DeclaredFamily>, given: &[&[u8]], given_hash: u64) -> u32 {
        let mut policy = family.policy();
        // The labels collapsed for this observation only, besides those of the policy.
        let mut for_now = 0;
        loop {
            let all = policy.collapsed | for_now;
            let mut values: [&[u8]; LABELS_MAX] = [&[]; LABELS_MAX];
            let mut replaced = 0;
            for (label, value) in given.iter().enumerate() {
                let collapses = all & (1 << label) != 0 && *value != OTHER.as_bytes();
                replaced |= u32::from(collapses) << label;
                values[label] = if collapses { OTHER.as_bytes() } else { value };
            }
            let values = &values[..given.len()];
            let hash = if replaced == 0 { given_hash } else { self.inner.hash(family.id, values) };
            if replaced != 0
                && let Some(at) = self.find(family, values, hash)
            {
                self.count_collapsed(family, replaced);
                return at;
            }
            if !family.sets.contains(hash) && !family.has_room(policy) {
                if policy.collapsed == family.all() {
                    return self.overflow(family, policy);
                }
                policy = family.collapse(policy);
                continue;
            }
            match self.make(family, values, hash, replaced, policy) {
                Ok(at) => {
                    family.sets.insert(hash);
                    if family.sets.is_to_be_prepared() {
                        self.inner.call_provisioner(&self.memory);
                    }
                    self.count_collapsed(family, replaced);
                    return at;
                }
                Err(WriteRefusal::Exhausted) if policy.collapsed == 0 && family.all() != 0 => {
                    policy = family.collapse(policy)
                }
                Err(_) => match family.widest(all) {
                    Some(label) => for_now |= 1 << label,
                    None => return self.overflow(family, policy),
                },
            }
        }
    }

    /// Counts one observation for each replaced label value; not for internal families.
    fn count_collapsed(&mut self, family: &Arc<DeclaredFamily>, replaced: u32) {
        let is_counted = family.id != self.counts.id && !family.family().is_internal();
        if replaced == 0 || !is_counted || !self.inner.counts_collapses {
            return;
        }
        let counts = self.counts.clone();
        for label in (0..family.family().labels.len()).filter(|label| replaced & (1 << label) != 0) {
            let values = [family.family().name.as_bytes(), family.family().labels[label].as_bytes()];
            let handle = self.series(&counts, &values);
            // The handle is current, and a counter's.
            let _ = self.add(handle, 1);
        }
    }

    /// The overflow series: made of memory that was reserved when the family became known.
    fn overflow(&mut self, family: &Arc<DeclaredFamily>, policy: CollapseState) -> u32 {
        self.count_collapsed(family, family.all());
        let known = self.locals[family.id as usize].as_ref().and_then(|local| local.overflow);
        if let Some(at) = known {
            return at;
        }
        let values = [OTHER.as_bytes(); LABELS_MAX];
        let values = &values[..family.family().labels.len()];
        // Label sets may have been observed as, or collapsed to, this one before.
        let hash = self.inner.hash(family.id, values);
        let at = self.find(family, values, hash).unwrap_or_else(|| {
            self.reserve -= reserve_words(family);
            self.reserved_series -= 1;
            self.write_fold(family, policy);
            let at = self.log_used;
            self.write_series(family, values, family.all());
            at as u32
        });
        if let Some(local) = &mut self.locals[family.id as usize] {
            local.overflow = Some(at);
        }
        at
    }

    /// Forgets the family's overflow series like any other: the next one needs room again. If there is none, the old
    /// one stays in use; its counts are lost then, but they would be in any case.
    pub(super) fn forget_overflow(&mut self, place: u32) {
        let is_it = |local: &LocalFamily| local.overflow == Some(place);
        let Some(id) = self.locals.iter().position(|local| local.as_ref().is_some_and(is_it)) else { return };
        let words = self.locals[id].as_ref().map_or(0, |local| reserve_words(&local.declared));
        if self.has_memory(words + self.reserve, self.reserved_series + 1) {
            self.locals[id].iter_mut().for_each(|local| local.overflow = None);
            self.reserve += words;
            self.reserved_series += 1;
        }
    }

    /// Declares the family in this segment, with memory reserved for its overflow series.
    pub(super) fn know(&mut self, family: &Arc<DeclaredFamily>) -> bool {
        let id = family.id as usize;
        if self.locals.get(id).is_some_and(Option::is_some) {
            return true;
        }
        if self.locals.len() <= id {
            self.locals.resize_with(id + 1, || None);
        }
        let Ok(number) = u16::try_from(self.numbers.len()) else { return false };
        let bytes = layout::encode_family(family.family());
        let words = HEAD_WORDS + bytes.len().div_ceil(WORD);
        let reserve = reserve_words(family);
        let is_short = words <= RECORD_WORDS_MAX;
        if !is_short || !self.has_memory(words + reserve + self.reserve, self.reserved_series + 1) {
            return false;
        }
        let head = RecordHead { words: words as u32, kind: RecordKind::Family, flags: 0, family: number };
        self.write_record(head, pair(u32::from(number), bytes.len() as u32), &bytes);
        self.reserve += reserve;
        self.reserved_series += 1;
        self.numbers.push(family.id);
        self.locals[id] = Some(LocalFamily { declared: family.clone(), number, overflow: None, generation: 0 });
        true
    }

    /// Enters a new series into the index and writes its record.
    fn make(
        &mut self,
        family: &Arc<DeclaredFamily>,
        values: &[&[u8]],
        hash: u64,
        replaced: u32,
        policy: CollapseState,
    ) -> Result<u32, WriteRefusal> {
        let text: usize =
            family.family().labels.iter().zip(values).map(|(name, value)| name.len() + value.len() + 4).sum();
        // Escaping may double the values.
        let words = family.shape.record_words(2 * text);
        let fold = if self.has_said(family, policy) { 0 } else { FOLD_WORDS };
        // The counter of collapsed observations has to find room too.
        let is_plain = replaced == 0 && family.id != self.counts.id;
        let kept = if is_plain { self.reserve + COLLAPSED_RESERVE_WORDS } else { self.reserve };
        let memory = self.memory.clone();
        // More is requested well before it is needed.
        let is_low = memory.log.is_low(self.log_used)
            || memory.pages.is_low(self.index.pages())
            || memory.epochs.is_low(self.series);
        if is_low {
            self.inner.call_provisioner(&memory);
        }
        if words > RECORD_WORDS_MAX {
            return Err(WriteRefusal::NoPlace);
        }
        if !self.has_memory(fold + words + kept, self.reserved_series + 1) {
            return Err(WriteRefusal::Exhausted);
        }
        let place = (self.log_used + fold) as u32;
        if !self.enter(hash as u32, place) {
            let needed = NeededMemory { pages: self.index.pages() + PAGES_OWN, ..NeededMemory::default() };
            if !self.inner.has_memory(&memory, needed) {
                return Err(WriteRefusal::Exhausted);
            }
            if !self.enter(hash as u32, place) {
                return Err(WriteRefusal::NoPlace);
            }
        }
        self.write_fold(family, policy);
        let at = self.log_used as u32;
        self.write_series(family, values, replaced);
        Ok(at)
    }

    /// Whether there is memory for so many more words of log, and more series.
    pub(super) fn has_memory(&self, words: usize, series: usize) -> bool {
        let needed = NeededMemory { log: self.log_used + words, series: self.series + series, pages: 0 };
        self.inner.has_memory(&self.memory, needed)
    }

    /// Enters a place into the index; false if its page is full and cannot be split.
    fn enter(&mut self, hash: u32, place: u32) -> bool {
        let pages = Pages { words: self.memory.index_words(), ready: self.memory.pages.ready() };
        let is_entered = self.index.insert(pages, hash, place);
        self.memory.pages.use_up_to(self.index.pages());
        is_entered
    }

    /// Whether this segment records that what follows was written under this policy. A base does not follow policies:
    /// it records the one under which it was made.
    fn has_said(&self, family: &DeclaredFamily, policy: CollapseState) -> bool {
        let known = self.locals[family.id as usize].as_ref().map_or(0, |local| local.generation);
        known == policy.generation || !self.inner.counts_collapses
    }

    /// Records that what follows is written under this policy, unless that is recorded already; the caller has checked
    /// that there is room.
    fn write_fold(&mut self, family: &DeclaredFamily, policy: CollapseState) {
        if self.has_said(family, policy) {
            return;
        }
        let Some(local) = &mut self.locals[family.id as usize] else { return };
        local.generation = policy.generation;
        let head = RecordHead { words: FOLD_WORDS as u32, kind: RecordKind::Fold, flags: 0, family: local.number };
        self.write_record(head, pair(policy.generation, family.folded(policy)), &[]);
    }

    /// Records in a base, before anything is added to it, the policy of the process under which a family's series are;
    /// false if there is no room.
    pub(crate) fn record_policy(&mut self, family: &Arc<DeclaredFamily>, generation: u32, labels: u32) -> bool {
        if !self.know(family) || !self.has_memory(self.reserve + FOLD_WORDS, self.reserved_series) {
            return false;
        }
        let Some(local) = self.locals[family.id as usize].as_mut().filter(|local| local.generation != generation)
        else {
            return true;
        };
        local.generation = generation;
        let number = local.number;
        let head = RecordHead { words: FOLD_WORDS as u32, kind: RecordKind::Fold, flags: 0, family: number };
        self.write_record(head, pair(generation, labels), &[]);
        true
    }

    /// Writes a series' record; the caller has checked that there is room.
    fn write_series(&mut self, family: &Arc<DeclaredFamily>, values: &[&[u8]], replaced: u32) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        labels::encode(&mut text, &family.family().labels, values);
        let number = self.locals[family.id as usize].as_ref().map_or(0, |local| local.number);
        let collapsed = if replaced == 0 { 0 } else { FLAG_COLLAPSED };
        let flags = collapsed | if labels::has_escapes(&text) { FLAG_ESCAPED } else { 0 };
        let words = family.shape.record_words(text.len()) as u32;
        let series = self.series as u32;
        self.series += 1;
        self.memory.epochs.use_up_to(self.series);
        protocol::mark_changed(&self.segment.own_epochs()[series as usize], self.epoch);
        let head = RecordHead { words, kind: RecordKind::Series, flags, family: number };
        self.write_record(head, pair(series, text.len() as u32), &text);
        self.text = text;
    }

    /// Writes a record at the log's end and publishes it.
    fn write_record(&mut self, head: RecordHead, second: u64, text: &[u8]) {
        let (at, words) = (self.log_used, head.words as usize);
        let log = &self.segment.own_log()[at..at + words];
        log[0].store(head.pack(), Relaxed);
        log[1].store(second, Relaxed);
        log[2].store(self.now_ms, Relaxed);
        // The cells are zero: the memory is new.
        let text_at = words - text.len().div_ceil(WORD);
        for (word, bytes) in log[text_at..].iter().zip(text.chunks(WORD)) {
            word.store(to_word(bytes), Relaxed);
        }
        self.log_used = at + words;
        self.memory.log.use_up_to(self.log_used);
        protocol::commit(&self.segment.own_header().committed, self.log_used as u64);
    }
}

/// Words of the series in which every label is `__other__`, and of the fold before it.
fn reserve_words(family: &DeclaredFamily) -> usize {
    FOLD_WORDS
        + family.shape.record_words(family.family().labels.iter().map(|label| label.len() + OTHER.len() + 4).sum())
}

/// Whether a value is printed as it is, apart from escapes.
fn is_canonical(value: &[u8]) -> bool {
    value.len() <= labels::VALUE_BYTES_MAX && str::from_utf8(value).is_ok()
}

/// The printed form of this value: cut, and with U+FFFD for invalid UTF-8. All values with the same printed form are
/// one series.
fn canonical(value: &[u8]) -> Vec<u8> {
    let (mut text, mut value_only) = (Vec::new(), Vec::new());
    labels::push_pair(&mut text, true, "", value);
    labels::push_unescaped(&mut value_only, &text[2..text.len() - 1]);
    value_only
}
