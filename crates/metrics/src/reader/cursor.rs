//! One exposition, produced piece by piece at the pace of its client, however slow.
//!
//! A cursor holds neither a lock nor a copy: between two pieces series may come, go and change. It remembers its
//! position in the order of families and labels, so that the pieces are in order and contain nothing twice.
//!
//! The current values of one family can also be read, for programs that compute with them rather than expose them.
//! That result is not cached, and nothing is encoded. The work is in proportion to the family's series, so frequent
//! callers should read small families.

use super::chunk::{ChunkEncoder, DeflatedChunk, EncodedChunk, pack, value_of};
use super::{Piece, Reader};
use crate::encode::Format;
use crate::family::{Family, FamilyType};
use crate::gzip::{self, Trailer};
use crate::value::{Distribution, Value};
use std::collections::VecDeque;
use std::sync::Arc;

/// Position of an exposition.
#[derive(Debug)]
pub struct ExpositionCursor {
    format: Format,
    /// Restricts the exposition to the families that have one of these names.
    names: Option<Vec<String>>,
    /// Trailer of the pieces produced so far, if they are deflated.
    trailer: Option<Trailer>,
    state: CursorState,
    /// The refresh it belongs to.
    refresh: u64,
    /// The version of the order that `family` and `chunk` refer to.
    version: u64,
    /// Index of the next exposed family.
    family: usize,
    /// The current family, or the last one that was finished.
    at: Option<FamilyPosition>,
    /// The order has changed since: the next chunk may begin with series that were already produced.
    is_moved: bool,
    /// While it is held, the reader knows that an exposition is in progress.
    handed_out: Option<Arc<()>>,
    /// Parts that come first: a whole family, if its length had to be known.
    pinned: VecDeque<PlainPiece>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CursorState {
    Start,
    Families,
    Footer,
    Trailer,
    Done,
}

/// A place in the order that survives changes of the order.
#[derive(Debug)]
struct FamilyPosition {
    name: Arc<str>,
    /// Distinguishes the family from a later one of the same name.
    born: u64,
    /// The next chunk, and the lowest text that was to be in it; `None`: the family is finished.
    next: Option<(usize, Arc<[u8]>)>,
}

/// A part of the exposition before it becomes a piece.
#[derive(Debug, Clone)]
struct PlainPiece {
    bytes: Arc<Vec<u8>>,
    packed: Option<DeflatedChunk>,
}

impl Reader {
    /// Begins an exposition of the state that the last refresh found, as gzip if `deflate`, of all families or only of
    /// those in which one of `names` is the name of a sample.
    pub fn cursor(&mut self, format: Format, deflate: bool, names: Option<Vec<String>>) -> ExpositionCursor {
        self.order.active[format as usize] = true;
        self.used_ms[format as usize] = self.now_ms;
        ExpositionCursor {
            format,
            names,
            trailer: deflate.then(Trailer::new),
            state: CursorState::Start,
            refresh: self.refreshes,
            version: self.order.version,
            family: 0,
            at: None,
            is_moved: false,
            handed_out: Some(self.folding.expositions.clone()),
            pinned: VecDeque::new(),
        }
    }

    /// The next piece; `None` at the end.
    pub fn next(&mut self, cursor: &mut ExpositionCursor) -> Option<Piece> {
        self.used_ms[cursor.format as usize] = self.now_ms;
        loop {
            match cursor.state {
                CursorState::Start => {
                    cursor.state = CursorState::Families;
                    if cursor.trailer.is_some() {
                        return Some(Piece::of(&gzip::HEADER));
                    }
                }
                CursorState::Families => {
                    let plain = cursor.pinned.pop_front().or_else(|| self.next_of_families(cursor));
                    match plain {
                        Some(plain) if plain.bytes.is_empty() => {}
                        Some(plain) => return Some(self.piece(cursor, plain)),
                        None => cursor.state = CursorState::Footer,
                    }
                }
                CursorState::Footer => {
                    cursor.state = CursorState::Trailer;
                    let footer = cursor.format.footer();
                    if !footer.is_empty() {
                        return Some(self.piece(cursor, PlainPiece { bytes: Arc::new(footer.to_vec()), packed: None }));
                    }
                }
                CursorState::Trailer => {
                    cursor.state = CursorState::Done;
                    cursor.handed_out = None;
                    self.on_exposed(cursor.refresh, cursor.names.as_deref());
                    if let Some(trailer) = cursor.trailer.take() {
                        return Some(Piece::of(&trailer.finish()));
                    }
                }
                CursorState::Done => return None,
            }
        }
    }

