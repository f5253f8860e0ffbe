//! One set of families, hostile ones included, in each format.

use crate::client_model;
use std::path::Path;

use expect_test::expect_file;
use prost::Message;
use stillgate_metrics::encode::{EncodeOptions, FamilyEncoder, Format};
use stillgate_metrics::{
    Buckets, Distribution, Exemplar, Exponential, Family, FamilyType, Merge, Native, Value, labels,
};

/// Milliseconds since the epoch, some time in 2023.
const CREATED_MS: u64 = 1_700_000_000_123;

enum Sample {
    Unsigned(u64),
    Float(f64),
    Histogram(Distribution),
}

struct Series {
    labels: Vec<u8>,
    value: Sample,
    exemplars: Vec<Exemplar>,
}

fn family(name: &str, kind: FamilyType, label_names: &[&str]) -> Family {
    let family = Family {
        name: name.into(),
        help: format!("What {name} is."),
        unit: String::new(),
        kind,
        labels: label_names.iter().map(|label| (*label).into()).collect(),
        exemplars: false,
    };
    family.check().unwrap();
    family
}

fn series(family: &Family, values: &[&str], value: Sample) -> Series {
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    let mut text = Vec::new();
    labels::encode(&mut text, &family.labels, &values);
    Series { labels: text, value, exemplars: Vec::new() }
}

fn exemplar(bucket: u32, trace: &str, value: f64, unix_ms: u64) -> Exemplar {
    let mut text = Vec::new();
    labels::push_pair(&mut text, true, "trace_id", trace.as_bytes());
    Exemplar { bucket, labels: text, value, unix_ms }
}

fn counters() -> Vec<(Family, Vec<Series>)> {
    let mut requests = family("http_requests_total", FamilyType::Counter, &["route", "code"]);
    requests.help = "Requests, \"all\" of them;\nby C:\\route.".into();
    let hostile = "a\"b\\c\nd\te\u{1}{},=🧀";
    let requests_series = vec![
        series(&requests, &["r1", "200"], Sample::Unsigned(17)),
        series(&requests, &["", "404"], Sample::Unsigned(0)),
        series(&requests, &[hostile, "500"], Sample::Unsigned(u64::MAX)),
        series(&requests, &[&"long".repeat(64), "200"], Sample::Unsigned(1)),
    ];
    let mut traced = family("traced_seconds_total", FamilyType::FloatCounter, &[]);
    (traced.unit, traced.exemplars) = ("seconds".into(), true);
    traced.check().unwrap();
    let mut traced_series = series(&traced, &[], Sample::Float(1.5));
    traced_series.exemplars = vec![exemplar(0, "old", 1.0, 5), exemplar(0, "new", 0.25, CREATED_MS + 2)];
    let mut long = series(&traced, &[], Sample::Float(2.0));
    long.labels = b"long=\"exemplar\"".into();
    long.exemplars = vec![exemplar(0, &"x".repeat(121), 1.0, 5)];
    let status = family("apisix_http_status", FamilyType::Counter, &["code"]);
    let status_series = vec![series(&status, &["200"], Sample::Unsigned(3))];
    vec![(requests, requests_series), (traced, vec![traced_series, long]), (status, status_series)]
}

