//! The worker's services for plugins: the current time, the counters of limits, buffers, and its event loop.
//!
//! The crate does no IO: the proxy implements [`Io`], tests have their own.
//!
//! And the memory that each worker has for one configured plugin: copies of regular expressions, buffers, caches. It is part of the
//! plugin. So it survives a reload that leaves the configuration unchanged, is dropped with the last Plan that has the plugin, off the
//! workers, and is found without a search.

use crate::calls::{Call, CallError, Link, LinkTo, Reply};
use crate::outbox::{Outbox, Outlet};
use crate::record::{RecordScratch, ServingProcess};
use crate::work::LocalFuture;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stillgate_limits::Limits;
use thread_local::ThreadLocal;

/// Totals of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessTotals {
    /// Open client connections.
    pub connections_open: u64,
    /// Accepted client connections.
    pub connections_total: u64,
    /// Requests in flight.
    pub requests_in_flight: u64,
    /// Answered requests.
    pub requests_total: u64,
}

/// The plugins' interface to the worker that runs them. It never leaves the worker's thread.
pub struct Worker {
    /// Counters of limits, shared by all workers and with the successor process. Created before the first Plan with a
    /// limit is published, since it takes memory.
    limits: Arc<OnceLock<Arc<Limits>>>,
    now_ms: Cell<u64>,
    /// State of [`Worker::random`].
    random: Cell<u64>,
    process: Arc<ServingProcess>,
    outbox: RefCell<Outbox>,
    records: RefCell<RecordScratch>,
    /// Buffers for values of variables.
    buffers: RefCell<(Vec<u8>, Vec<u8>)>,
    io: Rc<dyn Io>,
    counts: Rc<dyn Fn() -> ProcessTotals>,
}

/// Without limits, and without an event loop.
impl Default for Worker {
    fn default() -> Worker {
        Worker::new(Arc::default())
    }
}

impl Worker {
    /// Creates it with the table of limits that all workers share.
    pub fn new(limits: Arc<OnceLock<Arc<Limits>>>) -> Worker {
        Worker {
            limits,
            now_ms: Cell::default(),
            random: Cell::default(),
            process: Arc::default(),
            outbox: RefCell::default(),
            records: RefCell::new(RecordScratch::new([0, 1])),
            buffers: RefCell::default(),
            io: Rc::new(NoIo),
            counts: Rc::new(ProcessTotals::default),
        }
    }

    /// Sets the event loop.
    pub fn with_io(self, io: Rc<dyn Io>) -> Worker {
        Worker { io, ..self }
    }

    /// Sets the source of the process's totals.
    pub fn with_counts(self, counts: Rc<dyn Fn() -> ProcessTotals>) -> Worker {
        Worker { counts, ..self }
    }

    /// The process's totals so far.
    pub fn counts(&self) -> ProcessTotals {
        (self.counts)()
    }

    /// The worker's event loop, for futures of [`crate::Flow::wait`].
    pub fn io(&self) -> &Rc<dyn Io> {
        &self.io
    }

    /// Sets the channel to the sending thread, and a random seed for ids.
    pub fn with_outbox(self, outbox: Outbox, process: Arc<ServingProcess>, seed: [u64; 2]) -> Worker {
        Worker { outbox: RefCell::new(outbox), process, records: RefCell::new(RecordScratch::new(seed)), ..self }
    }

    /// The serving process.
    pub fn process(&self) -> &Arc<ServingProcess> {
        &self.process
    }

    /// Passes the entry that `write` appends to the sending thread, or counts it as lost. It never waits. It must not
    /// be called within `write`.
    pub fn send(&self, outlet: &Arc<Outlet>, write: impl FnOnce(&mut RecordScratch, &mut Vec<u8>)) {
        let scratch = &mut *self.records.borrow_mut();
        self.outbox.borrow_mut().push(outlet, |out| write(scratch, out));
    }

    /// Passes on all waiting entries.
    pub fn flush(&self) {
        self.outbox.borrow_mut().flush();
    }

    /// The table of limits; `None`: it could not be created.
    pub fn limits(&self) -> Option<&Arc<Limits>> {
        self.limits.get()
    }

    /// Calls `then` with two buffers, the first of them empty. It must not be called within `then`.
    pub fn with_buffers<R>(&self, then: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> R) -> R {
        let (mut first, mut second) = self.buffers.take();
        first.clear();
        let result = then(&mut first, &mut second);
        self.buffers.replace((first, second));
        result
    }

    /// Milliseconds since 1970, as of the current turn of the event loop.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Sets the current time.
    #[inline]
    pub fn set_now_ms(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
    }

    /// A random number (xorshift64*), distinct but not secret.
    #[inline]
    pub fn random(&self) -> u64 {
        // The generator never leaves 0, so 0 is replaced.
        let mut x = self.random.get().max(1);
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Seeds the random numbers, differently for each worker.
    pub fn seed(&self, seed: u64) {
        self.random.set(seed);
    }
}

/// A value for each worker that has used it.
pub struct PerWorker<T: Send>(OnceLock<Box<ThreadLocal<Own<T>>>>);

/// One worker's value; empty while it is used. Two workers do not share a cache line.
#[repr(align(64))]
struct Own<T>(Cell<Option<T>>);

impl<T: Send> PerWorker<T> {
    /// Creates it without memory, which is allocated on first use.
    pub const fn new() -> PerWorker<T> {
        PerWorker(OnceLock::new())
    }

