//! One worker: a thread with its own runtime and listeners, from its first connection to its last.

use super::worker_listeners::{ListenerUpdate, WorkerListeners};
use super::{WORKER_NAME, accept, turns};
use crate::basics::buffer::Buffers;
use crate::basics::clock::Clock;
use crate::basics::counters::{WorkerCounters, WorkerTally};
use crate::calls::BeginHttp2;
use crate::device_link::DeviceReport;
use crate::handover::{LeavingWorker, ReceivedParcel, RoutePlaces, Successor};
use crate::node::{ConnectionUse, begin_http2};
use crate::plan::PlanCell;
use crate::plan::caching::RouteMemory;
use crate::plan::snapshot::Snapshot;
use crate::sockets::listener::Listeners;
use crate::telemetry::access_log::Sink;
use crate::telemetry::metrics::Recorder;
use crate::telemetry::overview::{Question, UpstreamOverview};
use crate::telemetry::slow::Slowest;
use crate::telemetry::troubles::Troubles;
use crate::worker::devices::{DeviceLink, Devices};
use crate::worker::offload::OffloadPools;
use crate::worker::plugins::Plugins;
use crate::worker::report_settings::ReportSettings;
use crate::worker::watches::Watches;
use crate::worker::{Expose, PendingNodeConnections, Turns, Worker};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use stillgate_metrics::Writer;
use stillgate_plugin_api::{Outbox, ServingProcess};
use stillgate_profiler::threads::Registration;
use stillgate_upstream::EndpointStatus;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::sleep;

/// How often a worker that is to end checks whether it can.
const END_LOOK: Duration = Duration::from_millis(50);

/// Commands of the control thread to the workers.
#[derive(Debug, Clone)]
pub(crate) enum WorkerCommand {
    /// Accept connections, but leave datagrams to the previous process if it has the same sockets: otherwise each process would get
    /// some of a client's.
    Share,
    /// Serve everything.
    Serve,
    /// Accept no more, give away to another process what can be given, finish the rest within this time, end. `is_hurried`: do not
    /// wait for idle connections. Part of the command, as a worker may see only the last of several.
    HandOver { to: Arc<Successor>, within: Duration, is_hurried: bool },
    /// Accept no more, finish what is in flight within this time, end.
    Drain(Duration),
}

/// Everything that a worker is made of; sent to its thread.
pub(crate) struct Setup {
    /// Counted from zero.
    pub(crate) number: usize,
    /// Its listeners from the start, and every change of them.
    pub(crate) listeners: ListenerUpdate,
    pub(crate) updates: mpsc::Receiver<ListenerUpdate>,
    pub(crate) plans: Arc<PlanCell>,
    pub(crate) counters: Arc<WorkerCounters>,
    /// Counters of all workers.
    pub(crate) tally: WorkerTally,
    pub(crate) sink: Option<Sink>,
    pub(crate) writer: Option<Writer>,
    /// `None`: metrics are off.
    pub(crate) expose: Option<Expose>,
    /// Queue to the thread that sends for plugins.
    pub(crate) outbox: Outbox,
    pub(crate) process: Arc<ServingProcess>,
    pub(crate) commands: watch::Receiver<WorkerCommand>,
    pub(crate) questions: mpsc::Receiver<Question>,
    /// Connections that another process hands over.
    pub(crate) arrivals: mpsc::Receiver<ReceivedParcel>,
    /// `None`: `gateway.devices` is not configured.
    pub(crate) devices: Option<DeviceLink>,
    /// Threads on which all workers have long work of plugins done.
    pub(crate) offloading: Arc<OffloadPools>,
    pub(crate) seed: u64,
    /// A number that clients cannot guess.
    pub(crate) secret: u64,
    pub(crate) give_back: fn(),
}

