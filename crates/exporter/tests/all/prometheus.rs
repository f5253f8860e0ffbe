//! A real Prometheus server scrapes each format, and its answers equal the counts.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_exporter::{Exporter, ExpositionSite};
use stillgate_metrics::{
    Buckets, Collector, CollectorOptions, DeclaredFamily, Family, FamilyType, Merge, Native, Registry, RegistryOptions,
    SegmentProcess, Writer,
};
use stillgate_testkit::{Prometheus, PrometheusSetup, ScrapeFormat};

/// A hostile label value, in the form that queries use.
const ROUTE: &str = "a\"b\\c\nd {} # 🧀";
const QUOTED_ROUTE: &str = "a\\\"b\\\\c\\nd {} # 🧀";

/// Metrics of all types, and an exporter for them.
struct MetricsFixture {
    exporter: Exporter,
    writers: [Writer; 2],
    requests: Arc<DeclaredFamily>,
    seconds: Arc<DeclaredFamily>,
    sizes: Arc<DeclaredFamily>,
    level: Arc<DeclaredFamily>,
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

impl MetricsFixture {
    fn start() -> MetricsFixture {
        let options = RegistryOptions::new(SegmentProcess { pid: std::process::id(), start: 1 }, now_ms(), 7);
        let registry = Arc::new(Registry::start(options).unwrap());
        let declare = |name: &str, labels: &[&str], kind| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            let family = Family {
                name: name.to_owned(),
                help: "Help.".to_owned(),
                unit: String::new(),
                kind,
                labels,
                exemplars: true,
            };
            registry.declare(family).unwrap()
        };
        let requests = declare("requests_total", &["route", "code"], FamilyType::Counter);
        let native = Native { schema: 3, ..Native::default() };
        let classic = vec![0.1, 0.5, 1.0];
        let seconds = declare("seconds", &[], FamilyType::Histogram(Buckets { classic, native: None }));
        let sizes = declare("sizes", &[], FamilyType::Histogram(Buckets { classic: vec![], native: Some(native) }));
        let level = declare("level", &["of"], FamilyType::Gauge(Merge::Sum));
        let writers = [registry.writer().unwrap(), registry.writer().unwrap()];
        let collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = Exporter::spawn(Some(listener), collector, ExpositionSite::at("/metrics")).unwrap();
        MetricsFixture { exporter, writers, requests, seconds, sizes, level }
    }

    /// 300 requests, 100 observations from 0.01 to 1, as many from 1 to 100, spread over both writers.
    fn count(&mut self) {
        for (number, writer) in self.writers.iter_mut().enumerate() {
            writer.tick(now_ms());
            let handle = writer.series(&self.requests, &[ROUTE.as_bytes(), b"200"]);
            assert!(writer.add(handle, 150));
            assert!(writer.exemplar(handle, 1.0, &[("trace_id", b"t1")]));
            for value in (1..=100).filter(|value| value % 2 == number as u32) {
                let handle = writer.series(&self.seconds, &[]);
                assert!(writer.observe(handle, f64::from(value) / 100.0));
                let handle = writer.series(&self.sizes, &[]);
                assert!(writer.observe(handle, f64::from(value)));
            }
            let handle = writer.series(&self.seconds, &[]);
            assert!(writer.exemplar(handle, 0.75, &[("trace_id", b"slow")]));
            let handle = writer.series(&self.level, &[b"x"]);
            assert!(writer.set(handle, 2.5));
            writer.tick(now_ms());
        }
    }

    fn prometheus(&self, format: ScrapeFormat) -> Prometheus {
        let target = self.exporter.address().unwrap();
        Prometheus::start(&PrometheusSetup { format, native_histograms: true, ..PrometheusSetup::of(target) })
    }
}

