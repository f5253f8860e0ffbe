//! Labels that explode in a fleet of a realistic size: the cost of a collapse, and the limits of it.
//!
//! A budget of 20,000 label sets represents the default one of 100,000: the other labels combine to a fifth of it.

use crate::exposition::{Exposition, Labels, label};
use crate::started::identity;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stillgate_metrics::encode::{self, Format};
use stillgate_metrics::reader::ReaderOptions;
use stillgate_metrics::{
    Buckets, Collector, CollectorEvent, CollectorOptions, DeclaredFamily, Family, FamilyType, Handle, OTHER, Registry,
    RegistryOptions, Writer,
};

const NOW_MS: u64 = 1_700_000_000_000;
const BUDGET: u32 = 20_000;
const LABELS: [&str; 5] = ["route", "node", "code", "tenant", "uri"];
const NAME: &str = "requests_total";
/// Longer than the ten minutes for which all new label sets have to fit before a label opens again.
const OPENING_MS: u64 = 11 * 60 * 1000;

/// A gateway's metrics, and the expected counts.
struct Fleet {
    registry: Arc<Registry>,
    requests: Arc<DeclaredFamily>,
    writers: Vec<Writer>,
    collector: Collector,
    now_ms: u64,
    counted: u64,
    by_route: BTreeMap<String, u64>,
    /// The last exposition, and what had been counted by then.
    shown: Option<(Exposition, u64)>,
}

fn family(name: &str, kind: FamilyType) -> Family {
    let labels = LABELS.map(str::to_owned).to_vec();
    Family { name: name.to_owned(), help: "Help.".to_owned(), unit: String::new(), kind, labels, exemplars: false }
}

impl Fleet {
    fn new() -> Fleet {
        let options = RegistryOptions {
            series_per_family: BUDGET,
            ..RegistryOptions::new(identity(std::process::id()), NOW_MS, 7)
        };
        let registry = Arc::new(Registry::start(options).unwrap());
        let requests = registry.declare(family(NAME, FamilyType::Counter)).unwrap();
        let writers = vec![registry.writer().unwrap(), registry.writer().unwrap()];
        let reader = ReaderOptions { encode: encode::EncodeOptions { created: true }, ..ReaderOptions::default() };
        let options = CollectorOptions { reader, ..CollectorOptions::default() };
        let collector = Collector::of_registry(registry.clone(), options).unwrap();
        let (by_route, shown) = (BTreeMap::new(), None);
        Fleet { registry, requests, writers, collector, now_ms: NOW_MS, counted: 0, by_route, shown }
    }

    /// Counts the request of this number: 300 routes × 3 nodes × 4 codes.
    fn count(&mut self, number: u64, tenant: &str, uri: &str) -> Handle {
        let (route, node) = (format!("r{}", number % 300), format!("10.0.0.{}:80", number / 300 % 3));
        let code = ["200", "201", "404", "502"][(number / 900 % 4) as usize];
        let values = [route.as_str(), &node, code, tenant, uri].map(str::as_bytes);
        let writer = &mut self.writers[(number % 2) as usize];
        let handle = writer.series(&self.requests, &values);
        assert!(writer.add(handle, 1));
        self.counted += 1;
        *self.by_route.entry(route).or_default() += 1;
        handle
    }

    /// Lets time pass, with all periodic work.
    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.writers.iter_mut().for_each(|writer| writer.tick(self.now_ms));
        while self.collector.tend(self.now_ms) {
            self.now_ms += 1;
            self.writers.iter_mut().for_each(|writer| writer.tick(self.now_ms));
        }
    }

    /// Compares an exposition with the counts, and with the one before.
    #[track_caller]
    fn scrape(&mut self) -> Exposition {
        self.collector.refresh(self.now_ms).unwrap();
        let shown = Exposition::of(&mut self.collector, Format::OpenMetrics);
        assert_eq!(shown.sum(NAME), self.counted as f64, "the sum is what was counted");
        for name in ["route", "node", "code"] {
            assert_eq!(shown.sum_where(NAME, |labels| label(labels, name) == OTHER), 0.0, "{name} stays exact");
        }
        let mut by_route: BTreeMap<String, u64> = BTreeMap::new();
        for (labels, value) in of_family(&shown) {
            *by_route.entry(label(labels, "route").to_owned()).or_default() += value as u64;
        }
        assert_eq!(by_route, self.by_route, "every route has its requests");
        if let Some((before, counted_before)) = self.shown.replace((shown.clone(), self.counted)) {
            // As `rate` does it: the increase of a series over its previous value.
            let mut gained = 0.0;
            for (labels, value) in of_family(&shown) {
                let Some(was) = before.samples.get(&(NAME.to_owned(), labels.clone())) else { continue };
                assert!(value >= *was, "{labels:?} stepped back from {was} to {value}");
                gained += value - was;
                let created = |shown: &Exposition| shown.created[&("requests".to_owned(), labels.clone())];
                assert!(created(&shown) <= created(&before), "{labels:?} looks as if it had begun again");
            }
            assert!(gained <= (self.counted - counted_before) as f64, "{gained} seem to have come in");
        }
        shown
    }
}

