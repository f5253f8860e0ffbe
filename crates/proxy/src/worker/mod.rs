//! What one worker has: its clock, memory and counters, its view of the Plan, and where it reports what has happened.
//!
//! Only the Plan's pointer, which it reads, and its counters, which it writes, are shared. It does not know how connections are
//! served; the thread that runs it is in `fleet`.

pub(crate) mod client_shares;
pub(crate) mod devices;
pub(crate) mod draining;
pub(crate) mod event_queues;
pub(crate) mod offload;
pub(crate) mod plugins;
pub(crate) mod report_settings;
pub(crate) mod watches;

use crate::basics::buffer::Buffers;
use crate::basics::clock::Clock;
use crate::basics::counters::WorkerCounters;
use crate::handover::{LeavingWorker, RoutePlaces};
use crate::plan::PlanCell;
use crate::plan::caching::RouteMemory;
use crate::plan::challenges::Challenges;
use crate::plan::metrics::MetricsPlan;
use crate::plan::snapshot::Snapshot;
use crate::sockets::listener::{Listener, Listeners};
use crate::telemetry::access_log::{Sink, WantedFields};
use crate::telemetry::metrics::Recorder;
use crate::telemetry::outcome::Timing;
use crate::telemetry::slow::Slowest;
use crate::telemetry::troubles::Troubles;
use devices::Devices;
use plugins::Plugins;
use report_settings::ReportSettings;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_tls::rustls::pki_types::ServerName;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
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
    pub(crate) connecting: PendingNodeConnections,
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

// A connection just accepted, whether there is room for it, and an open connection as it is counted.

/// A connection of which nothing has been read.
pub(crate) struct FreshConnection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) listener: Rc<Listener>,
}

impl Worker {
    /// Whether the worker's limit leaves room for one more connection or HTTP/2 stream: a stream takes what a connection takes,
    /// descriptors and buffers, and may become a tunnel that counts as one.
    pub(crate) fn has_room(&self) -> bool {
        let share = self.snapshot().plan.settings.connections_max as u64;
        self.counters.connections_open.get() + self.streams.get() < share
    }
}

/// Counts an open connection, and notices one whose task panicked.
pub(crate) struct Open {
    pub(crate) worker: Rc<Worker>,
    /// `None`: a connection of streams, whose connections are not reported by state.
    listener: Option<Rc<Listener>>,
}

impl Open {
    /// Counts one more connection.
    pub(crate) fn new(worker: &Rc<Worker>, listener: &Rc<Listener>) -> Open {
        worker.counters.connections_open.add(1);
        listener.open.add(1);
        worker.turns.note_news();
        Open { worker: worker.clone(), listener: Some(listener.clone()) }
    }

    /// Like `new`, for a connection that carries no HTTP.
    pub(crate) fn of_stream(worker: &Rc<Worker>) -> Open {
        worker.counters.connections_open.add(1);
        Open { worker: worker.clone(), listener: None }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.worker.counters.connections_open.sub(1);
        if let Some(listener) = &self.listener {
            listener.open.sub(1);
            self.worker.turns.note_news();
        }
        if std::thread::panicking() {
            self.worker.counters.panics.add(1);
        }
    }
}

// When a worker must wake by itself, and the alarm for it: a timerfd, as the runtime's own timers take two wake-ups and a write to
// itself for each.

/// When a worker's next turns are due.
pub(crate) struct Turns {
    alarm: AsyncFd<OwnedFd>,
    /// When it rings, by the worker's clock; `u64::MAX`: never.
    pub(crate) rings_ms: Cell<u64>,
    /// There is news that has not been reported yet.
    pub(crate) is_untold: Cell<bool>,
    pub(crate) flushed_ms: Cell<u64>,
    pub(crate) chores_ms: Cell<u64>,
    /// Most connections open at once since memory was last given back.
    pub(crate) peak: Cell<u64>,
}

