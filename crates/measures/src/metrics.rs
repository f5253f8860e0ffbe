//! The metrics of a running gateway, as the control thread holds them: the writers, the exporter, and the steps that follow a
//! reload.
//!
//! The registry and the exporter live as long as the process; what is recorded changes with the configuration. Workers record
//! requests, and `process_metrics` records the process itself.

use super::orders::ExporterOrders;
use super::process_metrics::{Facts, ProcessMetrics};
use super::process_stats::{self, now_unix_ms};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use stillgate_config::{Config, Gateway, Label, Measure, Metrics};
use stillgate_door::Hosts;
use stillgate_exporter::{CollectorReader, Exporter, ExpositionSite, ScrapeForwarder};
use stillgate_metrics::reader::{FamilyCardinality, ReaderOptions};
use stillgate_metrics::{
    Collector, CollectorOptions, DeclaredFamily, Registry, RegistryError, RegistryOptions, SegmentProcess, Writer,
};
use stillgate_plugin_api::outbox::OutboxCounters;
use stillgate_proxy::{
    LIVE_SERIES_BYTES, MetricsPlan, Plan, SeriesSubject, StartError, declare_live, random, worker_count,
};
use stillgate_tls::Problem;
use stillgate_upstream::Endpoint;
use tokio::sync::Notify;
use tracing::warn;

/// The share of the memory for metrics that encoded text may take; one half belongs to the writers, the other to the reader.
const CACHE_SHARE: f64 = 0.3;

/// The least and greatest number of routes whose latency is kept for the dashboard.
const LIVE_ROUTES: (usize, usize) = (16, 1000);

/// The share of the memory for metrics that those may take: one part in so many, unless only the least number of routes fits.
const LIVE_PART: usize = 16;

/// Why configured metrics cannot be provided.
#[derive(Debug)]
pub enum MeteringError {
    /// The address cannot be listened on.
    Listen(StartError),
    /// The memory or the shared folder is not available.
    Registry(RegistryError),
    /// The figures of this process cannot be read.
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

/// What a process hands over to the one that continues its metrics. Empty: there is no earlier process.
#[derive(Debug, Default)]
pub struct Handover {
    /// The exporter's socket.
    pub listener: Option<OwnedFd>,
    /// The shared folder, as text.
    pub shared: Option<String>,
    /// The memory of the counters; with a shared folder it is in the folder.
    pub segments: Vec<OwnedFd>,
}

/// What is created before the workers.
pub struct MetricsSetup {
    registry: Arc<Registry>,
    listener: Option<TcpListener>,
    /// Whether another process still serves on the same socket.
    is_inherited: bool,
    settings: Metrics,
    plan: Arc<MetricsPlan>,
    started_unix_s: f64,
}

impl MetricsSetup {
    /// Binds the address, allocates the memory and declares the families. Inherited counters continue.
    pub fn new(settings: &Metrics, inherited: Handover) -> Result<MetricsSetup, MeteringError> {
        let (listener, is_inherited) = match settings.address {
            Some(address) => listen(address, inherited.listener).map(|(listener, is)| (Some(listener), is))?,
            None => (None, false),
        };
        let start = process_stats::start().map_err(MeteringError::Process)?;
        let options = RegistryOptions {
            memory_bytes: settings.memory_bytes,
            // The configuration's bound fits.
            series_per_family: u32::try_from(settings.series_per_family).unwrap_or(u32::MAX),
            shared: settings.shared.clone(),
            ..RegistryOptions::new(
                SegmentProcess { pid: std::process::id(), start: start.ticks },
                now_unix_ms(),
                random::number(),
            )
        };
        let registry = Arc::new(Registry::start(options)?);
        inherit(&registry, as_text(settings), inherited.shared, inherited.segments);
        let plan = Arc::new(MetricsPlan::new(settings, &registry)?);
        let (settings, started_unix_s) = (settings.clone(), start.unix_s);
        Ok(MetricsSetup { registry, listener, is_inherited, settings, plan, started_unix_s })
    }