    /// Makes a piece of it, deflated if the cursor is.
    fn piece(&mut self, cursor: &mut ExpositionCursor, plain: PlainPiece) -> Piece {
        let Some(trailer) = &mut cursor.trailer else { return Piece { bytes: plain.bytes } };
        let packed = plain.packed.unwrap_or_else(|| pack(&mut self.deflater, &plain.bytes));
        trailer.add(packed.crc, packed.len);
        Piece { bytes: packed.bytes }
    }

    /// The next header or chunk. An empty one does not mean the end: more may follow.
    fn next_of_families(&mut self, cursor: &mut ExpositionCursor) -> Option<PlainPiece> {
        if cursor.version != self.order.version {
            self.seek(cursor);
        }
        loop {
            if let Some(FamilyPosition { next: Some((chunk, low)), .. }) = &cursor.at {
                let (chunk, low) = (*chunk, low.clone());
                return Some(self.next_chunk(cursor, chunk, &low));
            }
            let id = *self.order.families.exposed.get(cursor.family)?;
            let family = self.order.families.get(id);
            if family.chunks.is_empty() || !covers(cursor.names.as_deref(), &family.family) {
                cursor.family += 1;
                continue;
            }
            let low = self.order.chunks[family.chunks[0] as usize].low.clone();
            cursor.at = Some(FamilyPosition { name: family.name.clone(), born: family.born, next: Some((0, low)) });
            return Some(match cursor.format {
                Format::Text | Format::OpenMetrics => self.header(id, cursor),
                Format::Protobuf => self.pin_family(id, cursor),
            });
        }
    }

    /// The bytes that precede the first series of a family.
    fn header(&mut self, family: u32, cursor: &ExpositionCursor) -> PlainPiece {
        let head = self.order.families.get_mut(family).head(cursor.format, self.options.encode);
        if cursor.trailer.is_some() {
            head.header.deflate(&mut self.deflater);
        }
        PlainPiece { bytes: head.header.bytes.clone(), packed: head.header.deflated.clone() }
    }

    /// Pins a whole family, and returns the bytes that precede it, which include its length.
    fn pin_family(&mut self, family: u32, cursor: &mut ExpositionCursor) -> PlainPiece {
        let chunks = self.order.families.get(family).chunks.clone();
        let pieces: VecDeque<PlainPiece> = chunks.iter().map(|chunk| self.chunk(*chunk, cursor)).collect();
        let bytes = pieces.iter().map(|piece| piece.bytes.len()).sum();
        cursor.pinned = pieces;
        cursor.end_family();
        let mut head = Vec::new();
        self.order
            .families
            .get_mut(family)
            .head(cursor.format, self.options.encode)
            .encoder
            .family_head(bytes, &mut head);
        PlainPiece { bytes: Arc::new(head), packed: None }
    }

    /// The chunk at this index of the current family, from the first series that is not below `low`.
    fn next_chunk(&mut self, cursor: &mut ExpositionCursor, index: usize, low: &[u8]) -> PlainPiece {
        let family = self.order.families.get(self.order.families.exposed[cursor.family]);
        let Some(chunk) = family.chunks.get(index).copied() else {
            cursor.end_family();
            return PlainPiece { bytes: Arc::default(), packed: None };
        };
        let is_moved = std::mem::take(&mut cursor.is_moved);
        match family.chunks.get(index + 1) {
            Some(next) => cursor.go_on(index + 1, self.order.chunks[*next as usize].low.clone()),
            None => cursor.end_family(),
        }
        if is_moved {
            let slots = &self.store.slots[chunk as usize];
            let from = slots.partition_point(|slot| self.store.text(*slot) < low);
            if from > 0 {
                return self.part_of_chunk(chunk, from, cursor);
            }
        }
        self.chunk(chunk, cursor)
    }