fn of_family(shown: &Exposition) -> impl Iterator<Item = (&Labels, f64)> {
    shown.samples.iter().filter(|((name, _), _)| name == NAME).map(|((_, labels), value)| (labels, *value))
}

fn values_of(shown: &Exposition, name: &str) -> usize {
    of_family(shown).map(|(labels, _)| label(labels, name)).collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn an_exploding_label_costs_the_others_nothing() {
    let mut fleet = Fleet::new();
    fleet.count(0, "first", "");
    fleet.pass(60_000);
    fleet.scrape();
    for number in 1..120_000 {
        fleet.count(number, &format!("tenant-{number}"), "");
        assert!(fleet.requests.sets() <= BUDGET);
        if number % 10_000 == 0 {
            fleet.pass(1_000);
            fleet.scrape();
        }
    }
    assert_eq!(fleet.requests.collapsed(), 0b01000);
    fleet.pass(10_000);
    let shown = fleet.scrape();
    assert_eq!((of_family(&shown).count(), values_of(&shown, "tenant")), (3_600, 1));
    assert_eq!(fleet.requests.sets(), 3_600, "the room is free again");
    let created =
        shown.created.iter().filter(|((name, labels), _)| name == "requests" && label(labels, "route") == "r0");
    let first = created.map(|(_, created)| *created).fold(f64::INFINITY, f64::min);
    assert_eq!(first, NOW_MS as f64 / 1e3, "it has begun with the first of its series");
    let events = fleet.collector.events();
    let collapses = events.iter().filter(|event| matches!(event, CollectorEvent::Collapsed { .. }));
    assert_eq!(collapses.count(), 1, "{events:?}");
    let cardinality = fleet.collector.cardinality();
    let of_tenant = &cardinality.iter().find(|family| family.name == NAME).unwrap().labels[3];
    assert!(of_tenant.collapsed && of_tenant.samples.iter().any(|sample| sample != OTHER), "{of_tenant:?}");
}

#[test]
fn two_labels_that_explode_one_after_the_other_cost_the_others_nothing() {
    let mut fleet = Fleet::new();
    for number in 0..60_000 {
        fleet.count(number, &format!("tenant-{number}"), &format!("/{}", number % 2));
        if number % 10_000 == 0 {
            fleet.pass(1_000);
            fleet.scrape();
        }
    }
    assert_eq!(fleet.requests.collapsed(), 0b01000);
    for number in 60_000..160_000 {
        fleet.count(number, &format!("tenant-{number}"), &format!("/{number}"));
        if number % 10_000 == 0 {
            fleet.pass(1_000);
            fleet.scrape();
        }
    }
    assert_eq!(fleet.requests.collapsed(), 0b11000);
    fleet.pass(10_000);
    let shown = fleet.scrape();
    assert_eq!((values_of(&shown, "tenant"), values_of(&shown, "uri"), values_of(&shown, "route")), (1, 1, 300));
    assert_eq!(of_family(&shown).count(), 3_600);
}

#[test]
fn two_labels_that_explode_together_cost_the_others_nothing() {
    let mut fleet = Fleet::new();
    for number in 0..60_000 {
        // No refresh happens meanwhile: what the first label frees has not come back when the second one collapses.
        fleet.count(number, &format!("tenant-{number}"), &format!("/{number}"));
    }
    fleet.pass(1_000);
    fleet.scrape();
    assert_eq!(fleet.requests.collapsed(), 0b11000);
}

#[test]
fn a_label_opens_again_when_its_values_fit_and_collapses_when_they_do_not() {
    let mut fleet = Fleet::new();
    let mut number = 0;
    for round in 0..2 {
        for _ in 0..30_000 {
            number += 1;
            fleet.count(number, &format!("tenant-{number}"), "");
        }
        fleet.pass(1_000);
        // The second time a series of others exists already, to which the exact counts of the meantime are added.
        fleet.shown = None;
        fleet.scrape();
        assert_eq!(fleet.requests.collapsed(), 0b01000, "{round}");
        // Rotated, so that no earlier record is found.
        for _ in 0..3 {
            fleet.pass(6_000);
            fleet.scrape();
        }
        fleet.pass(OPENING_MS);
        fleet.pass(OPENING_MS);
        assert_eq!(fleet.requests.collapsed(), 0, "{round}");
        fleet.scrape();
        for tenant in 0..10 {
            number += 1;
            fleet.count(number, &format!("quiet-{tenant}"), "");
        }
        let shown = fleet.scrape();
        assert_eq!(values_of(&shown, "tenant"), 1 + 10, "{round}");
    }
}

#[test]
fn a_process_that_follows_shows_the_same() {
    let mut fleet = Fleet::new();
    for number in 0..30_000 {
        fleet.count(number, &format!("tenant-{number}"), "");
    }
    fleet.pass(1_000);
    let before = fleet.scrape();
    assert_eq!(values_of(&before, "tenant"), 1);
    // A reader that has not seen the previous state.
    let options = RegistryOptions::new(stillgate_metrics::SegmentProcess { pid: 1, start: 0 }, fleet.now_ms, 8);
    let next = Arc::new(Registry::start(options).unwrap());
    assert!(next.inherit(fleet.registry.hand_over().unwrap()).is_empty());
    let reader = ReaderOptions { encode: encode::EncodeOptions { created: true }, ..ReaderOptions::default() };
    let mut collector =
        Collector::of_registry(next, CollectorOptions { reader, ..CollectorOptions::default() }).unwrap();
    collector.refresh(fleet.now_ms).unwrap();
    let after = Exposition::of(&mut collector, Format::OpenMetrics);
    assert!(of_family(&before).eq(of_family(&after)), "the same series with the same values");
}

/// Values are read as pieces are produced: a value that was produced with its family must not come again in another
/// series.
#[test]
fn an_exposition_under_way_is_not_folded_in_its_middle() {
    let mut fleet = Fleet::new();
    for number in 0..15_000 {
        fleet.count(number, &format!("tenant-{number}"), "");
    }
    fleet.collector.refresh(fleet.now_ms).unwrap();
    let mut cursor = fleet.collector.cursor(Format::Text, false, None);
    let mut text = Vec::new();
    while text.len() < 100_000 {
        text.extend_from_slice(fleet.collector.next(&mut cursor).unwrap().as_ref());
    }
    let counted_before = fleet.counted;
    for number in 15_000..25_000 {
        fleet.count(number, &format!("tenant-{number}"), "");
    }
    fleet.pass(1_000);
    while let Some(piece) = fleet.collector.next(&mut cursor) {
        text.extend_from_slice(piece.as_ref());
    }
    let whole = crate::exposition::parse(str::from_utf8(&text).unwrap(), false).unwrap();
    let sum = whole.sum(NAME) as u64;
    assert!((counted_before..=fleet.counted).contains(&sum), "{counted_before} <= {sum} <= {}", fleet.counted);
    fleet.pass(1_000);
    let shown = fleet.scrape();
    assert_eq!(values_of(&shown, "tenant"), 1, "folded as soon as nobody is in the middle");
}

#[test]
fn an_exposition_that_never_ends_holds_nothing_up() {
    let mut fleet = Fleet::new();
    let cursor = fleet.collector.cursor(Format::Text, false, None);
    for number in 0..25_000 {
        fleet.count(number, &format!("tenant-{number}"), "");
    }
    for (ms, is_folded) in [(1_000, false), (11_000, true)] {
        fleet.pass(ms);
        fleet.shown = None;
        assert_eq!(values_of(&fleet.scrape(), "tenant") == 1, is_folded, "after {ms} ms more");
    }
    drop(cursor);
}

#[test]
fn a_handle_from_before_counts_for_the_folded_series() {
    let mut fleet = Fleet::new();
    let handle = fleet.count(0, "first", "");
    for number in 1..25_000 {
        fleet.count(number, &format!("tenant-{number}"), "");
    }
    assert_eq!(values_of(&fleet.scrape(), "tenant"), 1);
    for _ in 0..3 {
        assert!(fleet.writers[0].add(handle, 5), "nobody has asked the writer to forget anything");
        fleet.counted += 5;
        *fleet.by_route.get_mut("r0").unwrap() += 5;
        fleet.scrape();
    }
}

/// All kinds are folded: nothing of a histogram is lost or counted twice, and a gauge has the value that was set last.
#[test]
fn histograms_and_gauges_are_folded_too() {
    let options = RegistryOptions {
        series_per_family: 1_000,
        ahead_bytes: 4 << 20,
        ..RegistryOptions::new(identity(std::process::id()), NOW_MS, 7)
    };
    let registry = Arc::new(Registry::start(options).unwrap());
    let buckets = Buckets { classic: vec![0.1, 1.0], native: None };
    let sizes = registry.declare(family("sizes", FamilyType::Histogram(buckets))).unwrap();
    let level = registry.declare(family("level", FamilyType::Gauge(stillgate_metrics::Merge::Max))).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
    for number in 0..5_000u32 {
        let tenant = number.to_string();
        let values = ["r", "n", "200", tenant.as_str(), ""].map(str::as_bytes);
        let size = writer.series(&sizes, &values);
        assert!(writer.observe(size, 0.5));
        let height = writer.series(&level, &values);
        assert!(writer.set(height, -f64::from(number) - 1.0));
    }
    for step in 1..20 {
        let now_ms = NOW_MS + step * 1_000;
        writer.tick(now_ms);
        collector.tend(now_ms);
        collector.refresh(now_ms).unwrap();
        let shown = Exposition::of(&mut collector, Format::Text);
        assert_eq!((shown.sum("sizes_count"), shown.sum("sizes_sum")), (5_000.0, 2_500.0));
        let levels: Vec<f64> =
            shown.samples.iter().filter(|((name, _), _)| name == "level").map(|(_, value)| *value).collect();
        assert_eq!(levels, [-1.0], "the largest");
    }
}

/// Labels that explode one after the other, and the requests that each has values of its own for.
const EXPLODING: u64 = 10;
const PHASE: u64 = 30_000;

/// Counts the requests of one worker, at whatever time it is; the labels explode in turn.
fn count_all(writer: &mut Writer, family: &Arc<DeclaredFamily>, parity: u64, now_ms: &AtomicU64) -> u64 {
    let mut counted = 0;
    for number in (parity..EXPLODING * PHASE).step_by(2) {
        let values: Vec<String> = (0..EXPLODING)
            .map(|label| if label == number / PHASE { format!("v{number}") } else { format!("v{}", label % 2) })
            .collect();
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
        let handle = writer.series(family, &values);
        assert!(writer.add(handle, 1));
        counted += 1;
        if number % 16 == parity {
            writer.tick(now_ms.load(Ordering::Relaxed));
        }
    }
    counted
}

/// Writers make new series while they are asked to leave their segments, whose totals are carried on.
#[test]
fn nothing_is_lost_while_labels_collapse_and_writers_leave_their_segments() {
    let options =
        RegistryOptions { series_per_family: 8_000, ..RegistryOptions::new(identity(std::process::id()), NOW_MS, 7) };
    let registry = Arc::new(Registry::start(options).unwrap());
    let labels: Vec<String> = (0..EXPLODING).map(|label| format!("l{label}")).collect();
    let requests = registry.declare(Family { labels, ..family(NAME, FamilyType::Counter) }).unwrap();
    let writers = [registry.writer().unwrap(), registry.writer().unwrap()];
    let mut collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
    let now_ms = AtomicU64::new(NOW_MS);
    let (counted, mut writers) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(writers)
            .map(|(parity, mut writer)| {
                let (requests, now_ms) = (&requests, &now_ms);
                scope.spawn(move || (count_all(&mut writer, requests, parity, now_ms), writer))
            })
            .collect();
        let mut sum_before = 0.0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            // Each round looks at what the segments hold.
            let now_ms = now_ms.fetch_add(6_000, Ordering::Relaxed);
            collector.tend(now_ms);
            collector.refresh(now_ms).unwrap();
            let sum = Exposition::of(&mut collector, Format::Text).sum(NAME);
            assert!(sum >= sum_before, "the sum fell from {sum_before} to {sum}");
            sum_before = sum;
        }
        let finished: Vec<(u64, Writer)> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        (finished.iter().map(|(counted, _)| counted).sum::<u64>(), finished)
    });
    for _ in 0..10 {
        let now_ms = now_ms.fetch_add(6_000, Ordering::Relaxed);
        writers.iter_mut().for_each(|(_, writer)| writer.tick(now_ms));
        while collector.tend(now_ms) {
            writers.iter_mut().for_each(|(_, writer)| writer.tick(now_ms));
        }
        collector.refresh(now_ms).unwrap();
        let shown = Exposition::of(&mut collector, Format::Text);
        assert_eq!(shown.sum(NAME), counted as f64, "what was counted");
    }
}