    /// Calls `then` with this worker's value, which `make` creates on first use. After a panic in `then` the value is
    /// created again.
    #[inline]
    pub fn with<R>(&self, make: impl FnOnce() -> T, then: impl FnOnce(&mut T) -> R) -> R {
        let own = &self.0.get_or_init(Box::default).get_or(|| Own(Cell::new(None))).0;
        let mut value = own.take().unwrap_or_else(make);
        let result = then(&mut value);
        own.set(Some(value));
        result
    }
}

impl<T: Send> Default for PerWorker<T> {
    fn default() -> PerWorker<T> {
        PerWorker::new()
    }
}

impl<T: Send> fmt::Debug for PerWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerWorker")
    }
}

/// Severity of a plugin's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something may stop working soon.
    Warn,
    /// Information.
    Info,
    /// Details for debugging.
    Debug,
}

/// IO on the worker's event loop, for futures of [`crate::Flow::wait`].
pub trait Io {
    /// Completes after this time, to within a millisecond or two.
    fn sleep(&self, time: Duration) -> LocalFuture<()>;

    /// Calls another server. Connections are kept by worker and server, and calls to a server that failed five times in
    /// a row are paused. It takes three times [`Call::timeout`] at most.
    fn call(&self, call: Call) -> LocalFuture<Result<Reply, CallError>>;

    /// Connects to a server that does not use HTTP, or returns a kept connection. Calls to a server that failed five
    /// times in a row are paused.
    fn link(&self, _to: LinkTo) -> LocalFuture<Result<Box<dyn Link>, CallError>> {
        Box::pin(std::future::ready(Err(CallError::Connect)))
    }

    /// Like [`Io::call`] without waiting: the response is dropped, and so is the call if too many are in progress,
    /// which is counted for `plugin`.
    fn send(&self, plugin: &'static str, call: Call);

    /// Runs a task that outlives its request: only for work that many requests share, with its own limits of time and
    /// number.
    fn spawn(&self, task: LocalFuture<()>);

    /// Logs a warning that something in `plugin` does not work. Callers make sure that it is not logged for each
    /// request.
    fn warn(&self, plugin: &'static str, what: &str);

    /// Whether messages of a level are logged.
    fn is_logged(&self, level: LogLevel) -> bool;

    /// Logs a message that the configuration of `plugin` requests, possibly for each request.
    fn log(&self, plugin: &'static str, level: LogLevel, text: &str);

    /// Records that a function in the configuration of `plugin` has failed: it is counted, and the reason logged.
    fn fail(&self, plugin: &'static str, why: &str);

    /// Counts a call of [`Io::send`] that its plugin could not make, such as one with too large a body.
    fn drop_send(&self, plugin: &'static str);
}

/// No event loop: time passes at once, and servers do not answer.
pub(crate) struct NoIo;

impl Io for NoIo {
    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn call(&self, _: Call) -> LocalFuture<Result<Reply, CallError>> {
        Box::pin(std::future::ready(Err(CallError::Connect)))
    }

    fn send(&self, _: &'static str, _: Call) {}

    fn spawn(&self, _: LocalFuture<()>) {}

    fn warn(&self, _: &'static str, _: &str) {}

    fn is_logged(&self, _: LogLevel) -> bool {
        false
    }

    fn log(&self, _: &'static str, _: LogLevel, _: &str) {}

    fn fail(&self, _: &'static str, _: &str) {}

    fn drop_send(&self, _: &'static str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::thread;

    fn count(own: &PerWorker<u32>) -> u32 {
        let next = |value: &mut u32| {
            *value += 1;
            *value
        };
        own.with(|| 0, next)
    }

    #[test]
    fn each_thread_has_a_value_that_stays() {
        let own = PerWorker::new();
        assert_eq!((count(&own), count(&own)), (1, 2));
        thread::scope(|scope| {
            let other = scope.spawn(|| (count(&own), count(&own)));
            assert_eq!(other.join().unwrap(), (1, 2));
        });
        assert_eq!(count(&own), 3);
    }

    #[test]
    fn a_panic_loses_the_value_and_nothing_else() {
        let own = PerWorker::new();
        count(&own);
        let broken = catch_unwind(AssertUnwindSafe(|| own.with(|| 0, |_| panic!("half done"))));
        assert!(broken.is_err());
        assert_eq!(count(&own), 1);
    }

    #[test]
    fn what_workers_have_goes_with_the_plugin() {
        let (own, held) = (PerWorker::new(), Arc::new(()));
        own.with(|| held.clone(), |_| ());
        thread::scope(|scope| drop(scope.spawn(|| own.with(|| held.clone(), |_| ()))));
        assert_eq!(Arc::strong_count(&held), 3);
        drop(own);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