    /// Finds its place again after families or chunks have changed.
    fn seek(&mut self, cursor: &mut ExpositionCursor) {
        cursor.version = self.order.version;
        let families = &self.order.families;
        let Some(at) = &mut cursor.at else {
            cursor.family = 0;
            return;
        };
        cursor.family = families.seek(&at.name);
        let same_name = families.exposed.get(cursor.family).map(|id| families.get(*id));
        match (same_name.filter(|family| family.name == at.name), &mut at.next) {
            (Some(family), Some((chunk, low))) if family.born == at.born => {
                let chunks = &self.order.chunks;
                let behind = family.chunks.partition_point(|id| *chunks[*id as usize].low <= **low);
                *chunk = behind.saturating_sub(1);
                cursor.is_moved = true;
            }
            // Finished, or replaced by another family of that name, which cannot follow under the same header.
            (Some(_), next) => {
                *next = None;
                cursor.family += 1;
            }
            (None, next) => *next = None,
        }
    }

    /// A chunk's current bytes: the cached ones, if they are up to date.
    fn chunk(&mut self, id: u32, cursor: &ExpositionCursor) -> PlainPiece {
        let format = cursor.format as usize;
        let Reader { order, store, scratch, deflater, options, .. } = self;
        let chunk = &mut order.chunks[id as usize];
        let dirty = &mut order.dirty[format][id as usize];
        if let Some(encoded) = &chunk.encoded[format]
            && dirty.is_empty()
            && (cursor.trailer.is_none() || encoded.deflated.is_some())
        {
            return PlainPiece { bytes: encoded.bytes.clone(), packed: encoded.deflated.clone() };
        }
        let (family, encoder) = order.families.get_mut(chunk.family).encoder(cursor.format, options.encode);
        let mut encoding = ChunkEncoder { store, family, format: cursor.format, encoder, scratch };
        let slots = store.slots[id as usize].as_slice();
        let dirty = std::mem::take(dirty);
        let (mut encoded, before) = match chunk.encoded[format].take() {
            Some(mut encoded) => {
                let before = encoded.bytes();
                if !dirty.is_empty() {
                    encoding.update(&mut encoded, slots, dirty);
                }
                (encoded, before)
            }
            None => (Box::new(encoding.encode(slots)), 0),
        };
        if cursor.trailer.is_some() {
            encoded.deflate(deflater);
        }
        let plain = PlainPiece { bytes: encoded.bytes.clone(), packed: encoded.deflated.clone() };
        order.cached -= before;
        let now = encoded.bytes();
        if order.active[format] && order.cached + now <= options.cache_bytes_max {
            order.cached += now;
            chunk.encoded[format] = Some(encoded);
        }
        plain
    }

    /// The rest of a chunk, part of which was produced already; it is not cached.
    fn part_of_chunk(&mut self, id: u32, from: usize, cursor: &ExpositionCursor) -> PlainPiece {
        let Reader { order, store, scratch, options, .. } = self;
        let chunk = &order.chunks[id as usize];
        let (family, encoder) = order.families.get_mut(chunk.family).encoder(cursor.format, options.encode);
        let mut encoding = ChunkEncoder { store, family, format: cursor.format, encoder, scratch };
        let EncodedChunk { bytes, .. } = encoding.encode(&store.slots[id as usize][from..]);
        PlainPiece { bytes, packed: None }
    }
}

impl ExpositionCursor {
    fn end_family(&mut self) {
        if let Some(at) = &mut self.at {
            at.next = None;
        }
        self.family += 1;
    }

