//! The metrics of a running gateway, as the control thread holds them: who writes, who exposes, and what follows a reload.
//!
//! The registry and the exporter live as long as the process; what is recorded changes with the configuration. What
//! requests add is the workers' business, what the process tells of itself that of `own_metrics`.

use super::leaving::Leaving;
use super::orders::Orders;
use super::own_metrics::{Facts, OwnMetrics};
use super::process_stats::{self, now_unix_ms};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use stillgate_config::{Config, Gateway, Label, Measure, Metrics};
use stillgate_exporter::{Exporter, Hosts, Looker, SideDoor, Site};
use stillgate_metrics::reader::{FamilyCardinality, ReaderOptions};
use stillgate_metrics::{
    Collector, CollectorOptions, DeclaredFamily, Options, Process, Registry, RegistryError, Writer,
};
use stillgate_plugin::outbox::Counts;
use stillgate_proxy::{LIVE_SERIES_BYTES, MetricsPlan, Plan, StartError, Subject, declare_live, random, worker_count};
use stillgate_tls::Problem;
use stillgate_upstream::Endpoint;
use tokio::sync::Notify;
use tracing::warn;

/// Of the memory for metrics, what encoded text may take; half of it is the writers', the rest the reader's.
const CACHE_SHARE: f64 = 0.3;

/// Routes whose latency is kept for the dashboard, at least and at most.
const LIVE_ROUTES: (usize, usize) = (16, 1000);

/// Of the memory for metrics, what that may take, unless there is room for the least number of routes only: one part in so many.
const LIVE_PART: usize = 16;

/// Why there are no metrics, although they are asked for.
#[derive(Debug)]
pub enum MeteringError {
    /// The address cannot be listened on.
    Listen(StartError),
    /// The memory, or the shared folder, cannot be had.
    Registry(RegistryError),
    /// What is known of this process cannot be read.
    Process(io::Error),
    /// The exporter's thread cannot be started.
    Thread(io::Error),
}

impl fmt::Display for MeteringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeteringError::Listen(error) => write!(f, "gateway.metrics.address: {error}"),
            MeteringError::Registry(error) => write!(f, "gateway.metrics: {error}"),
            MeteringError::Process(error) => write!(f, "gateway.metrics: cannot read /proc/self/stat: {error}"),
            MeteringError::Thread(error) => write!(f, "gateway.metrics: cannot start the exporter: {error}"),
        }
    }
}

impl std::error::Error for MeteringError {}

impl From<RegistryError> for MeteringError {
    fn from(error: RegistryError) -> Self {
        MeteringError::Registry(error)
    }
}

/// What a process hands over to the one that carries its metrics on. Empty: there is none before this one.
#[derive(Debug, Default)]
pub struct Handover {
    /// The exporter's socket.
    pub listener: Option<OwnedFd>,
    /// The folder that is shared, as text.
    pub shared: Option<String>,
    /// The memory that is counted in; of a shared folder it is in the folder.
    pub segments: Vec<OwnedFd>,
}

/// What is there before the workers are.
pub struct Prepared {
    registry: Arc<Registry>,
    listener: Option<TcpListener>,
    /// Another process serves on the same socket still.
    is_inherited: bool,
    settings: Metrics,
    plan: Arc<MetricsPlan>,
    started_unix_s: f64,
}

impl Prepared {
    /// Takes the address and the memory, and declares the families. What was counted before is counted on.
    pub fn new(settings: &Metrics, inherited: Handover) -> Result<Prepared, MeteringError> {
        let (listener, is_inherited) = match settings.address {
            Some(address) => listen(address, inherited.listener).map(|(listener, is)| (Some(listener), is))?,
            None => (None, false),
        };
        let start = process_stats::start().map_err(MeteringError::Process)?;
        let options = Options {
            memory_bytes: settings.memory_bytes,
            // The configuration has a bound that fits.
            series_per_family: u32::try_from(settings.series_per_family).unwrap_or(u32::MAX),
            shared: settings.shared.clone(),
            ..Options::new(Process { pid: std::process::id(), start: start.ticks }, now_unix_ms(), random::number())
        };
        let registry = Arc::new(Registry::start(options)?);
        inherit(&registry, as_text(settings), inherited.shared, inherited.segments);
        let plan = Arc::new(MetricsPlan::new(settings, &registry)?);
        let (settings, started_unix_s) = (settings.clone(), start.unix_s);
        Ok(Prepared { registry, listener, is_inherited, settings, plan, started_unix_s })
    }

