//! A chunk's bytes in a format, cached from scrape to scrape: a changed value is written over the old one if it has the
//! same width; otherwise the chunk is assembled from its old bytes and the new ones.

use super::families::MergedFamily;
use super::gather::{ValueBatch, merge};
use super::mount::FamilyId;
use super::store::{CHUNK_SERIES_MAX, SeriesId, SeriesSlot, Store};
use crate::encode::{FamilyEncoder, Format};
use crate::family::{FamilyType, Merge, NATIVE_SCHEMAS};
use crate::gzip::Deflater;
use crate::protocol::ReadOutcome;
use crate::segment::cells::{CellForm, Shape, read_histogram};
use crate::segment::layout::HEAD_WORDS;
use crate::sync::Word;
use crate::value::{Distribution, Exemplar, Value};
use std::sync::Arc;

/// Bytes of a value that may be unchanged; no value is that wide.
const VALUE_BYTES_MAX: usize = 32;
/// Number of formats: the cache of each is found by the format's number.
pub(super) const FORMATS: usize = 3;

/// Consecutive series of a family.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) family: FamilyId,
    /// No series of this chunk is below it, and every series of the chunk before is. The first chunk's value is
    /// ignored.
    pub(super) low: Arc<[u8]>,
    pub(super) encoded: [Option<Box<EncodedChunk>>; FORMATS],
}

/// One bit for each series of a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bits([u64; CHUNK_SERIES_MAX / 64]);

impl Bits {
    #[inline]
    pub(super) fn set(&mut self, slot: u16) {
        self.0[usize::from(slot) / 64 % (CHUNK_SERIES_MAX / 64)] |= 1 << (slot % 64);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// Appends the numbers of the set bits.
    #[inline]
    fn list(&self, slots: &mut Vec<u16>) {
        for (index, word) in self.0.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                slots.push((index * 64) as u16 + word.trailing_zeros() as u16);
                word &= word - 1;
            }
        }
    }
}

/// Position of a series in the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeriesPosition {
    /// The end of the series, exclusive; it begins where the one before ends.
    end: u32,
    /// Offset of its value from its first byte.
    value_at: u16,
    /// Width of its value; 0: more than a value can change.
    value_bytes: u16,
}

const _: () = assert!(size_of::<SeriesPosition>() == 8);

/// Bytes that may be sent.
#[derive(Debug, Clone)]
pub(super) struct EncodedChunk {
    pub(super) bytes: Arc<Vec<u8>>,
    lines: Vec<SeriesPosition>,
    pub(super) deflated: Option<DeflatedChunk>,
}

/// The bytes, deflated.
#[derive(Debug, Clone)]
pub(super) struct DeflatedChunk {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) crc: u32,
    pub(super) len: u32,
}

impl EncodedChunk {
    pub(super) fn new(bytes: Vec<u8>, lines: Vec<SeriesPosition>) -> EncodedChunk {
        EncodedChunk { bytes: Arc::new(bytes), lines, deflated: None }
    }

    /// The memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let deflated = self.deflated.as_ref().map_or(0, |packed| packed.bytes.capacity() + size_of::<Vec<u8>>() + 16);
        let plain = self.bytes.capacity() + size_of::<Vec<u8>>() + 16;
        size_of::<EncodedChunk>() + plain + self.lines.capacity() * size_of::<SeriesPosition>() + deflated
    }

    /// Next time the whole series is encoded, not its value only.
    pub(super) fn forget_value(&mut self, slot: u16) {
        if let Some(line) = self.lines.get_mut(slot as usize) {
            line.value_bytes = 0;
        }
    }

    /// Deflates the bytes, unless that has been done.
    pub(super) fn deflate(&mut self, deflater: &mut Deflater) -> &DeflatedChunk {
        let bytes = &self.bytes;
        self.deflated.get_or_insert_with(|| pack(deflater, bytes))
    }

    fn start(&self, slot: usize) -> usize {
        slot.checked_sub(1).map_or(0, |before| self.lines[before].end as usize)
    }
}

