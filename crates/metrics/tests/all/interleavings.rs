//! Any order of the events of writers, readers and time: nothing is lost, steps back, or contradicts itself.
//!
//! A small model counts along: the observations with their labels, and those shown by the last exposition. Values that
//! are missing from an exposition must have ended, by the rules of ending.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use crate::exposition::{Exposition, Labels, label, parse, read};
use flate2::bufread::GzDecoder;
use proptest::prelude::*;
use stillgate_metrics::encode::{self, Format};
use stillgate_metrics::reader::ReaderOptions;
use stillgate_metrics::{
    Buckets, Collector, CollectorOptions, DeclaredFamily, Family, FamilyType, OTHER, Registry, RegistryOptions,
    SegmentProcess, Writer,
};

/// Idle series end after this time, in runs with expiry.
const EXPIRE_MS: u64 = 5_000;
/// The value of every observation: sums are then exact.
const OBSERVED: f64 = 0.5;
const COLLAPSED: &str = "stillgate_metrics_collapsed_observations_total";

#[derive(Debug, Clone)]
enum Step {
    /// The writer counts a request of this route and URI.
    Count {
        writer: usize,
        route: u8,
        uri: u16,
    },
    /// The writer observes one of this route and URI.
    Observe {
        writer: usize,
        route: u8,
        uri: u16,
    },
    Tick {
        writer: usize,
    },
    /// Time passes, and all writers tick.
    Pass {
        ms: u64,
    },
    Tend,
    Scrape,
    /// The route leaves the configuration.
    Remove {
        route: u8,
    },
    Restore {
        route: u8,
    },
    /// A writer ends, and another one begins.
    Replace {
        writer: usize,
    },
}

fn step(uris: u16) -> impl Strategy<Value = Step> {
    let (writer, route, uri) = (0..3usize, 0..3u8, 0..uris);
    prop_oneof![
        8 => (writer.clone(), route.clone(), uri.clone()).prop_map(|(writer, route, uri)| Step::Count { writer, route, uri }),
        4 => (writer.clone(), route.clone(), uri).prop_map(|(writer, route, uri)| Step::Observe { writer, route, uri }),
        2 => writer.clone().prop_map(|writer| Step::Tick { writer }),
        4 => prop_oneof![Just(1), Just(50), Just(1_000), Just(6_000)].prop_map(|ms| Step::Pass { ms }),
        5 => Just(Step::Tend),
        4 => Just(Step::Scrape),
        1 => route.clone().prop_map(|route| Step::Remove { route }),
        1 => route.prop_map(|route| Step::Restore { route }),
        1 => writer.prop_map(|writer| Step::Replace { writer }),
    ]
}

#[derive(Debug, Clone, Copy)]
struct ModelSettings {
    writers: usize,
    series_per_family: u32,
    expires: bool,
    removes: bool,
    is_shared: bool,
}

