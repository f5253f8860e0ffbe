//! What a worker has for running plugins, and the calls themselves.
//!
//! A panic is a bug of the plugin: its call has no result, and the panic message is not repeated, since it may contain secrets.

use super::Worker;
use super::client_shares::ClientShares;
use super::offload::OffloadPools;
use crate::basics::counters::{Counters, WorkerTally};
use crate::calls::{BeginHttp2, Calls};
use crate::plan::Plan;
use crate::random;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};
use stillgate_config::Measure;
use stillgate_limits::Limits;
use stillgate_plugin_api::chain::TooLong;
use stillgate_plugin_api::client_bound::ClientBound;
use stillgate_plugin_api::{
    Call, CallError, Chain, ChainEntry, ConsumerRef, Consumers, Io, Link, LinkTo, LocalFuture, LogLevel, Outbox, Phase,
    ProcessTotals, Reply, ServingProcess,
};
use stillgate_profiler::threads::{WorkKind, work_on};

/// One in this many requests is timed.
const TIMED_OF: u32 = 1_000;
/// Merged chains with a consumer's plugins that a worker keeps.
const MERGED_MAX: usize = 1_024;

/// How much filters of bodies may hold, including their output that was not yet taken.
pub(crate) const WORKER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How much of it is for the bodies of one client if more than half is in use.
const CLIENT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Requests of a worker that may wait for plugins: each keeps its buffers.
const WAITING_MAX: usize = 8 * 1024;
/// How many of one client may if more than half of them do.
const CLIENT_WAITING_MAX: usize = 512;

/// What a worker has for running plugins.
pub(crate) struct Plugins {
    /// The part that plugins themselves see.
    pub(crate) own: stillgate_plugin_api::Worker,
    /// Memory held by filters of bodies.
    pub(crate) held: Rc<ClientBound>,
    /// Work on other threads that requests wait for.
    pub(crate) shares: Rc<ClientShares>,
    /// Chains of routes joined by plugins of consumers, by the addresses of both. Those that a new Plan does not have are dropped.
    merged: RefCell<HashMap<(usize, usize), MergedChain>>,
    requests: Cell<u32>,
    /// Threads for work that would take too long here.
    pub(crate) offloading: Arc<OffloadPools>,
    /// Requests that wait for plugins.
    pub(crate) waiting: Rc<ClientBound>,
}

impl Default for Plugins {
    fn default() -> Plugins {
        Plugins {
            own: stillgate_plugin_api::Worker::default(),
            held: ClientBound::new(WORKER_BYTES_MAX, CLIENT_BYTES_MAX),
            shares: Rc::default(),
            merged: RefCell::default(),
            requests: Cell::default(),
            offloading: Arc::default(),
            waiting: ClientBound::new(WAITING_MAX, CLIENT_WAITING_MAX),
        }
    }
}

/// A chain and its sources, which stay at their addresses as long as these are keys.
struct MergedChain {
    chain: Rc<Chain>,
    /// The route's chain, and a position at which a Plan has it.
    of_route: Option<(usize, Arc<Chain>)>,
    of_consumer: Arc<[Arc<ChainEntry>]>,
    /// A consumer that has these plugins.
    consumer: ConsumerRef,
}

impl MergedChain {
    /// Whether its sources are in a Plan, at their previous positions.
    fn is_in(&self, plan: &Plan) -> bool {
        let is_same = |chain: &Arc<Chain>, place: usize| {
            let route = plan.routes.get(place);
            route.and_then(|route| route.chain.as_ref()).is_some_and(|other| Arc::ptr_eq(chain, other))
        };
        let consumer = plan.consumers.get(self.consumer);
        self.of_route.as_ref().is_none_or(|(place, chain)| is_same(chain, *place))
            && consumer.is_some_and(|consumer| Arc::ptr_eq(&consumer.plugins, &self.of_consumer))
    }
}

impl Plugins {
    /// Made with a cell for the table of limits, the threads that all workers share, and a queue to the thread that sends for
    /// plugins.
    pub(crate) fn new(
        limits: Arc<OnceLock<Arc<Limits>>>,
        offloading: Arc<OffloadPools>,
        worker: Weak<Worker>,
        tally: WorkerTally,
        (outbox, process): (Outbox, Arc<ServingProcess>),
        begin_http2: BeginHttp2,
    ) -> Plugins {
        let shares = Rc::new(ClientShares::new(tally.0.len()));
        let io = PluginIo { worker, calls: Rc::new(Calls::new(begin_http2)) };
        let counts = move || {
            let Counters { connections_open, connections_total, requests_in_flight, requests_total, .. } = tally.read();
            ProcessTotals { connections_open, connections_total, requests_in_flight, requests_total }
        };
        let own = stillgate_plugin_api::Worker::new(limits).with_io(Rc::new(io)).with_counts(Rc::new(counts));
        own.seed(random::number());
        let own = own.with_outbox(outbox, process, [random::number(), random::number()]);
        Plugins { own, shares, offloading, ..Plugins::default() }
    }