pub(super) fn pack(deflater: &mut Deflater, bytes: &[u8]) -> DeflatedChunk {
    let deflated = deflater.deflate(bytes);
    DeflatedChunk { bytes: Arc::new(deflated.bytes), crc: deflated.crc, len: deflated.len }
}

/// Buffers that are reused.
#[derive(Debug, Default)]
pub(super) struct ChunkScratch {
    distribution: Distribution,
    part: Distribution,
    exemplars: Vec<Exemplar>,
    slots: Vec<u16>,
    gathered: ValueBatch,
    /// Slots whose value has another width, with the value.
    wide: Vec<(u16, u64)>,
    /// Histograms that could not be read consistently: they are read again next time.
    pub(super) unsettled: Vec<SeriesId>,
}

/// Encodes chunks of one family.
pub(super) struct ChunkEncoder<'a> {
    pub(super) store: &'a Store,
    pub(super) family: &'a MergedFamily,
    pub(super) format: Format,
    pub(super) encoder: &'a FamilyEncoder,
    pub(super) scratch: &'a mut ChunkScratch,
}

impl ChunkEncoder<'_> {
    /// Encodes all series.
    pub(super) fn encode(&mut self, series: &[SeriesSlot]) -> EncodedChunk {
        let kind = &self.family.family.kind;
        let is_single = !matches!(kind, FamilyType::Histogram(_));
        let mut gathered = std::mem::take(&mut self.scratch.gathered);
        if is_single {
            gathered.read(self.store, kind, series.iter().copied());
        }
        gathered.find_labels(self.store, series);
        let mut bytes = Vec::new();
        let mut lines = Vec::with_capacity(series.len());
        for (index, slot) in series.iter().enumerate() {
            let start = bytes.len();
            let labels = gathered.labels(self.store, *slot, index);
            let (value_at, value_bytes) = match is_single {
                true => self.push_single(*slot, labels, value_of(kind, gathered.values[index]), &mut bytes),
                false => {
                    self.push_histogram(*slot, labels, &mut bytes);
                    (0, 0)
                }
            };
            lines.push(SeriesPosition { end: end_of(&bytes), value_at, value_bytes });
            if index == 0 {
                bytes.reserve((bytes.len() - start + 4) * series.len());
            }
        }
        self.scratch.gathered = gathered;
        if bytes.capacity() > bytes.len() + bytes.len() / 16 {
            bytes.shrink_to_fit();
        }
        EncodedChunk::new(bytes, lines)
    }

    /// Updates the encoded bytes of these series.
    pub(super) fn update(&mut self, encoded: &mut EncodedChunk, series: &[SeriesSlot], dirty: Bits) {
        let mut slots = std::mem::take(&mut self.scratch.slots);
        slots.clear();
        dirty.list(&mut slots);
        if slots.iter().any(|slot| encoded.lines[*slot as usize].value_bytes == 0) {
            self.renew(encoded, series, &slots);
        } else {
            self.patch(encoded, series, &slots);
        }
        self.scratch.slots = slots;
    }

    /// Writes values over the old ones.
    fn patch(&mut self, encoded: &mut EncodedChunk, series: &[SeriesSlot], slots: &[u16]) {
        let kind = &self.family.family.kind;
        let changed = slots.iter().map(|slot| series[*slot as usize]);
        self.scratch.gathered.read(self.store, kind, changed);
        self.scratch.wide.clear();
        let lines = encoded.lines.as_slice();
        let encoder = self.encoder;
        let is_same = |slot: &u16, bits: &u64| {
            let old = &encoded.bytes[value_range(lines, *slot)];
            let mut new = [0; VALUE_BYTES_MAX];
            let new = &mut new[..old.len().min(VALUE_BYTES_MAX)];
            encoder.patch(value_of(kind, *bits), new) && new == old
        };
        let changes = slots.iter().zip(&self.scratch.gathered.values);
        // A value marked in the writer's last epoch is marked once more than it has changed.
        let same = changes.clone().take_while(|(slot, bits)| is_same(slot, bits)).count();
        if same == slots.len() {
            return;
        }
        encoded.deflated = None;
        // A client that is still being sent the old bytes keeps them.
        let bytes = Arc::make_mut(&mut encoded.bytes).as_mut_slice();
        for (slot, bits) in changes.skip(same) {
            if !encoder.patch_at(value_of(kind, *bits), bytes, value_range(lines, *slot)) {
                self.scratch.wide.push((*slot, *bits));
            }
        }
        if self.scratch.wide.is_empty() {
            return;
        }
        let wide = std::mem::take(&mut self.scratch.wide);
        rebuild(encoded, wide.iter().map(|(slot, _)| *slot), wide.len(), |index, old, line, out| {
            let value_at = line.value_at as usize;
            out.extend_from_slice(&old[..value_at]);
            let start = out.len();
            encoder.push_value(value_of(kind, wide[index].1), out);
            let value_bytes = (out.len() - start) as u16;
            out.extend_from_slice(&old[value_at + line.value_bytes as usize..]);
            (line.value_at, value_bytes)
        });
        self.scratch.wide = wide;
    }

    /// Encodes whole series again, between others that are unchanged.
    fn renew(&mut self, encoded: &mut EncodedChunk, series: &[SeriesSlot], slots: &[u16]) {
        let kind = &self.family.family.kind;
        let is_single = !matches!(kind, FamilyType::Histogram(_));
        rebuild(encoded, slots.iter().copied(), slots.len(), |index, old, line, out| {
            let slot = series[slots[index] as usize];
            let labels = self.store.text(slot);
            if is_single {
                return self.push_single(slot, labels, value_of(kind, self.store.single(kind, slot)), out);
            }
            let start = out.len();
            if !self.push_histogram(slot, labels, out) {
                // The previous text is still true, if old.
                out.truncate(start);
                out.extend_from_slice(old);
            }
            (line.value_at, line.value_bytes)
        });
    }

    /// Records where the value is, from the beginning of the series, and how wide it is.
    #[inline]
    fn push_single(&mut self, slot: SeriesSlot, labels: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> (u16, u16) {
        let start = out.len();
        let exemplars = if self.read_exemplars(slot) { self.scratch.exemplars.as_slice() } else { &[] };
        let span = self.encoder.series(labels, self.created_ms(slot), value, exemplars, out);
        let fits = |span: crate::encode::ValueSpan| {
            let value_at = u16::try_from(span.start - start).ok()?;
            Some((value_at, u16::try_from(span.end - span.start).ok()?))
        };
        span.and_then(fits).unwrap_or((0, 0))
    }

    /// Returns false if the histogram is in the middle of a change.
    fn push_histogram(&mut self, slot: SeriesSlot, labels: &[u8], out: &mut Vec<u8>) -> bool {
        let exemplars = self.read_exemplars(slot);
        let ChunkScratch { distribution, part, unsettled, .. } = &mut *self.scratch;
        let is_whole = self.store.histogram(&self.family.shape, slot, part, distribution);
        if !is_whole {
            unsettled.push(self.store.series_of(slot));
        }
        let exemplars = if exemplars { self.scratch.exemplars.as_slice() } else { &[] };
        let value = Value::Histogram(&self.scratch.distribution);
        self.encoder.series(labels, self.created_ms(slot), value, exemplars, out);
        is_whole
    }

    #[inline]
    fn created_ms(&self, slot: SeriesSlot) -> u64 {
        // This takes one more look at every record; the text format does not show the time.
        if self.format == Format::Text { 0 } else { self.store.created_ms(slot) }
    }

    #[inline]
    fn read_exemplars(&mut self, slot: SeriesSlot) -> bool {
        let has_any = self.family.family.exemplars;
        if has_any {
            self.scratch.exemplars.clear();
            self.store.exemplars(slot, &mut self.scratch.exemplars);
        }
        has_any
    }
}

