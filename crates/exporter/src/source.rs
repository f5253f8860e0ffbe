//! The collector, shared by the exporter's tasks, and the counters of their work, which any other thread reads.
//!
//! Work on it is done in short stretches: a refresh, or a piece. Other scrapes have their turn in between. The clock is
//! read here, and nowhere below. The owner of a writer decides how the counts become series; the exporter only reads
//! segments.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_door::Hosts;
use stillgate_metrics::encode::Format;
use stillgate_metrics::reader::{ExpositionCursor, FamilyCardinality, Piece};
use stillgate_metrics::{CollectError, Collector, CollectorEvent, CollectorOptions};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

/// Expositions that are sent at once. Each may pin a few pieces and fill a send buffer.
pub(crate) const SCRAPES_MAX: usize = 128;

/// The location of the exposition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpositionSite {
    /// Its path.
    pub path: String,
    /// Names of the server, for requests over loopback.
    pub hosts: Hosts,
}

impl ExpositionSite {
    /// A path on a server that no configuration gives a name.
    pub fn at(path: &str) -> ExpositionSite {
        ExpositionSite { path: path.to_owned(), hosts: Hosts::new("the names of the server", []) }
    }
}

/// State shared by all tasks.
#[derive(Debug)]
pub(crate) struct ExpositionSource {
    /// The tasks run on one thread at a time, so nobody ever waits here: it is a lock only so that they may go on on
    /// another thread (see `turns`).
    inner: Mutex<SourceState>,
    places: Arc<Semaphore>,
    pub(crate) tally: Arc<ExporterTally>,
    /// Notified before there is work to do.
    pub(crate) work: Notify,
}

#[derive(Debug)]
struct SourceState {
    collector: Collector,
    site: Arc<ExpositionSite>,
    /// Changes with each refresh.
    refreshes: u64,
    /// Whether there was something to read the last time.
    is_available: bool,
}

/// Why there is nothing to expose.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// The collector's error.
    Collect(CollectError),
    /// All places for scrapes are taken.
    Busy,
    /// Something panicked in the middle of work on the collector, so its numbers may be wrong.
    Broken,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Collect(error) => error.fmt(f),
            Unavailable::Busy => write!(f, "{SCRAPES_MAX} scrapes are being answered; try again in a second"),
            Unavailable::Broken => {
                write!(
                    f,
                    "the exporter has failed and its numbers may be wrong; restart it, and report the error in its log"
                )
            }
        }
    }
}

impl std::error::Error for Unavailable {}

