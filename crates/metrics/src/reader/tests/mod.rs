//! Tests of a reader over real segments, written here record by record so that any order of events can be produced; also
//! segments that no writer of this version makes, which a reader reports before it continues.

mod life;
mod model;
mod pieces;

use super::chunk::value_of;
use super::{ExpositionCursor, Mount, Mounts, Reader, ReaderOptions, RefreshSummary};
use crate::encode::Format;
use crate::family::{Buckets, Family, FamilyType, Merge};
use crate::protocol;
use crate::segment::cells::{self, CellForm, Shape};
use crate::segment::layout::{self, HEAD_WORDS, RecordHead, RecordKind, TOMBSTONE_WORDS, WORD, pair};
use crate::segment::{Segment, SegmentProcess};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;
use crate::value::{Distribution, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const PROCESS: SegmentProcess = SegmentProcess { pid: 7, start: 70 };

pub(super) fn family(name: &str, kind: FamilyType) -> Family {
    let labels = vec!["a".into(), "b".into()];
    Family { name: name.into(), help: "Help.".into(), unit: String::new(), kind, labels, exemplars: false }
}

pub(super) fn counter() -> Family {
    family("requests_total", FamilyType::Counter)
}

pub(super) fn gauge(merge: Merge) -> Family {
    family("connections", FamilyType::Gauge(merge))
}

pub(super) fn histogram() -> Family {
    family("seconds", FamilyType::Histogram(Buckets { classic: vec![0.1, 1.0], native: None }))
}

/// Writes a segment as `Writer` does, but one step at a time.
pub(super) struct Pen {
    pub(super) segment: Arc<Segment>,
    shapes: Vec<Shape>,
    used: usize,
    series: u32,
    epoch: u32,
    pub(super) now_ms: u64,
}

/// A series of a pen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ink {
    pub(super) record: usize,
    number: u32,
    family: u16,
}

impl Pen {
    pub(super) fn new(serial: u64, log_bytes: usize) -> Pen {
        let segment = Segment::create(None, log_bytes, PROCESS, serial, 1000).unwrap();
        Pen { segment: Arc::new(segment), shapes: Vec::new(), used: 0, series: 0, epoch: 1, now_ms: 1000 }
    }

    pub(super) fn mount(&self) -> Mount {
        Mount { segment: self.segment.clone(), is_alive: true }
    }

    pub(super) fn write(
        &mut self,
        kind: RecordKind,
        family: u16,
        second: u64,
        third: u64,
        words: usize,
        text: &[u8],
    ) -> usize {
        let at = self.used;
        let log = &self.segment.own_log()[at..at + words];
        log[0].store(RecordHead { words: words as u32, kind, flags: 0, family }.pack(), Relaxed);
        log[1].store(second, Relaxed);
        log[2].store(third, Relaxed);
        let text_at = words - text.len().div_ceil(WORD);
        log[text_at..]
            .iter()
            .zip(text.chunks(WORD))
            .for_each(|(word, bytes)| word.store(cells::to_word(bytes), Relaxed));
        self.used += words;
        protocol::commit(&self.segment.own_header().committed, self.used as u64);
        at
    }

    pub(super) fn family(&mut self, family: &Family) -> u16 {
        let number = self.shapes.len() as u16;
        let bytes = layout::encode_family(family);
        let words = HEAD_WORDS + bytes.len().div_ceil(WORD);
        self.shapes.push(Shape::of(family));
        self.write(RecordKind::Family, number, pair(u32::from(number), bytes.len() as u32), self.now_ms, words, &bytes);
        number
    }

    pub(super) fn series(&mut self, family: u16, text: &str) -> Ink {
        let number = self.series;
        self.series += 1;
        protocol::mark_changed(&self.segment.own_epochs()[number as usize], self.epoch);
        let words = self.shapes[family as usize].record_words(text.len());
        let second = pair(number, text.len() as u32);
        let record = self.write(RecordKind::Series, family, second, self.now_ms, words, text.as_bytes());
        Ink { record, number, family }
    }

    pub(super) fn tombstone(&mut self, serial: u64, ink: Ink) {
        let process = self.segment.process;
        let words = [process.start.to_le_bytes(), u64::from(process.pid).to_le_bytes()];
        let text = [words[1], words[0]].concat();
        self.write(RecordKind::Tombstone, 0, serial, ink.record as u64, TOMBSTONE_WORDS, &text);
    }

    pub(super) fn cells(&self, ink: Ink) -> &[AtomicU64] {
        &self.segment.own_log()[ink.record + HEAD_WORDS..]
    }

    fn mark(&self, ink: Ink) {
        protocol::mark_changed(&self.segment.own_epochs()[ink.number as usize], self.epoch);
    }

    pub(super) fn add(&self, ink: Ink, amount: u64) {
        cells::add(&self.cells(ink)[0], amount);
        self.mark(ink);
    }

