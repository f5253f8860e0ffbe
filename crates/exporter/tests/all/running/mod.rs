//! An exporter over a registry with some series, like that of a gateway.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_exporter::{Exporter, ExpositionSite};
use stillgate_metrics::{
    Buckets, Collector, CollectorOptions, DeclaredFamily, Family, FamilyType, Registry, RegistryOptions,
    SegmentProcess, Writer,
};

/// The smaller family, a histogram.
pub mod small {
    /// Lines of its only series in text.
    pub const LINES: usize = 3 + 2;
}

/// The exporter with its registry.
pub struct RunningExporter {
    /// The exporter under test.
    pub exporter: Exporter,
    writer: Writer,
    requests: Arc<DeclaredFamily>,
    /// Digits of the numbers, with leading zeros.
    digits: usize,
}

impl RunningExporter {
    /// Starts it with so many counters `requests_total{n="…"}`, each 1, and a histogram `sizes` with one observation.
    pub fn start(series: usize) -> RunningExporter {
        RunningExporter::of(registry(None), series, 0)
    }

    /// Starts it with an exposition of 3 MB, which is more than all buffers on the way hold.
    pub fn large() -> RunningExporter {
        RunningExporter::of(registry(None), 10_000, 280)
    }

    /// Like [`RunningExporter::start`], with an existing registry.
    pub fn of(registry: Arc<Registry>, series: usize, digits: usize) -> RunningExporter {
        RunningExporter::on(TcpListener::bind("127.0.0.1:0").unwrap(), registry, series, digits)
    }

    /// Like [`RunningExporter::of`], on this socket.
    pub fn on(listener: TcpListener, registry: Arc<Registry>, series: usize, digits: usize) -> RunningExporter {
        let requests = registry.declare(family("requests_total", &["n"], FamilyType::Counter)).unwrap();
        let buckets = Buckets { classic: vec![1.0, 10.0], native: None };
        let sizes = registry.declare(family("sizes", &[], FamilyType::Histogram(buckets))).unwrap();
        let writer = registry.writer().unwrap();
        let collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
        let exporter = Exporter::spawn(Some(listener), collector, ExpositionSite::at("/metrics")).unwrap();
        let mut running = RunningExporter { exporter, writer, requests, digits };
        let handle = running.writer.series(&sizes, &[]);
        assert!(running.writer.observe(handle, 5.0));
        (0..series).for_each(|n| running.count(n, 1));
        running
    }

    /// The exporter's address.
    pub fn addr(&self) -> SocketAddr {
        self.exporter.address().unwrap()
    }

    /// Periodic work of a worker.
    pub fn tick(&mut self) {
        self.writer.tick(now_ms());
    }

    /// Adds to one of the counters.
    pub fn count(&mut self, n: usize, amount: u64) {
        let number = format!("{n:0>digits$}", digits = self.digits);
        let handle = self.writer.series(&self.requests, &[number.as_bytes()]);
        assert!(self.writer.add(handle, amount));
    }
}

/// An empty registry, in a folder that others can read where one is given.
pub fn registry(shared: Option<PathBuf>) -> Arc<Registry> {
    let options = RegistryOptions {
        memory_bytes: 512 << 20,
        series_per_family: 1_000_000,
        // Enough for all series of a test, which come faster than memory is prepared.
        ahead_bytes: 64 << 20,
        shared,
        ..RegistryOptions::new(SegmentProcess { pid: std::process::id(), start: 1 }, now_ms(), 7)
    };
    Arc::new(Registry::start(options).unwrap())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn family(name: &str, labels: &[&str], kind: FamilyType) -> Family {
    Family {
        name: name.into(),
        help: "Help.".into(),
        unit: String::new(),
        kind,
        labels: labels.iter().map(|label| (*label).into()).collect(),
        exemplars: false,
    }
}
