//! Expositions in every format, deflated or not, for slow clients and for many at a time.

use super::*;
use crate::encode;
use flate2::read::GzDecoder;
use std::collections::BTreeSet;
use std::io::Read;

const ALL: [Format; 3] = [Format::Text, Format::OpenMetrics, Format::Protobuf];

fn labels(index: usize) -> String {
    format!(r#"a="{:05}",b="{}""#, index * 7919 % 100_003, index % 3)
}

/// A segment with many counters, some histograms and a gauge.
fn many(count: usize) -> (Pen, Vec<Ink>, Vec<Ink>) {
    let mut pen = Pen::new(0, 1 << 22);
    let (requests, seconds) = (pen.family(&counter()), pen.family(&histogram()));
    let gauges = pen.family(&gauge(Merge::Last));
    let inks: Vec<Ink> = (0..count).map(|index| pen.series(requests, &labels(index))).collect();
    let slow: Vec<Ink> = (0..count / 10).map(|index| pen.series(seconds, &labels(index))).collect();
    let open = pen.series(gauges, "");
    inks.iter().for_each(|ink| pen.add(*ink, 1));
    slow.iter().for_each(|ink| pen.observe(*ink, 0.3));
    pen.set(open, 2.5);
    (pen, inks, slow)
}

/// The exposition of a reader without a cache.
fn fresh_exposition(desk: &Desk, format: Format) -> Vec<u8> {
    let mut fresh = Desk::new(&desk.mounts.segments);
    fresh.refresh();
    fresh.bytes(format)
}

#[test]
fn cached_text_equals_fresh_text() {
    let (mut pen, inks, slow) = many(2000);
    let mut desk = Desk::new(&[pen.mount()]);
    for round in 0..6usize {
        desk.refresh();
        for format in ALL {
            assert!(desk.bytes(format) == fresh_exposition(&desk, format), "{format:?} in round {round}");
        }
        pen.tick(1000 * round as u64);
        for ink in inks.iter().skip(round).step_by(1 + round * 13) {
            pen.add(*ink, 10u64.pow(round as u32));
        }
        slow.iter().step_by(3).for_each(|ink| pen.observe(*ink, 5.0));
        if round == 3 {
            let family = 0;
            (3000..3100).for_each(|index| _ = pen.series(family, &labels(index)));
        }
    }
}

#[test]
fn deflated_it_is_the_same() {
    let (pen, inks, _) = many(1000);
    let mut desk = Desk::new(&[pen.mount()]);
    for _ in 0..3 {
        desk.refresh();
        for format in ALL {
            let mut cursor = desk.reader.cursor(format, true, None);
            let member = desk.rest(&mut cursor);
            let mut plain = Vec::new();
            GzDecoder::new(member.as_slice()).read_to_end(&mut plain).unwrap();
            assert!(plain == desk.bytes(format), "{format:?}");
        }
        pen.add(inks[500], 1);
    }
}

#[test]
fn unchanged_chunks_are_the_same_bytes() {
    let (mut pen, inks, _) = many(2000);
    let mut desk = Desk::new(&[pen.mount()]);
    let scrape = |desk: &mut Desk| {
        desk.refresh();
        let mut cursor = desk.reader.cursor(Format::Text, true, None);
        let mut pieces = BTreeSet::new();
        while let Some(piece) = desk.reader.next(&mut cursor) {
            // Held until all have been produced, so that no address is reused.
            pieces.insert((piece.as_ref().as_ptr() as usize, Arc::as_ptr(&piece.bytes) as usize));
            std::mem::forget(piece);
        }
        pieces
    };
    let before = scrape(&mut desk);
    pen.tick(5000);
    scrape(&mut desk);
    pen.add(inks[0], 1);
    let after = scrape(&mut desk);
    // Three new pieces: gzip's header and trailer, and the chunk that has changed.
    assert_eq!(after.difference(&before).count(), 3);
    assert!(after.len() > 10);
}

#[test]
fn a_slow_scraper_gets_each_series_once_and_in_order() {
    let (mut pen, inks, _) = many(3000);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.refresh();
    let stable: BTreeSet<String> =
        inks.iter().enumerate().filter(|(index, _)| index % 5 != 0).map(|(index, _)| labels(index)).collect();
    let mut cursor = desk.reader.cursor(Format::Text, false, None);
    let mut text = Vec::new();
    let mut round = 0;
    while let Some(piece) = desk.reader.next(&mut cursor) {
        text.extend_from_slice(piece.as_ref());
        // Between any two pieces series come and go, everywhere.
        for index in (round * 5..inks.len()).step_by(100) {
            pen.tombstone(0, inks[index]);
        }
        for index in 0..200 {
            pen.series(0, &labels(3000 + round * 200 + index));
        }
        round += 1;
        desk.refresh();
        desk.bytes(Format::OpenMetrics);
        desk.refresh();
    }
    let samples = samples(std::str::from_utf8(&text).unwrap());
    let names: BTreeSet<String> = samples.into_keys().collect();
    for labels in stable {
        assert!(names.contains(&format!("requests_total{{{labels}}}")), "{labels} is missing");
    }
    assert!(round > 10);
}

#[test]
fn a_scraper_whose_family_has_gone_gets_the_next() {
    let (pen, _, _) = many(1000);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.refresh();
    let mut other = Pen::new(1, 1 << 16);
    let last = other.family(&family("z_total", FamilyType::Counter));
    other.series(last, "");
    let mut cursor = desk.reader.cursor(Format::Text, false, None);
    // The gauge comes first; then two pieces of the counters.
    let mut text = Vec::new();
    for _ in 0..4 {
        text.extend_from_slice(desk.reader.next(&mut cursor).unwrap().as_ref());
    }
    desk.remount(&[other.mount()]);
    desk.refresh();
    text.extend(desk.rest(&mut cursor));
    let samples = samples(std::str::from_utf8(&text).unwrap());
    assert!(samples.contains_key("z_total") && samples.len() > 100);
    assert!(!samples.keys().any(|name| name.starts_with("seconds")));
}

#[test]
fn a_piece_in_flight_is_not_changed() {
    let (pen, inks, _) = many(100);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.refresh();
    let mut cursor = desk.reader.cursor(Format::Text, false, None);
    let pieces: Vec<_> = std::iter::from_fn(|| desk.reader.next(&mut cursor)).collect();
    let before: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.as_ref().to_vec()).collect();
    inks.iter().for_each(|ink| pen.add(*ink, 1));
    desk.scrape();
    assert!(pieces.iter().map(AsRef::as_ref).eq(before.iter().map(Vec::as_slice)));
}