fn setting() -> impl Strategy<Value = ModelSettings> {
    let budget = prop_oneof![Just(8u32), Just(30), Just(10_000)];
    (1..=3usize, budget, any::<bool>(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(writers, series_per_family, expires, removes, is_shared)| ModelSettings {
            writers,
            series_per_family,
            expires,
            removes,
            is_shared,
        },
    )
}

/// Observations with some labels: their times, and the totals since then.
type ObservationLog = BTreeMap<Labels, Vec<(u64, u64)>>;

/// The counts of one family.
#[derive(Default)]
struct Ledger {
    past: ObservationLog,
    /// All counts at the last exposition, by labels.
    then: BTreeMap<Labels, u64>,
    /// The counts that it exposed.
    shown: BTreeMap<Labels, (u64, f64)>,
    total: u64,
    /// Number of series that had ended by then.
    ended_total: u64,
}

struct World {
    setting: ModelSettings,
    registry: Arc<Registry>,
    writers: Vec<Writer>,
    collector: Collector,
    requests: Arc<DeclaredFamily>,
    sizes: Arc<DeclaredFamily>,
    counted: Ledger,
    observed: Ledger,
    now_ms: u64,
    _folder: tempfile::TempDir,
}

fn family(name: &str, kind: FamilyType) -> Family {
    let labels = vec!["route".to_owned(), "uri".to_owned()];
    Family { name: name.to_owned(), help: "Help.".to_owned(), unit: String::new(), kind, labels, exemplars: false }
}

impl World {
    fn new(setting: ModelSettings) -> World {
        let folder = tempfile::tempdir().unwrap();
        let now_ms = 1_700_000_000_000;
        let options = RegistryOptions {
            memory_bytes: 16 << 20,
            series_per_family: setting.series_per_family,
            // Enough for the whole test, so that nothing depends on the speed of the provisioner.
            ahead_bytes: 1 << 20,
            shared: setting.is_shared.then(|| folder.path().to_owned()),
            ..RegistryOptions::new(SegmentProcess { pid: std::process::id(), start: 1 }, now_ms, 7)
        };
        let registry = Arc::new(Registry::start(options).unwrap());
        let requests = registry.declare(family("requests_total", FamilyType::Counter)).unwrap();
        let buckets = Buckets { classic: vec![0.1, 1.0], native: None };
        let sizes = registry.declare(family("sizes", FamilyType::Histogram(buckets))).unwrap();
        let writers = (0..setting.writers).map(|_| registry.writer().unwrap()).collect();
        let reader = ReaderOptions { encode: encode::EncodeOptions { created: true }, ..ReaderOptions::default() };
        let expire_ms = setting.expires.then_some(EXPIRE_MS);
        let options = CollectorOptions { reader, expire_ms, ..CollectorOptions::default() };
        let collector = Collector::of_registry(registry.clone(), options).unwrap();
        let (counted, observed) = (Ledger::default(), Ledger::default());
        World { setting, registry, writers, collector, requests, sizes, counted, observed, now_ms, _folder: folder }
    }

    fn take(&mut self, step: &Step) {
        let of = |writer: &usize| writer % self.setting.writers;
        match step {
            Step::Count { writer, route, uri } => {
                let writer = &mut self.writers[of(writer)];
                let labels = labels(*route, *uri);
                let handle = writer.series(&self.requests, &values(&labels));
                assert!(writer.add(handle, 1));
                self.counted.note(labels, self.now_ms);
            }
            Step::Observe { writer, route, uri } => {
                let writer = &mut self.writers[of(writer)];
                let labels = labels(*route, *uri);
                let handle = writer.series(&self.sizes, &values(&labels));
                assert!(writer.observe(handle, OBSERVED));
                self.observed.note(labels, self.now_ms);
            }
            Step::Tick { writer } => self.writers[of(writer)].tick(self.now_ms),
            Step::Pass { ms } => {
                self.now_ms += ms;
                self.writers.iter_mut().for_each(|writer| writer.tick(self.now_ms));
            }
            Step::Tend => {
                self.collector.tend(self.now_ms);
            }
            Step::Scrape => self.scrape(),
            Step::Remove { route } if self.setting.removes => {
                self.collector.remove(vec!["route".to_owned()], vec![vec![format!("r{route}")]]);
            }
            Step::Restore { route } if self.setting.removes => {
                self.collector.restore(&["route".to_owned()], &[vec![format!("r{route}")]]);
            }
            Step::Remove { .. } | Step::Restore { .. } => {}
            Step::Replace { writer } => {
                let number = of(writer);
                self.writers[number] = self.registry.writer().unwrap();
                self.writers[number].tick(self.now_ms);
            }
        }
    }

    fn scrape(&mut self) {
        self.collector.refresh(self.now_ms).unwrap();
        let text = read(&mut self.collector, Format::Text, false);
        let mut unpacked = Vec::new();
        let packed = read(&mut self.collector, Format::Text, true);
        GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == text, "packed as plain");
        let text = parse(str::from_utf8(&text).unwrap(), false).unwrap();
        let shown = Exposition::of(&mut self.collector, Format::OpenMetrics);
        assert_eq!(text.samples, shown.samples, "one format as the other");
        assert_eq!(shown.sum("sizes_sum"), shown.sum("sizes_count") * OBSERVED);
        assert_eq!(self.registry.lost(), 0);
        let names = [("requests_total", "requests"), ("sizes_count", "sizes")];
        let collapsed = |name: &str, label_name: &str| {
            let is = |labels: &Labels| label(labels, "family") == name && label(labels, "label") == label_name;
            shown.sum_where(COLLAPSED, is)
        };
        for (ledger, (sample, created)) in [&mut self.counted, &mut self.observed].into_iter().zip(names) {
            ledger.compare(&shown, sample, created, self.setting, self.now_ms);
            if !self.setting.expires && !self.setting.removes {
                let family = if created == "sizes" { "sizes" } else { "requests_total" };
                for name in ["route", "uri"] {
                    let others = shown.sum_where(sample, |labels| label(labels, name) == OTHER);
                    // It includes the counts from before its label collapsed.
                    assert!(others >= collapsed(family, name), "what is counted in {OTHER} of {family}'s {name}");
                }
            }
        }
    }
}

