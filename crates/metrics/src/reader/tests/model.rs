//! Property test: any order of events gives the same exposition as a naive model.

use super::*;
use proptest::prelude::*;

const SERIES: usize = 40;
const PENS: usize = 3;

#[derive(Debug, Clone)]
enum Event {
    /// Pen, series, amount.
    Add(usize, usize, u64),
    Observe(usize, usize, bool),
    Tick(usize),
    /// Removes the pen's segment, or brings it (back).
    Toggle(usize),
    /// Folds a pen into a base, and gives it a new segment.
    Fold(usize),
    Scrape,
    /// Begins or continues a slow scrape.
    Step,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..PENS, 0..SERIES, prop_oneof![1u64..20, 1u64..1_000_000]).prop_map(|(pen, at, n)| Event::Add(pen, at, n)),
        4 => (0..PENS, 0..SERIES, any::<bool>()).prop_map(|(pen, at, slow)| Event::Observe(pen, at, slow)),
        2 => (0..PENS).prop_map(Event::Tick),
        1 => (0..PENS).prop_map(Event::Toggle),
        1 => (0..PENS).prop_map(Event::Fold),
        3 => Just(Event::Scrape),
        3 => Just(Event::Step),
    ]
}

fn labels(index: usize) -> String {
    format!(r#"a="{}",b="{}""#, index % 7, index)
}

/// A segment and its expected content.
struct Part {
    pen: Pen,
    counters: BTreeMap<usize, Ink>,
    histograms: BTreeMap<usize, Ink>,
    counts: BTreeMap<usize, u64>,
    observed: BTreeMap<usize, [u64; 2]>,
}

impl Part {
    fn new(serial: u64) -> Part {
        let mut pen = Pen::new(serial, 1 << 20);
        pen.family(&counter());
        pen.family(&histogram());
        let (counters, histograms) = Default::default();
        Part { pen, counters, histograms, counts: BTreeMap::new(), observed: BTreeMap::new() }
    }

    fn add(&mut self, series: usize, amount: u64) {
        let ink = *self.counters.entry(series).or_insert_with(|| self.pen.series(0, &labels(series)));
        self.pen.add(ink, amount);
        *self.counts.entry(series).or_default() += amount;
    }

    fn observe(&mut self, series: usize, slow: bool) {
        let ink = *self.histograms.entry(series).or_insert_with(|| self.pen.series(1, &labels(series)));
        self.pen.observe(ink, if slow { 4.0 } else { 0.5 });
        self.observed.entry(series).or_default()[usize::from(slow)] += 1;
    }
}

fn expected<'a>(parts: impl Iterator<Item = &'a Part>) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut add = |name: String, value: f64| *samples.entry(name).or_insert(0.0) += value;
    for part in parts {
        for (series, count) in &part.counts {
            add(format!("requests_total{{{}}}", labels(*series)), *count as f64);
        }
        for (series, [quick, slow]) in &part.observed {
            let labels = labels(*series);
            add(format!("seconds_bucket{{{labels},le=\"0.1\"}}"), 0.0);
            add(format!("seconds_bucket{{{labels},le=\"1\"}}"), *quick as f64);
            add(format!("seconds_bucket{{{labels},le=\"+Inf\"}}"), (quick + slow) as f64);
            add(format!("seconds_sum{{{labels}}}"), *quick as f64 * 0.5 + *slow as f64 * 4.0);
            add(format!("seconds_count{{{labels}}}"), (quick + slow) as f64);
        }
    }
    samples
}

fn run(events: Vec<Event>, chunk_lines: usize) {
    let mut desk = Desk::new(&[]);
    let mut pens: Vec<(Part, bool)> = (0..PENS).map(|serial| (Part::new(serial as u64), true)).collect();
    let mut bases: Vec<Part> = Vec::new();
    let mut slow: Option<(ExpositionCursor, Vec<u8>)> = None;
    let mut serial = 100;
    let mut is_remounted = true;
    for event in events {
        match event {
            Event::Add(pen, series, amount) => pens[pen].0.add(series, amount),
            Event::Observe(pen, series, slow) => pens[pen].0.observe(series, slow),
            Event::Tick(pen) => pens[pen].0.pen.tick(1000),
            Event::Toggle(pen) => {
                pens[pen].1 = !pens[pen].1;
                is_remounted = true;
            }
            Event::Fold(pen) => {
                serial += 2;
                let (old, is_mounted) = std::mem::replace(&mut pens[pen], (Part::new(serial), true));
                if is_mounted {
                    bases.push(fold(old, serial + 1));
                }
                is_remounted = true;
            }
            Event::Scrape => {
                let mounted = pens.iter().filter(|(_, is_mounted)| *is_mounted).map(|(part, _)| part);
                let parts: Vec<&Part> = mounted.chain(&bases).collect();
                if std::mem::take(&mut is_remounted) {
                    let mounts: Vec<Mount> = parts.iter().map(|part| part.pen.mount()).collect();
                    desk.remount(&mounts);
                }
                assert_eq!(desk.samples(), expected(parts.into_iter()));
            }
            Event::Step => {
                let (cursor, text) =
                    slow.get_or_insert_with(|| (desk.reader.cursor(Format::Text, false, None), Vec::new()));
                match desk.reader.next(cursor) {
                    Some(piece) => text.extend_from_slice(piece.as_ref()),
                    None => {
                        // The text is valid, whatever happened meanwhile.
                        samples(std::str::from_utf8(text).unwrap());
                        slow = None;
                    }
                }
            }
        }
        desk.reader.order.families.shorten_chunks(chunk_lines);
    }
}

/// The part as it is in a base, as a reader sees it.
fn fold(old: Part, serial: u64) -> Part {
    let mut desk = Desk::new(&[old.pen.mount()]);
    desk.refresh();
    let mut base = Part::new(serial);
    desk.reader.each(|family, text, created_ms, value| {
        assert_eq!(created_ms, 1000);
        let text = std::str::from_utf8(text).unwrap();
        match value {
            crate::value::Value::Unsigned(count) => {
                assert_eq!(family, &counter());
                let ink = base.pen.series(0, text);
                base.pen.add(ink, count);
            }
            crate::value::Value::Histogram(state) => {
                let ink = base.pen.series(1, text);
                let CellForm::Histogram { bounds, native } = &base.pen.shapes[1].form else { panic!("a histogram") };
                cells::restore_histogram(base.pen.cells(ink), bounds, native.as_ref(), state);
            }
            crate::value::Value::Float(_) => panic!("there are none"),
        }
    });
    (base.counts, base.observed) = (old.counts, old.observed);
    base
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn sums_are_exact(events in prop::collection::vec(event(), 1..120), chunk_series_max in 1usize..20) {
        run(events, chunk_series_max);
    }
}
