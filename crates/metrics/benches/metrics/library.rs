//! What the four libraries have in common, and the label sets they are all given.

/// The columns.
pub const NAMES: [&str; 4] = ["stillgate", "prometheus-client", "prometheus", "metrics-exporter-…"];

pub const FAMILY: &str = "bench_requests_total";
pub const HELP: &str = "Requests.";
pub const LABELS: [&str; 4] = ["route", "service", "node", "consumer"];
pub const SECONDS: &str = "bench_request_duration_seconds";
/// Prometheus' own default.
pub const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Fewer series and rounds.
    pub is_quick: bool,
    /// Without the peers.
    pub is_alone: bool,
}

/// Label values as a program meets them: borrowed from somewhere.
pub type Values<'a> = [&'a str; 4];

/// A library with one family of counters and one of histograms.
pub trait Library {
    type Counter;
    type Histogram;
    /// A label set in the form that costs least to look up, where a program can keep one.
    type Set;

    /// With room for so many series, where that has to be said.
    fn new(series: usize) -> Self;
    /// A handle of the series; made if it is new.
    fn counter(&mut self, values: &Values<'_>) -> Self::Counter;
    fn add(&mut self, counter: &Self::Counter, amount: u64);
    /// Looks the series up by its values, and adds 1.
    fn count(&mut self, values: &Values<'_>);
    fn set(&self, values: &Values<'_>) -> Self::Set;
    /// Looks the series up by its kept set, and adds 1.
    fn count_set(&mut self, set: &Self::Set);
    fn histogram(&mut self, values: &Values<'_>) -> Self::Histogram;
    fn observe(&mut self, histogram: &Self::Histogram, seconds: f64);
    /// What has to be done about observations before they are scraped.
    fn settle(&mut self) {}
    /// What a program does some 20 times a second.
    fn tick(&mut self) {}
    /// Label sets that have a series of their own, where that is not all.
    fn sets(&self) -> Option<usize> {
        None
    }
    /// Reads as if for the first time.
    fn forget(&mut self) {}
    /// Keeps nothing encoded.
    fn forget_text(&mut self) {}
    /// A whole exposition; returns its bytes.
    fn scrape(&mut self, gzip: bool) -> usize;
}

/// Four values of ten bytes.
pub struct Owned([String; 4]);

impl Owned {
    /// The set with this number: no two are equal below five millions.
    pub fn numbered(n: usize) -> Owned {
        Owned([
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

/// Numbers without order, the same in every run.
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