/// Permission to send an exposition, held as long as it is sent.
#[derive(Debug)]
pub(crate) struct SendPermit {
    tally: Arc<ExporterTally>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for SendPermit {
    fn drop(&mut self) {
        self.tally.count_scraping(false);
    }
}

impl ExpositionSource {
    pub(crate) fn new(collector: Collector, site: ExpositionSite) -> ExpositionSource {
        ExpositionSource {
            inner: Mutex::new(SourceState { collector, site: Arc::new(site), refreshes: 0, is_available: true }),
            places: Arc::new(Semaphore::new(SCRAPES_MAX)),
            tally: Arc::default(),
            work: Notify::new(),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, SourceState>, Unavailable> {
        self.inner.lock().map_err(|_| Unavailable::Broken)
    }

    /// The location of the exposition.
    pub(crate) fn site(&self) -> Result<Arc<ExpositionSite>, Unavailable> {
        Ok(self.lock()?.site.clone())
    }

    pub(crate) fn set_site(&self, site: ExpositionSite) -> Result<(), Unavailable> {
        self.lock()?.site = Arc::new(site);
        Ok(())
    }

    /// A place among the scrapes, if one is free.
    pub(crate) fn place(&self) -> Result<SendPermit, Unavailable> {
        let permit = self.places.clone().try_acquire_owned().map_err(|_| Unavailable::Busy)?;
        self.tally.count_scraping(true);
        Ok(SendPermit { tally: self.tally.clone(), _permit: permit })
    }

    /// Brings the values up to date. Scrapes that come in together share a refresh, and yet none sees a value from
    /// before it came: a refresh counts only for those who had asked when it began.
    pub(crate) async fn refresh(&self) -> Result<(), Unavailable> {
        let seen = self.lock()?.refreshes;
        // Others who are here already get to ask as well.
        self.yield_to_worker().await;
        let mut inner = self.lock()?;
        if inner.refreshes != seen {
            return Ok(());
        }
        self.refresh_now(&mut inner).map_err(Unavailable::Collect)
    }

    fn refresh_now(&self, inner: &mut SourceState) -> Result<(), CollectError> {
        let began = Instant::now();
        let refreshed = inner.collector.refresh(now_ms());
        self.tally.add_encoding_time(began.elapsed());
        inner.refreshes += 1;
        let was_available = std::mem::replace(&mut inner.is_available, refreshed.is_ok());
        match &refreshed {
            Err(error) if was_available => warn!(%error, "exporter: nothing to expose; scrapes are answered 503"),
            Ok(()) if !was_available => info!("exporter: there is something to expose"),
            _ => {}
        }
        refreshed
    }

    /// Whether clients that accept both get text instead of OpenMetrics.
    pub(crate) fn ranks_text_first(&self) -> Result<bool, Unavailable> {
        Ok(self.lock()?.collector.ranks_text_first())
    }

    /// The beginning of an exposition; `names` restricts it to some families.
    pub(crate) fn cursor(
        &self,
        format: Format,
        gzip: bool,
        names: Option<Vec<String>>,
    ) -> Result<ExpositionCursor, Unavailable> {
        self.tally.count_begun(format);
        Ok(self.lock()?.collector.cursor(format, gzip, names))
    }

    /// The next piece of an exposition.
    pub(crate) fn next(&self, cursor: &mut ExpositionCursor) -> Result<Option<Piece>, Unavailable> {
        let mut inner = self.lock()?;
        let began = Instant::now();
        let piece = inner.collector.next(cursor);
        self.tally.add_encoding_time(began.elapsed());
        if let Some(piece) = &piece {
            self.tally.count_piece(piece.as_ref().len());
        }
        Ok(piece)
    }

    /// Work that is due once a second. Returns true if it should be called again soon.
    pub(crate) async fn tend(&self) -> Result<bool, Unavailable> {
        let is_small = self.lock()?.collector.is_small();
        if !is_small {
            self.yield_to_worker().await;
        }
        let mut inner = self.lock()?;
        if inner.refreshes == 0 || !inner.is_available {
            // The result is logged, whether or not anybody scrapes.
            let _ = self.refresh_now(&mut inner);
        }
        let is_busy = inner.collector.tend(now_ms());
        for event in inner.collector.events() {
            match event {
                CollectorEvent::Folded { .. } => info!("{event}"),
                _ => warn!("{event}"),
            }
        }
        Ok(is_busy)
    }

    /// The number of series of each family, largest first.
    pub(crate) async fn cardinality(&self) -> Result<Vec<FamilyCardinality>, Unavailable> {
        self.yield_to_worker().await;
        let mut inner = self.lock()?;
        // A failure has been logged, and the previous values are returned.
        let _ = self.refresh_now(&mut inner);
        Ok(inner.collector.cardinality())
    }

    /// Passes the current values to `query`. The set of series is at most a second old.
    pub(crate) async fn read(&self, query: impl FnOnce(&Collector)) -> Result<(), Unavailable> {
        let is_small = self.lock()?.collector.is_small();
        if !is_small {
            self.yield_to_worker().await;
        }
        query(&self.lock()?.collector);
        Ok(())
    }

    /// Removes series with one of these values of a label, or of several together.
    pub(crate) fn remove(&self, labels: Vec<String>, values: Vec<Vec<String>>) -> Result<(), Unavailable> {
        self.lock()?.collector.remove(labels, values);
        Ok(())
    }

    /// Keeps series with these values again.
    pub(crate) fn restore(&self, labels: &[String], values: &[Vec<String>]) -> Result<(), Unavailable> {
        self.lock()?.collector.restore(labels, values);
        Ok(())
    }

    pub(crate) fn set_options(&self, options: CollectorOptions) -> Result<(), Unavailable> {
        self.lock()?.collector.set_options(options);
        Ok(())
    }

    /// Lets the worker thread take over.
    async fn yield_to_worker(&self) {
        self.work.notify_one();
        tokio::task::yield_now().await;
    }
}

/// A clock before 1970 is ignored: nothing expires then.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Totals since the exporter began, each exact, together about the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExporterCounts {
    /// Scrapes begun in text, OpenMetrics and protobuf.
    pub text: u64,
    /// See `text`.
    pub openmetrics: u64,
    /// See `text`.
    pub protobuf: u64,
    /// Scrapes turned away, since there were too many or there was nothing to read.
    pub refused: u64,
    /// Pieces of expositions handed out.
    pub pieces: u64,
    /// Bytes of these pieces.
    pub bytes: u64,
    /// Time spent on refreshing and encoding, by the wall clock, in nanoseconds.
    pub encoding_ns: u64,
    /// Scrapes that are being sent now.
    pub scraping: u64,
}

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct ExporterTally {
    text: AtomicU64,
    openmetrics: AtomicU64,
    protobuf: AtomicU64,
    refused: AtomicU64,
    pieces: AtomicU64,
    bytes: AtomicU64,
    encoding_ns: AtomicU64,
    scraping: AtomicU64,
}

impl ExporterTally {
    pub(crate) fn count_begun(&self, format: Format) {
        let counter = match format {
            Format::Text => &self.text,
            Format::OpenMetrics => &self.openmetrics,
            Format::Protobuf => &self.protobuf,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_piece(&self, bytes: usize) {
        self.pieces.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn add_encoding_time(&self, took: Duration) {
        self.encoding_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn count_scraping(&self, started: bool) {
        match started {
            true => self.scraping.fetch_add(1, Relaxed),
            false => self.scraping.fetch_sub(1, Relaxed),
        };
    }

    pub(crate) fn read(&self) -> ExporterCounts {
        ExporterCounts {
            text: self.text.load(Relaxed),
            openmetrics: self.openmetrics.load(Relaxed),
            protobuf: self.protobuf.load(Relaxed),
            refused: self.refused.load(Relaxed),
            pieces: self.pieces.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            encoding_ns: self.encoding_ns.load(Relaxed),
            scraping: self.scraping.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;
    use stillgate_metrics::{Family, FamilyType, Registry, RegistryOptions, SegmentProcess};
    use stillgate_testkit::eventually;

    #[test]
    fn the_other_thread_is_woken_only_where_there_is_much_to_look_after() {
        let options = RegistryOptions::new(SegmentProcess { pid: std::process::id(), start: 1 }, now_ms(), 1);
        let registry = Arc::new(Registry::start(options).unwrap());
        let family = Family {
            name: "requests_total".to_owned(),
            help: "Requests.".to_owned(),
            unit: String::new(),
            kind: FamilyType::Counter,
            labels: vec!["n".to_owned()],
            exemplars: false,
        };
        let requests = registry.declare(family).unwrap();
        let mut writer = registry.writer().unwrap();
        let collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
        let source = ExpositionSource::new(collector, ExpositionSite::at("/metrics"));
        let mut check = |series: usize, is_woken: bool| {
            eventually("memory for all series", || {
                (0..series).for_each(|n| _ = writer.series(&requests, &[n.to_string().as_bytes()]));
                requests.sets() as usize >= series
            });
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let was_woken = runtime.block_on(async {
                source.tend().await.unwrap();
                tokio::select! {
                    biased;
                    () = source.work.notified() => true,
                    () = ready(()) => false,
                }
            });
            assert_eq!(was_woken, is_woken, "{series} series");
        };
        check(100, false);
        check(20_000, true);
    }
}