impl Turns {
    /// Must be called within a runtime.
    pub(crate) fn new() -> io::Result<Turns> {
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that may close what is registered; this one cannot"
        )]
        let alarm = AsyncFd::with_interest(alarm, Interest::READABLE)?;
        Ok(Turns {
            alarm,
            rings_ms: Cell::new(u64::MAX),
            is_untold: Cell::default(),
            flushed_ms: Cell::default(),
            chores_ms: Cell::default(),
            peak: Cell::default(),
        })
    }

    /// Marks that there is news for the metrics or the access log.
    #[inline]
    pub(crate) fn note_news(&self) {
        self.is_untold.set(true);
    }

    /// Makes it ring after this time, instead of when it was set to before.
    pub(crate) fn ring_in(&self, ms: u64) -> rustix::io::Result<()> {
        // Zero would turn it off.
        let nanoseconds = ms.max(1) * 1_000_000;
        let first =
            Timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: first };
        timerfd_settime(self.alarm.get_ref(), TimerfdTimerFlags::empty(), &once).map(drop)
    }

    /// Lets the alarm bring about turns; ends with the runtime. Setting it again is all that it needs to ring again.
    pub(crate) async fn listen(&self) {
        while let Ok(mut rung) = self.alarm.readable().await {
            rung.clear_ready();
        }
    }
}

// Requests that arrive while a connection to their node is being made wait for it, rather than making one each.

/// The connections that a worker is making.
#[derive(Default)]
pub(crate) struct PendingNodeConnections(RefCell<Vec<(ConnectionKey, Rc<ConnectionOutcome>)>>);

/// Result for those that wait for a connection.
#[derive(Default)]
pub(crate) struct ConnectionOutcome {
    done: Notify,
    is_made: Cell<bool>,
}

impl ConnectionOutcome {
    /// Ready when there is a connection, or when making it has failed.
    pub(crate) fn wait(&self) -> Notified<'_> {
        self.done.notified()
    }

    /// Whether there is a connection; others may have filled it since.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.get()
    }
}

/// What two requests must have in common to share a connection.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ConnectionKey {
    /// The pool in which it will be kept, by its address in memory: the protocol is that upstream's choice.
    pub(crate) pool: usize,
    pub(crate) address: SocketAddr,
    /// The name that the node's certificate must be valid for.
    pub(crate) name: Option<ServerName<'static>>,
}

impl PendingNodeConnections {
    /// Records that a connection is being made from now on, or returns the outcome of one that is already being made.
    pub(crate) fn begin(&self, wanted: ConnectionKey) -> Result<PendingNodeConnection<'_>, Rc<ConnectionOutcome>> {
        let mut list = self.0.borrow_mut();
        match list.iter().find(|entry| entry.0 == wanted) {
            Some((_, other)) => Err(other.clone()),
            None => {
                list.push((wanted.clone(), Rc::default()));
                Ok(PendingNodeConnection { list: self, wanted })
            }
        }
    }
}

/// A connection that is being made.
pub(crate) struct PendingNodeConnection<'a> {
    list: &'a PendingNodeConnections,
    wanted: ConnectionKey,
}

impl PendingNodeConnection<'_> {
    /// The connection is in the pool.
    pub(crate) fn mark_made(&self) {
        if let Some((_, outcome)) = self.list.0.borrow().iter().find(|entry| entry.0 == self.wanted) {
            outcome.is_made.set(true);
        }
    }
}

impl Drop for PendingNodeConnection<'_> {
    fn drop(&mut self) {
        let mut list = self.list.0.borrow_mut();
        if let Some(at) = list.iter().position(|entry| entry.0 == self.wanted) {
            list.swap_remove(at).1.done.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pool: usize, port: u16, name: Option<&'static str>) -> ConnectionKey {
        let name = name.map(|name| ServerName::try_from(name).unwrap());
        ConnectionKey { pool, address: SocketAddr::from(([127, 0, 0, 1], port)), name }
    }

    #[tokio::test]
    async fn one_makes_it_and_the_others_are_notified() {
        let connecting = PendingNodeConnections::default();
        let one = || wanted(1, 80, Some("a.test"));
        let making = connecting.begin(one()).ok().unwrap();
        for (other, what) in [
            (wanted(1, 81, Some("a.test")), "another node"),
            (wanted(1, 80, Some("b.test")), "another name"),
            (wanted(2, 80, Some("a.test")), "another upstream"),
            (wanted(2, 80, None), "without TLS"),
        ] {
            assert!(connecting.begin(other).is_ok(), "{what}");
        }
        let Err(other) = connecting.begin(one()) else { panic!("two at once") };
        let told = other.wait();
        making.mark_made();
        drop(making);
        told.await;
        assert!(other.is_made());
        let making = connecting.begin(one()).ok().unwrap();
        let Err(other) = connecting.begin(one()) else { panic!("two at once") };
        drop(making);
        assert!(!other.is_made());
    }
}