    /// What requests add to.
    pub fn plan(&self) -> Arc<MetricsPlan> {
        self.plan.clone()
    }

    /// A writer for each worker.
    pub fn writers(&self, workers: usize) -> Result<Vec<Writer>, MeteringError> {
        (0..workers).map(|_| self.registry.writer().map_err(MeteringError::from)).collect()
    }

    /// Begins to expose, with what is known by now; on an inherited socket [`Metering::serve`] does.
    pub fn start(self, plan: &Plan, facts: &Facts) -> Result<Metering, MeteringError> {
        let Prepared { registry, listener, is_inherited, settings, plan: recorded, started_unix_s } = self;
        let writer = registry.writer()?;
        let mut own = OwnMetrics::new(writer, started_unix_s, &settings, &registry)?;
        own.tell_nodes(&recorded, plan);
        own.tell(facts, registry.lost());
        let collector = Collector::of_registry(registry.clone(), collector_options(&settings, &own, &registry))?;
        let served = listener.as_ref().map(TcpListener::try_clone).transpose().map_err(MeteringError::Thread)?;
        let (waiting, served) = if is_inherited { (served, None) } else { (None, served) };
        let exporter = Exporter::spawn(served, collector, site(&settings)).map_err(MeteringError::Thread)?;
        let orders = Orders::new(registry.writer()?);
        let leaving = Leaving::default();
        Ok(Metering {
            registry,
            exporter,
            listener,
            waiting,
            own,
            orders,
            settings,
            plan: recorded,
            leaving,
            certificates: Arc::default(),
        })
    }
}

/// Owns what records and exposes.
pub struct Metering {
    registry: Arc<Registry>,
    exporter: Exporter,
    /// To be handed over; `None`: there is none, or another process serves on it.
    listener: Option<TcpListener>,
    /// The same, while another process serves on it.
    waiting: Option<TcpListener>,
    own: OwnMetrics,
    orders: Orders,
    /// What holds now.
    settings: Metrics,
    plan: Arc<MetricsPlan>,
    leaving: Leaving,
    /// When each certificate ends, as told last.
    certificates: Arc<BTreeMap<String, i64>>,
}

/// What a configuration records, until it is published or given up.
pub struct Next {
    settings: Metrics,
    plan: Arc<MetricsPlan>,
}

impl Next {
    /// What requests add to.
    pub fn plan(&self) -> Arc<MetricsPlan> {
        self.plan.clone()
    }
}

impl Metering {
    /// Where the exposition is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// What the process that follows needs. Of gauges of which the last value counts, its values do from now on.
    pub fn hand_over(&self) -> io::Result<Handover> {
        let listener = self.listener.as_ref().map(TcpListener::try_clone).transpose()?.map(OwnedFd::from);
        Ok(Handover { listener, shared: as_text(&self.settings), segments: self.registry.hand_over()? })
    }

    /// No process follows: goes on as before [`Metering::hand_over`], and before [`Metering::stop_serving`].
    pub fn keep(&mut self) {
        self.registry.keep();
        if self.listener.is_none()
            && let Some(listener) = &self.waiting
        {
            // Without a descriptor for it the next upgrade opens the address anew, once this process is gone.
            self.listener = listener.try_clone().ok();
        }
        tokio::spawn(self.serve());
    }

    /// Another process follows: there is no going back.
    pub fn leave(&mut self) {
        self.waiting = None;
    }

    /// Answers no more scrapes, for the process that follows does: it may when the future has ended. This one goes on to
    /// count.
    pub fn stop_serving(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.waiting = self.listener.take();
        self.exporter.stop_serving()
    }

    /// Answers scrapes on the socket of the process before this one, which has stopped to; where there is none it does from the
    /// beginning.
    pub fn serve(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.exporter.serve(self.waiting.take())
    }

    /// What is recorded under another configuration, or the same one. Where it has no metrics, and of what needs a restart, it
    /// stays as it is.
    pub fn next(&self, config: &Config) -> Result<Next, RegistryError> {
        // What was taken at the start stays.
        let Metrics { address, memory_bytes, series_per_family, shared, live_routes, .. } = self.settings.clone();
        let wanted = wanted(config).unwrap_or_else(|| self.settings.clone());
        let settings = Metrics { address, memory_bytes, series_per_family, shared, live_routes, ..wanted };
        let plan = match settings == self.settings {
            true => self.plan.clone(),
            false => Arc::new(MetricsPlan::new(&settings, &self.registry)?),
        };
        Ok(Next { settings, plan })
    }