    /// The chain of a route, which the Plan has at this position, merged with a consumer's plugins.
    pub(crate) fn merged_chain(
        &self,
        of_route: Option<(usize, &Arc<Chain>)>,
        consumers: &Consumers,
        consumer: ConsumerRef,
    ) -> Result<Rc<Chain>, TooLong> {
        let of_consumer = &consumers.of(consumer).plugins;
        let route = of_route.map(|(_, chain)| chain);
        let key = (route.map_or(0, |route| Arc::as_ptr(route).addr()), Arc::as_ptr(of_consumer).cast::<u8>().addr());
        let mut known = self.merged.borrow_mut();
        if let Some(merged) = known.get(&key) {
            return Ok(merged.chain.clone());
        }
        let chain = Rc::new(Chain::merge([route.map_or(&[][..], |route| route.entries()), of_consumer])?);
        if known.len() >= MERGED_MAX {
            known.clear();
        }
        let of_route = of_route.map(|(place, chain)| (place, chain.clone()));
        known.insert(key, MergedChain { chain: chain.clone(), of_route, of_consumer: of_consumer.clone(), consumer });
        Ok(chain)
    }

    /// Another Plan is in use: drops what belongs to plugins that are not in it.
    pub(crate) fn renew(&self, plan: &Plan) {
        self.merged.borrow_mut().retain(|_, merged| merged.is_in(plan));
    }

    /// Whether the next request is timed.
    pub(crate) fn is_timed(&self) -> bool {
        let requests = self.requests.get().wrapping_add(1);
        self.requests.set(requests);
        requests.is_multiple_of(TIMED_OF)
    }
}

/// A plugin has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PluginPanic;

/// Calls a plugin, timed or not, and catches panics.
#[inline]
pub(crate) fn call<R>(
    worker: &Worker,
    entry: &ChainEntry,
    phase: Phase,
    is_timed: bool,
    then: impl FnOnce() -> R,
) -> Result<R, PluginPanic> {
    let result = call_timed(worker, entry, phase, is_timed, || call_guarded(then));
    if result.is_err() {
        report_panic(worker, entry, phase);
    }
    result
}

/// The position of the plugin that has panicked, which has been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanickedAt(pub(crate) usize);

/// Calls plugins of a chain under one guard. `then` notes the position of each plugin before it calls it.
#[inline]
pub(crate) fn call_each<R>(
    worker: &Worker,
    chain: &Chain,
    phase: Phase,
    then: impl FnOnce(&Cell<usize>) -> R,
) -> Result<R, PanickedAt> {
    let called = Cell::new(0);
    call_guarded(|| then(&called)).map_err(|PluginPanic| {
        report_panic(worker, &chain.entries()[called.get()], phase);
        PanickedAt(called.get())
    })
}

/// Calls a plugin, to which profiles attribute the time, and reports how long it takes if that is wanted.
#[inline]
pub(crate) fn call_timed<R>(
    worker: &Worker,
    entry: &ChainEntry,
    phase: Phase,
    is_timed: bool,
    then: impl FnOnce() -> R,
) -> R {
    let began = is_timed.then(Instant::now);
    let result = work_on(WorkKind::Plugin, entry.name, then);
    if let Some(began) = began {
        tell_time(worker, entry, phase, began);
    }
    result
}

#[cold]
fn tell_time(worker: &Worker, entry: &ChainEntry, phase: Phase, began: Instant) {
    let took = began.elapsed();
    worker.report_plugin(|recorder, metrics| recorder.observe_plugin(metrics, entry.name, phase, took));
}

/// Counts a panic, and logs which plugin it came from.
#[cold]
pub(crate) fn report_panic(worker: &Worker, entry: &ChainEntry, phase: Phase) {
    worker.report_plugin(|recorder, metrics| recorder.count_plugin_panic(metrics, entry.name));
    tracing::error!(plugin = entry.name, origin = %entry.origin, phase = phase.name(), "a plugin panicked");
}