#[test]
fn names_select_families() {
    let (pen, _, _) = many(20);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.refresh();
    let mut check = |name: &str, expected: &str| {
        let mut cursor = desk.reader.cursor(Format::Text, false, Some(vec![name.into()]));
        let text = String::from_utf8(desk.rest(&mut cursor)).unwrap();
        let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(types.join("|"), expected, "{name}");
    };
    check("requests_total", "requests_total counter");
    check("requests", "requests_total counter");
    check("requests_created", "requests_total counter");
    check("seconds_bucket", "seconds histogram");
    check("seconds_total", "");
    check("connections", "connections gauge");
    check("connections_sum", "");
}

#[test]
fn the_cache_is_bounded_and_forgotten_when_idle() {
    let (pen, _, _) = many(5000);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.reader.options.cache_bytes_max = 100_000;
    let expected = fresh_exposition(&desk, Format::Text);
    for _ in 0..2 {
        desk.refresh();
        assert!(desk.bytes(Format::Text) == expected);
        assert!((50_000..110_000).contains(&desk.reader.bytes().cache), "{:?}", desk.reader.bytes());
    }
    desk.now_ms += desk.reader.options.cache_idle_ms + 1;
    desk.refresh();
    assert_eq!(desk.reader.bytes().cache, 0);
    assert!(desk.bytes(Format::Text) == expected);
}

#[test]
fn exemplars_and_created_times_come_along() {
    let mut pen = Pen::new(0, 1 << 16);
    let requests = pen.family(&Family { exemplars: true, ..counter() });
    let ink = pen.series(requests, r#"a="1",b="2""#);
    pen.add(ink, 1);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.reader.options.encode = encode::EncodeOptions { created: true };
    desk.refresh();
    let text = |desk: &mut Desk| String::from_utf8(desk.bytes(Format::OpenMetrics)).unwrap();
    expect_test::expect![[r#"
        # HELP requests Help.
        # TYPE requests counter
        requests_total{a="1",b="2"} 1
        requests_created{a="1",b="2"} 1.000
        # EOF
    "#]]
    .assert_eq(&text(&mut desk));
    pen.exemplar(ink, 0, 1.0, r#"trace_id="t""#);
    desk.refresh();
    expect_test::expect![[r#"
        # HELP requests Help.
        # TYPE requests counter
        requests_total{a="1",b="2"} 1 # {trace_id="t"} 1 1.000
        requests_created{a="1",b="2"} 1.000
        # EOF
    "#]]
    .assert_eq(&text(&mut desk));
}