fn labels(route: u8, uri: u16) -> Labels {
    vec![("route".to_owned(), format!("r{route}")), ("uri".to_owned(), format!("/{uri}"))]
}

fn values(labels: &Labels) -> Vec<&[u8]> {
    labels.iter().map(|(_, value)| value.as_bytes()).collect()
}

impl Ledger {
    fn note(&mut self, labels: Labels, now_ms: u64) {
        let past = self.past.entry(labels).or_default();
        past.push((now_ms, past.last().map_or(0, |(_, count)| *count) + 1));
        self.total += 1;
    }

    /// Compares an exposition with the expected one.
    fn compare(&mut self, shown: &Exposition, sample: &str, created: &str, setting: ModelSettings, now_ms: u64) {
        let sum = shown.sum(sample) as u64;
        let ended = self.total.checked_sub(sum).expect("no more is shown than was counted");
        assert!(ended >= self.ended_total, "what has ended comes back");
        self.ended_total = ended;
        let ends = setting.expires || setting.removes;
        assert!(ends || ended == 0, "{ended} of {} are not shown", self.total);
        let is_other = |labels: &Labels, name: &str| label(labels, name) == OTHER;
        let of_family = || shown.samples.iter().filter(|((name, _), _)| name == sample);
        if !ends && !of_family().any(|((_, labels), _)| is_other(labels, "route")) {
            for route in (0..3).map(|route| format!("r{route}")) {
                let past = self.past.iter().filter(|(labels, _)| label(labels, "route") == route);
                let counted: u64 = past.filter_map(|(_, past)| past.last()).map(|(_, count)| count).sum();
                assert_eq!(shown.sum_where(sample, |labels| label(labels, "route") == route), counted as f64);
            }
        }
        if of_family().any(|((_, labels), _)| is_other(labels, "uri") || is_other(labels, "route")) {
            // Counts as `__other__` are exposed as such now, and may have ended at the next look.
            let counts =
                self.past.iter().map(|(labels, past)| (labels.clone(), past.last().map_or(0, |(_, count)| *count)));
            self.then.extend(counts);
            self.shown.clear();
            return;
        }
        for (labels, past) in &self.past {
            let now = past.last().map_or(0, |(_, count)| *count);
            let then = self.then.insert(labels.clone(), now).unwrap_or(0);
            let before = self.shown.get(labels).copied();
            let Some(value) = shown.samples.get(&(sample.to_owned(), labels.clone())) else {
                assert_eq!(now, then, "{labels:?} has gone and its last value was not shown");
                self.shown.remove(labels);
                continue;
            };
            let value = *value as u64;
            let created = shown.created[&(created.to_owned(), labels.clone())];
            if let Some((value_before, created_before)) = before {
                // A life begins with its first count. Two lives within one millisecond cannot be distinguished.
                let begin_ms = past[(now - value.min(now)) as usize].0;
                let one_moment = created_before * 1000.0 >= begin_ms as f64;
                let is_new = created > created_before || one_moment;
                assert!(
                    value >= value_before || is_new,
                    "{labels:?} steps back in one life: {value_before} since {created_before}, {value} since {created}"
                );
                assert!(
                    created >= created_before,
                    "{labels:?} begins at {created}, earlier than before: {created_before}"
                );
            }
            let ended = now.checked_sub(value).expect("no more is shown than was counted");
            if !setting.removes && ended > 0 {
                check_was_idle(past, ended, now_ms, labels);
            }
            self.shown.insert(labels.clone(), (value, created));
        }
    }
}