/// Assembles the bytes again: `write` makes the series of these slots, given their old bytes; the others are copied.
fn rebuild(
    encoded: &mut EncodedChunk,
    slots: impl Iterator<Item = u16>,
    count: usize,
    mut write: impl FnMut(usize, &[u8], SeriesPosition, &mut Vec<u8>) -> (u16, u16),
) {
    let old = &encoded.bytes;
    let mut new = Vec::with_capacity(old.len() + count * 4);
    let mut copied = 0;
    // The first line whose end still refers to the old bytes.
    let mut next = 0;
    let mut previous_end = 0;
    for (index, slot) in slots.enumerate() {
        let slot = slot as usize;
        let start = if slot == next { previous_end } else { encoded.start(slot) };
        let line = encoded.lines[slot];
        new.extend_from_slice(&old[copied..start]);
        move_ends(&mut encoded.lines[next..slot], new.len() as i64 - start as i64);
        let (value_at, value_bytes) = write(index, &old[start..line.end as usize], line, &mut new);
        encoded.lines[slot] = SeriesPosition { end: end_of(&new), value_at, value_bytes };
        copied = line.end as usize;
        previous_end = copied;
        next = slot + 1;
    }
    let moved = new.len() as i64 - copied as i64;
    new.extend_from_slice(&old[copied..]);
    move_ends(&mut encoded.lines[next..], moved);
    if new != **old {
        encoded.bytes = Arc::new(new);
        encoded.deflated = None;
    }
}