    fn go_on(&mut self, chunk: usize, low: Arc<[u8]>) {
        if let Some(at) = &mut self.at {
            at.next = Some((chunk, low));
        }
    }
}

/// Whether one of the names is that of the family or of one of its samples, in any format.
pub(super) fn covers(names: Option<&[String]>, family: &Family) -> bool {
    let Some(names) = names else { return true };
    let base = family.name.strip_suffix("_total").or_else(|| family.name.strip_suffix("_info")).unwrap_or(&family.name);
    let suffixes: &[&str] = match family.kind {
        FamilyType::Counter | FamilyType::FloatCounter => &["_total", "_created"],
        FamilyType::Gauge(_) => &[],
        FamilyType::Info => &["_info"],
        FamilyType::Histogram(_) => &["_bucket", "_sum", "_count", "_created"],
    };
    names.iter().any(|name| {
        *name == family.name || name.strip_prefix(base).is_some_and(|rest| rest.is_empty() || suffixes.contains(&rest))
    })
}

impl Reader {
    /// Visits the merged value of every series of a family, exposed or internal, with its labels as
    /// [`Pairs`](crate::labels::Pairs) reads them. The series are those of the last refresh; the values are current.
    /// `None`: the family does not exist.
    pub(crate) fn visit(&self, name: &str, mut visit: impl FnMut(&[u8], Value<'_>)) -> Option<&Family> {
        let merged = self.order.families.find(name)?;
        let kind = &merged.family.kind;
        let (mut part, mut whole) = (Distribution::default(), Distribution::default());
        let slots = merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]);
        for slot in slots.filter(|slot| !slot.is_dead()) {
            let value = match kind {
                FamilyType::Histogram(_) => {
                    // A histogram in the middle of a change may lack an observation, which is seen the next time.
                    let _ = self.store.histogram(&merged.shape, *slot, &mut part, &mut whole);
                    Value::Histogram(&whole)
                }
                _ => value_of(kind, self.store.single(kind, *slot)),
            };
            visit(self.store.text(*slot), value);
        }
        Some(&merged.family)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Desk, Pen, counter, histogram};
    use super::*;

    #[test]
    fn a_family_is_read_over_all_writers() {
        let (mut a, mut b) = (Pen::new(1, 1 << 20), Pen::new(2, 1 << 20));
        let (counted, timed) = (counter(), histogram());
        for (pen, amount) in [(&mut a, 3), (&mut b, 4)] {
            let (requests, seconds) = (pen.family(&counted), pen.family(&timed));
            let ink = pen.series(requests, "a=\"1\"");
            pen.add(ink, amount);
            let ink = pen.series(seconds, "a=\"1\"");
            pen.observe(ink, 0.05 * amount as f64);
        }
        let mut desk = Desk::new(&[a.mount(), b.mount()]);
        desk.refresh();
        let mut seen = Vec::new();
        let found =
            desk.reader.visit(&counted.name, |labels, value| seen.push((labels.to_vec(), format!("{value:?}"))));
        assert_eq!(found.map(|family| &family.name), Some(&counted.name));
        assert_eq!(seen, [(b"a=\"1\"".to_vec(), "Unsigned(7)".to_owned())]);
        let mut counts = Vec::new();
        desk.reader.visit(&timed.name, |_, value| match value {
            Value::Histogram(state) => counts.push(state.count()),
            other => panic!("{other:?}"),
        });
        assert_eq!(counts, [2]);
        assert!(desk.reader.visit("no_such_family", |_, _| panic!("there is none")).is_none());
    }

    #[test]
    fn an_internal_family_is_read_and_not_exposed() {
        let mut pen = Pen::new(1, 1 << 20);
        let internal = Family { name: "__a_seconds".to_owned(), ..histogram() };
        for family in [&internal, &counter()] {
            let number = pen.family(family);
            let ink = pen.series(number, "a=\"1\"");
            match family.kind {
                FamilyType::Histogram(_) => pen.observe(ink, 0.05),
                _ => pen.add(ink, 1),
            }
        }
        let mut desk = Desk::new(&[pen.mount()]);
        assert_eq!(desk.refresh().hidden_families, 0);
        let text = desk.scrape();
        assert!(text.contains(&counter().name) && !text.contains("__a"), "{text}");
        assert_eq!(desk.reader.cardinality().len(), 1);
        let mut counts = Vec::new();
        let found = desk.reader.visit("__a_seconds", |_, value| match value {
            Value::Histogram(state) => counts.push(state.count()),
            other => panic!("{other:?}"),
        });
        assert_eq!((found, counts), (Some(&internal), vec![1]));
    }
}