/// The ended part of a series was all of it at some time, and it did not change for long after that.
fn check_was_idle(past: &[(u64, u64)], ended: u64, now_ms: u64, labels: &Labels) {
    let at = past.iter().position(|(_, count)| *count == ended).unwrap();
    let changed_ms = past.get(at + 1).map_or(now_ms, |(ms, _)| *ms);
    assert!(changed_ms - past[at].0 >= EXPIRE_MS, "{labels:?} has ended at {ended} and was not idle: {past:?}");
}

/// A value of the same width is written over the old one; the start time of the series has to change too.
#[test]
fn a_new_life_of_the_same_width_has_a_new_start_time() {
    let setting = ModelSettings { writers: 1, series_per_family: 100, expires: false, removes: true, is_shared: false };
    let mut world = World::new(setting);
    let count = Step::Count { writer: 0, route: 1, uri: 0 };
    let pass = Step::Pass { ms: 1_000 };
    let steps = [&count, &count, &Step::Remove { route: 1 }, &Step::Scrape, &Step::Tend, &pass, &Step::Tend, &count];
    steps.into_iter().for_each(|step| world.take(step));
    world.scrape();
}

/// So many series come and go that writers move to new segments, and what still counts of the old ones goes to bases.
#[test]
fn nothing_is_lost_where_series_come_and_go() {
    for is_shared in [false, true] {
        let setting = ModelSettings { writers: 2, series_per_family: 20_000, expires: true, removes: false, is_shared };
        let mut world = World::new(setting);
        for round in 0..5 {
            for uri in 0..4_000 {
                let writer = usize::from(uri) % 2;
                world.take(&Step::Count { writer, route: 1, uri: 1 + round * 4_000 + uri });
                world.take(&Step::Observe { writer, route: 0, uri: uri % 7 });
            }
            for seconds in 0..12 {
                world.take(&Step::Pass { ms: 1_000 });
                world.take(&Step::Count { writer: seconds % 2, route: 0, uri: 0 });
                while world.collector.tend(world.now_ms) {
                    world.take(&Step::Pass { ms: 1 });
                }
                if seconds % 3 == 2 {
                    world.take(&Step::Scrape);
                }
            }
        }
        let shown = Exposition::of(&mut world.collector, Format::Text);
        assert_eq!(shown.sum("requests_total"), 5.0 * 12.0, "only what was used to the end is left");
        assert_eq!(shown.sum("sizes_count"), 0.0);
        let (log, index) = world.registry.bytes();
        assert!(log + index < 6 << 20, "memory comes back: {log} {index}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_whatever_the_order(
        setting in setting(),
        (uris, steps) in prop_oneof![Just(2u16), Just(60)].prop_flat_map(|uris| (Just(uris), prop::collection::vec(step(uris), 1..120))),
    ) {
        let mut world = World::new(setting);
        steps.iter().for_each(|step| world.take(step));
        world.scrape();
        let _ = uris;
    }
}
