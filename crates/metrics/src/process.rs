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

/// How often writers begin an epoch.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two rounds of maintenance that found nothing to do.
const TENDING_TICKS: u32 = 10;

thread_local! {
    /// Writers of this thread, each with its metrics.
    static WRITERS: RefCell<Vec<(Weak<Inner>, SharedWriter)>> = const { RefCell::new(Vec::new()) };
}

/// The writer of a thread. Only the tick of the maintenance ever makes the thread wait for it, for a microsecond.
type SharedWriter = Arc<Mutex<Writer>>;

/// The metrics of a process. Clones are the same metrics.
#[derive(Clone)]
pub struct ProcessMetrics(Arc<Inner>);

struct Inner {
    registry: Arc<Registry>,
    collector: Mutex<Collector>,
    /// Writers of all threads that have counted.
    writers: Mutex<Vec<Weak<Mutex<Writer>>>>,
}

/// A family of one [`ProcessMetrics`]. It may be used on any thread.
#[derive(Clone)]
pub struct Metric {
    metrics: Arc<Inner>,
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
        let collector = Mutex::new(Collector::of_registry(registry.clone(), CollectorOptions::default())?);
        let inner = Arc::new(Inner { registry, collector, writers: Mutex::default() });
        let tended = Arc::downgrade(&inner);
        let started = thread::Builder::new().name("metrics".to_owned()).spawn(move || tend(&tended));
        started.map_err(|error| RegistryError::Io("the thread of the metrics", error))?;
        Ok(ProcessMetrics(inner))
    }

    /// Declares a family.
    ///
    /// # Errors
    /// It is not valid, or contradicts one of the same name.
    pub fn declare(&self, family: Family) -> Result<Metric, RegistryError> {
        Ok(Metric { metrics: self.0.clone(), family: self.0.registry.declare(family)? })
    }

    /// Encodes all series. It takes time: do not call it where requests wait.
    ///
    /// # Errors
    /// The memory of the metrics cannot be read.
    pub fn exposition(&self, format: Format) -> Result<Vec<u8>, CollectError> {
        locked(&self.0.collector).exposition(format, now_ms())
    }
}

impl Metric {
    /// Adds to a counter. If there is no memory for the thread or the series, the change is lost, as with the other methods.
    ///
    /// # Panics
    /// If there are not as many values as the family has labels.
    pub fn add(&self, labels: &[&str], amount: u64) {
        self.change(labels, |writer, series| writer.add(series, amount));
    }

    /// Counts an observation in a histogram.
    ///
    /// # Panics
    /// As [`Metric::add`].
    pub fn observe(&self, labels: &[&str], value: f64) {
        self.change(labels, |writer, series| writer.observe(series, value));
    }

    /// Sets a gauge.
    ///
    /// # Panics
    /// As [`Metric::add`].
    pub fn set(&self, labels: &[&str], value: f64) {
        self.change(labels, |writer, series| writer.set(series, value));
    }

    fn change(&self, labels: &[&str], change: impl FnOnce(&mut Writer, Handle) -> bool) {
        let Some(writer) = self.metrics.writer() else { return };
        let mut writer = locked(&writer);
        let values: Vec<&[u8]> = labels.iter().map(|value| value.as_bytes()).collect();
        let series = writer.series(&self.family, &values);
        // Refused only where there is no memory, since the handle has just been returned.
        let _ = change(&mut writer, series);
    }
}

impl Inner {
    /// The writer of this thread, which lives as long as the thread.
    fn writer(self: &Arc<Inner>) -> Option<SharedWriter> {
        WRITERS.with_borrow_mut(|own| {
            if let Some((_, writer)) = own.iter().find(|(metrics, _)| metrics.as_ptr() == Arc::as_ptr(self)) {
                return Some(writer.clone());
            }
            own.retain(|(metrics, _)| metrics.strong_count() > 0);
            let writer = Arc::new(Mutex::new(self.registry.writer().ok()?));
            own.push((Arc::downgrade(self), writer.clone()));
            locked(&self.writers).push(Arc::downgrade(&writer));
            Some(writer)
        })
    }

    /// Begins an epoch of each writer; threads that have ended have none.
    fn tick(&self) {
        locked(&self.writers).retain(|writer| {
            let Some(writer) = writer.upgrade() else { return false };
            locked(&writer).tick(now_ms());
            true
        });
    }
}

fn tend(metrics: &Weak<Inner>) {
    let mut ticks = 0;
    while let Some(metrics) = metrics.upgrade() {
        metrics.tick();
        ticks += 1;
        // One step a tick while there is more to do: some steps wait for the next tick of a writer.
        let is_due = ticks >= TENDING_TICKS;
        if is_due && !locked(&metrics.collector).tend(now_ms()) {
            ticks = 0;
        }
        drop(metrics);
        thread::sleep(TICK);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn two_of_them_do_not_mix() {
        let (one, other) = (ProcessMetrics::start().unwrap(), ProcessMetrics::start().unwrap());
        for (metrics, amount) in [(&one, 1), (&other, 2)] {
            metrics.declare(Family::counter("a_total", "A.", &[])).unwrap().add(&[], amount);
        }
        let text = |metrics: &ProcessMetrics| String::from_utf8(metrics.exposition(Format::Text).unwrap()).unwrap();
        assert!(text(&one).ends_with("a_total 1\n") && text(&other).ends_with("a_total 2\n"));
    }

    #[test]
    fn a_label_that_explodes_is_folded_and_everything_ends() {
        let metrics = ProcessMetrics::start().unwrap();
        let requests = metrics.declare(Family::counter("requests_total", "Requests.", &["user"])).unwrap();
        for user in 0..120_000 {
            requests.add(&[&user.to_string()], 1);
        }
        // With ticks by hand, as the thread of the metrics does it in its time.
        let steps = (0..1000).take_while(|_| {
            metrics.0.tick();
            locked(&metrics.0.collector).tend(now_ms())
        });
        assert!(steps.count() < 1000, "there is always more to do");
        let text = String::from_utf8(metrics.exposition(Format::Text).unwrap()).unwrap();
        let sum: u64 = text
            .lines()
            .filter(|line| !line.starts_with('#') && line.starts_with("requests_total{"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, 120_000);
        assert!(text.contains("requests_total{user=\"__other__\"} "));
        let ended = Arc::downgrade(&metrics.0);
        drop((metrics, requests));
        // The thread may be in a round of its own.
        for _ in 0..100 {
            if ended.strong_count() == 0 {
                return;
            }
            thread::sleep(TICK);
        }
        panic!("the thread keeps the metrics");
    }
}
