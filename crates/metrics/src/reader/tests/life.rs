//! Segments and series that come and go.

use super::*;

const X: &str = r#"a="x",b="1""#;
const Y: &str = r#"a="y",b="1""#;

fn of(samples: &BTreeMap<String, f64>, name: &str, labels: &str) -> Option<f64> {
    samples.get(&format!("{name}{{{labels}}}")).copied()
}

fn requests(samples: &BTreeMap<String, f64>, labels: &str) -> Option<f64> {
    of(samples, "requests_total", labels)
}

/// A pen with one counter series.
fn counting(serial: u64, labels: &str, value: u64) -> (Pen, Ink) {
    let mut pen = Pen::new(serial, 1 << 16);
    let family = pen.family(&counter());
    let ink = pen.series(family, labels);
    pen.add(ink, value);
    (pen, ink)
}

#[test]
fn writers_are_summed_and_a_base_takes_the_place_of_dead_ones() {
    let (one, _) = counting(0, X, 10);
    let (mut two, ink) = counting(1, X, 5);
    let gauges = two.family(&gauge(Merge::Sum));
    let open = two.series(gauges, X);
    two.set(open, 3.0);
    let mut desk = Desk::new(&[one.mount(), two.mount()]);
    assert_eq!(requests(&desk.samples(), X), Some(15.0));
    two.add(ink, 1);
    let samples = desk.samples();
    assert_eq!((requests(&samples, X), of(&samples, "connections", X)), (Some(16.0), Some(3.0)));
    // The process of the second segment dies: its counts stay, its gauges do not.
    let dead = Mount { is_alive: false, ..two.mount() };
    desk.remount(&[one.mount(), dead]);
    let samples = desk.samples();
    assert_eq!((requests(&samples, X), of(&samples, "connections", X)), (Some(16.0), None));
    // It is folded into a base.
    let (base, _) = counting(9, X, 6);
    desk.remount(&[one.mount(), Mount { is_alive: false, ..base.mount() }]);
    assert_eq!(requests(&desk.samples(), X), Some(16.0));
    desk.remount(&[]);
    assert_eq!(desk.scrape(), "");
    assert_eq!(desk.reader.series(), 0);
}

#[test]
fn gauges_of_a_process_dead_from_the_start_do_not_count() {
    let mut pen = Pen::new(0, 1 << 16);
    let gauges = pen.family(&gauge(Merge::Max));
    let counters = pen.family(&counter());
    pen.series(gauges, X);
    pen.series(counters, X);
    let mut desk = Desk::new(&[Mount { is_alive: false, ..pen.mount() }]);
    assert_eq!(desk.samples().into_keys().collect::<Vec<_>>(), [format!("requests_total{{{X}}}")]);
}

#[test]
fn gauges_are_merged_as_declared() {
    let check = |merge: Merge, expected: f64| {
        let mut pens = [Pen::new(0, 1 << 16), Pen::new(1, 1 << 16)];
        for (pen, (value, now_ms)) in pens.iter_mut().zip([(5.0, 3000), (7.0, 2000)]) {
            let family = pen.family(&gauge(merge));
            let ink = pen.series(family, X);
            pen.tick(now_ms);
            pen.set(ink, value);
        }
        let mut desk = Desk::new(&[pens[0].mount(), pens[1].mount()]);
        assert_eq!(of(&desk.samples(), "connections", X), Some(expected), "{merge:?}");
    };
    check(Merge::Sum, 12.0);
    check(Merge::Max, 7.0);
    check(Merge::Last, 5.0);
}

