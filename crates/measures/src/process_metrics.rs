//! The metrics of the gateway itself, next to those of requests: its version, its configuration, its process.
//!
//! The control thread sets all of them once a second, changed or not, so that none of the series is ever idle.

use super::process_stats::{self, Usage, now_unix_ms};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stillgate_cluster::Watch;
use stillgate_config::{FamilyKind, Label, LabelSource, Measure, Metrics, ResourceKind};
use stillgate_lua::jit::{self, CompileState, JitTotals, TraceAbortReason};
use stillgate_metrics::{DeclaredFamily, Registry, RegistryError, Writer};
use stillgate_plugin_api::outbox::{DropReason, OutboxTotals as Sent};
use stillgate_proxy::{Counters, MetricsPlan, Plan};
use stillgate_tls::FailureReason;
use stillgate_upstream::Endpoint;

/// The figures of the control loop.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The number of the served configuration.
    pub generation: u64,
    /// Whether the last configuration that was read is served.
    pub last_reload_successful: bool,
    /// Number of its keys that take effect at the next start.
    pub pending_restart: usize,
    /// Number of resources of each kind that are not served as they were stored.
    pub rejected: [u32; ResourceKind::COUNT],
    /// When reloads happened, and how long they took.
    pub reloads: ReloadTimes,
    /// The totals of the workers.
    pub workers: Counters,
    /// Number of failed attempts to order a certificate.
    pub acme_failures: u64,
    /// Number of lost access log lines; `None`: access logging is off.
    pub dropped_lines: Option<u64>,
    /// The state of the table of limits.
    pub limits: LimitFacts,
    /// `None`: resources come from the file.
    pub source: Option<SourceFacts>,
    /// `None`: this is the only device node.
    pub directory: Option<DirectoryFacts>,
}

/// The state of following the datastore.
#[derive(Debug, Clone, Copy)]
pub struct SourceFacts {
    /// Whether it can be followed.
    pub is_up: bool,
    /// The revision that was read; `None`: none was.
    pub revision: Option<u64>,
    /// When the datastore was last heard from, in milliseconds since 1970; `None`: never.
    pub heard_unix_ms: Option<u64>,
    /// `None`: the datastore is a store.
    pub etcd: Option<EtcdFacts>,
}

/// The revisions in etcd.
#[derive(Debug, Clone, Copy)]
pub struct EtcdFacts {
    /// The newest revision that etcd has reported.
    pub newest: u64,
    /// The newest revision among the resources of each kind.
    pub modified: [u64; ResourceKind::COUNT],
}

impl SourceFacts {
    /// The indexes by APISIX's names; none without etcd.
    fn modify_indexes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        /// Credentials are below their consumers.
        const KINDS: [(&str, &[ResourceKind]); 8] = [
            ("routes", &[ResourceKind::Routes]),
            ("services", &[ResourceKind::Services]),
            ("ssls", &[ResourceKind::Ssls]),
            ("consumers", &[ResourceKind::Consumers, ResourceKind::Credentials]),
            ("global_rules", &[ResourceKind::GlobalRules]),
            ("upstreams", &[ResourceKind::Upstreams]),
            ("stream_routes", &[ResourceKind::StreamRoutes]),
            ("protos", &[ResourceKind::Protos]),
        ];
        let revision = self.revision.unwrap_or_default();
        self.etcd.into_iter().flat_map(move |EtcdFacts { newest, modified }| {
            let of = move |kinds: &[ResourceKind]| {
                kinds.iter().map(|kind| modified[*kind as usize]).max().unwrap_or_default()
            };
            let all = KINDS.iter().map(move |(_, kinds)| of(kinds)).max().unwrap_or_default();
            let others = [("max_modify_index", all), ("prev_index", revision), ("x_etcd_index", newest.max(revision))];
            KINDS.iter().map(move |(name, kinds)| (*name, of(kinds))).chain(others)
        })
    }
}

/// The state of the directory that device nodes share.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryFacts {
    is_up: bool,
    commands: u64,
    pending: usize,
    nodes: usize,
    peers: usize,
    refused_peers: u64,
}

impl DirectoryFacts {
    /// The current state of the directory of devices.
    pub fn read(watch: &Watch) -> DirectoryFacts {
        DirectoryFacts {
            is_up: watch.is_up(),
            commands: watch.commands(),
            pending: watch.pending_count(),
            nodes: watch.nodes(),
            peers: watch.peers(),
            refused_peers: watch.refused_peers(),
        }
    }
}