    /// A Plan with these metrics has been published in the place of another, which was the `replaced_number`th. An error is
    /// about what the process tells of itself; everything else is done all the same.
    pub fn published(
        &mut self,
        next: Next,
        plan: &Arc<Plan>,
        replaced: &Arc<Plan>,
        replaced_number: u64,
    ) -> Result<(), RegistryError> {
        let Next { settings, plan: recorded } = next;
        let changes = plan.changes();
        changes.arrived.iter().for_each(|subject| self.leaving.cancel(subject));
        self.leaving.add(replaced_number, &changes.left);
        self.orders.set_in_use(changes.arrived.iter().cloned(), true);
        self.orders.tell_nodes(recorded.clone(), plan, replaced, now_unix_ms());
        let mut declared = Ok(());
        if settings != self.settings {
            declared = self.own.declare(&settings, &self.registry);
            self.orders.set_up(site(&settings), collector_options(&settings, &self.own, &self.registry));
        }
        self.plan = recorded;
        self.orders.send(&self.exporter);
        declared?;
        // Otherwise the next reload tries again.
        self.settings = settings;
        Ok(())
    }

    /// Tells when [`Metering::send_orders`] may have something to do.
    pub fn orders_ended(&self) -> Arc<Notify> {
        self.orders.ended()
    }

    /// Tells the exporter what had to wait.
    pub fn send_orders(&mut self) {
        self.orders.send(&self.exporter);
    }

    /// No worker serves from Plans before the `oldest`th any more, or from any but the present one: what only those had goes.
    pub fn settle(&mut self, oldest: Option<u64>) {
        self.orders.set_in_use(self.leaving.take(oldest), false);
        self.orders.send(&self.exporter);
    }

    /// Tells what the process knows of itself; some once a second.
    pub fn tell(&mut self, facts: &Facts) {
        self.own.tell(facts, self.registry.lost());
        self.orders.tick(now_unix_ms());
    }

    /// Tells what became of the entries of plugins that log or trace.
    pub fn tell_sent(&mut self, counts: &Counts) {
        self.own.tell_sent(counts.iter());
        self.own.tell_lua();
    }

    /// Tells which plugins requests are served without, and how many resources have each.
    pub fn tell_ignored(&mut self, ignored: &BTreeMap<&'static str, usize>) {
        self.own.tell_ignored(ignored);
    }

    /// Tells when certificates end, by the ids of their entries; those that are no more are exposed no more.
    pub fn tell_certificates(&mut self, ends: &Arc<BTreeMap<String, i64>>) {
        if !Arc::ptr_eq(ends, &self.certificates) {
            let only = |of: &BTreeMap<String, i64>, other: &BTreeMap<String, i64>| -> Vec<_> {
                of.keys().filter(|id| !other.contains_key(*id)).map(|id| Subject::new(&[Label::Ssl], &[id])).collect()
            };
            self.orders.set_in_use(only(ends, &self.certificates), true);
            self.orders.set_in_use(only(&self.certificates, ends), false);
            self.certificates = ends.clone();
        }
        self.own.tell_certificates(ends);
    }

    /// Tells what active checks have found of a node, which is one of `endpoints`.
    pub fn tell_checked(&mut self, upstream: &str, node: &Endpoint, endpoints: &[Endpoint]) {
        self.own.tell_checked(&self.plan, upstream, node, endpoints);
    }

    /// Asks how many series there are of what.
    pub fn cardinality(&self) -> impl Future<Output = Option<Vec<FamilyCardinality>>> + Send + use<> {
        self.exporter.cardinality()
    }

    /// Where those ask who read the values themselves.
    pub fn looker(&self) -> Looker {
        self.exporter.looker()
    }

    /// Where scrapes go that come by the gateway's own routes.
    pub fn side_door(&self) -> SideDoor {
        self.exporter.side_door()
    }

    /// Where scrapes go that come by the admin address.
    pub fn admin_door(&self) -> SideDoor {
        self.exporter.admin_door()
    }

    /// Whether the exporter's thread has ended, which is a bug.
    pub fn is_broken(&self) -> bool {
        self.exporter.has_ended()
    }

    /// Ends it and waits for scrapes in flight, some seconds at most.
    pub fn end(self) {
        let Metering { registry, exporter, own, orders, .. } = self;
        drop((own, orders));
        // A panic of that thread has been reported by it.
        let _ = exporter.stop();
        drop(registry);
    }
}

