//! Performs one operation of the metrics N times, for counting instructions: `icount_metrics N CASE`.
//!
//! Run with two values of N, the difference of the counts divided by that of N is the cost of one operation. It prints
//! nothing, and does the same on every run. The nightly suite copies it into older commits, so it uses nothing that
//! they lack.

#![allow(clippy::unwrap_used, reason = "an example may stop at the first error")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use stillgate_metrics::encode::Format;
use stillgate_metrics::{
    Buckets, Collector, CollectorOptions, DeclaredFamily, Family, FamilyType, Handle, Registry, RegistryOptions,
    SegmentProcess, Writer,
};

/// Series of the counter.
const SERIES: usize = 1000;
const BOUNDS: [f64; 6] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5];

/// An arbitrary time; nothing here depends on it.
const NOW_MS: u64 = 1_700_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [count, case] = &arguments[..] else { return usage() };
    let Ok(count) = count.parse() else { return usage() };
    let mut metrics = Metrics::new();
    match &**case {
        "add" => metrics.add(count),
        "find" => metrics.find(count),
        "observe" => metrics.observe(count),
        "scrape" => metrics.scrape(count),
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: icount_metrics COUNT add|find|observe|scrape");
    ExitCode::from(2)
}

struct Metrics {
    counter: Arc<DeclaredFamily>,
    seconds: Arc<DeclaredFamily>,
    writer: Writer,
    collector: Collector,
    routes: Vec<String>,
}

impl Metrics {
    fn new() -> Metrics {
        let options = RegistryOptions {
            memory_bytes: 64 << 20,
            series_per_family: 2 * SERIES as u32,
            ..RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, NOW_MS, 77)
        };
        let registry = Arc::new(Registry::start(options).unwrap());
        let counter = registry.declare(family("requests_total", FamilyType::Counter)).unwrap();
        let buckets = Buckets { classic: BOUNDS.to_vec(), native: None };
        let seconds = registry.declare(family("seconds", FamilyType::Histogram(buckets))).unwrap();
        let writer = registry.writer().unwrap();
        let collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
        let routes = (0..SERIES).map(|number| format!("route-{number}")).collect();
        let mut metrics = Metrics { counter, seconds, writer, collector, routes };
        // All cases below meet known series.
        for number in 0..SERIES {
            metrics.series(number);
        }
        metrics.encode();
        metrics
    }

    fn series(&mut self, number: usize) -> Handle {
        let handle = self.writer.series(&self.counter, &[self.routes[number % SERIES].as_bytes(), b"200"]);
        assert!(self.writer.add(handle, 1));
        handle
    }

    /// Adds one to a series that is at hand.
    fn add(&mut self, count: usize) {
        let handle = self.series(0);
        (0..count).for_each(|_| assert!(self.writer.add(black_box(handle), 1)));
    }

    /// Finds a series by its labels' values, and adds one.
    fn find(&mut self, count: usize) {
        for number in 0..count {
            black_box(self.series(number));
        }
    }

    /// Observes one value in a histogram that is at hand.
    fn observe(&mut self, count: usize) {
        let handle = self.writer.series(&self.seconds, &[b"route", b"200"]);
        for number in 0..count {
            assert!(self.writer.observe(black_box(handle), 0.000_1 * (number % 100) as f64));
        }
    }

    /// Encodes all series, of which one has changed.
    fn scrape(&mut self, count: usize) {
        for number in 0..count {
            self.series(number);
            self.encode();
        }
    }

    fn encode(&mut self) {
        self.writer.tick(NOW_MS);
        self.collector.refresh(NOW_MS).unwrap();
        let mut cursor = self.collector.cursor(Format::Text, false, None);
        while let Some(piece) = self.collector.next(&mut cursor) {
            black_box(piece.as_ref());
        }
    }
}

fn family(name: &str, kind: FamilyType) -> Family {
    let labels = ["route", "code"].map(str::to_owned).to_vec();
    Family { name: name.to_owned(), help: "Counted.".to_owned(), unit: String::new(), kind, labels, exemplars: false }
}