#[test]
fn an_ended_series_is_exposed_once_more() {
    let (mut pen, ink) = counting(0, X, 10);
    let other = pen.series(0, Y);
    let mut desk = Desk::new(&[pen.mount()]);
    assert_eq!(requests(&desk.samples(), X), Some(10.0));
    pen.add(ink, 1);
    pen.tombstone(0, ink);
    desk.refresh();
    // A client that hangs up has not seen it, nor has one that requests other families.
    let mut cursor = desk.reader.cursor(Format::Text, false, None);
    desk.reader.next(&mut cursor);
    let mut elsewhere = desk.reader.cursor(Format::Text, false, Some(vec!["seconds".into()]));
    assert_eq!(desk.rest(&mut elsewhere), b"");
    assert_eq!(requests(&desk.samples(), X), Some(11.0));
    assert_eq!(requests(&desk.samples(), X), None);
    pen.tombstone(0, other);
    desk.scrape();
    assert_eq!(desk.scrape(), "");
}

#[test]
fn nobody_scrapes_and_an_ended_series_goes_all_the_same() {
    let (mut pen, ink) = counting(0, X, 10);
    let mut desk = Desk::new(&[pen.mount()]);
    desk.refresh();
    pen.tombstone(0, ink);
    desk.refresh();
    assert_eq!(desk.reader.series(), 1);
    desk.now_ms += 3_600_000;
    desk.refresh();
    assert_eq!(desk.reader.series(), 0);
}

#[test]
fn a_series_that_comes_back_starts_from_its_own_value() {
    for scraped in [false, true] {
        let (mut pen, ink) = counting(0, X, 100);
        let mut desk = Desk::new(&[pen.mount()]);
        desk.scrape();
        pen.tombstone(0, ink);
        if scraped {
            desk.refresh();
        }
        let again = pen.series(0, X);
        pen.add(again, 3);
        assert_eq!(requests(&desk.samples(), X), Some(3.0));
        assert_eq!(requests(&desk.samples(), X), Some(3.0));
        pen.add(again, 1);
        assert_eq!(requests(&desk.samples(), X), Some(4.0));
    }
}

#[test]
fn the_new_life_may_be_another_writers() {
    let (mut one, ink) = counting(0, X, 100);
    let (mut two, of_two) = counting(1, X, 50);
    let mut three = Pen::new(2, 1 << 16);
    let mut desk = Desk::new(&[one.mount(), two.mount(), three.mount()]);
    desk.scrape();
    one.tombstone(0, ink);
    // The other record lives: the sum stays whole for now.
    desk.scrape();
    assert_eq!(requests(&desk.samples(), X), Some(150.0));
    two.tombstone(1, of_two);
    let family = three.family(&counter());
    let again = three.series(family, X);
    three.add(again, 1);
    assert_eq!(requests(&desk.samples(), X), Some(1.0));
}

#[test]
fn what_was_ended_before_the_reader_came_is_not_exposed() {
    let (mut pen, ink) = counting(0, X, 100);
    pen.tombstone(0, ink);
    let mut desk = Desk::new(&[pen.mount()]);
    assert_eq!(desk.scrape(), "");
}

#[test]
fn a_tombstone_may_name_what_is_not_there() {
    let (mut pen, ink) = counting(0, X, 100);
    pen.tombstone(5, ink);
    pen.tombstone(0, Ink { record: 0, ..ink });
    pen.tombstone(0, Ink { record: ink.record + 1, ..ink });
    pen.tombstone(0, Ink { record: usize::MAX, ..ink });
    let mut desk = Desk::new(&[pen.mount()]);
    assert_eq!(requests(&desk.samples(), X), Some(100.0));
}

#[test]
fn the_newer_of_two_declarations_wins() {
    let (pen, _) = counting(0, X, 10);
    let mut newer = Pen::new(1, 1 << 16);
    newer.now_ms = 5000;
    let changed = newer.family(&Family { kind: FamilyType::Gauge(Merge::Sum), ..counter() });
    let ink = newer.series(changed, Y);
    newer.set(ink, 1.5);
    let mut desk = Desk::new(&[newer.mount(), pen.mount()]);
    let samples = desk.samples();
    assert_eq!((requests(&samples, X), requests(&samples, Y)), (None, Some(1.5)));
    assert_eq!(desk.refresh().hidden_families, 1);
    // When it goes, the older one appears again.
    desk.remount(&[pen.mount()]);
    let samples = desk.samples();
    assert_eq!((requests(&samples, X), requests(&samples, Y)), (Some(10.0), None));
    assert_eq!(desk.refresh().hidden_families, 0);
}