/// Range of a slot's value.
#[inline]
fn value_range(lines: &[SeriesPosition], slot: u16) -> std::ops::Range<usize> {
    let slot = slot as usize;
    let start = if slot == 0 { 0 } else { lines[slot - 1].end as usize } + lines[slot].value_at as usize;
    start..start + lines[slot].value_bytes as usize
}

fn move_ends(lines: &mut [SeriesPosition], by: i64) {
    if by != 0 {
        lines.iter_mut().for_each(|line| line.end = (i64::from(line.end) + by) as u32);
    }
}

fn end_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("256 lines of at most 64 KiB each")
}

// The merged value of a series: the values of all its records, read from the segments at this moment.
//
// Each record's count only grows, so their sum does too, without comparing it with an earlier value. Floats are added
// in the order of the list, which changes only with the list.

/// The value of these bits, an integer or a float, as its family's kind says.
pub(super) fn value_of(kind: &FamilyType, bits: u64) -> Value<'static> {
    match kind {
        FamilyType::Counter => Value::Unsigned(bits),
        _ => Value::Float(f64::from_bits(bits)),
    }
}

/// No writer counts this far. A damaged file may claim more, and sums must not overflow.
const COUNT_MAX: u64 = 1 << 48;
/// No schema has a native bucket beyond this one.
const BUCKET_MAX: u32 = 1 << 20;

/// Clamps a state that is out of range, so that it can be added up and printed.
fn clamp_counts(state: &mut Distribution) {
    state.classic.iter_mut().for_each(|count| *count = (*count).min(COUNT_MAX));
    if let Some(native) = &mut state.native {
        native.zero_count = native.zero_count.min(COUNT_MAX);
        native.nan_count = native.nan_count.min(COUNT_MAX);
        native.schema = native.schema.clamp(*NATIVE_SCHEMAS.start(), *NATIVE_SCHEMAS.end());
        for buckets in [&mut native.positive, &mut native.negative] {
            buckets.retain(|(index, _)| index.unsigned_abs() <= BUCKET_MAX);
            buckets.iter_mut().for_each(|(_, count)| *count = (*count).min(COUNT_MAX));
        }
    }
}

