//! The interface of the four compared libraries, and the label sets that all of them are given.

/// Column heads, in the order of the columns.
pub const NAMES: [&str; 4] = ["stillgate", "prometheus-client", "prometheus", "metrics-exporter-…"];

pub const FAMILY: &str = "bench_requests_total";
pub const HELP: &str = "Requests.";
pub const LABELS: [&str; 4] = ["route", "service", "node", "consumer"];
pub const SECONDS: &str = "bench_request_duration_seconds";
/// Default bounds of Prometheus' clients.
pub const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How much to measure.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Run with fewer series and rounds.
    pub is_quick: bool,
    /// Leave the peers out.
    pub is_alone: bool,
}

/// Label values as a program meets them: borrowed.
pub type Values<'a> = [&'a str; 4];

/// A library with one family of counters and one of histograms.
pub trait Library {
    type Counter;
    type Histogram;
    /// A prepared label set in the form that costs least to look up, where the library has one.
    type Set;

    /// Creates the library with room for so many series, where the library takes a capacity.
    fn new(series: usize) -> Self;
    /// A handle of the series, which is created if it is new.
    fn counter(&mut self, values: &Values<'_>) -> Self::Counter;
    fn add(&mut self, counter: &Self::Counter, amount: u64);
    /// Looks the series up by its values, and adds 1.
    fn count(&mut self, values: &Values<'_>);
    fn set(&self, values: &Values<'_>) -> Self::Set;
    /// Looks the series up by its prepared set, and adds 1.
    fn count_set(&mut self, set: &Self::Set);
    fn histogram(&mut self, values: &Values<'_>) -> Self::Histogram;
    fn observe(&mut self, histogram: &Self::Histogram, seconds: f64);
    /// Processes observations that the library defers until a scrape.
    fn settle(&mut self) {}
    /// Maintenance that a program runs some 20 times a second.
    fn tick(&mut self) {}
    /// Number of label sets that have a series of their own, if not all of them do.
    fn sets(&self) -> Option<usize> {
        None
    }
    /// Makes the next scrape that of a new reader.
    fn forget(&mut self) {}
    /// Drops all cached text.
    fn forget_text(&mut self) {}
    /// Makes a whole exposition; returns its length in bytes.
    fn scrape(&mut self, gzip: bool) -> usize;
}

/// Four values of ten bytes.
pub struct LabelValues([String; 4]);

impl LabelValues {
    /// The set with this number: all sets below five million are distinct.
    pub fn numbered(n: usize) -> LabelValues {
        LabelValues([
            format!("rout{:06}", n % 1000),
            format!("serv{:06}", n / 1000 % 1000),
            format!("node{:06}", n / 1_000_000),
            format!("cons{:06}", n % 7),
        ])
    }

    pub fn values(&self) -> Values<'_> {
        self.0.each_ref().map(String::as_str)
    }
}

/// Pseudo-random numbers, the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((self.word() >> 32) as usize * bound) >> 32
    }
}