/// The figures of the table of limits; all zero without a table.
#[derive(Debug, Default, Clone, Copy)]
pub struct LimitFacts {
    /// Counters whose window has not ended.
    pub counters: usize,
    /// Number of counters evicted before their window ended.
    pub evicted: u64,
    /// Number of requests that could not be counted.
    pub contended: u64,
}

/// When configurations were read, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct ReloadTimes {
    /// A configuration was applied or refused.
    pub last_unix_ms: u64,
    /// A configuration was applied.
    pub success_unix_ms: u64,
}

impl ReloadTimes {
    /// A configuration is applied now.
    pub fn now() -> ReloadTimes {
        let now_ms = now_unix_ms();
        ReloadTimes { last_unix_ms: now_ms, success_unix_ms: now_ms }
    }
}

/// A family of the process.
struct Own {
    measure: Measure,
    kind: FamilyKind,
    declared: Arc<DeclaredFamily>,
    labels: Vec<Label>,
}

/// The control thread's part of the metrics.
pub struct ProcessMetrics {
    writer: Writer,
    families: Vec<Own>,
    hostname: String,
    started_unix_s: f64,
    counted: RecordedTotals,
}

/// The recorded totals: counters only take increments.
#[derive(Default)]
struct RecordedTotals {
    /// Totals of measures with one series.
    plain: BTreeMap<Measure, u64>,
    /// Requests, tunnels, streams.
    cut: [u64; 3],
    tls_handshakes_failed: [u64; FailureReason::COUNT],
    cpu_s: f64,
    sent: BTreeMap<&'static str, Sent>,
    /// Plugins that have been ignored at any time.
    ignored: BTreeSet<&'static str>,
    lua: RecordedLua,
}

impl ProcessMetrics {
    /// Declares the configured families.
    pub fn new(
        writer: Writer,
        started_unix_s: f64,
        settings: &Metrics,
        registry: &Registry,
    ) -> Result<ProcessMetrics, RegistryError> {
        let (hostname, counted) = (process_stats::hostname(), RecordedTotals::default());
        let mut own = ProcessMetrics { writer, families: Vec::new(), hostname, started_unix_s, counted };
        own.declare(settings, registry)?;
        Ok(own)
    }

    /// Applies other settings.
    pub fn declare(&mut self, settings: &Metrics, registry: &Registry) -> Result<(), RegistryError> {
        let mut families = Vec::new();
        for spec in settings.families().filter(|spec| !spec.per_request && !spec.measure.is_of_workers()) {
            let Some(family) = spec.family(settings) else { continue };
            let label = |source| match source {
                LabelSource::Label(label) => Some(label),
                LabelSource::Variable(_) | LabelSource::Nothing => None,
            };
            let labels = spec.label_plan(settings).into_iter().filter_map(label).collect();
            families.push(Own { measure: spec.measure, kind: spec.kind, declared: registry.declare(family)?, labels });
        }
        self.families = families;
        Ok(())
    }

    /// When the totals began, in milliseconds since 1970: at the start of the process.
    fn since_ms(&self) -> u64 {
        (self.started_unix_s * 1e3) as u64
    }

    /// The family of a measure, if it is configured.
    pub fn declared(&self, measure: Measure) -> Option<&Arc<DeclaredFamily>> {
        self.families.iter().find(|own| own.measure == measure).map(|own| &own.declared)
    }

    /// Records all nodes of the first Plan; `orders` records those of later ones.
    pub fn report_nodes(&mut self, metrics: &MetricsPlan, plan: &Plan) {
        metrics.report_new_nodes(plan, None, &mut self.writer);
    }

    /// Records the result of active checks for a node, which is one of `endpoints`.
    pub fn report_checked(&mut self, metrics: &MetricsPlan, upstream: &str, node: &Endpoint, endpoints: &[Endpoint]) {
        self.writer.tick(now_unix_ms());
        metrics.report_checked(&mut self.writer, upstream, node, endpoints);
        self.writer.tick(now_unix_ms());
    }

    /// Records when certificates expire, in seconds since 1970, by the ids of their entries.
    pub fn report_certificates(&mut self, ends: &BTreeMap<String, i64>) {
        let Some(declared) = self.declared(Measure::TlsCertificateExpiry).cloned() else { return };
        self.writer.tick(now_unix_ms());
        for (id, seconds) in ends {
            let handle = self.writer.series(&declared, &[id.as_bytes()]);
            // Fails only if there was no memory for the series, which the writer has counted.
            let _ = self.writer.set(handle, *seconds as f64);
        }
        self.writer.tick(now_unix_ms());
    }