/// Accepts what a dead writer left in the middle of a change: it stays so for ever. If its classic and native buckets
/// disagree, the missing observation is added where it does the least harm.
fn add_missing_observations(state: &mut Distribution) {
    if let Some(native) = state.native.as_mut().filter(|_| !state.classic.is_empty()) {
        native.zero_count += state.classic.iter().sum::<u64>().saturating_sub(native.count());
    }
}

impl FamilyType {
    /// Whether a value is true only while the process that set it lives. Counts outlive their process.
    pub(super) fn ends_with_its_process(&self) -> bool {
        matches!(self, FamilyType::Gauge(Merge::Sum | Merge::Last | Merge::Max) | FamilyType::Info)
    }
}

impl Store {
    /// The value of a series that has a single one, as bits.
    #[inline]
    pub(super) fn single(&self, kind: &FamilyType, slot: SeriesSlot) -> u64 {
        let words = self.places(slot).map(|(place, contribution)| {
            let cells = contribution.record() + HEAD_WORDS;
            let log = self.mount(place.mount).segment.log();
            (log, cells)
        });
        match kind {
            FamilyType::Counter
            | FamilyType::FloatCounter
            | FamilyType::Gauge(Merge::Sum | Merge::Total | Merge::Max) => {
                let values = words.map(|(log, cells)| log[cells].get());
                // The sum does not start from 0.0: a single value keeps all its bits.
                values.reduce(|sum, each| merge(kind, sum, each)).unwrap_or(0)
            }
            FamilyType::Gauge(Merge::Last) => {
                let last = words.map(|(log, cells)| (log[cells + 1].get(), log[cells].get()));
                last.max_by_key(|(stamp, _)| *stamp).map_or(0, |(_, bits)| bits)
            }
            FamilyType::Info => 1f64.to_bits(),
            FamilyType::Histogram(_) => 0,
        }
    }

    /// Reads a histogram; returns false if one of its records is in the middle of a change. If its writer was killed in
    /// it, the sum may lack one observation.
    pub(super) fn histogram(
        &self,
        shape: &Shape,
        slot: SeriesSlot,
        part: &mut Distribution,
        out: &mut Distribution,
    ) -> bool {
        let CellForm::Histogram { bounds, native } = &shape.form else { return false };
        let mut is_whole = true;
        for (index, (place, contribution)) in self.places(slot).enumerate() {
            let log = self.mount(place.mount).segment.log();
            let cells = &log[contribution.record() + HEAD_WORDS..];
            let to = if index == 0 { &mut *out } else { &mut *part };
            let seen = read_histogram(cells, bounds, native.as_ref(), to);
            clamp_counts(to);
            if seen == ReadOutcome::Stuck && !self.mount(place.mount).is_alive {
                add_missing_observations(to);
            } else {
                is_whole &= seen == ReadOutcome::Whole;
            }
            if index > 0 {
                out.merge(part);
            }
        }
        is_whole
    }

    /// When the first of its records was made.
    #[inline]
    pub(super) fn created_ms(&self, slot: SeriesSlot) -> u64 {
        let created = self.places(slot).map(|(place, record)| self.mount(place.mount).created_ms(record.record()));
        created.min().unwrap_or(0)
    }

    /// The exemplars of all its records.
    pub(super) fn exemplars(&self, slot: SeriesSlot, out: &mut Vec<Exemplar>) {
        for (place, contribution) in self.places(slot) {
            let mounted = self.mount(place.mount);
            if let Some(declared) = mounted.declared(contribution.record()) {
                let cells = contribution.record() + HEAD_WORDS;
                declared.shape.read_exemplars(&mounted.segment.log()[cells..], out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Exponential;

    #[test]
    fn native_buckets_of_the_dead_come_to_what_the_classic_ones_do() {
        let native = Exponential { positive: vec![(1, 4)], ..Exponential::default() };
        let mut state = Distribution { sum: 4.0, classic: vec![2, 3], native: Some(native) };
        for _ in 0..2 {
            add_missing_observations(&mut state);
            assert_eq!(state.native.as_ref().unwrap().count(), 5);
        }
    }
}