/// How plugins end a request, apart from answering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PluginRefusal {
    /// A plugin adds more to a head than it may have.
    Head,
    /// A body is larger than the plugin holds.
    TooLarge,
    /// The body is not what its head says.
    Malformed,
    /// Code that the plugin's configuration runs for it has failed.
    Failed,
    /// Filters hold as much as they may in this worker.
    Memory,
    /// Filters hold as much as they may for this client.
    ClientMemory,
    /// Filters have worked on it for the maximum time.
    Time,
    /// The threads for a filter's work have been too busy.
    Busy,
}

impl PluginRefusal {
    /// Value of the label `reason`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PluginRefusal::Head => "head",
            PluginRefusal::TooLarge => "too_large",
            PluginRefusal::Malformed => "malformed",
            PluginRefusal::Failed => "failed",
            PluginRefusal::Memory => "memory",
            PluginRefusal::ClientMemory => "client_memory",
            PluginRefusal::Time => "time",
            PluginRefusal::Busy => "busy",
        }
    }
}

impl Worker {
    /// Records that a plugin refuses a head or a body.
    #[cold]
    pub(crate) fn note_refusal(&self, plugin: &'static str, refusal: PluginRefusal) {
        self.report_plugin(|recorder, metrics| match refusal {
            PluginRefusal::Head => recorder.count_refused_head(metrics, plugin),
            of_body => recorder.count_refused_body(metrics, plugin, of_body.name()),
        });
        self.troubles.note_plugin(plugin, refusal.name());
    }

    /// A filter of a body has panicked.
    #[cold]
    pub(crate) fn note_filter_panic(&self, plugin: &'static str) {
        self.report_plugin(|recorder, metrics| recorder.count_plugin_panic(metrics, plugin));
        tracing::error!(plugin, phase = Phase::BodyFilter.name(), "a plugin panicked");
    }
}

/// Runs a plugin's code. The text of a panic may contain secrets: only its location is reported.
#[inline]
pub(crate) fn call_guarded<R>(then: impl FnOnce() -> R) -> Result<R, PluginPanic> {
    static HOOK: Once = Once::new();
    thread_local!(static IS_INSIDE: Cell<bool> = const { Cell::new(false) });
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match (IS_INSIDE.get(), info.location()) {
            (false, _) => default(info),
            (true, place) => tracing::error!(place = place.map(tracing::field::display), "panic in a plugin"),
        }));
    });
    IS_INSIDE.set(true);
    let result = catch_unwind(AssertUnwindSafe(then));
    IS_INSIDE.set(false);
    result.map_err(|_| PluginPanic)
}

// What plugins can use of the worker's event loop.

/// The event loop of a worker.
pub(crate) struct PluginIo {
    /// The worker that it belongs to.
    pub(crate) worker: Weak<Worker>,
    pub(crate) calls: Rc<Calls>,
}

/// Counts a call that was refused because its server is left alone.
fn count_refused_calls<T: 'static>(
    worker: Weak<Worker>,
    call: impl Future<Output = Result<T, CallError>> + 'static,
) -> LocalFuture<Result<T, CallError>> {
    Box::pin(async move {
        let result = call.await;
        if let (Err(CallError::Resting), Some(worker)) = (&result, worker.upgrade()) {
            worker.counters.calls_refused.add(1);
        }
        result
    })
}

impl Io for PluginIo {
    /// Uses the runtime's own timers, which have a resolution of milliseconds: only requests that really wait pay for them.
    fn sleep(&self, time: Duration) -> LocalFuture<()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn call(&self, call: Call) -> LocalFuture<Result<Reply, CallError>> {
        count_refused_calls(self.worker.clone(), self.calls.clone().call(call))
    }

    fn link(&self, to: LinkTo) -> LocalFuture<Result<Box<dyn Link>, CallError>> {
        count_refused_calls(self.worker.clone(), self.calls.clone().link(to))
    }

    fn send(&self, plugin: &'static str, call: Call) {
        let worker = self.worker.clone();
        if !self.calls.send(call, move || count_lost(&worker, plugin)) {
            self.drop_send(plugin);
        }
    }

    fn spawn(&self, task: LocalFuture<()>) {
        tokio::task::spawn_local(task);
    }

    fn warn(&self, plugin: &'static str, what: &str) {
        tracing::warn!(plugin, "{what}");
    }

