//! The metrics of a process in a few lines: each thread gets its writer when it first counts, and one further thread maintains the
//! series.

use crate::encode::Format;
use crate::{
    CollectError, Collector, CollectorOptions, DeclaredFamily, Family, Handle, Registry, RegistryError,
    RegistryOptions, SegmentProcess, Writer,
};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often series are maintained.
const TENDING: Duration = Duration::from_secs(1);

thread_local! {
    /// Writers of this thread, each with its registry.
    static WRITERS: RefCell<Vec<(Arc<Registry>, Writer)>> = const { RefCell::new(Vec::new()) };
}

/// The metrics of a process. Clones are the same metrics.
#[derive(Clone)]
pub struct ProcessMetrics {
    registry: Arc<Registry>,
    collector: Arc<Mutex<Collector>>,
}

/// A family of one [`ProcessMetrics`]. It may be used on any thread.
#[derive(Clone)]
pub struct Metric {
    registry: Arc<Registry>,
    family: Arc<DeclaredFamily>,
}

impl ProcessMetrics {
    /// Starts the metrics, and the thread that folds labels that explode and drops series that expire. It ends when the last clone
    /// is dropped.
    ///
    /// # Errors
    /// There is no memory, or no thread.
    pub fn start() -> Result<ProcessMetrics, RegistryError> {
        // The source of random numbers of the standard library's tables: clients that choose label values do not know it.
        let seed = RandomState::new().hash_one(0);
        let process = SegmentProcess { pid: std::process::id(), start: 0 };
        let registry = Arc::new(Registry::start(RegistryOptions::new(process, now_ms(), seed))?);
        let collector = Collector::of_registry(registry.clone(), CollectorOptions::default())?;
        let collector = Arc::new(Mutex::new(collector));
        let tended = Arc::downgrade(&collector);
        thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || tend(&tended))
            .map_err(|error| RegistryError::Io("the thread of the metrics", error))?;
        Ok(ProcessMetrics { registry, collector })
    }

    /// Declares a family.
    ///
    /// # Errors
    /// It is not valid, or contradicts one of the same name.
    pub fn declare(&self, family: Family) -> Result<Metric, RegistryError> {
        Ok(Metric { registry: self.registry.clone(), family: self.registry.declare(family)? })
    }

    /// Encodes all series. It takes time: do not call it where requests wait.
    ///
    /// # Errors
    /// The memory of the metrics cannot be read.
    pub fn exposition(&self, format: Format) -> Result<Vec<u8>, CollectError> {
        locked(&self.collector).exposition(format, now_ms())
    }
}

impl Metric {
    /// Adds to a counter. Like the other changes, it is not counted where there is no memory for the thread or the series.
    pub fn add(&self, labels: &[&str], amount: u64) {
        self.change(labels, |writer, series| writer.add(series, amount));
    }

    /// Counts an observation in a histogram.
    pub fn observe(&self, labels: &[&str], value: f64) {
        self.change(labels, |writer, series| writer.observe(series, value));
    }

    /// Sets a gauge.
    pub fn set(&self, labels: &[&str], value: f64) {
        self.change(labels, |writer, series| writer.set(series, value));
    }

    fn change(&self, labels: &[&str], change: impl FnOnce(&mut Writer, Handle) -> bool) {
        WRITERS.with_borrow_mut(|writers| {
            let known = writers.iter().position(|(registry, _)| Arc::ptr_eq(registry, &self.registry));
            let at = known.or_else(|| {
                writers.push((self.registry.clone(), self.registry.writer().ok()?));
                Some(writers.len() - 1)
            });
            let Some((_, writer)) = at.map(|at| &mut writers[at]) else { return };
            let values: Vec<&[u8]> = labels.iter().map(|value| value.as_bytes()).collect();
            let series = writer.series(&self.family, &values);
            // Refused only where there is no memory, since the handle has just been returned.
            let _ = change(writer, series);
        });
    }
}

fn tend(collector: &Weak<Mutex<Collector>>) {
    while let Some(collector) = collector.upgrade() {
        while locked(&collector).tend(now_ms()) {}
        drop(collector);
        thread::sleep(TENDING);
    }
}

fn locked(collector: &Mutex<Collector>) -> MutexGuard<'_, Collector> {
    collector.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_together() {
        let metrics = ProcessMetrics::start().unwrap();
        let requests = metrics.declare(Family::counter("requests_total", "Requests.", &["route"])).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| requests.add(&["a"], 1)));
            }
        });
        requests.add(&["b"], 5);
        let text = String::from_utf8(metrics.exposition(Format::Text).unwrap()).unwrap();
        assert!(text.contains("requests_total{route=\"a\"} 4000\n"), "{text}");
        assert!(text.contains("requests_total{route=\"b\"} 5\n"), "{text}");
    }

    #[test]
    fn processes_in_one_process_are_apart() {
        let (one, other) = (ProcessMetrics::start().unwrap(), ProcessMetrics::start().unwrap());
        for (metrics, amount) in [(&one, 1), (&other, 2)] {
            metrics.declare(Family::counter("a_total", "A.", &[])).unwrap().add(&[], amount);
        }
        let text = |metrics: &ProcessMetrics| String::from_utf8(metrics.exposition(Format::Text).unwrap()).unwrap();
        assert!(text(&one).ends_with("a_total 1\n") && text(&other).ends_with("a_total 2\n"));
    }
}