    pub(super) fn set(&self, ink: Ink, value: f64) {
        let cells = self.cells(ink);
        if matches!(self.shapes[ink.family as usize].form, CellForm::Last) {
            cells[1].store(self.now_ms, Relaxed);
        }
        cells[0].store(value.to_bits(), Relaxed);
        self.mark(ink);
    }

    pub(super) fn observe(&self, ink: Ink, value: f64) {
        let CellForm::Histogram { bounds, native } = &self.shapes[ink.family as usize].form else {
            panic!("a histogram")
        };
        cells::observe(self.cells(ink), bounds, native.as_ref(), value);
        self.mark(ink);
    }

    pub(super) fn exemplar(&self, ink: Ink, bucket: usize, value: f64, text: &str) {
        let shape = &self.shapes[ink.family as usize];
        assert!(shape.keep_exemplar(self.cells(ink), bucket, value, self.now_ms, text.as_bytes()));
        self.mark(ink);
    }

    pub(super) fn tick(&mut self, now_ms: u64) {
        (self.epoch, self.now_ms) = (self.epoch + 1, now_ms);
        protocol::advance(&self.segment.own_header().epoch, self.epoch);
    }
}

/// A reader with the segments that it reads.
pub(super) struct Desk {
    pub(super) reader: Reader,
    pub(super) mounts: Mounts,
    pub(super) now_ms: u64,
}

impl Desk {
    pub(super) fn new(mounts: &[Mount]) -> Desk {
        let mounts = Mounts { version: 1, segments: mounts.to_vec() };
        Desk { reader: Reader::new(ReaderOptions::default()), mounts, now_ms: 1000 }
    }

    pub(super) fn remount(&mut self, mounts: &[Mount]) {
        self.mounts = Mounts { version: self.mounts.version + 1, segments: mounts.to_vec() };
    }

    pub(super) fn refresh(&mut self) -> RefreshSummary {
        self.now_ms += 1000;
        self.reader.refresh(&self.mounts, self.now_ms)
    }

    pub(super) fn rest(&mut self, cursor: &mut ExpositionCursor) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.reader.next(cursor) {
            all.extend_from_slice(piece.as_ref());
        }
        all
    }

    pub(super) fn bytes(&mut self, format: Format) -> Vec<u8> {
        let mut cursor = self.reader.cursor(format, false, None);
        self.rest(&mut cursor)
    }

    /// Refreshes, and returns the exposition in the text format.
    pub(super) fn scrape(&mut self) -> String {
        self.refresh();
        String::from_utf8(self.bytes(Format::Text)).unwrap()
    }

    /// Refreshes, and returns all samples.
    pub(super) fn samples(&mut self) -> BTreeMap<String, f64> {
        let text = self.scrape();
        samples(&text)
    }
}

/// The samples of a valid exposition: one block a family, families and series in order, nothing twice.
pub(super) fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut families: Vec<&str> = Vec::new();
    let mut last_labels = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(families.last().is_none_or(|last| *last < name), "{name} is not in order");
            families.push(name);
            last_labels.clear();
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let family = families.last().unwrap();
            assert!(series.starts_with(family), "{series} is not of {family}");
            let labels = series.split_once('{').map_or("", |(_, labels)| labels);
            let labels = labels.split(",le=").next().unwrap().trim_end_matches('}').to_owned();
            assert!(last_labels <= labels, "{series} is not in order");
            last_labels = labels;
            let value = match value {
                "+Inf" => f64::INFINITY,
                value => value.parse().unwrap(),
            };
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} is there twice");
        }
    }
    samples
}