/// What a configuration has recorded; `None`: nothing.
pub fn wanted(config: &Config) -> Option<Metrics> {
    let emptied = stillgate_plugins::disabled_labels(&config.plugins.metadata);
    let metrics = config.gateway.metrics.as_ref()?;
    Some(Metrics { live_routes: live_routes(&config.gateway, metrics), ..metrics.with_emptied(emptied) })
}

/// Routes whose latency is kept for the dashboard, if there can be one.
fn live_routes(gateway: &Gateway, metrics: &Metrics) -> u32 {
    if gateway.admin.is_none() {
        return 0;
    }
    let (least, most) = LIVE_ROUTES;
    let fit = metrics.memory_bytes / LIVE_PART / worker_count(gateway) / LIVE_SERIES_BYTES;
    fit.clamp(least, most) as u32
}

/// Why the metrics that a configuration wants cannot be had. Nothing is listened on, and nothing is shared.
pub fn problem(config: &Config) -> Option<Problem> {
    let settings = Metrics { address: None, shared: None, ..wanted(config)? };
    let workers = worker_count(&config.gateway);
    let tried = Prepared::new(&settings, Handover::default()).and_then(|prepared| prepared.writers(workers).map(drop));
    let message = tried.err()?.to_string();
    let message = message.strip_prefix("gateway.metrics: ").map_or(message.clone(), str::to_owned);
    Some(Problem { path: "gateway.metrics".to_owned(), message, hint: None })
}

/// The socket to serve on: the inherited one, where it is at this address (or at any port, if any would do), and whether
/// it is.
fn listen(address: SocketAddr, inherited: Option<OwnedFd>) -> Result<(TcpListener, bool), MeteringError> {
    let is_at_address = |listener: &TcpListener| {
        let at = listener.local_addr();
        at.is_ok_and(|at| at == address || (address.port() == 0 && at.ip() == address.ip()))
    };
    match inherited.map(TcpListener::from).filter(is_at_address) {
        Some(listener) => Ok((listener, true)),
        None => match TcpListener::bind(address) {
            Ok(listener) => Ok((listener, false)),
            Err(error) => Err(MeteringError::Listen(StartError::Bind { address, error })),
        },
    }
}

/// Counts on from what another process has handed over.
fn inherit(registry: &Registry, shared: Option<String>, before: Option<String>, segments: Vec<OwnedFd>) {
    if let Some(reason) = begins_anew(shared.as_deref(), before.as_deref(), !segments.is_empty()) {
        warn!("gateway.metrics.shared is {reason}");
        return;
    }
    for error in registry.inherit(segments) {
        warn!("gateway.metrics: some of what the process before this one counted is lost: {error}");
    }
}

/// Why totals do; `None`: they do not, or there were none.
fn begins_anew(shared: Option<&str>, before: Option<&str>, has_segments: bool) -> Option<String> {
    match (shared, before) {
        (now, Some(before)) if now != Some(before) => Some(format!(
            "not what it was: totals start at zero, because those of the process before this one are in {before}"
        )),
        (Some(_), None) if has_segments => Some(
            "new: totals start at zero, because those of the process before this one are not in the folder".to_owned(),
        ),
        _ => None,
    }
}

/// The folder that is shared.
fn as_text(settings: &Metrics) -> Option<String> {
    settings.shared.as_ref().map(|folder| folder.to_string_lossy().into_owned())
}

fn site(settings: &Metrics) -> Site {
    let names = settings.hosts.iter().cloned().chain([process_stats::hostname()]);
    Site { path: settings.path.clone(), hosts: Hosts::new("gateway.metrics.hosts", names) }
}

fn collector_options(settings: &Metrics, own: &OwnMetrics, registry: &Registry) -> CollectorOptions {
    let mut reader = ReaderOptions {
        cache_bytes_max: (settings.memory_bytes as f64 * CACHE_SHARE) as usize,
        ..ReaderOptions::default()
    };
    reader.encode.created = settings.created;
    let declared = |measure: Measure| -> Option<Arc<DeclaredFamily>> { own.declared(measure).cloned() };
    // All of them have been declared before: this finds them.
    let exposed = settings.families().filter_map(|spec| registry.declare(spec.family(settings)?).ok());
    let in_use = exposed.chain(declare_live(settings, registry).ok().flatten());
    CollectorOptions {
        reader,
        expire_ms: settings.expire.map(|time| time.as_millis() as u64),
        series: declared(Measure::MetricsSeries),
        bytes: declared(Measure::MetricsBytes),
        in_use: Some(in_use.collect()),
    }
}

#[cfg(test)]
mod tests;
