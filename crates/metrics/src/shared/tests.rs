//! Collectors over real registries: ending series, carrying on totals, events.

use super::*;
use crate::family::{Buckets, Family, FamilyType, Merge};
use crate::registry::RegistryOptions;
use crate::segment::SegmentProcess;
use std::collections::BTreeMap;

fn family(name: &str, labels: &[&str], kind: FamilyType) -> Family {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Family { name: name.to_owned(), help: "h".to_owned(), unit: String::new(), kind, labels, exemplars: false }
}

fn options(pid: u32, folder: Option<&Path>) -> RegistryOptions {
    let process = SegmentProcess { pid, start: 1 };
    let shared = folder.map(Path::to_owned);
    RegistryOptions { memory_bytes: 16 << 20, shared, ..RegistryOptions::new(process, 1_000, 5) }
}

/// All samples of an exposition.
fn scrape(collector: &mut Collector, now_ms: u64) -> BTreeMap<String, f64> {
    let text = String::from_utf8(collector.exposition(Format::Text, now_ms).unwrap()).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(key, value)| (key.to_owned(), value.parse().unwrap()))
        .collect()
}

fn count(writer: &mut Writer, family: &Arc<DeclaredFamily>, values: &[&str], amount: u64) {
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    let handle = writer.series(family, &values);
    assert!(writer.add(handle, amount));
}

/// Tends until there is nothing more to do, with the writers ticking.
fn tend(collector: &mut Collector, writers: &mut [&mut Writer], now_ms: u64) {
    for _ in 0..1_000 {
        let is_busy = collector.tend(now_ms);
        writers.iter_mut().for_each(|writer| writer.tick(now_ms));
        if !is_busy {
            return;
        }
    }
    panic!("there is always more to do: {:?}", collector.rotation);
}

#[test]
fn idle_series_end_and_come_back_as_new_ones() {
    let registry = Arc::new(Registry::start(options(1, None)).unwrap());
    let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let mut writers = [registry.writer().unwrap(), registry.writer().unwrap()];
    let expiry = CollectorOptions { expire_ms: Some(10_000), ..CollectorOptions::default() };
    let mut collector = Collector::of_registry(registry.clone(), expiry).unwrap();
    let [one, two] = &mut writers;
    count(one, &requests, &["idle"], 600);
    count(two, &requests, &["idle"], 400);
    count(one, &requests, &["busy"], 1);
    for second in 1..30 {
        let now_ms = 1_000 + second * 1_000;
        count(one, &requests, &["busy"], 1);
        tend(&mut collector, &mut [one, two], now_ms);
        let samples = scrape(&mut collector, now_ms);
        assert_eq!(samples["a_total{x=\"busy\"}"], (second + 1) as f64, "never steps back");
        let idle = samples.get("a_total{x=\"idle\"}").copied();
        assert!(idle == Some(1000.0) || (second > 10 && idle.is_none()), "{second}: {idle:?}");
    }
    assert_eq!(collector.ended(), 1);
    assert_eq!(requests.sets(), 1);
    count(two, &requests, &["idle"], 3);
    assert_eq!(scrape(&mut collector, 40_000)["a_total{x=\"idle\"}"], 3.0);
}

#[test]
fn what_is_used_by_one_writer_is_idle_for_none() {
    let registry = Arc::new(Registry::start(options(1, None)).unwrap());
    let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let mut writers = [registry.writer().unwrap(), registry.writer().unwrap()];
    let expiry = CollectorOptions { expire_ms: Some(5_000), ..CollectorOptions::default() };
    let mut collector = Collector::of_registry(registry.clone(), expiry).unwrap();
    let [one, two] = &mut writers;
    count(two, &requests, &["v"], 400);
    for second in 1..30 {
        count(one, &requests, &["v"], 1);
        tend(&mut collector, &mut [one, two], 1_000 + second * 1_000);
        assert_eq!(scrape(&mut collector, 1_000 + second * 1_000)["a_total{x=\"v\"}"], (400 + second) as f64);
    }
}