    fn is_logged(&self, level: LogLevel) -> bool {
        match level {
            LogLevel::Error => tracing::enabled!(tracing::Level::ERROR),
            LogLevel::Warn => tracing::enabled!(tracing::Level::WARN),
            LogLevel::Info => tracing::enabled!(tracing::Level::INFO),
            LogLevel::Debug => tracing::enabled!(tracing::Level::DEBUG),
        }
    }

    fn log(&self, plugin: &'static str, level: LogLevel, text: &str) {
        match level {
            LogLevel::Error => tracing::error!(plugin, "{text}"),
            LogLevel::Warn => tracing::warn!(plugin, "{text}"),
            LogLevel::Info => tracing::info!(plugin, "{text}"),
            LogLevel::Debug => tracing::debug!(plugin, "{text}"),
        }
    }

    fn fail(&self, plugin: &'static str, why: &str) {
        tracing::error!(plugin, "{why}");
        if let Some(worker) = self.worker.upgrade() {
            worker.report_plugin(|recorder, metrics| recorder.count_plugin(metrics, Measure::PluginFailures, plugin));
        }
    }

    fn drop_send(&self, plugin: &'static str) {
        count_lost(&self.worker, plugin);
    }
}

fn count_lost(worker: &Weak<Worker>, plugin: &'static str) {
    if let Some(worker) = worker.upgrade() {
        worker.report_plugin(|recorder, metrics| {
            recorder.count_plugin(metrics, Measure::PluginSendsDropped, plugin);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin_api::Consumer;

    fn consumers() -> (Consumers, ConsumerRef) {
        let mut consumers = Consumers::default();
        let (name, plugins) = ("c".into(), Arc::default());
        let consumer = Consumer { name, group: None, labels: Box::default(), plugins, credentials: Box::default() };
        consumers.insert(consumer, Vec::new()).unwrap();
        let attached = consumers.find_by_name("c").unwrap();
        (consumers, attached)
    }

    #[test]
    fn chains_with_consumers_are_merged_once() {
        let (plugins, route) = (Plugins::default(), Arc::new(Chain::default()));
        let (consumers, consumer) = consumers();
        let first = plugins.merged_chain(Some((0, &route)), &consumers, consumer).unwrap();
        assert!(Rc::ptr_eq(&first, &plugins.merged_chain(Some((0, &route)), &consumers, consumer).unwrap()));
        assert!(!Rc::ptr_eq(&first, &plugins.merged_chain(None, &consumers, consumer).unwrap()));
        for _ in 0..2 * MERGED_MAX {
            plugins.merged_chain(Some((0, &Arc::new(Chain::default()))), &consumers, consumer).unwrap();
            assert!(plugins.merged.borrow().len() <= MERGED_MAX);
        }
    }

    #[test]
    fn a_new_plan_drops_merged_chains_that_it_does_not_have() {
        let text = "upstreams: [{id: u, type: roundrobin, nodes: {\"10.0.0.1:81\": 1}}]\n\
                    routes: [{id: a, uri: /a, upstream_id: u}, {id: b, uri: /b, upstream_id: u}]\n";
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let mut plan = Plan::build(1, &config, &Default::default(), None, None, None).unwrap();
        let chains = [Arc::new(Chain::default()), Arc::new(Chain::default())];
        chains.iter().enumerate().for_each(|(at, chain)| plan.routes.set_chain(at, Some(chain.clone())));
        let (consumers, consumer) = consumers();
        plan.consumers = Arc::new(consumers.clone());
        let plugins = Plugins::default();
        let merge = |at: usize| plugins.merged_chain(Some((at, &chains[at])), &consumers, consumer).unwrap();
        let (stays, _) = (merge(0), merge(1));
        plugins.renew(&plan);
        assert_eq!(plugins.merged.borrow().len(), 2);
        plan.routes.set_chain(1, None);
        plugins.renew(&plan);
        assert_eq!((plugins.merged.borrow().len(), Arc::strong_count(&chains[1])), (1, 1));
        assert!(Rc::ptr_eq(&stays, &merge(0)));
        plan.consumers = Arc::default();
        plugins.renew(&plan);
        assert_eq!(plugins.merged.borrow().len(), 0);
    }

    #[test]
    fn one_request_in_a_thousand_is_timed() {
        let plugins = Plugins::default();
        assert_eq!((0..10 * TIMED_OF).filter(|_| plugins.is_timed()).count(), 10);
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!((call_guarded(|| 1), call_guarded(|| -> u32 { panic!("a secret") })), (Ok(1), Err(PluginPanic)));
    }
}