/// Checks of every format.
fn check_all(prometheus: &Prometheus) {
    prometheus.wait_for_value("sum(requests_total)", 300.0);
    prometheus.wait_until_up();
    // Values are absent after a scrape that took too long, until the next one.
    let only = |expression: &str| prometheus.wait_for(expression, |found| found.len() == 1).remove(0);
    assert_eq!(only(&format!("requests_total{{route=\"{QUOTED_ROUTE}\"}}")).0["route"], ROUTE);
    let value = |expression: &str| only(expression).1;
    assert_eq!(value("level"), 5.0);
    assert_eq!(value("seconds_count"), 100.0);
    assert!((value("seconds_sum") - 50.5).abs() < 1e-9);
    assert_eq!(value("seconds_bucket{le=\"0.5\"}"), 50.0);
    assert_eq!(value("seconds_bucket{le=\"+Inf\"}"), 100.0);
    let median = value("histogram_quantile(0.5, sum by (le) (seconds_bucket))");
    assert!((median - 0.5).abs() < 1e-9, "{median}");
}

/// Checks of the formats that carry exemplars.
fn check_exemplars(prometheus: &Prometheus) {
    let of_requests = prometheus.exemplars("requests_total");
    assert!(of_requests.iter().any(|each| each.labels["trace_id"] == "t1" && each.value == 1.0), "{of_requests:?}");
    let of_seconds = prometheus.exemplars("seconds_bucket{le=~\"1|1.0\"}");
    assert!(of_seconds.iter().any(|each| each.labels["trace_id"] == "slow" && each.value == 0.75), "{of_seconds:?}");
    let now = now_ms() as f64 / 1000.0;
    assert!(of_seconds.iter().all(|each| each.timestamp.is_some_and(|at| (now - at).abs() < 3600.0)), "{of_seconds:?}");
}

#[test]
fn text() {
    let mut counted = MetricsFixture::start();
    counted.count();
    let prometheus = counted.prometheus(ScrapeFormat::Text);
    check_all(&prometheus);
    assert!(prometheus.served()[0].starts_with("text/plain; version=0.0.4"));
}

#[test]
fn openmetrics() {
    let mut counted = MetricsFixture::start();
    counted.count();
    let prometheus = counted.prometheus(ScrapeFormat::OpenMetrics);
    check_all(&prometheus);
    check_exemplars(&prometheus);
    assert!(prometheus.served()[0].starts_with("application/openmetrics-text; version=1.0.0"));
}

#[test]
fn protobuf_with_native_histograms() {
    let mut counted = MetricsFixture::start();
    counted.count();
    let prometheus = counted.prometheus(ScrapeFormat::Protobuf);
    check_all(&prometheus);
    check_exemplars(&prometheus);
    assert!(prometheus.served()[0].starts_with("application/vnd.google.protobuf"));
    prometheus.wait_for_value("histogram_count(sizes)", 100.0);
    prometheus.wait_for_value("histogram_sum(sizes)", 5050.0);
    // Buckets of schema 3 are a twelfth wide, which bounds the error of a quantile.
    for (quantile, expected) in [(0.1, 10.0), (0.5, 50.0), (0.9, 90.0), (0.99, 99.0)] {
        let quantiles =
            prometheus.wait_for(&format!("histogram_quantile({quantile}, sizes)"), |found| found.len() == 1);
        let found = quantiles[0].1;
        assert!((found / expected - 1.0).abs() < 0.1, "{quantile}: {found}, not {expected}");
    }
    // Later scrapes add to it; a counter's rate knows no reset.
    counted.count();
    prometheus.wait_for_value("histogram_count(sizes)", 200.0);
    prometheus.wait_for_value("sum(requests_total)", 600.0);
    assert_eq!(prometheus.query("resets(requests_total[1h])")[0].1, 0.0);
}

#[test]
fn as_prometheus_itself_asks() {
    let mut counted = MetricsFixture::start();
    counted.count();
    let prometheus = counted.prometheus(ScrapeFormat::Negotiated);
    check_all(&prometheus);
    prometheus.wait_for_value("histogram_count(sizes)", 100.0);
}
