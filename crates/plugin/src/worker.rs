//! What a worker has for plugins: the present time, the counters of limits, and buffers.

use crate::io::{Io, NoIo};
use crate::outbox::{Outbox, Outlet};
use crate::record::{Process, Scratch};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use stillgate_limits::Limits;

/// What the process has served so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of clients that are open.
    pub connections_open: u64,
    /// Connections of clients that were accepted.
    pub connections_total: u64,
    /// Requests that are being served.
    pub requests_in_flight: u64,
    /// Requests that were answered.
    pub requests_total: u64,
}

/// What plugins have of the worker that runs them. It never leaves the worker's thread.
pub struct Worker {
    /// Counters of limits, shared by all workers and with the process that takes over. Made before the first Plan is published
    /// that has a limit, since it takes memory.
    limits: Arc<OnceLock<Arc<Limits>>>,
    now_ms: Cell<u64>,
    /// The state of [`Worker::random`].
    random: Cell<u64>,
    process: Arc<Process>,
    outbox: RefCell<Outbox>,
    records: RefCell<Scratch>,
    /// For values of variables.
    buffers: RefCell<(Vec<u8>, Vec<u8>)>,
    io: Rc<dyn Io>,
    counts: Rc<dyn Fn() -> Counts>,
}

/// Without limits, and without an event loop.
impl Default for Worker {
    fn default() -> Worker {
        Worker::new(Arc::default())
    }
}

impl Worker {
    /// With a place for the table of limits that all workers share.
    pub fn new(limits: Arc<OnceLock<Arc<Limits>>>) -> Worker {
        Worker {
            limits,
            now_ms: Cell::default(),
            random: Cell::default(),
            process: Arc::default(),
            outbox: RefCell::default(),
            records: RefCell::new(Scratch::new([0, 1])),
            buffers: RefCell::default(),
            io: Rc::new(NoIo),
            counts: Rc::new(Counts::default),
        }
    }

    /// With an event loop.
    pub fn with_io(self, io: Rc<dyn Io>) -> Worker {
        Worker { io, ..self }
    }

    /// With what the process counts.
    pub fn with_counts(self, counts: Rc<dyn Fn() -> Counts>) -> Worker {
        Worker { counts, ..self }
    }

    /// What the process has served so far.
    pub fn counts(&self) -> Counts {
        (self.counts)()
    }

    /// The worker's event loop, for futures of [`crate::Flow::wait`].
    pub fn io(&self) -> &Rc<dyn Io> {
        &self.io
    }

    /// With a way to the thread that sends, and random numbers that ids begin with.
    pub fn sending(self, outbox: Outbox, process: Arc<Process>, seed: [u64; 2]) -> Worker {
        Worker { outbox: RefCell::new(outbox), process, records: RefCell::new(Scratch::new(seed)), ..self }
    }

    /// The process that serves.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Hands the entry that `write` appends to the thread that sends, or counts it as lost. It never waits. Within `write`
    /// this cannot be called again.
    pub fn send(&self, outlet: &Arc<Outlet>, write: impl FnOnce(&mut Scratch, &mut Vec<u8>)) {
        let scratch = &mut *self.records.borrow_mut();
        self.outbox.borrow_mut().push(outlet, |out| write(scratch, out));
    }

    /// Hands on what waits to be sent.
    pub fn flush(&self) {
        self.outbox.borrow_mut().flush();
    }

    /// The table of limits; `None`: it could not be made.
    pub fn limits(&self) -> Option<&Arc<Limits>> {
        self.limits.get()
    }

    /// Calls `then` with two buffers, the first of them empty. Within it this cannot be called again.
    pub fn with_buffers<R>(&self, then: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> R) -> R {
        let (mut first, mut second) = self.buffers.take();
        first.clear();
        let result = then(&mut first, &mut second);
        self.buffers.replace((first, second));
        result
    }

    /// Milliseconds since 1970, as of the present turn of the event loop.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Sets the present time.
    #[inline]
    pub fn set_now_ms(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
    }

    /// A random number (xorshift64*): numbers that differ, nothing secret.
    #[inline]
    pub fn random(&self) -> u64 {
        // The generator never leaves 0, so it is another number there.
        let mut x = self.random.get().max(1);
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Says where the random numbers begin: elsewhere for each worker.
    pub fn seed(&self, seed: u64) {
        self.random.set(seed);
    }
}