#[test]
fn other_labels_are_the_same_family() {
    let (pen, _) = counting(0, X, 10);
    let mut other = Pen::new(1, 1 << 16);
    let family = other.family(&Family { labels: vec!["c".into()], exemplars: true, ..counter() });
    let ink = other.series(family, r#"c="1""#);
    other.add(ink, 2);
    let mut desk = Desk::new(&[pen.mount(), other.mount()]);
    let samples = desk.samples();
    assert_eq!((requests(&samples, X), requests(&samples, r#"c="1""#)), (Some(10.0), Some(2.0)));
    let cardinality = desk.reader.cardinality();
    assert_eq!((cardinality.len(), cardinality[0].series), (1, 2));
    let labels = cardinality[0].labels.iter().map(|label| (label.name.as_str(), label.samples.join("|")));
    assert_eq!(labels.collect::<Vec<_>>(), [("a", "x".into()), ("b", "1".into()), ("c", "1".into())]);
}

#[test]
fn a_histogram_in_the_middle_of_a_change_keeps_its_last_value() {
    let mut pen = Pen::new(0, 1 << 16);
    let family = pen.family(&histogram());
    let ink = pen.series(family, X);
    pen.observe(ink, 0.5);
    let mut desk = Desk::new(&[pen.mount()]);
    let before = desk.scrape();
    // The writer is suspended between the bucket and the sum.
    let cells = pen.cells(ink);
    cells[0].store(3, Relaxed);
    cells::add(&cells[3], 1);
    pen.mark(ink);
    pen.tick(5000);
    pen.tick(6000);
    assert_eq!(desk.scrape(), before);
    assert_eq!(desk.scrape(), before);
    cells::add_float(&pen.cells(ink)[1], 0.5);
    pen.cells(ink)[0].store(4, Relaxed);
    let samples = desk.samples();
    assert_eq!((of(&samples, "seconds_count", X), of(&samples, "seconds_sum", X)), (Some(2.0), Some(1.0)));
}

#[test]
fn idle_series_and_those_of_an_owner_are_found() {
    let (mut one, _) = counting(0, X, 10);
    let (mut two, busy) = counting(1, Y, 10);
    two.series(0, X);
    let mut desk = Desk::new(&[one.mount(), two.mount()]);
    for second in 2..20 {
        one.tick(second * 1000);
        two.tick(second * 1000);
        two.add(busy, 1);
        desk.refresh();
    }
    let idle = desk.reader.idle(PROCESS, 10_000, usize::MAX);
    assert_eq!(idle.iter().map(|series| series.labels.as_slice()).collect::<Vec<_>>(), [X.as_bytes()]);
    assert_eq!(idle[0].records.len(), 2);
    assert_eq!(desk.reader.idle(PROCESS, 60_000, usize::MAX), []);
    assert_eq!(desk.reader.idle(PROCESS, 10_000, 0), []);
    let owned = desk.reader.with_labels(
        PROCESS,
        &["a".to_owned()],
        &[vec!["y".to_owned()], vec!["z".to_owned()]].into(),
        usize::MAX,
    );
    assert_eq!((owned.len(), owned[0].labels.as_slice()), (1, Y.as_bytes()));
    assert_eq!((owned[0].records[0].serial, owned[0].records[0].record), (1, busy.record));
    assert_eq!(desk.reader.with_labels(PROCESS, &["c".to_owned()], &[vec!["y".to_owned()]].into(), usize::MAX), []);
    // A record that is leaving already is not found again.
    let ended = owned[0].records[0];
    one.tombstone(ended.serial, busy);
    desk.refresh();
    assert_eq!(desk.reader.with_labels(PROCESS, &["a".to_owned()], &[vec!["y".to_owned()]].into(), usize::MAX), []);
}
