//! Stillgate's metrics behind the benchmark's interface.

use crate::library::{BOUNDS, FAMILY, HELP, LABELS, Library, SECONDS, Values};
use std::sync::Arc;
use stillgate_metrics::encode::{self, Format};
use stillgate_metrics::reader::ReaderOptions;
use stillgate_metrics::{
    Buckets, Collector, CollectorOptions, DeclaredFamily, Family, FamilyType, Handle, Merge, Registry, RegistryOptions,
    SegmentProcess, Writer,
};

/// Enough for any label set to fit into the budget.
const BYTES_PER_SERIES: usize = 1024;
/// An arbitrary time; nothing here depends on it.
const NOW_MS: u64 = 1_700_000_000_000;

pub struct Stillgate {
    pub registry: Arc<Registry>,
    counters: Arc<DeclaredFamily>,
    histograms: Arc<DeclaredFamily>,
    /// The gauge in which the collector reports its memory.
    bytes: Arc<DeclaredFamily>,
    writer: Writer,
    collector: Collector,
    has_created: bool,
}

impl Stillgate {
    /// Bytes by part, as the engine accounts for them.
    pub fn accounts(&mut self) -> Vec<(String, f64)> {
        self.collector.tend(NOW_MS);
        self.collector.refresh(NOW_MS).unwrap();
        let mut cursor = self.collector.cursor(Format::Text, false, Some(vec![self.bytes.family().name.clone()]));
        let mut text = Vec::new();
        while let Some(piece) = self.collector.next(&mut cursor) {
            text.extend_from_slice(piece.as_ref());
        }
        let text = String::from_utf8(text).unwrap();
        let part = |line: &str| {
            let (key, value) = line.rsplit_once(' ')?;
            Some((key.split('"').nth(1)?.to_owned(), value.parse().ok()?))
        };
        text.lines().filter(|line| !line.starts_with('#')).filter_map(part).collect()
    }

    pub fn refresh(&mut self) {
        self.collector.refresh(NOW_MS).unwrap();
    }
}

fn family(name: &str, labels: &[&str], kind: FamilyType) -> Family {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Family { name: name.to_owned(), help: HELP.to_owned(), unit: String::new(), kind, labels, exemplars: false }
}

fn bytes(values: Values<'_>) -> [&[u8]; 4] {
    values.map(str::as_bytes)
}

impl Library for Stillgate {
    type Counter = Handle;
    type Histogram = Handle;
    type Set = [String; 4];

    fn new(series: usize) -> Stillgate {
        let options = RegistryOptions {
            memory_bytes: (series * BYTES_PER_SERIES).max(64 << 20),
            series_per_family: (series + series / 8).max(1000) as u32,
            ..RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, NOW_MS, 77)
        };
        let registry = Arc::new(Registry::start(options).unwrap());
        let counters = registry.declare(family(FAMILY, &LABELS, FamilyType::Counter)).unwrap();
        let buckets = Buckets { classic: BOUNDS.to_vec(), native: None };
        let histograms = registry.declare(family(SECONDS, &LABELS, FamilyType::Histogram(buckets))).unwrap();
        let bytes = registry.declare(family("bench_bytes", &["part"], FamilyType::Gauge(Merge::Sum))).unwrap();
        let writer = registry.writer().unwrap();
        let collector = collector(&registry, &bytes);
        Stillgate { registry, counters, histograms, bytes, writer, collector, has_created: false }
    }

    #[inline]
    fn counter(&mut self, values: &Values<'_>) -> Handle {
        self.writer.series(&self.counters, &bytes(*values))
    }

    #[inline]
    fn add(&mut self, counter: &Handle, amount: u64) {
        assert!(self.writer.add(*counter, amount));
    }

    #[inline]
    fn count(&mut self, values: &Values<'_>) {
        let handle = self.counter(values);
        self.add(&handle, 1);
    }

    fn set(&self, values: &Values<'_>) -> [String; 4] {
        values.map(str::to_owned)
    }

    #[inline]
    fn count_set(&mut self, set: &[String; 4]) {
        self.count(&set.each_ref().map(String::as_str));
    }

    fn histogram(&mut self, values: &Values<'_>) -> Handle {
        self.writer.series(&self.histograms, &bytes(*values))
    }

    #[inline]
    fn observe(&mut self, histogram: &Handle, seconds: f64) {
        assert!(self.writer.observe(*histogram, seconds));
    }

    fn tick(&mut self) {
        self.writer.tick(NOW_MS);
    }

    fn sets(&self) -> Option<usize> {
        Some(self.counters.sets() as usize)
    }

    fn forget(&mut self) {
        self.collector = collector(&self.registry, &self.bytes);
        self.has_created = false;
    }

    fn forget_text(&mut self) {
        self.has_created = !self.has_created;
        self.collector.set_options(options(&self.bytes, self.has_created));
    }

    fn scrape(&mut self, gzip: bool) -> usize {
        self.collector.refresh(NOW_MS).unwrap();
        let mut cursor = self.collector.cursor(Format::Text, gzip, None);
        let mut total = 0;
        while let Some(piece) = self.collector.next(&mut cursor) {
            total += piece.as_ref().len();
        }
        total
    }
}

fn collector(registry: &Arc<Registry>, bytes: &Arc<DeclaredFamily>) -> Collector {
    Collector::of_registry(registry.clone(), options(bytes, false)).unwrap()
}

/// `has_created` does not affect this format, but changing it drops the encoded text.
fn options(bytes: &Arc<DeclaredFamily>, has_created: bool) -> CollectorOptions {
    let encode = encode::EncodeOptions { created: has_created };
    let reader = ReaderOptions { encode, ..ReaderOptions::default() };
    CollectorOptions { bytes: Some(bytes.clone()), reader, ..CollectorOptions::default() }
}
