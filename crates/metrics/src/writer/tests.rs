//! Tests of writers through their segments.

use super::*;
use crate::declared::OTHER;
use crate::family::{Buckets, Family, FamilyType, Merge};
use crate::registry::{Registry, RegistryOptions};
use crate::segment::SegmentProcess;
use crate::segment::layout::RecordKind;
use crate::sync::Word;
use std::collections::BTreeMap;

const PROCESS: SegmentProcess = SegmentProcess { pid: 1, start: 1 };

pub(crate) fn options() -> RegistryOptions {
    RegistryOptions { memory_bytes: 64 << 20, ..RegistryOptions::new(PROCESS, 1_000, 7) }
}

pub(crate) fn family(name: &str, labels: &[&str], kind: FamilyType) -> Family {
    Family {
        name: name.into(),
        help: "h".into(),
        unit: String::new(),
        kind,
        labels: labels.iter().map(|label| (*label).into()).collect(),
        exemplars: false,
    }
}

/// The counters of one family in the writer's own segment, by label text.
fn counters(writer: &Writer, family: &DeclaredFamily) -> BTreeMap<String, u64> {
    let segment = &writer.segment;
    let committed = segment.committed();
    let (mut at, mut found) = (0, BTreeMap::new());
    while at < committed {
        let head = segment.record(at, committed).expect("a whole record");
        let is_of = writer.local_of(head.pack()).is_some_and(|local| local.declared.id == family.id);
        if head.kind == RecordKind::Series && is_of {
            let (_, text) = segment.series(at, head).expect("a label text");
            let text = String::from_utf8(text.to_vec()).expect("UTF-8");
            *found.entry(text).or_insert(0) += segment.log()[at + HEAD_WORDS].get();
        }
        at += head.words as usize;
    }
    found
}

fn count(writer: &mut Writer, family: &Arc<DeclaredFamily>, values: &[&[u8]]) {
    let handle = writer.series(family, values);
    assert!(writer.add(handle, 1));
}