    /// What requests add to.
    pub fn plan(&self) -> Arc<MetricsPlan> {
        self.plan.clone()
    }

    /// Makes a writer for each worker.
    pub fn writers(&self, workers: usize) -> Result<Vec<Writer>, MeteringError> {
        (0..workers).map(|_| self.registry.writer().map_err(MeteringError::from)).collect()
    }

    /// Starts to expose what is known by now; on an inherited socket [`MetricsRuntime::serve`] does.
    pub fn start(self, plan: &Plan, facts: &Facts) -> Result<MetricsRuntime, MeteringError> {
        let MetricsSetup { registry, listener, is_inherited, settings, plan: recorded, started_unix_s } = self;
        let writer = registry.writer()?;
        let mut own = ProcessMetrics::new(writer, started_unix_s, &settings, &registry)?;
        own.report_nodes(&recorded, plan);
        own.tell(facts, registry.lost());
        let collector = Collector::of_registry(registry.clone(), collector_options(&settings, &own, &registry))?;
        let served = listener.as_ref().map(TcpListener::try_clone).transpose().map_err(MeteringError::Thread)?;
        let (waiting, served) = if is_inherited { (served, None) } else { (None, served) };
        let exporter = Exporter::spawn(served, collector, exporter_site(&settings)).map_err(MeteringError::Thread)?;
        let orders = ExporterOrders::new(registry.writer()?);
        let leaving = WaitingSubjects::default();
        Ok(MetricsRuntime {
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

/// Owns recording and exposition.
pub struct MetricsRuntime {
    registry: Arc<Registry>,
    exporter: Exporter,
    /// The socket to hand over; `None`: there is none, or another process serves on it.
    listener: Option<TcpListener>,
    /// The socket while another process serves on it.
    waiting: Option<TcpListener>,
    own: ProcessMetrics,
    orders: ExporterOrders,
    /// The current settings.
    settings: Metrics,
    plan: Arc<MetricsPlan>,
    leaving: WaitingSubjects,
    /// When each certificate expires, as last recorded.
    certificates: Arc<BTreeMap<String, i64>>,
}

/// What a configuration records, until it is published or discarded.
pub struct PendingPlan {
    settings: Metrics,
    plan: Arc<MetricsPlan>,
}

impl PendingPlan {
    /// What requests add to.
    pub fn plan(&self) -> Arc<MetricsPlan> {
        self.plan.clone()
    }
}

impl MetricsRuntime {
    /// The address of the exposition.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// What the next process needs. From now on its values apply for gauges whose last value counts.
    pub fn hand_over(&self) -> io::Result<Handover> {
        let listener = self.listener.as_ref().map(TcpListener::try_clone).transpose()?.map(OwnedFd::from);
        Ok(Handover { listener, shared: as_text(&self.settings), segments: self.registry.hand_over()? })
    }

    /// Continues as before [`MetricsRuntime::hand_over`] and [`MetricsRuntime::stop_serving`], because no process takes over.
    pub fn keep(&mut self) {
        self.registry.keep();
        if self.listener.is_none()
            && let Some(listener) = &self.waiting
        {
            // Without a descriptor for it the next upgrade binds the address again once this process has ended.
            self.listener = listener.try_clone().ok();
        }
        tokio::spawn(self.serve());
    }

    /// Commits to the handover: another process takes over.
    pub fn leave(&mut self) {
        self.waiting = None;
    }

    /// Stops answering scrapes, so that the next process can: it may begin when the future completes. This process continues to
    /// count.
    pub fn stop_serving(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.waiting = self.listener.take();
        self.exporter.stop_serving()
    }

    /// Answers scrapes on the socket of the previous process, which has stopped. Without a previous process it does so from the
    /// start.
    pub fn serve(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.exporter.serve(self.waiting.take())
    }

    /// What another configuration, or the same one, records. It stays unchanged if that configuration has no metrics, and for
    /// everything that needs a restart.
    pub fn next(&self, config: &Config) -> Result<PendingPlan, RegistryError> {
        // What was allocated at the start stays.
        let Metrics { address, memory_bytes, series_per_family, shared, live_routes, .. } = self.settings.clone();
        let wanted = metrics_of(config).unwrap_or_else(|| self.settings.clone());
        let settings = Metrics { address, memory_bytes, series_per_family, shared, live_routes, ..wanted };
        let plan = match settings == self.settings {
            true => self.plan.clone(),
            false => Arc::new(MetricsPlan::new(&settings, &self.registry)?),
        };
        Ok(PendingPlan { settings, plan })
    }

    /// Handles that a Plan with these metrics was published in place of the one with number `replaced_number`. An error concerns
    /// the metrics of the process itself; everything else is done anyway.
    pub fn on_published(
        &mut self,
        next: PendingPlan,
        plan: &Arc<Plan>,
        replaced: &Arc<Plan>,
        replaced_number: u64,
    ) -> Result<(), RegistryError> {
        let PendingPlan { settings, plan: recorded } = next;
        let changes = plan.series_changes();
        changes.arrived.iter().for_each(|subject| self.leaving.cancel(subject));
        self.leaving.add(replaced_number, &changes.left);
        self.orders.set_in_use(changes.arrived.iter().cloned(), true);
        self.orders.report_nodes(recorded.clone(), plan, replaced, now_unix_ms());
        let mut declared = Ok(());
        if settings != self.settings {
            declared = self.own.declare(&settings, &self.registry);
            self.orders.set_up(exporter_site(&settings), collector_options(&settings, &self.own, &self.registry));
        }
        self.plan = recorded;
        self.orders.send(&self.exporter);
        declared?;
        // After an error the next reload tries again.
        self.settings = settings;
        Ok(())
    }

    /// Notified when [`MetricsRuntime::send_orders`] may have something to do.
    pub fn orders_ended(&self) -> Arc<Notify> {
        self.orders.ended()
    }

    /// Sends the waiting orders to the exporter.
    pub fn send_orders(&mut self) {
        self.orders.send(&self.exporter);
    }

    /// Handles that no worker uses Plans before number `oldest` any more, or any but the current one: what only those contained is
    /// removed.
    pub fn settle(&mut self, oldest: Option<u64>) {
        self.orders.set_in_use(self.leaving.take(oldest), false);
        self.orders.send(&self.exporter);
    }

    /// Records the figures of the process; some are recorded once a second.
    pub fn tell(&mut self, facts: &Facts) {
        self.own.tell(facts, self.registry.lost());
        self.orders.tick(now_unix_ms());
    }

    /// Records the outcome of the entries of logging and tracing plugins.
    pub fn report_sent(&mut self, counts: &OutboxCounters) {
        self.own.report_sent(counts.iter());
        self.own.report_lua();
    }

    /// Records which plugins are ignored, and how many resources have each.
    pub fn report_ignored(&mut self, ignored: &BTreeMap<&'static str, usize>) {
        self.own.report_ignored(ignored);
    }

    /// Records when certificates expire, by the ids of their entries; those of removed entries are no longer exposed.
    pub fn report_certificates(&mut self, ends: &Arc<BTreeMap<String, i64>>) {
        if !Arc::ptr_eq(ends, &self.certificates) {
            let only = |of: &BTreeMap<String, i64>, other: &BTreeMap<String, i64>| -> Vec<_> {
                of.keys()
                    .filter(|id| !other.contains_key(*id))
                    .map(|id| SeriesSubject::new(&[Label::Ssl], &[id]))
                    .collect()
            };
            self.orders.set_in_use(only(ends, &self.certificates), true);
            self.orders.set_in_use(only(&self.certificates, ends), false);
            self.certificates = ends.clone();
        }
        self.own.report_certificates(ends);
    }

    /// Records the result of active checks for a node, which is one of `endpoints`.
    pub fn report_checked(&mut self, upstream: &str, node: &Endpoint, endpoints: &[Endpoint]) {
        self.own.report_checked(&self.plan, upstream, node, endpoints);
    }

    /// Counts the series of each family.
    pub fn cardinality(&self) -> impl Future<Output = Option<Vec<FamilyCardinality>>> + Send + use<> {
        self.exporter.cardinality()
    }

    /// A handle for those who read the values themselves.
    pub fn collector_reader(&self) -> CollectorReader {
        self.exporter.collector_reader()
    }

    /// A handle for scrapes through the gateway's own routes.
    pub fn route_scrapes(&self) -> ScrapeForwarder {
        self.exporter.route_scrapes()
    }

    /// A handle for scrapes through the admin address.
    pub fn admin_scrapes(&self) -> ScrapeForwarder {
        self.exporter.admin_scrapes()
    }

    /// Whether the exporter's thread has ended, which is a bug.
    pub fn is_broken(&self) -> bool {
        self.exporter.has_ended()
    }

    /// Stops the exporter and waits for scrapes in flight, some seconds at most.
    pub fn end(self) {
        let MetricsRuntime { registry, exporter, own, orders, .. } = self;
        drop((own, orders));
        // A panic of that thread has already been reported.
        let _ = exporter.stop();
        drop(registry);
    }
}

/// The metrics of a configuration; `None`: none.
pub fn metrics_of(config: &Config) -> Option<Metrics> {
    let emptied = stillgate_plugins::disabled_labels(&config.plugins.metadata);
    let metrics = config.gateway.metrics.as_ref()?;
    Some(Metrics { live_routes: live_routes(&config.gateway, metrics), ..metrics.with_emptied(emptied) })
}

/// The number of routes whose latency is kept for the dashboard, if there can be one.
fn live_routes(gateway: &Gateway, metrics: &Metrics) -> u32 {
    if gateway.admin.is_none() {
        return 0;
    }
    let (least, most) = LIVE_ROUTES;
    let fit = metrics.memory_bytes / LIVE_PART / worker_count(gateway) / LIVE_SERIES_BYTES;
    fit.clamp(least, most) as u32
}

/// Why the metrics of a configuration cannot be provided. Binds no address and shares no memory.
pub fn problem(config: &Config) -> Option<Problem> {
    let settings = Metrics { address: None, shared: None, ..metrics_of(config)? };
    let workers = worker_count(&config.gateway);
    let tried =
        MetricsSetup::new(&settings, Handover::default()).and_then(|prepared| prepared.writers(workers).map(drop));
    let message = tried.err()?.to_string();
    let message = message.strip_prefix("gateway.metrics: ").map_or(message.clone(), str::to_owned);
    Some(Problem { path: "gateway.metrics".to_owned(), message, hint: None })
}

/// Returns the socket to serve on, and whether it is the inherited one: that is used if it has this address (or any port, if the
/// configured port is 0).
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

/// Continues the counts that another process has handed over.
fn inherit(registry: &Registry, shared: Option<String>, before: Option<String>, segments: Vec<OwnedFd>) {
    if let Some(reason) = begins_anew(shared.as_deref(), before.as_deref(), !segments.is_empty()) {
        warn!("gateway.metrics.shared is {reason}");
        return;
    }
    for error in registry.inherit(segments) {
        warn!("gateway.metrics: some of what the process before this one counted is lost: {error}");
    }
}

/// Why totals start from zero; `None`: they do not, or there were none.
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

/// The shared folder.
fn as_text(settings: &Metrics) -> Option<String> {
    settings.shared.as_ref().map(|folder| folder.to_string_lossy().into_owned())
}

fn exporter_site(settings: &Metrics) -> ExpositionSite {
    let names = settings.hosts.iter().cloned().chain([process_stats::hostname()]);
    ExpositionSite { path: settings.path.clone(), hosts: Hosts::new("gateway.metrics.hosts", names) }
}

fn collector_options(settings: &Metrics, own: &ProcessMetrics, registry: &Registry) -> CollectorOptions {
    let mut reader = ReaderOptions {
        cache_bytes_max: (settings.memory_bytes as f64 * CACHE_SHARE) as usize,
        ..ReaderOptions::default()
    };
    reader.encode.created = settings.created;
    let declared = |measure: Measure| -> Option<Arc<DeclaredFamily>> { own.declared(measure).cloned() };
    // All of them were declared before, so this finds them.
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

// Labels of resources that were removed from the configuration, kept until no request can add to their series.
//
// A request is counted under the Plan it began with, which may have left the configuration long ago. So what a Plan removes waits
// until no worker holds that Plan or an older one. A subject that returns meanwhile is no longer waited for. Plans are numbered in
// the order in which they are published.

/// The most subjects that may wait. A request that lasts for hours holds up all that leave meanwhile. Beyond this number the oldest
/// are removed at once; if such a request is counted under one of them after all, its series stays until the process ends.
const LEAVING_MAX: usize = 100_000;

/// The waiting subjects.
#[derive(Debug, Default)]
pub(crate) struct WaitingSubjects {
    /// The newest Plan that contained the subject.
    last: HashMap<SeriesSubject, u64>,
    by_plan: BTreeMap<u64, BTreeSet<SeriesSubject>>,
}

impl WaitingSubjects {
    /// Records that Plan `plan` was the last one with these.
    pub(crate) fn add(&mut self, plan: u64, subjects: &BTreeSet<SeriesSubject>) {
        for subject in subjects {
            self.cancel(subject);
            self.last.insert(subject.clone(), plan);
            self.by_plan.entry(plan).or_default().insert(subject.clone());
        }
    }

    /// Handles that a Plan contains it again.
    pub(crate) fn cancel(&mut self, subject: &SeriesSubject) {
        if let Some(plan) = self.last.remove(subject)
            && let Some(subjects) = self.by_plan.get_mut(&plan)
        {
            subjects.remove(subject);
            if subjects.is_empty() {
                self.by_plan.remove(&plan);
            }
        }
    }

    /// Takes the subjects that may be removed, as all Plans before `oldest` are gone; `None`: only the current Plan is left.
    pub(crate) fn take(&mut self, oldest: Option<u64>) -> Vec<SeriesSubject> {
        let mut gone = Vec::new();
        while let Some(first) = self.by_plan.first_entry() {
            let is_over = oldest.is_none_or(|oldest| *first.key() < oldest);
            if !is_over && self.last.len() <= LEAVING_MAX {
                break;
            }
            for subject in first.remove() {
                self.last.remove(&subject);
                gone.push(subject);
            }
        }
        gone
    }
}

#[cfg(test)]
mod leaving_tests {
    use super::*;
    use stillgate_config::Label;

    fn values(names: &[&str]) -> BTreeSet<SeriesSubject> {
        names.iter().map(|name| SeriesSubject::new(&[Label::Route], &[name])).collect()
    }

    #[track_caller]
    fn check(leaving: &mut WaitingSubjects, oldest: Option<u64>, expected: &[&str]) {
        let taken: Vec<String> = leaving.take(oldest).into_iter().flat_map(|subject| subject.values).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn values_go_when_no_plan_is_left_that_had_them() {
        let mut leaving = WaitingSubjects::default();
        leaving.add(1, &values(&["a", "b"]));
        leaving.add(2, &values(&["c"]));
        check(&mut leaving, Some(1), &[]);
        check(&mut leaving, Some(2), &["a", "b"]);
        check(&mut leaving, None, &["c"]);
        check(&mut leaving, None, &[]);
    }

    #[test]
    fn what_comes_back_stays_and_may_leave_once_more() {
        let mut leaving = WaitingSubjects::default();
        leaving.add(1, &values(&["a"]));
        leaving.cancel(&SeriesSubject::new(&[Label::Route], &["a"]));
        check(&mut leaving, None, &[]);
        leaving.add(3, &values(&["a"]));
        check(&mut leaving, Some(3), &[]);
        check(&mut leaving, Some(4), &["a"]);
    }

    #[test]
    fn the_wait_is_bounded() {
        let mut leaving = WaitingSubjects::default();
        for plan in 1..=2 * LEAVING_MAX as u64 {
            leaving.add(plan, &values(&[&plan.to_string()]));
            let gone = leaving.take(Some(1));
            assert!(gone.len() <= 1 && leaving.last.len() <= LEAVING_MAX);
        }
    }
}
