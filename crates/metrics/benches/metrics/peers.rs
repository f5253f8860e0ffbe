//! The peer libraries, each used as its documentation recommends, and to its advantage where there is a choice.

use crate::library::{BOUNDS, FAMILY, HELP, LABELS, Library, SECONDS, Values};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use prometheus::{Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, TextEncoder};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use std::io::Write;

/// Compresses as Stillgate does, in one go; returns the length in bytes.
fn gzip(text: &[u8], room: &mut Vec<u8>) -> usize {
    room.clear();
    let mut encoder: GzEncoder<&mut Vec<u8>> =
        GzBuilder::new().write(&mut *room, Compression::new(stillgate_metrics::gzip::LEVEL));
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap().len()
}

/// Labels of `prometheus-client`: a custom type is its fastest option.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PeerLabels {
    route: String,
    service: String,
    node: String,
    consumer: String,
}

fn set_of(values: &Values<'_>) -> PeerLabels {
    let [route, service, node, consumer] = values.map(str::to_owned);
    PeerLabels { route, service, node, consumer }
}

pub struct PrometheusClient {
    registry: prometheus_client::registry::Registry,
    counters: Family<PeerLabels, Counter>,
    histograms: Family<PeerLabels, Histogram>,
    text: String,
    packed: Vec<u8>,
}

impl Library for PrometheusClient {
    type Counter = Counter;
    type Histogram = Histogram;
    type Set = PeerLabels;

    fn new(_: usize) -> Self {
        let mut registry = prometheus_client::registry::Registry::default();
        let counters = Family::default();
        let histograms = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        // It adds `_total` itself.
        registry.register(FAMILY.trim_end_matches("_total"), HELP, counters.clone());
        registry.register(SECONDS, HELP, histograms.clone());
        PrometheusClient { registry, counters, histograms, text: String::new(), packed: Vec::new() }
    }

    fn counter(&mut self, values: &Values<'_>) -> Counter {
        self.counters.get_or_create_owned(&set_of(values))
    }

    #[inline]
    fn add(&mut self, counter: &Counter, amount: u64) {
        counter.inc_by(amount);
    }

    #[inline]
    fn count(&mut self, values: &Values<'_>) {
        self.counters.get_or_create(&set_of(values)).inc();
    }

    fn set(&self, values: &Values<'_>) -> PeerLabels {
        set_of(values)
    }

    #[inline]
    fn count_set(&mut self, set: &PeerLabels) {
        self.counters.get_or_create(set).inc();
    }

    fn histogram(&mut self, values: &Values<'_>) -> Histogram {
        self.histograms.get_or_create_owned(&set_of(values))
    }

    #[inline]
    fn observe(&mut self, histogram: &Histogram, seconds: f64) {
        histogram.observe(seconds);
    }

    fn scrape(&mut self, compress: bool) -> usize {
        self.text.clear();
        prometheus_client::encoding::text::encode(&mut self.text, &self.registry).unwrap();
        if compress { gzip(self.text.as_bytes(), &mut self.packed) } else { self.text.len() }
    }
}

pub struct Prometheus {
    registry: prometheus::Registry,
    counters: IntCounterVec,
    histograms: HistogramVec,
    text: Vec<u8>,
    packed: Vec<u8>,
}

impl Library for Prometheus {
    type Counter = IntCounter;
    type Histogram = prometheus::Histogram;
    type Set = [String; 4];

    fn new(_: usize) -> Self {
        let registry = prometheus::Registry::new();
        let counters = IntCounterVec::new(Opts::new(FAMILY, HELP), &LABELS).unwrap();
        let options = HistogramOpts::new(SECONDS, HELP).buckets(BOUNDS.to_vec());
        let histograms = HistogramVec::new(options, &LABELS).unwrap();
        registry.register(Box::new(counters.clone())).unwrap();
        registry.register(Box::new(histograms.clone())).unwrap();
        Prometheus { registry, counters, histograms, text: Vec::new(), packed: Vec::new() }
    }

    fn counter(&mut self, values: &Values<'_>) -> IntCounter {
        self.counters.with_label_values(values)
    }

    #[inline]
    fn add(&mut self, counter: &IntCounter, amount: u64) {
        counter.inc_by(amount);
    }

    #[inline]
    fn count(&mut self, values: &Values<'_>) {
        self.counters.with_label_values(values).inc();
    }

    fn set(&self, values: &Values<'_>) -> [String; 4] {
        values.map(str::to_owned)
    }

    #[inline]
    fn count_set(&mut self, set: &[String; 4]) {
        self.count(&set.each_ref().map(String::as_str));
    }

    fn histogram(&mut self, values: &Values<'_>) -> prometheus::Histogram {
        self.histograms.with_label_values(values)
    }

    #[inline]
    fn observe(&mut self, histogram: &prometheus::Histogram, seconds: f64) {
        histogram.observe(seconds);
    }

    fn scrape(&mut self, compress: bool) -> usize {
        self.text.clear();
        TextEncoder::new().encode(&self.registry.gather(), &mut self.text).unwrap();
        if compress { gzip(&self.text, &mut self.packed) } else { self.text.len() }
    }
}

/// `metrics` with the recorder of `metrics-exporter-prometheus`, called as the macros of `metrics` call it.
pub struct Metrics {
    recorder: PrometheusRecorder,
    text: Vec<u8>,
    packed: Vec<u8>,
}

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

fn key_of(name: &'static str, values: &Values<'_>) -> Key {
    let label = |at: usize| Label::new(LABELS[at], values[at].to_owned());
    Key::from_parts(name, vec![label(0), label(1), label(2), label(3)])
}

impl Library for Metrics {
    type Counter = metrics::Counter;
    type Histogram = metrics::Histogram;
    type Set = Key;

    fn new(_: usize) -> Self {
        let recorder = PrometheusBuilder::new().set_buckets(&BOUNDS).unwrap().build_recorder();
        recorder.describe_counter(FAMILY.into(), None, HELP.into());
        recorder.describe_histogram(SECONDS.into(), None, HELP.into());
        Metrics { recorder, text: Vec::new(), packed: Vec::new() }
    }

    fn counter(&mut self, values: &Values<'_>) -> metrics::Counter {
        self.recorder.register_counter(&key_of(FAMILY, values), &METADATA)
    }

    #[inline]
    fn add(&mut self, counter: &metrics::Counter, amount: u64) {
        counter.increment(amount);
    }

    #[inline]
    fn count(&mut self, values: &Values<'_>) {
        self.counter(values).increment(1);
    }

    fn set(&self, values: &Values<'_>) -> Key {
        key_of(FAMILY, values)
    }

    #[inline]
    fn count_set(&mut self, set: &Key) {
        self.recorder.register_counter(set, &METADATA).increment(1);
    }

    fn histogram(&mut self, values: &Values<'_>) -> metrics::Histogram {
        self.recorder.register_histogram(&key_of(SECONDS, values), &METADATA)
    }

    #[inline]
    fn observe(&mut self, histogram: &metrics::Histogram, seconds: f64) {
        histogram.record(seconds);
    }

    /// The library keeps every observation until somebody sorts them into buckets.
    fn settle(&mut self) {
        self.recorder.handle().run_upkeep();
    }

    fn scrape(&mut self, compress: bool) -> usize {
        self.text.clear();
        self.recorder.handle().render_to_write(&mut self.text).unwrap();
        if compress { gzip(&self.text, &mut self.packed) } else { self.text.len() }
    }
}