#[test]
fn what_belongs_to_a_removed_route_is_shown_once_more() {
    let registry = Arc::new(Registry::start(options(1, None)).unwrap());
    let requests = registry.declare(family("a_total", &["route", "code"], FamilyType::Counter)).unwrap();
    let other = registry.declare(family("b_total", &["code"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    for number in 0..2_000 {
        count(&mut writer, &requests, &["gone", &number.to_string()], 1);
    }
    count(&mut writer, &requests, &["stays", "200"], 2);
    count(&mut writer, &other, &["gone"], 3);
    assert_eq!(scrape(&mut collector, 2_000).len(), 2_002);
    collector.remove(vec!["route".to_owned()], vec![vec!["gone".to_owned()]]);
    tend(&mut collector, &mut [&mut writer], 3_000);
    let kept = BTreeMap::from([
        ("a_total{route=\"stays\",code=\"200\"}".to_owned(), 2.0),
        ("b_total{code=\"gone\"}".to_owned(), 3.0),
    ]);
    assert_eq!(scrape(&mut collector, 3_000).len(), 2_002, "once more");
    assert_eq!(scrape(&mut collector, 4_000), kept);
    // A request that was in flight.
    count(&mut writer, &requests, &["gone", "200"], 1);
    scrape(&mut collector, 5_000);
    tend(&mut collector, &mut [&mut writer], 11_000);
    scrape(&mut collector, 11_000);
    assert_eq!(scrape(&mut collector, 12_000), kept);
    collector.restore(&["route".to_owned()], &[vec!["gone".to_owned()]]);
    count(&mut writer, &requests, &["gone", "200"], 7);
    tend(&mut collector, &mut [&mut writer], 20_000);
    scrape(&mut collector, 20_000);
    assert_eq!(scrape(&mut collector, 21_000)["a_total{route=\"gone\",code=\"200\"}"], 7.0);
}

#[test]
fn totals_of_ended_processes_are_carried_on() {
    let folder = tempfile::tempdir().unwrap();
    let buckets = Buckets { classic: vec![1.0], native: None };
    let mut outside = Collector::open(&folder.path().join("m"), CollectorOptions::default());
    assert!(outside.refresh(0).is_err(), "there is nothing yet");
    let mut total = 0;
    let mut now_ms = 1_000;
    for pid in 1..=5 {
        let options = RegistryOptions { now_ms, ..options(pid, Some(&folder.path().join("m"))) };
        let registry = Arc::new(Registry::start(options).unwrap());
        let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
        let sizes = registry.declare(family("s", &[], FamilyType::Histogram(buckets.clone()))).unwrap();
        let level = registry.declare(family("g", &[], FamilyType::Gauge(Merge::Sum))).unwrap();
        let mut writer = registry.writer().unwrap();
        let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        count(&mut writer, &requests, &["v"], 10);
        let (handle, gauge) = (writer.series(&sizes, &[]), writer.series(&level, &[]));
        assert!(writer.observe(handle, 0.5) && writer.set(gauge, 1.0));
        total += 10;
        collector.tend(now_ms);
        for samples in [scrape(&mut outside, now_ms), scrape(&mut collector, now_ms)] {
            assert_eq!(samples["a_total{x=\"v\"}"], f64::from(total), "{pid}");
            assert_eq!(samples["s_count"], f64::from(pid));
        }
        // The process does not say goodbye; its successor starts after the heartbeat has expired.
        now_ms += 60_000;
        assert_eq!(scrape(&mut outside, now_ms).get("g"), None, "a gauge of nobody");
        let segments = std::fs::read_dir(folder.path().join("m")).unwrap().count();
        assert!(segments <= 6, "{segments} files");
    }
}

#[test]
fn a_collapse_is_reported_once() {
    let registry = Arc::new(Registry::start(RegistryOptions { series_per_family: 100, ..options(1, None) }).unwrap());
    let requests = registry.declare(family("a_total", &["x", "code"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    (0..1_000).for_each(|number: u32| count(&mut writer, &requests, &[&number.to_string(), "200"], 1));
    tend(&mut collector, &mut [&mut writer], 2_000);
    tend(&mut collector, &mut [&mut writer], 3_000);
    let events = collector.events();
    assert!(
        matches!(&events[..], [CollectorEvent::Collapsed { family, label, .. }] if family == "a_total" && label == "x"),
        "{events:?}"
    );
    let cardinality = collector.cardinality();
    let label = &cardinality[0].labels[0];
    assert!(
        cardinality[0].name == "a_total" && label.collapsed && (800..1200).contains(&label.distinct),
        "{cardinality:?}"
    );
    assert!(!cardinality[0].labels[1].collapsed);
    let samples = scrape(&mut collector, 4_000);
    let sum: f64 = samples.iter().filter(|(key, _)| key.starts_with("a_total")).map(|(_, value)| value).sum();
    assert_eq!(sum, 1_000.0);
}

#[test]
fn a_full_disk_is_reported_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("m");
    let options = RegistryOptions { series_per_family: 100, ..options(1, Some(&place)) };
    let registry = Arc::new(Registry::start(options).unwrap());
    let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    (0..1_000).for_each(|number: u32| count(&mut writer, &requests, &[&number.to_string()], 1));
    registry.inner.set_storage_full();
    collector.tend(2_000);
    collector.tend(3_000);
    let events = collector.events();
    assert_eq!(events, [CollectorEvent::StorageFull(place.display().to_string())]);
    assert!(events[0].to_string().contains("is full"));
}

#[test]
fn memory_of_ended_series_comes_back() {
    for is_shared in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let options = options(1, is_shared.then_some(folder.path()));
        let registry = Arc::new(Registry::start(RegistryOptions { memory_bytes: 10 << 20, ..options }).unwrap());
        let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
        let level = registry.declare(family("g", &[], FamilyType::Gauge(Merge::Sum))).unwrap();
        let last = registry.declare(family("l", &[], FamilyType::Gauge(Merge::Last))).unwrap();
        let mut writer = registry.writer().unwrap();
        let expiry = CollectorOptions { expire_ms: Some(10_000), ..CollectorOptions::default() };
        let mut collector = Collector::of_registry(registry.clone(), expiry).unwrap();
        let mut now_ms = 1_000;
        for round in 0..75u64 {
            now_ms += 1_000;
            // Devices come and go: 75,000 in all, with room for some 35,000.
            (0..1_000).for_each(|device| count(&mut writer, &requests, &[&format!("device-{round}-{device}")], 1));
            count(&mut writer, &requests, &["always"], 1);
            let (level, last) = (writer.series(&level, &[]), writer.series(&last, &[]));
            assert!(writer.add_float(level, 1.0) && writer.set(last, round as f64));
            tend(&mut collector, &mut [&mut writer], now_ms);
            let samples = scrape(&mut collector, now_ms);
            assert_eq!(samples["a_total{x=\"always\"}"], (round + 1) as f64, "never steps back");
            assert_eq!((samples["g"], samples["l"]), ((round + 1) as f64, round as f64));
        }
        assert!(collector.rotation.done >= 2, "{} rotations", collector.rotation.done);
        assert_eq!(requests.collapsed(), 0, "there was room for all that lived");
        assert!(requests.sets() < 30_000, "{}", requests.sets());
        for _ in 0..6 {
            now_ms += 10_000;
            tend(&mut collector, &mut [&mut writer], now_ms);
            scrape(&mut collector, now_ms);
        }
        let (log, index) = registry.bytes();
        assert!(log + index < 3 << 20, "{log} {index}");
        assert!(!scrape(&mut collector, now_ms).contains_key("a_total{x=\"always\"}"), "what a base has expires too");
    }
}

#[test]
fn families_no_longer_in_use_are_shown_once_more() {
    let registry = Arc::new(Registry::start(options(1, None)).unwrap());
    let old = registry.declare(family("a_total", &["x", "y"], FamilyType::Counter)).unwrap();
    let off = registry.declare(family("b", &[], FamilyType::Gauge(Merge::Last))).unwrap();
    let stays = registry.declare(family("c_total", &["x"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    count(&mut writer, &old, &["1", "2"], 1);
    count(&mut writer, &stays, &["1"], 5);
    let gauge = writer.series(&off, &[]);
    assert!(writer.set(gauge, 1.0));
    assert_eq!(scrape(&mut collector, 2_000).len(), 3);
    let new = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let in_use = Some(vec![new.clone(), stays]);
    collector.set_options(CollectorOptions { in_use, ..CollectorOptions::default() });
    count(&mut writer, &new, &["1"], 2);
    tend(&mut collector, &mut [&mut writer], 3_000);
    assert_eq!(scrape(&mut collector, 3_000).len(), 4, "once more");
    let samples = [("a_total{x=\"1\"}".to_owned(), 2.0), ("c_total{x=\"1\"}".to_owned(), 5.0)];
    assert_eq!(scrape(&mut collector, 4_000), samples.into());
}

#[test]
fn a_fold_loses_no_series_and_leaves_the_living_alone() {
    let folder = tempfile::tempdir().unwrap();
    let bounded = |pid, now_ms| RegistryOptions { now_ms, series_per_family: 200, ..options(pid, Some(folder.path())) };
    let classic = Buckets { classic: vec![1.0], native: None };
    let both = Buckets { classic: vec![1.0], native: Some(crate::family::Native::default()) };
    let mut seen: BTreeMap<String, f64> = BTreeMap::new();
    for (pid, buckets) in [(1, classic), (2, both)] {
        let registry = Arc::new(Registry::start(bounded(pid, u64::from(pid) * 100_000)).unwrap());
        let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
        let sizes = registry.declare(family("s", &[], FamilyType::Histogram(buckets))).unwrap();
        let mut writer = registry.writer().unwrap();
        // As many as fit: a base has to hold all of them.
        (0..187).for_each(|number| count(&mut writer, &requests, &[&format!("{pid}-{number}")], 1));
        let handle = writer.series(&sizes, &[]);
        assert!(writer.observe(handle, 0.5));
        let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        collector.tend(u64::from(pid) * 100_000);
        let now = scrape(&mut collector, u64::from(pid) * 100_000);
        for (key, value) in &seen {
            assert!(now.get(key).is_some_and(|now| now >= value) || key.starts_with("s"), "{key}");
        }
        assert!(now.keys().all(|key| !key.contains("__other__")), "{now:?}");
        seen = now;
    }
}

/// The identity of this process, which lives as long as the test.
fn living() -> SegmentProcess {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
    SegmentProcess { pid: std::process::id(), start }
}

#[test]
fn in_a_folder_the_next_process_only_needs_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let first = RegistryOptions { process: living(), ..options(0, Some(folder.path())) };
    let registries =
        [first, options(2, Some(folder.path()))].map(|options| Arc::new(Registry::start(options).unwrap()));
    let declare = |registry: &Registry, name: &str, kind| registry.declare(family(name, &[], kind)).unwrap();
    let mut ends = registries.each_ref().map(|registry| {
        let counter = declare(registry, "a_total", FamilyType::Counter);
        let open = declare(registry, "open", FamilyType::Gauge(Merge::Sum));
        let last = declare(registry, "last", FamilyType::Gauge(Merge::Last));
        let collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        (registry.writer().unwrap(), collector, counter, open, last)
    });
    let [first, second] = &registries;
    assert!(first.hand_over().unwrap().is_empty(), "the folder has everything");
    // The first process sets its value later, and yet the second one's is the last.
    for (number, (writer, _, counter, open, last)) in ends.iter_mut().enumerate().rev() {
        writer.tick(5_000 - number as u64 * 1_000);
        count(writer, counter, &[], 10 + number as u64);
        let (open, last) = (writer.series(open, &[]), writer.series(last, &[]));
        assert!(writer.set(open, 2.0) && writer.set(last, number as f64));
    }
    let [(_, before, ..), (_, after, ..)] = &mut ends;
    for second in 1..10 {
        let now_ms = 1_000 + second * 3_000;
        assert!(!before.tend(now_ms) && !after.tend(now_ms));
        let shown = scrape(after, now_ms);
        assert_eq!((shown["a_total"], shown["open"], shown["last"]), (21.0, 4.0, 1.0));
    }
    // For the first, the second is not a live process, but its segments must not be folded: they were left to the
    // second.
    assert_eq!((before.events(), after.events()), (vec![], vec![]));
    assert!(second.writer().is_ok() && first.writer().is_err());
}

#[test]
fn who_has_handed_over_gets_by_with_what_it_has() {
    let bounded = |process| RegistryOptions { memory_bytes: 16 << 20, process, ..options(0, None) };
    let first = Arc::new(Registry::start(bounded(living())).unwrap());
    let requests = first.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let mut writer = first.writer().unwrap();
    let expiry = CollectorOptions { expire_ms: Some(5_000), ..CollectorOptions::default() };
    let mut before = Collector::of_registry(first.clone(), expiry).unwrap();
    let mut after = None;
    for round in 0..40u64 {
        let now_ms = 1_000 + round * 1_000;
        // Many series that end soon, so that there would be something to rotate.
        (0..1_000).for_each(|device| count(&mut writer, &requests, &[&format!("{round}-{device}")], 1));
        count(&mut writer, &requests, &["always"], 1);
        tend(&mut before, &mut [&mut writer], now_ms);
        if round == 4 {
            let second = Arc::new(Registry::start(bounded(SegmentProcess { pid: u32::MAX, start: 1 })).unwrap());
            assert!(second.inherit(first.hand_over().unwrap()).is_empty());
            after = Some(Collector::of_registry(second, CollectorOptions::default()).unwrap());
        }
        if let Some(after) = &mut after {
            tend(after, &mut [], now_ms);
            let shown = scrape(after, now_ms);
            assert_eq!(shown["a_total{x=\"always\"}"], (round + 1) as f64);
            let all: f64 = shown.iter().filter(|(key, _)| key.starts_with("a_total")).map(|(_, value)| value).sum();
            assert_eq!(all, (round + 1) as f64 * 1_001.0);
        }
    }
    assert_eq!((before.rotation.done, before.ended(), before.events().len()), (0, 0, 0));
    // Without a successor it would catch up now.
    first.keep();
    for round in 40..60 {
        tend(&mut before, &mut [&mut writer], 1_000 + round * 1_000);
        scrape(&mut before, 1_000 + round * 1_000);
    }
    assert!(before.rotation.done > 0 && before.ended() > 30_000, "{} {}", before.rotation.done, before.ended());
}

/// A writer goes on adding series until the tick at which it leaves its segment.
#[test]
fn series_added_just_before_a_writer_leaves_its_segment_are_carried_on() {
    let options = RegistryOptions { series_per_family: 6_000, ..options(1, None) };
    let registry = Arc::new(Registry::start(options).unwrap());
    let requests = registry.declare(family("a_total", &["x", "y"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    for number in 0..8_000 {
        count(&mut writer, &requests, &[&number.to_string(), "1"], 1);
    }
    assert!(collector.tend(10_000), "the writer is asked to leave a segment of folded series");
    assert!(writer.memory.inbox.is_pending());
    collector.refresh(10_000).unwrap();
    count(&mut writer, &requests, &["8000", "2"], 1);
    writer.tick(10_000);
    let own = collector.writer.as_ref().unwrap().serial();
    collector.rotation.step(&collector.reader, &registry, own, 10_000).unwrap();
    tend(&mut collector, &mut [&mut writer], 11_000);
    assert_eq!(collector.rotation.done, 1);
    let samples = scrape(&mut collector, 11_000);
    assert_eq!(samples["a_total{x=\"__other__\",y=\"1\"}"], 8_000.0);
    assert_eq!(samples["a_total{x=\"__other__\",y=\"2\"}"], 1.0);
}
