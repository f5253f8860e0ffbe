//! What one worker has: its clock, memory and counters, its view of the Plan, and where it reports what has happened.
//!
//! Only the Plan's pointer, which it reads, and its counters, which it writes, are shared. It does not know how connections are
//! served; the thread that runs it is in `fleet`.

pub(crate) mod body_memory;
mod device_telling;
pub(crate) mod devices;
pub(crate) mod draining;
pub(crate) mod offload;
mod open;
pub(crate) mod pending_connections;
pub(crate) mod plugin_io;
pub(crate) mod plugins;
pub(crate) mod report_settings;
pub(crate) mod turns;
pub(crate) mod watches;

pub(crate) use open::{FreshConnection, Open};

use crate::basics::buffer::Buffers;
use crate::basics::clock::Clock;
use crate::basics::counters::WorkerCounters;
use crate::handover::{LeavingWorker, RoutePlaces};
use crate::plan::PlanCell;
use crate::plan::caching::RouteMemory;
use crate::plan::challenges::Challenges;
use crate::plan::metrics::MetricsPlan;
use crate::plan::snapshot::Snapshot;
use crate::sockets::listener::Listeners;
use crate::telemetry::access_log::{Sink, WantedFields};
use crate::telemetry::metrics::Recorder;
use crate::telemetry::outcome::Timing;
use crate::telemetry::slow::Slowest;
use crate::telemetry::troubles::Troubles;
use devices::Devices;
use pending_connections::PendingConnections;
use plugins::Plugins;
use report_settings::ReportSettings;
use std::cell::{Cell, RefCell};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use turns::Turns;
use watches::Watches;

/// Has the one request on a connection answered with the exposition; false: this is not possible now. It never waits.
pub type Expose = Arc<dyn Fn(UnixStream) -> bool + Send + Sync>;

/// A worker's own state, reached by its tasks.
pub(crate) struct Worker {
    pub(crate) clock: Clock,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) listeners: Listeners,
    /// It accepts no more connections, and keeps none for long.
    pub(crate) draining: Cell<bool>,
    /// It ends, and cuts off whatever is still open.
    pub(crate) is_cutting: Cell<bool>,
    /// Another process takes over.
    pub(crate) giving: RefCell<Option<Rc<LeavingWorker>>>,
    pub(crate) route_places: RoutePlaces,
    pub(crate) troubles: Troubles,
    pub(crate) connecting: PendingConnections,
    pub(crate) watches: Watches,
    pub(crate) plugins: Plugins,
    /// `None`: `gateway.devices` is not configured.
    pub(crate) devices: Option<Devices>,
    pub(crate) plans: Arc<PlanCell>,
    pub(crate) snapshot: RefCell<Rc<Snapshot>>,
    pub(crate) sink: RefCell<Option<Sink>>,
    pub(crate) is_logging: bool,
    /// What is reported in addition to the metrics.
    pub(crate) telling: ReportSettings,
    pub(crate) slowest: Slowest,
    pub(crate) wanted_fields: WantedFields,
    /// Exposes the metrics; `None`: metrics are off.
    pub(crate) expose: Option<Expose>,
    /// `None`: metrics are off.
    pub(crate) recorder: Option<RefCell<Recorder>>,
    pub(crate) routes: RefCell<RouteMemory>,
    pub(crate) random: Cell<u64>,
    pub(crate) refusals: Cell<usize>,
    /// Requests of HTTP/2 being served.
    pub(crate) streams: Cell<u64>,
    /// Returns this thread's free memory to the system; takes a moment.
    pub(crate) give_back: fn(),
    pub(crate) turns: Turns,
}

impl Worker {
    /// Challenges that an ACME server may request now.
    #[inline]
    pub(crate) fn challenges(&self) -> &Challenges {
        &self.plans.challenges
    }

    /// The current view of the Plan, renewed if there is a newer Plan.
    #[inline]
    pub(crate) fn snapshot(&self) -> Rc<Snapshot> {
        let version = self.plans.version();
        if self.snapshot.borrow().version != version {
            self.renew_snapshot(version);
        }
        self.snapshot.borrow().clone()
    }

    #[cold]
    fn renew_snapshot(&self, version: u64) {
        let next = Rc::new(Snapshot::next(Some(&self.snapshot.borrow()), self.plans.load(), version));
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().renumber(next.plan.numbering);
        }
        self.plugins.renew(&next.plan);
        self.telling.renew(&next.plan, self.is_logging, self.recorder.is_some());
        self.snapshot.replace(next);
    }

    /// Which header fields of responses the access log shows.
    #[inline]
    pub(crate) fn wanted_fields(&self) -> &WantedFields {
        &self.wanted_fields
    }

    /// Which times are needed.
    #[inline]
    pub(crate) fn timing(&self) -> Timing {
        let snapshot = self.snapshot.borrow();
        let metrics = snapshot.plan.metrics().filter(|_| self.recorder.is_some());
        Timing {
            request: self.is_logging || snapshot.plan.wants_times || metrics.is_some_and(MetricsPlan::times_requests),
            head: self.is_logging || snapshot.plan.wants_times || snapshot.plan.uses_latency,
            node: snapshot.plan.wants_times || metrics.is_some_and(MetricsPlan::times_nodes),
            has_queued: false,
        }
    }

    /// A fresh random number (xorshift64*): for choosing among nodes, nothing secret.
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Passes on the lines of the access log, and what plugins send.
    pub(crate) fn flush_log(&self) {
        self.plugins.own.flush();
        if let Some(sink) = &mut *self.sink.borrow_mut() {
            sink.flush();
        }
    }
}