/// Runs a worker until it has drained.
pub(crate) fn run(setup: Setup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let _runtime = runtime.enter();
    let _profiled = profiled(setup.number, &runtime);
    let mut asked = WorkerQueues {
        commands: setup.commands,
        updates: setup.updates,
        questions: setup.questions,
        arrivals: setup.arrivals,
    };
    let version = setup.plans.version();
    let snapshot = Rc::new(Snapshot::next(None, setup.plans.load(), version));
    let telling = ReportSettings::new(&snapshot.plan, setup.sink.is_some(), setup.writer.is_some());
    let turns = Turns::new()?;
    let clock = Clock::new();
    let devices = setup.devices.as_ref().map(|link| Devices::new(setup.number, link, &clock));
    let worker = Rc::new_cyclic(|worker| Worker {
        clock,
        buffers: Buffers::default(),
        counters: setup.counters,
        listeners: Listeners::default(),
        draining: Cell::new(false),
        is_cutting: Cell::new(false),
        giving: RefCell::default(),
        route_places: RoutePlaces::default(),
        troubles: Troubles::default(),
        connecting: PendingNodeConnections::default(),
        watches: Watches::default(),
        plugins: Plugins::new(
            setup.plans.limits.clone(),
            setup.offloading,
            worker.clone(),
            setup.tally,
            (setup.outbox, setup.process),
            begin_http2_for_calls(worker.clone()),
        ),
        plans: setup.plans,
        devices,
        snapshot: RefCell::new(snapshot),
        is_logging: setup.sink.is_some(),
        telling,
        slowest: Slowest::new(setup.number),
        wanted_fields: setup.sink.as_ref().map(|sink| sink.wanted().clone()).unwrap_or_default(),
        sink: RefCell::new(setup.sink),
        expose: setup.expose,
        recorder: setup.writer.map(|writer| RefCell::new(Recorder::new(writer, setup.number))),
        routes: RefCell::new(RouteMemory::new(setup.secret)),
        random: Cell::new(setup.seed | 1),
        refusals: Cell::new(0),
        streams: Cell::new(0),
        give_back: setup.give_back,
        turns,
    });
    let tasks = LocalSet::new();
    let reports = setup.devices.map(|link| serve_devices(&tasks, &worker, link));
    let living = worker.clone();
    let life = tasks.spawn_local(async move { living.live(setup.listeners, &mut asked).await });
    let result = turns::run(&runtime, &tasks, &worker, life);
    end(&worker, tasks, reports);
    result
}

/// Ends the remaining connections. What devices had to report is not lost.
fn end(worker: &Worker, tasks: LocalSet, reports: Option<mpsc::Sender<DeviceReport>>) {
    drop(tasks);
    // What was cut off is recorded as it is dropped.
    worker.tick_metrics(true);
    if let (Some(devices), Some(reports)) = (&worker.devices, reports) {
        devices.send_last(&reports);
    }
}

/// Moves messages between the worker and the thread of devices. Returns the queue for the worker's reports.
fn serve_devices(tasks: &LocalSet, worker: &Rc<Worker>, link: DeviceLink) -> mpsc::Sender<DeviceReport> {
    let DeviceLink { mut commands, reports, .. } = link;
    let sender = reports.clone();
    let (taking, telling) = (worker.clone(), worker.clone());
    tasks.spawn_local(async move {
        if let Some(devices) = &taking.devices {
            devices.take_commands(&mut commands).await;
        }
    });
    tasks.spawn_local(async move {
        if let Some(devices) = &telling.devices {
            devices.send_reports(reports).await;
        }
    });
    sender
}

/// How calls of plugins begin HTTP/2: as for a node that speaks gRPC.
fn begin_http2_for_calls(worker: Weak<Worker>) -> BeginHttp2 {
    Box::new(move |stream, address| {
        let worker = worker.clone();
        Box::pin(async move {
            let worker = worker.upgrade().ok_or(io::ErrorKind::ConnectionReset)?;
            let purpose = ConnectionUse { bridges_web: true, is_exclusive: false };
            begin_http2(&worker, stream, address, purpose).await
        })
    })
}

/// Registers the thread with the profiler, which detects whether its event loop stalls by what tokio counts anyway.
fn profiled(number: usize, runtime: &Runtime) -> Option<Registration> {
    let metrics = runtime.metrics();
    let turns = Box::new(move || metrics.worker_park_unpark_count(0));
    let registered = Registration::new(&format!("{WORKER_NAME}{number}"), Some(turns));
    registered.inspect_err(|error| tracing::warn!(%error, "a worker cannot be profiled")).ok()
}

/// The queues by which others reach the worker.
struct WorkerQueues {
    commands: watch::Receiver<WorkerCommand>,
    updates: mpsc::Receiver<ListenerUpdate>,
    questions: mpsc::Receiver<Question>,
    arrivals: mpsc::Receiver<ReceivedParcel>,
}

