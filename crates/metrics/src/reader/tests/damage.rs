//! Segments that no writer of this version makes: a reader reports them and continues.

use super::*;
use proptest::prelude::*;

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
