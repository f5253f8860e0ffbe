//! The metrics of a running gateway, as the control thread holds them: who writes, who exposes, and what follows a reload.
//!
//! The registry and the exporter live as long as the process; what is recorded changes with the configuration. What
//! requests add is the workers' business, what the process tells of itself that of `own_metrics`.

use crate::leaving::Leaving;
use crate::orders::Orders;
use crate::own_metrics::{Facts, OwnMetrics};
use crate::process_stats::{self, now_unix_ms};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use stillgate_config::{Measure, Metrics};
use stillgate_exporter::Exporter;
use stillgate_metrics::reader::{FamilyCardinality, ReaderOptions};
use stillgate_metrics::{Collector, CollectorOptions, Declared, Options, Process, Registry, RegistryError, Writer};
use stillgate_proxy::{MetricsPlan, Plan, StartError};
use stillgate_upstream::Endpoint;
use tokio::sync::Notify;

/// Of the memory for metrics, what encoded text may take; half of it is the writers', the rest the reader's.
const CACHE_SHARE: f64 = 0.3;

/// Why there are no metrics, although they are asked for.
#[derive(Debug)]
pub(crate) enum MeteringError {
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

/// What is there before the workers are.
pub(crate) struct Prepared {
    registry: Arc<Registry>,
    listener: Option<TcpListener>,
    settings: Metrics,
    plan: Arc<MetricsPlan>,
    started_unix_s: f64,
}

impl Prepared {
    /// Takes the address and the memory, and declares the families.
    pub(crate) fn new(settings: &Metrics) -> Result<Prepared, MeteringError> {
        let listener = match settings.address {
            Some(address) => Some(
                TcpListener::bind(address)
                    .map_err(|error| MeteringError::Listen(StartError::Bind { address, error }))?,
            ),
            None => None,
        };
        let start = process_stats::start().map_err(MeteringError::Process)?;
        let options = Options {
            memory_bytes: settings.memory_bytes,
            // The configuration has a bound that fits.
            series_per_family: u32::try_from(settings.series_per_family).unwrap_or(u32::MAX),
            shared: settings.shared.clone(),
            ..Options::new(Process { pid: std::process::id(), start: start.ticks }, now_unix_ms(), random())
        };
        let registry = Arc::new(Registry::start(options)?);
        let plan = Arc::new(MetricsPlan::new(settings, &registry)?);
        Ok(Prepared { registry, listener, settings: settings.clone(), plan, started_unix_s: start.unix_s })
    }

    /// What requests add to.
    pub(crate) fn plan(&self) -> Arc<MetricsPlan> {
        self.plan.clone()
    }

    /// A writer for each worker.
    pub(crate) fn writers(&self, workers: usize) -> Result<Vec<Writer>, MeteringError> {
        (0..workers).map(|_| self.registry.writer().map_err(MeteringError::from)).collect()
    }

    /// Begins to expose, with what is known by now.
    pub(crate) fn start(self, plan: &Plan, facts: &Facts) -> Result<Metering, MeteringError> {
        let Prepared { registry, listener, settings, plan: recorded, started_unix_s } = self;
        let writer = registry.writer()?;
        let mut own = OwnMetrics::new(writer, started_unix_s, &settings, &registry)?;
        own.tell_nodes(&recorded, plan);
        own.tell(facts, registry.lost());
        let collector = Collector::of_registry(registry.clone(), collector_options(&settings, &own, &registry))?;
        let exporter = Exporter::spawn(listener, collector, &settings.path).map_err(MeteringError::Thread)?;
        let orders = Orders::new(registry.writer()?);
        Ok(Metering { registry, exporter, own, orders, settings, plan: recorded, leaving: Leaving::default() })
    }
}

/// Owns what records and exposes.
pub(crate) struct Metering {
    registry: Arc<Registry>,
    exporter: Exporter,
    own: OwnMetrics,
    orders: Orders,
    /// What holds now.
    settings: Metrics,
    plan: Arc<MetricsPlan>,
    leaving: Leaving,
}

/// What a configuration records, until it is published or given up.
pub(crate) struct Next {
    settings: Metrics,
    plan: Arc<MetricsPlan>,
}

impl Next {
    /// What requests add to.
    pub(crate) fn plan(&self) -> Arc<MetricsPlan> {
        self.plan.clone()
    }
}

impl Metering {
    /// Where the exposition is.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.exporter.address()
    }