    /// Records which plugins are ignored, and in how many resources; 0 for those that no longer are.
    pub fn report_ignored(&mut self, ignored: &BTreeMap<&'static str, usize>) {
        let Some(declared) = self.declared(Measure::ConfigIgnoredPlugins).cloned() else { return };
        let ProcessMetrics { writer, counted, .. } = self;
        counted.ignored.extend(ignored.keys());
        writer.tick(now_unix_ms());
        for plugin in &counted.ignored {
            let handle = writer.series(&declared, &[plugin.as_bytes()]);
            let resources = ignored.get(plugin).copied().unwrap_or_default();
            // Fails only if there was no memory for the series, which the writer has counted.
            let _ = writer.set(handle, resources as f64);
        }
        writer.tick(now_unix_ms());
    }

    /// Records the outcome of the entries of logging and tracing plugins that had any.
    pub fn report_sent(&mut self, sent: impl Iterator<Item = (&'static str, Sent)>) {
        let of = |measure| self.declared(measure).cloned();
        let (entries, bytes, dropped, held) = (
            of(Measure::LoggerSent),
            of(Measure::LoggerSentBytes),
            of(Measure::LoggerDropped),
            of(Measure::LoggerBytes),
        );
        let since_ms = self.since_ms();
        let ProcessMetrics { writer, counted, .. } = self;
        writer.tick(now_unix_ms());
        // Fails only if there was no memory for the series, which the writer has counted; likewise below.
        let mut add = |family: &Option<Arc<DeclaredFamily>>, labels: &[&[u8]], amount: u64| {
            if let Some(family) = family {
                let handle = writer.series_since(family, labels, since_ms);
                let _ = writer.add(handle, amount);
            }
        };
        let mut gauges = Vec::new();
        for (plugin, now) in sent.filter(|(_, sent)| sent.is_used()) {
            let before = counted.sent.insert(plugin, now).unwrap_or_default();
            let name = plugin.as_bytes();
            add(&entries, &[name], now.sent.saturating_sub(before.sent));
            add(&bytes, &[name], now.sent_bytes.saturating_sub(before.sent_bytes));
            for reason in DropReason::ALL {
                let lost = now.dropped[reason as usize].saturating_sub(before.dropped[reason as usize]);
                add(&dropped, &[name, reason.name().as_bytes()], lost);
            }
            gauges.push((name, now.held_bytes));
        }
        for (name, held_bytes) in gauges {
            if let Some(family) = &held {
                let handle = writer.series(family, &[name]);
                let _ = writer.set(handle, held_bytes as f64);
            }
        }
        writer.tick(now_unix_ms());
    }

    /// Records everything; `lost`: the total that could not be recorded at all.
    pub fn tell(&mut self, facts: &Facts, lost: u64) {
        let now_ms = now_unix_ms();
        let usage = process_stats::usage();
        let since_ms = self.since_ms();
        let ProcessMetrics { writer, families, hostname, counted, started_unix_s } = self;
        // This includes what was set on a reload since then.
        writer.tick(now_ms);
        for Own { measure, kind, declared, labels } in families.iter() {
            let values: Vec<&[u8]> = labels
                .iter()
                .map(|label| match label {
                    Label::Version => env!("CARGO_PKG_VERSION").as_bytes(),
                    Label::Hostname => hostname.as_bytes(),
                    _ => b"",
                })
                .collect();
            match measure {
                // The collector sets these.
                Measure::MetricsBytes | Measure::MetricsSeries => continue,
                // These have one series per certificate or plugin.
                Measure::TlsCertificateExpiry
                | Measure::ConfigIgnoredPlugins
                | Measure::LoggerSent
                | Measure::LoggerSentBytes
                | Measure::LoggerDropped
                | Measure::LoggerBytes => continue,
                Measure::ConfigRejected => {
                    let counts =
                        ResourceKind::all().zip(facts.rejected).map(|(kind, count)| (kind.name(), f64::from(count)));
                    tell_each(writer, declared, counts);
                    continue;
                }
                Measure::ApisixEtcdModifyIndexes => {
                    let indexes = facts.source.iter().flat_map(SourceFacts::modify_indexes);
                    tell_each(writer, declared, indexes.map(|(key, index)| (key, index as f64)));
                    continue;
                }
                // These have series once functions have run.
                Measure::LuaTraces
                | Measure::LuaAborts
                | Measure::LuaFlushes
                | Measure::LuaMachineCode
                | Measure::LuaFunctions => continue,
                Measure::TlsHandshakesFailed => {
                    report_failed_handshakes(writer, declared, counted, &facts.workers, since_ms);
                    continue;
                }
                Measure::ShutdownCut => {
                    report_cut(writer, declared, counted, &facts.workers, since_ms);
                    continue;
                }
                _ => {}
            }
            // What has no value has no series: a gauge of an etcd that is not used would be 0 for ever.
            let Some(amount) = amount(*measure, *kind, facts, &usage, *started_unix_s, lost) else { continue };
            // The total has accumulated since the start.
            let handle = writer.series_since(declared, &values, since_ms);
            // Fails only if there was no memory for the series, which the writer has counted.
            let _ = match amount {
                RecordedValue::Now(value) => writer.set(handle, value),
                RecordedValue::SoFar(total) => {
                    let before = counted.plain.insert(*measure, total).unwrap_or_default();
                    writer.add(handle, total.saturating_sub(before))
                }
                RecordedValue::SoFarFloat(total) => {
                    writer.add_float(handle, total - std::mem::replace(&mut counted.cpu_s, total))
                }
            };
        }
        writer.tick(now_ms);
    }
}

/// Sets the gauges of a family with one label.
fn tell_each(writer: &mut Writer, declared: &Arc<DeclaredFamily>, values: impl Iterator<Item = (&'static str, f64)>) {
    for (label, value) in values {
        let handle = writer.series(declared, &[label.as_bytes()]);
        // Fails only if there was no memory for the series, which the writer has counted.
        let _ = writer.set(handle, value);
    }
}

/// Records every reason, including those that have not occurred: an alert on a rate must see the first one.
fn report_failed_handshakes(
    writer: &mut Writer,
    declared: &Arc<DeclaredFamily>,
    counted: &mut RecordedTotals,
    workers: &Counters,
    since_ms: u64,
) {
    for reason in FailureReason::ALL {
        let total = workers.tls_handshakes_failed[reason as usize];
        let before = std::mem::replace(&mut counted.tls_handshakes_failed[reason as usize], total);
        let handle = writer.series_since(declared, &[reason.as_str().as_bytes()], since_ms);
        // Fails only if there was no memory for the series, which the writer has counted.
        let _ = writer.add(handle, total.saturating_sub(before));
    }
}

/// Records every kind, including those without any cuts.
fn report_cut(
    writer: &mut Writer,
    declared: &Arc<DeclaredFamily>,
    counted: &mut RecordedTotals,
    workers: &Counters,
    since_ms: u64,
) {
    let Counters { cut_requests, cut_tunnels, cut_streams, .. } = *workers;
    let kinds = [("request", cut_requests), ("tunnel", cut_tunnels), ("stream", cut_streams)];
    for ((kind, total), before) in kinds.into_iter().zip(&mut counted.cut) {
        let handle = writer.series_since(declared, &[kind.as_bytes()], since_ms);
        // Fails only if there was no memory for the series, which the writer has counted.
        let _ = writer.add(handle, total.saturating_sub(std::mem::replace(before, total)));
    }
}

/// A value to record.
enum RecordedValue {
    Now(f64),
    SoFar(u64),
    SoFarFloat(f64),
}

/// The value of a measure; `None`: there is nothing to record.
fn amount(
    measure: Measure,
    kind: FamilyKind,
    facts: &Facts,
    usage: &Usage,
    started_unix_s: f64,
    lost: u64,
) -> Option<RecordedValue> {
    let now = |value: u64| Some(RecordedValue::Now(value as f64));
    match measure {
        Measure::WorkerCount(name) => {
            let value = facts.workers.named(name)?;
            if kind == FamilyKind::Counter { Some(RecordedValue::SoFar(value)) } else { now(value) }
        }
        Measure::BuildInfo | Measure::ApisixNodeInfo => now(1),
        Measure::ConfigGeneration => now(facts.generation),
        Measure::ConfigLastReloadSuccessful => now(u64::from(facts.last_reload_successful)),
        Measure::ConfigPendingRestartKeys => now(facts.pending_restart as u64),
        Measure::ConfigLastReloadTime => Some(RecordedValue::Now(facts.reloads.last_unix_ms as f64 / 1e3)),
        Measure::ConfigLastReloadSuccessTime => Some(RecordedValue::Now(facts.reloads.success_unix_ms as f64 / 1e3)),
        Measure::ConfigSourceUp => now(u64::from(facts.source?.is_up)),
        Measure::ConfigSourceRevision => now(facts.source?.revision?),
        Measure::ConfigSourceContactTime => Some(RecordedValue::Now(facts.source?.heard_unix_ms? as f64 / 1e3)),
        Measure::ApisixEtcdReachable => {
            let source = facts.source?;
            source.etcd.and_then(|_| now(u64::from(source.is_up)))
        }
        Measure::AccessLogDroppedLines => facts.dropped_lines.map(RecordedValue::SoFar),
        Measure::ApisixMetricErrors => Some(RecordedValue::SoFar(lost)),
        Measure::ProcessCpu => Some(RecordedValue::SoFarFloat(usage.cpu_s)),
        Measure::ProcessResidentMemory => now(usage.resident_bytes?),
        Measure::ProcessVirtualMemory => now(usage.virtual_bytes?),
        Measure::ProcessOpenFds => now(usage.open_fds?),
        Measure::ProcessMaxFds => now(usage.max_fds?),
        Measure::AcmeFailures => Some(RecordedValue::SoFar(facts.acme_failures)),
        Measure::DeviceDirectoryUp => now(u64::from(facts.directory?.is_up)),
        Measure::DeviceDirectoryCommands => Some(RecordedValue::SoFar(facts.directory?.commands)),
        Measure::DeviceDirectoryPending => now(facts.directory?.pending as u64),
        Measure::DeviceNodes => now(facts.directory?.nodes as u64),
        Measure::DevicePeersConnected => now(facts.directory?.peers as u64),
        Measure::DevicePeersRefused => Some(RecordedValue::SoFar(facts.directory?.refused_peers)),
        Measure::LimitCounters => now(facts.limits.counters as u64),
        Measure::LimitEvicted => Some(RecordedValue::SoFar(facts.limits.evicted)),
        Measure::LimitContended => Some(RecordedValue::SoFar(facts.limits.contended)),
        Measure::ProcessStartTime => Some(RecordedValue::Now(started_unix_s)),
        // Workers record requests, connections, nodes and upstreams; the collector records the size of the metrics.
        _ => None,
    }
}

// The metrics of LuaJIT's compiler on the workers.

/// The recorded totals.
#[derive(Debug, Default)]
struct RecordedLua(Option<JitTotals>);

impl ProcessMetrics {
    /// Records them if a worker has run functions.
    pub fn report_lua(&mut self) {
        let workers = jit::of_all_threads();
        if workers.is_empty() && self.counted.lua.0.is_none() {
            return;
        }
        let now = jit::totals();
        let before = self.counted.lua.0.replace(now.clone());
        let of = |measure| self.declared(measure).cloned();
        let (traces, aborts, flushes) = (of(Measure::LuaTraces), of(Measure::LuaAborts), of(Measure::LuaFlushes));
        let (code, functions) = (of(Measure::LuaMachineCode), of(Measure::LuaFunctions));
        let since_ms = self.since_ms();
        let writer = &mut self.writer;
        writer.tick(now_unix_ms());
        let since = |of: fn(&JitTotals) -> u64| of(&now) - before.as_ref().map_or(0, of);
        // Fails only if there was no memory for the series, which the writer has counted; likewise below.
        for (family, amount) in [(&traces, since(|all| all.traces)), (&flushes, since(|all| all.flushes))] {
            if let Some(family) = family {
                let handle = writer.series_since(family, &[], since_ms);
                let _ = writer.add(handle, amount);
            }
        }
        if let Some(family) = &aborts {
            // Reasons that have never occurred have no series: there are three dozen.
            for reason in TraceAbortReason::all().filter(|reason| now.aborts[reason.number()] > 0) {
                let at = reason.number();
                let handle = writer.series_since(family, &[reason.name().as_bytes()], since_ms);
                let _ = writer.add(handle, now.aborts[at] - before.as_ref().map_or(0, |before| before.aborts[at]));
            }
        }
        if let Some(family) = &code {
            let handle = writer.series(family, &[]);
            let bytes: u64 = workers.iter().map(|worker| worker.stats.machine_code_bytes).sum();
            let _ = writer.set(handle, bytes as f64);
        }
        if let Some(family) = &functions {
            for state in CompileState::ALL {
                let count: usize = workers.iter().map(|worker| worker.stats.functions_in(state)).sum();
                let handle = writer.series(family, &[state.name().as_bytes()]);
                let _ = writer.set(handle, count as f64);
            }
        }
        writer.tick(now_unix_ms());
    }
}