impl Worker {
    /// Serves until the worker ends. An error: a socket cannot be read.
    async fn live(self: &Rc<Self>, listeners: ListenerUpdate, asked: &mut WorkerQueues) -> io::Result<()> {
        let WorkerQueues { commands, updates, questions, arrivals } = asked;
        let serving = Rc::new(WorkerListeners::default());
        serving.update(self, listeners)?;
        let mut deadline_ms = u64::MAX;
        let mut plans = self.plans.news();
        loop {
            tokio::select! {
                () = sleep(END_LOOK), if self.draining.get() => {}
                Some(question) = questions.recv() => {
                    spawn_local(answer_overview(self.clone(), question));
                }
                Some(arrival) = arrivals.recv() => accept::take_over(self, arrival),
                () = self.give_some() => {}
                Ok(()) = plans.changed() => {
                    self.watches.look(self.snapshot().plan.revocations);
                    self.look_at_devices();
                }
                Some(update) = updates.recv() => self.update_listeners(&serving, update),
                changed = commands.changed() => {
                    // The control thread is gone only when the process ends: then there is nothing to finish for.
                    let command = if changed.is_ok() { commands.borrow_and_update().clone() } else { WorkerCommand::Drain(Duration::ZERO) };
                    let (successor, time) = match command {
                        WorkerCommand::Share => continue,
                        WorkerCommand::Serve => {
                            serving.start_left_udp(self);
                            continue;
                        }
                        WorkerCommand::HandOver { to, within, is_hurried } => (Some((to, is_hurried)), within),
                        WorkerCommand::Drain(time) => (None, time),
                    };
                    // Earlier updates are applied first: connections may wait in those sockets.
                    while let Ok(update) = updates.try_recv() {
                        self.update_listeners(&serving, update);
                    }
                    deadline_ms = self.clock.now_ms() + time.as_millis() as u64;
                    let giving = successor.map(|(to, is_hurried)| Rc::new(LeavingWorker::new(to, is_hurried, deadline_ms)));
                    self.start_draining(&serving, giving);
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
            let open = self.counters.connections_open.get() + self.counters.udp_sessions_open.get();
            // Connections that the previous process still has would have nowhere to go; they are passed on.
            let awaits = self.giving.borrow().is_some() && !(arrivals.is_closed() && arrivals.is_empty());
            let drained = self.draining.get() && open == 0 && !awaits;
            if drained || (self.clock.now_ms() >= deadline_ms && self.has_given(deadline_ms)) {
                self.cut_off();
                self.tick_metrics(true);
                return Ok(());
            }
        }
    }
    /// Applies an update of listeners. If one of our sockets fails, the kernel spreads its connections over those of others.
    fn update_listeners(self: &Rc<Self>, serving: &Rc<WorkerListeners>, update: ListenerUpdate) {
        if let Err(error) = serving.update(self, update) {
            tracing::error!(%error, "a worker cannot serve a listener");
        }
    }

    /// Checks whether the credentials of devices still exist.
    fn look_at_devices(&self) {
        if let Some(devices) = &self.devices {
            let plan = &self.snapshot().plan;
            devices.look_at(&plan.consumers, plan.tls.as_ref());
        }
    }
}

/// Upstreams that are visited before requests have their turn again.
const UPSTREAMS_AT_ONCE: usize = 256;
/// Answers one query.
async fn answer_overview(worker: Rc<Worker>, question: Question) {
    let snapshot = worker.snapshot();
    let mut overview = Vec::new();
    for (at, upstream) in snapshot.upstreams.iter().enumerate() {
        if at % UPSTREAMS_AT_ONCE == UPSTREAMS_AT_ONCE - 1 {
            yield_now().await;
        }
        let has_news =
            |node: &EndpointStatus| node.figures.requests > 0 || node.failures > 0 || node.active > 0 || node.idle > 0;
        let state = upstream.state.borrow();
        let nodes: Vec<_> = state.status(worker.clock.now_ms()).filter(has_news).collect();
        let waiting = state.waiting_count();
        if !nodes.is_empty() || waiting > 0 {
            overview.push(UpstreamOverview { upstream: upstream.planned.definition.key.clone(), waiting, nodes });
        }
    }
    // The caller may have given up.
    let _ = question.send(overview);
}