#[test]
fn a_small_exposition() {
    let mut pen = Pen::new(0, 1 << 16);
    let requests = pen.family(&counter());
    let seconds = pen.family(&histogram());
    let second = pen.series(requests, r#"a="2",b="y""#);
    let first = pen.series(requests, r#"a="1",b="x""#);
    let slow = pen.series(seconds, r#"a="1",b="x""#);
    pen.add(first, 7);
    pen.add(second, 99);
    pen.observe(slow, 0.5);
    let mut desk = Desk::new(&[pen.mount()]);
    expect_test::expect![[r#"
        # HELP requests_total Help.
        # TYPE requests_total counter
        requests_total{a="1",b="x"} 7
        requests_total{a="2",b="y"} 99
        # HELP seconds Help.
        # TYPE seconds histogram
        seconds_bucket{a="1",b="x",le="0.1"} 0
        seconds_bucket{a="1",b="x",le="1"} 1
        seconds_bucket{a="1",b="x",le="+Inf"} 1
        seconds_sum{a="1",b="x"} 0.5
        seconds_count{a="1",b="x"} 1
    "#]]
    .assert_eq(&desk.scrape());
    // One value gets wider, one keeps its width, and a series comes in between.
    pen.add(first, 1);
    pen.add(second, 1);
    let between = pen.series(requests, r#"a="1",b="y""#);
    pen.add(between, 1);
    pen.observe(slow, 0.05);
    expect_test::expect![[r#"
        # HELP requests_total Help.
        # TYPE requests_total counter
        requests_total{a="1",b="x"} 8
        requests_total{a="1",b="y"} 1
        requests_total{a="2",b="y"} 100
        # HELP seconds Help.
        # TYPE seconds histogram
        seconds_bucket{a="1",b="x",le="0.1"} 1
        seconds_bucket{a="1",b="x",le="1"} 2
        seconds_bucket{a="1",b="x",le="+Inf"} 2
        seconds_sum{a="1",b="x"} 0.55
        seconds_count{a="1",b="x"} 2
    "#]]
    .assert_eq(&desk.scrape());
    assert_eq!(desk.reader.series(), 4);
}

impl super::Reader {
    /// Visits the merged value of every series of every family, exposed or not. Arguments:
    /// family, label text, creation in milliseconds since the epoch, value.
    pub(super) fn each(&mut self, mut visit: impl FnMut(&Family, &[u8], u64, Value<'_>)) {
        let (mut part, mut distribution) = (Distribution::default(), Distribution::default());
        for merged in self.order.families.all() {
            let kind = &merged.family.kind;
            for slot in merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]) {
                let value = match kind {
                    FamilyType::Histogram(_) => {
                        self.store.histogram(&merged.shape, *slot, &mut part, &mut distribution);
                        Value::Histogram(&distribution)
                    }
                    _ => value_of(kind, self.store.single(kind, *slot)),
                };
                visit(&merged.family, self.store.text(*slot), self.store.created_ms(*slot), value);
            }
        }
    }
}

#[test]
fn reading_ends_at_the_damage_and_is_reported_once() {
    let mut pen = Pen::new(3, 1 << 16);
    let family = pen.family(&counter());
    let ink = pen.series(family, r#"a="1",b="2""#);
    pen.add(ink, 1);
    // A series of a family that was not declared.
    let at = pen.write(RecordKind::Series, 9, pair(1, 0), 0, 4, b"");
    pen.series(family, r#"a="2",b="2""#);
    let mut desk = Desk::new(&[pen.mount()]);
    let refreshed = desk.refresh();
    assert_eq!(refreshed.damaged.iter().map(|damaged| (damaged.serial, damaged.word)).collect::<Vec<_>>(), [(3, at)]);
    pen.add(ink, 1);
    assert_eq!(desk.samples().into_values().collect::<Vec<_>>(), [2.0]);
    assert_eq!(desk.refresh().damaged, []);
}

#[test]
fn records_that_contradict_themselves_are_refused() {
    let check = |family: &Family, second: u64, words: usize, text: &[u8]| {
        let mut pen = Pen::new(0, 1 << 16);
        pen.family(family);
        pen.write(RecordKind::Series, 0, second, 0, words, text);
        let mut desk = Desk::new(&[pen.mount()]);
        assert_eq!((desk.refresh().damaged.len(), desk.reader.series()), (1, 0), "{second} {words} {text:?}");
    };
    // Too short for its cells, too long, a number out of order, texts that are not labels.
    check(&histogram(), pair(0, 0), 4, b"");
    check(&counter(), pair(0, 0), 5, b"");
    check(&counter(), pair(1, 0), 4, b"");
    check(&counter(), pair(0, 8), 5, b"a=\"b\"} 1");
    check(&counter(), pair(0, 6), 5, b"a=\"\n\"b");
    check(&counter(), pair(0, 6), 5, b"a=\"\xff\" ");
    check(&counter(), pair(0, u32::MAX), 5, b"");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..1 << 48, (0u64..8).prop_map(|n| 0x2_0000_0000 | n)], 1..64),
        at in 0usize..80,
        committed in any::<u64>(),
    ) {
        let mut pen = Pen::new(0, 1 << 16);
        let counters = pen.family(&counter());
        let histograms = pen.family(&histogram());
        let ink = pen.series(counters, r#"a="1",b="2""#);
        pen.series(histograms, r#"a="1",b="2""#);
        let mut desk = Desk::new(&[pen.mount()]);
        // Before the first look, or after it.
        for _ in 0..2 {
            for (word, value) in pen.segment.own_log()[at..].iter().zip(&words) {
                word.store(*value, Relaxed);
            }
            pen.segment.own_header().committed.store(committed, Relaxed);
            desk.refresh();
            for format in [Format::Text, Format::OpenMetrics, Format::Protobuf] {
                desk.bytes(format);
            }
            desk.reader.cardinality();
            desk.reader.idle(PROCESS, 0, 10);
            pen.tombstone(0, ink);
        }
        desk.remount(&[]);
        desk.refresh();
        prop_assert_eq!(desk.reader.series(), 0);
    }
}