#[test]
fn the_same_labels_are_the_same_series() {
    let registry = Registry::start(options()).unwrap();
    let requests = registry.declare(family("a_total", &["x", "y"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let first = writer.series(&requests, &[b"1", b"2"]);
    assert!(writer.add(first, 2));
    count(&mut writer, &requests, &[b"1", b"2"]);
    count(&mut writer, &requests, &[b"12", b""]);
    assert_eq!(writer.series(&requests, &[b"1", b"2"]), first);
    let expected = [("x=\"1\",y=\"2\"", 3), ("x=\"12\",y=\"\"", 1)];
    assert_eq!(counters(&writer, &requests), expected.map(|(k, v)| (k.to_owned(), v)).into());
    assert_eq!(requests.sets(), 2);
}

#[test]
fn handles_are_of_their_kind_and_generation() {
    let registry = Registry::start(options()).unwrap();
    let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let level = registry.declare(family("b", &[], FamilyType::Gauge(Merge::Last))).unwrap();
    let sizes = registry
        .declare(family("c", &[], FamilyType::Histogram(Buckets { classic: vec![1.0], native: None })))
        .unwrap();
    let mut writer = registry.writer().unwrap();
    let (counter, gauge, histogram) =
        (writer.series(&requests, &[b"1"]), writer.series(&level, &[]), writer.series(&sizes, &[]));
    assert!(writer.add(counter, 1) && writer.set(gauge, 1.0) && writer.observe(histogram, 1.0));
    assert!(!writer.add(gauge, 1) && !writer.set(histogram, 1.0) && !writer.observe(counter, 1.0));
    assert!(!writer.add(Handle::NONE, 1));

    assert!(writer.memory.inbox.post(requests::WriterRequest::Forget(vec![counter.at])));
    assert!(!writer.memory.inbox.post(requests::WriterRequest::Forget(vec![])), "one request at a time");
    assert!(writer.add(counter, 1), "until the tick");
    writer.tick(2_000);
    assert!(!writer.memory.inbox.is_pending());
    assert!(!writer.add(counter, 1), "a handle ends with its generation");
    let again = writer.series(&requests, &[b"1"]);
    assert_ne!(again.at, counter.at, "a new life has a new record");
    assert!(writer.add(again, 5));
    assert_eq!(counters(&writer, &requests).into_values().sum::<u64>(), 7);
}

#[test]
fn values_that_are_printed_alike_are_one_series() {
    let registry = Registry::start(options()).unwrap();
    let requests = registry.declare(family("a_total", &["x"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let long = vec![b'y'; 1 << 20];
    for value in [&b"\xff"[..], b"\xfe", b"\xff", &long, &long[1..], b"\"\n\\"] {
        count(&mut writer, &requests, &[value]);
    }
    let counters = counters(&writer, &requests);
    assert_eq!(counters["x=\"\u{fffd}\""], 3);
    assert_eq!(counters["x=\"\\\"\\n\\\\\""], 1);
    assert_eq!(counters.len(), 3);
}

#[test]
fn the_exploding_label_collapses_and_the_others_stay_exact() {
    let options = RegistryOptions { series_per_family: 1000, ..options() };
    let registry = Registry::start(options).unwrap();
    let requests = registry.declare(family("a_total", &["route", "uri", "code"], FamilyType::Counter)).unwrap();
    let mut writers = [registry.writer().unwrap(), registry.writer().unwrap()];
    for number in 0..20_000u32 {
        let writer = &mut writers[number as usize % 2];
        let values =
            [format!("r{}", number % 5), format!("/{number}"), ["200", "404"][number as usize / 7 % 2].to_owned()];
        count(writer, &requests, &[values[0].as_bytes(), values[1].as_bytes(), values[2].as_bytes()]);
    }
    assert_eq!(requests.collapsed(), 0b010);
    assert!(requests.sets() <= 1000, "{}", requests.sets());
    let all = writers.iter().flat_map(|writer| counters(writer, &requests)).collect::<Vec<_>>();
    assert_eq!(all.iter().map(|(_, value)| value).sum::<u64>(), 20_000);
    for route in 0..5 {
        let sum: u64 = all.iter().filter(|(k, _)| k.contains(&format!("\"r{route}\""))).map(|(_, v)| v).sum();
        assert_eq!(sum, 4_000);
    }
    let collapsed: u64 = all.iter().filter(|(k, _)| k.contains(OTHER)).map(|(_, v)| v).sum();
    let collapsed_total: u64 =
        writers.iter().flat_map(|writer| counters(writer, &registry.families()[0])).map(|(_, v)| v).sum();
    assert_eq!(collapsed, collapsed_total);
    let distinct = requests.distinct();
    assert!((14_000..26_000).contains(&distinct[1]), "{distinct:?}");
}

#[test]
fn without_memory_everything_new_goes_to_others() {
    let options = RegistryOptions { memory_bytes: 1 << 20, ahead_bytes: 64 << 10, ..options() };
    let registry = Registry::start(options).unwrap();
    let requests = registry.declare(family("a_total", &["a", "b"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    for number in 0..50_000u32 {
        let value = format!("{number:08}");
        count(&mut writer, &requests, &[value.as_bytes(), &value.as_bytes()[6..]]);
    }
    let counters = counters(&writer, &requests);
    assert_eq!(counters.values().sum::<u64>(), 50_000);
    assert!(counters.len() > 500, "{}", counters.len());
    let (log, index) = registry.bytes();
    assert!(log + index < 700 << 10, "{log} {index}");
}

/// Without any bound near, a label set that comes before its memory is counted as it is.
#[test]
fn memory_that_is_late_costs_no_label() {
    let registry = Registry::start(options()).unwrap();
    let requests = registry.declare(family("a_total", &["route", "node"], FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    // It seems to have been called already, so the provisioner is not woken.
    writer.memory.called.store(true, std::sync::atomic::Ordering::Relaxed);
    let late = registry.declare(family("b_total", &["route"], FamilyType::Counter)).unwrap();
    for number in 0..30_000 {
        let route = format!("r{number}");
        count(&mut writer, &requests, &[route.as_bytes(), b"n"]);
    }
    count(&mut writer, &late, &[b"r1"]);
    let counters = counters(&writer, &requests);
    assert_eq!(counters.len(), 30_000);
    assert!(counters.iter().all(|(labels, count)| !labels.contains(OTHER) && *count == 1));
    assert_eq!((requests.collapsed(), registry.lost()), (0, 0));
}