fn gauges() -> Vec<(Family, Vec<Series>)> {
    let temperature = family("temperature", FamilyType::Gauge(Merge::Last), &["at"]);
    let values = [0.0, -2.5, 1e300, 9_007_199_254_740_993.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let temperature_series =
        values.map(|value| series(&temperature, &[&format!("{value:e}")], Sample::Float(value))).into();
    let build = family("build_info", FamilyType::Info, &["version"]);
    let build_series = vec![series(&build, &["0.1.0"], Sample::Float(1.0))];
    let mut node = family("node_data", FamilyType::Info, &["host"]);
    node.help = String::new();
    let node_series = vec![series(&node, &["a"], Sample::Float(1.0))];
    vec![(temperature, temperature_series), (build, build_series), (node, node_series)]
}

fn histograms() -> Vec<(Family, Vec<Series>)> {
    let bounds = vec![0.005, 1.0, 2.5, 1e6];
    let kind = FamilyType::Histogram(Buckets { classic: bounds.clone(), native: None });
    let mut latency = family("latency_seconds", kind, &["route"]);
    (latency.unit, latency.exemplars) = ("seconds".into(), true);
    let observed = Distribution { sum: 12.75, classic: vec![1, 0, 4, 2, 3], native: None };
    let mut observed = series(&latency, &["r1"], Sample::Histogram(observed));
    observed.exemplars = vec![exemplar(4, "slow", 2e6, CREATED_MS), exemplar(0, "fast", 0.001, 0)];
    let empty = series(&latency, &["r2"], Sample::Histogram(Distribution::default()));

    let native = Native::default();
    let buckets = Exponential {
        schema: 3,
        zero_threshold: native.zero_threshold,
        zero_count: 2,
        positive: vec![(-7, 3), (-6, 5), (-3, 1), (1, 300)],
        negative: vec![(0, 4)],
        nan_count: 1,
    };
    let both_kind = FamilyType::Histogram(Buckets { classic: bounds, native: Some(native) });
    let both = family("both", both_kind, &[]);
    let both_value = Distribution { sum: 77.5, classic: vec![6, 5, 3, 301, 1], native: Some(buckets.clone()) };
    let both_series = vec![series(&both, &[], Sample::Histogram(both_value))];

    let native_kind = FamilyType::Histogram(Buckets { classic: vec![], native: Some(native) });
    let mut only = family("native_only", native_kind, &["x"]);
    only.exemplars = true;
    let only_value = Distribution { sum: 99.5, classic: vec![], native: Some(buckets) };
    let mut filled = series(&only, &["1"], Sample::Histogram(only_value));
    filled.exemplars = vec![exemplar(0, "one", 1.0, CREATED_MS), exemplar(0, "timeless", 2.0, 0)];
    let nothing = Distribution { native: Some(Exponential::default()), ..Distribution::default() };
    let only_series = vec![filled, series(&only, &["2"], Sample::Histogram(nothing))];
    vec![(latency, vec![observed, empty]), (both, both_series), (only, only_series)]
}

fn exposition(format: Format, options: EncodeOptions) -> Vec<u8> {
    let mut out = Vec::new();
    for (family, all) in [counters(), gauges(), histograms()].into_iter().flatten() {
        let encoder = FamilyEncoder::new(&family, format, options);
        let mut body = Vec::new();
        for series in &all {
            let value = match &series.value {
                Sample::Unsigned(value) => Value::Unsigned(*value),
                Sample::Float(value) => Value::Float(*value),
                Sample::Histogram(value) => Value::Histogram(value),
            };
            encoder.series(&series.labels, CREATED_MS, value, &series.exemplars, &mut body);
        }
        encoder.header(&mut out);
        encoder.family_head(body.len(), &mut out);
        out.extend_from_slice(&body);
    }
    out.extend_from_slice(format.footer());
    out
}

fn check(file: &str, exposition: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/expositions").join(file);
    expect_file![path].assert_eq(exposition);
}

#[test]
fn text() {
    let bytes = exposition(Format::Text, EncodeOptions { created: true });
    check("text.txt", str::from_utf8(&bytes).unwrap());
}

#[test]
fn openmetrics() {
    let bytes = exposition(Format::OpenMetrics, EncodeOptions::default());
    check("openmetrics.txt", str::from_utf8(&bytes).unwrap());
}

#[test]
fn openmetrics_with_created_times() {
    let bytes = exposition(Format::OpenMetrics, EncodeOptions { created: true });
    check("openmetrics_created.txt", str::from_utf8(&bytes).unwrap());
}

#[test]
fn protobuf() {
    let bytes = exposition(Format::Protobuf, EncodeOptions::default());
    let mut rest = bytes.as_slice();
    let mut families = Vec::new();
    while !rest.is_empty() {
        families.push(client_model::MetricFamily::decode_length_delimited(&mut rest).unwrap());
    }
    check("protobuf.txt", &format!("{families:#?}\n"));
}