    /// What is recorded under other settings, or the same ones. Without any, and with those that need a restart, it stays
    /// as it is.
    pub(crate) fn next(&self, settings: Option<&Metrics>) -> Result<Next, RegistryError> {
        // What was taken at the start stays.
        let Metrics { address, memory_bytes, series_per_family, shared, .. } = self.settings.clone();
        let wanted = settings.unwrap_or(&self.settings).clone();
        let settings = Metrics { address, memory_bytes, series_per_family, shared, ..wanted };
        let plan = match settings == self.settings {
            true => self.plan.clone(),
            false => Arc::new(MetricsPlan::new(&settings, &self.registry)?),
        };
        Ok(Next { settings, plan })
    }

    /// A Plan with these metrics has been published in the place of another, which was the `replaced_number`th. An error is
    /// about what the process tells of itself; everything else is done all the same.
    pub(crate) fn published(
        &mut self,
        next: Next,
        plan: &Arc<Plan>,
        replaced: &Arc<Plan>,
        replaced_number: u64,
    ) -> Result<(), RegistryError> {
        let Next { settings, plan: recorded } = next;
        let changes = plan.changes();
        changes.arrived.iter().for_each(|value| self.leaving.cancel(value));
        self.leaving.add(replaced_number, &changes.left);
        self.orders.set_in_use(changes.arrived.iter().cloned(), true);
        self.orders.tell_nodes(recorded.clone(), plan, replaced, now_unix_ms());
        let mut declared = Ok(());
        if settings != self.settings {
            declared = self.own.declare(&settings, &self.registry);
            self.orders.set_up(&settings.path, collector_options(&settings, &self.own, &self.registry));
        }
        self.plan = recorded;
        self.orders.send(&self.exporter);
        declared?;
        // Otherwise the next reload tries again.
        self.settings = settings;
        Ok(())
    }

    /// Tells when [`Metering::send_orders`] may have something to do.
    pub(crate) fn orders_ended(&self) -> Arc<Notify> {
        self.orders.ended()
    }

    /// Tells the exporter what had to wait.
    pub(crate) fn send_orders(&mut self) {
        self.orders.send(&self.exporter);
    }

    /// No worker serves from Plans before the `oldest`th any more, or from any but the present one: what only those had goes.
    pub(crate) fn settle(&mut self, oldest: Option<u64>) {
        self.orders.set_in_use(self.leaving.take(oldest), false);
        self.orders.send(&self.exporter);
    }

    /// Tells what the process knows of itself; some once a second.
    pub(crate) fn tell(&mut self, facts: &Facts) {
        self.own.tell(facts, self.registry.lost());
    }

    /// Tells what active checks have found of a node, which is one of `endpoints`.
    pub(crate) fn tell_checked(&mut self, upstream: &str, node: &Endpoint, endpoints: &[Endpoint]) {
        self.own.tell_checked(&self.plan, upstream, node, endpoints);
    }

    /// Asks how many series there are of what.
    pub(crate) fn cardinality(&self) -> impl Future<Output = Option<Vec<FamilyCardinality>>> + Send + use<> {
        self.exporter.cardinality()
    }

    /// Whether the exporter's thread has ended, which is a bug.
    pub(crate) fn is_broken(&self) -> bool {
        self.exporter.has_ended()
    }

    /// Ends it and waits for scrapes in flight, some seconds at most.
    pub(crate) fn end(self) {
        let Metering { registry, exporter, own, orders, .. } = self;
        drop((own, orders));
        // A panic of that thread has been reported by it.
        let _ = exporter.stop();
        drop(registry);
    }
}

fn collector_options(settings: &Metrics, own: &OwnMetrics, registry: &Registry) -> CollectorOptions {
    let mut reader = ReaderOptions {
        cache_bytes_max: (settings.memory_bytes as f64 * CACHE_SHARE) as usize,
        ..ReaderOptions::default()
    };
    reader.encode.created = settings.created;
    let declared = |measure: Measure| -> Option<Arc<Declared>> { own.declared(measure).cloned() };
    // All of them have been declared before: this finds them.
    let in_use = settings.families().filter_map(|spec| registry.declare(spec.family(settings)?).ok());
    CollectorOptions {
        reader,
        expire_ms: settings.expire.map(|time| time.as_millis() as u64),
        series: declared(Measure::MetricsSeries),
        bytes: declared(Measure::MetricsBytes),
        in_use: Some(in_use.collect()),
    }
}

/// From the system, by way of the hash maps' seed.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
