//! Label values from a hostile client: every format stays valid, and returns the value where it can.

use crate::client_model;
use crate::exposition;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::exposition::{Exposition, parse, read};
use prost::Message;
use stillgate_metrics::encode::Format;
use stillgate_metrics::labels::{CUT_MARK, VALUE_BYTES_MAX};
use stillgate_metrics::{Collector, CollectorOptions, Family, FamilyType, Registry, RegistryOptions, SegmentProcess};
use stillgate_testkit::{promtool_check_metrics, python_families};

/// Sent values, and their exposed forms.
fn values() -> Vec<(Vec<u8>, String)> {
    let same = [
        "\"",
        "\\",
        "\n",
        "\\n",
        "\\\\n\"",
        "a\"} 1\nforged_total{x=\"",
        "# EOF\n",
        " # {trace_id=\"x\"} 1",
        "{}",
        ",",
        "=",
        "\u{2028}\u{2029}\u{85}",
        "\u{202e}right to left",
        "\u{feff}",
        "\0",
        "a\0b",
        "\r",
        "\r\n",
        "\t",
        "\u{1}\u{1f}\u{7f}",
        "",
        " ",
        "  padded  ",
        "🧀",
        "e\u{301}",
        "\u{10ffff}",
        "__other__",
        "NaN",
        "+Inf",
    ];
    let mut all: Vec<(Vec<u8>, String)> = same.map(|value| (value.as_bytes().to_vec(), value.to_owned())).into();
    all.push((b"\xff\xfe".to_vec(), "\u{fffd}\u{fffd}".to_owned()));
    all.push((b"a\xc3(\xe2\x82".to_vec(), "a\u{fffd}(\u{fffd}".to_owned()));
    // An encoded surrogate, and a slash in too many bytes.
    all.push((b"\xed\xa0\x80".to_vec(), "\u{fffd}\u{fffd}\u{fffd}".to_owned()));
    all.push((b"\xc0\xaf.".to_vec(), "\u{fffd}\u{fffd}.".to_owned()));
    for (byte, repeated) in [(b'x', "x"), (b'"', "\""), (b'\n', "\n"), (b'\\', "\\")] {
        all.push((vec![byte; 1 << 20], repeated.repeat(VALUE_BYTES_MAX - CUT_MARK.len()) + CUT_MARK));
    }
    all
}

/// Counts each value as often as its index in the list says, as a label of a counter and of a histogram.
fn collector() -> Collector {
    let options = RegistryOptions {
        ahead_bytes: 4 << 20,
        ..RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_700_000_000_000, 7)
    };
    let registry = Arc::new(Registry::start(options).unwrap());
    let family = |name: &str, kind| Family {
        name: name.to_owned(),
        help: "Help \\ \"quoted\",\nin two lines.".to_owned(),
        unit: String::new(),
        kind,
        labels: vec!["before".to_owned(), "value".to_owned()],
        exemplars: false,
    };
    let requests = registry.declare(family("requests_total", FamilyType::Counter)).unwrap();
    let buckets = stillgate_metrics::Buckets { classic: vec![1.0], native: None };
    let sizes = registry.declare(family("sizes", FamilyType::Histogram(buckets))).unwrap();
    let mut writer = registry.writer().unwrap();
    for (index, (value, _)) in values().iter().enumerate() {
        let handle = writer.series(&requests, &[b"b", value]);
        assert!(writer.add(handle, index as u64 + 1));
        let handle = writer.series(&sizes, &[b"b", value]);
        (0..=index).for_each(|_| assert!(writer.observe(handle, 2.0)));
    }
    let mut collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
    collector.refresh(1_700_000_000_000).unwrap();
    collector
}

fn expected() -> BTreeMap<String, f64> {
    let values = values();
    let expected: BTreeMap<String, f64> =
        values.iter().enumerate().map(|(index, (_, shown))| (shown.clone(), index as f64 + 1.0)).collect();
    assert_eq!(expected.len(), values.len(), "each is another one");
    expected
}

#[test]
fn text_formats_give_them_back() {
    let mut collector = collector();
    for (format, is_openmetrics) in [(Format::Text, false), (Format::OpenMetrics, true)] {
        let text = String::from_utf8(read(&mut collector, format, false)).unwrap();
        let ours = parse(&text, is_openmetrics).unwrap();
        for sample in ["requests_total", "sizes_count"] {
            let of = |((name, labels), value): (&(String, exposition::Labels), &f64)| {
                (name == sample).then(|| (labels[1].1.clone(), *value))
            };
            assert_eq!(ours.samples.iter().filter_map(of).collect::<BTreeMap<_, _>>(), expected());
            let theirs = python_families(&text, is_openmetrics).unwrap();
            let samples = theirs.iter().flat_map(|family| &family.samples).filter(|each| each.name == sample);
            assert_eq!(
                samples.map(|each| (each.labels["value"].clone(), each.value)).collect::<BTreeMap<_, _>>(),
                expected()
            );
        }
    }
}

#[test]
fn promtool_takes_them() {
    let text = String::from_utf8(read(&mut collector(), Format::Text, false)).unwrap();
    promtool_check_metrics(&text).unwrap();
}

#[test]
fn protobuf_gives_them_back() {
    let mut collector = collector();
    let bytes = read(&mut collector, Format::Protobuf, false);
    let (mut rest, mut found) = (bytes.as_slice(), BTreeMap::new());
    while !rest.is_empty() {
        let family = client_model::MetricFamily::decode_length_delimited(&mut rest).unwrap();
        for metric in family.metric {
            let value = metric.label[1].value.clone();
            let counted = metric.counter.map(|counter| counter.value);
            let observed = metric.histogram.map(|histogram| histogram.sample_count as f64);
            found.insert((family.name.clone(), value), counted.or(observed).unwrap());
        }
    }
    let names = ["requests_total", "sizes"];
    let all =
        names.iter().flat_map(|name| expected().into_iter().map(|(value, count)| (((*name).to_owned(), value), count)));
    assert_eq!(found, all.collect());
    assert_eq!(Exposition::of(&mut collector, Format::Text).kinds.len(), 2);
}
