//! What the gateway tells of itself, beside requests: its version, its configuration, its process.
//!
//! The control thread sets all of it once a second, changed or not, so that no series of it is ever taken for idle.

mod lua;

use super::process_stats::{self, Usage, now_unix_ms};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stillgate_cluster::Watch;
use stillgate_config::{Kind, Label, LabelSource, Measure, Metrics};
use stillgate_metrics::{DeclaredFamily, Registry, RegistryError, Writer};
use stillgate_plugin::outbox::{Counted as Sent, DropReason};
use stillgate_proxy::{Counters, MetricsPlan, Plan};
use stillgate_tls::FailureReason;
use stillgate_upstream::Endpoint;

/// What the control loop knows.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The configuration that is served.
    pub generation: u64,
    /// Whether the last one that was read is.
    pub last_reload_successful: bool,
    /// Keys of it that wait for the next start.
    pub pending_restart: usize,
    /// How many resources of each kind are not served as they were put.
    pub rejected: [u32; Kind::COUNT],
    /// When reloads happened, and how long they took.
    pub reloads: ReloadTimes,
    /// What the workers have counted so far.
    pub workers: Counters,
    /// Tries to order a certificate that have failed so far.
    pub acme_failures: u64,
    /// Access log lines lost so far; `None`: there is no access log.
    pub dropped_lines: Option<u64>,
    /// What the limits of plugins hold.
    pub limits: LimitFacts,
    /// `None`: resources come from the file.
    pub source: Option<SourceFacts>,
    /// `None`: this node of devices is the only one.
    pub directory: Option<DirectoryFacts>,
}

/// How the datastore is followed.
#[derive(Debug, Clone, Copy)]
pub struct SourceFacts {
    /// Whether it can be.
    pub is_up: bool,
    /// The revision that was read; `None`: nothing was.
    pub revision: Option<u64>,
    /// When it was heard of last, in milliseconds since 1970; `None`: never.
    pub heard_unix_ms: Option<u64>,
    /// `None`: it is a store.
    pub etcd: Option<EtcdFacts>,
}

/// What is known of the revisions in etcd.
#[derive(Debug, Clone, Copy)]
pub struct EtcdFacts {
    /// The newest that it has named.
    pub newest: u64,
    /// The newest of the resources of each kind.
    pub modified: [u64; Kind::COUNT],
}

impl SourceFacts {
    /// The indexes by APISIX's names; there are none without etcd.
    fn modify_indexes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        /// Credentials are below their consumers.
        const KINDS: [(&str, &[Kind]); 8] = [
            ("routes", &[Kind::Routes]),
            ("services", &[Kind::Services]),
            ("ssls", &[Kind::Ssls]),
            ("consumers", &[Kind::Consumers, Kind::Credentials]),
            ("global_rules", &[Kind::GlobalRules]),
            ("upstreams", &[Kind::Upstreams]),
            ("stream_routes", &[Kind::StreamRoutes]),
            ("protos", &[Kind::Protos]),
        ];
        let revision = self.revision.unwrap_or_default();
        self.etcd.into_iter().flat_map(move |EtcdFacts { newest, modified }| {
            let of = move |kinds: &[Kind]| kinds.iter().map(|kind| modified[*kind as usize]).max().unwrap_or_default();
            let all = KINDS.iter().map(move |(_, kinds)| of(kinds)).max().unwrap_or_default();
            let others = [("max_modify_index", all), ("prev_index", revision), ("x_etcd_index", newest.max(revision))];
            KINDS.iter().map(move |(name, kinds)| (*name, of(kinds))).chain(others)
        })
    }
}

/// What a node of devices knows of the directory that it shares with others.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryFacts {
    is_up: bool,
    commands: u64,
    pending: usize,
    nodes: usize,
    peers: usize,
}

impl DirectoryFacts {
    /// The state of the directory of devices now.
    pub fn read(watch: &Watch) -> DirectoryFacts {
        DirectoryFacts {
            is_up: watch.is_up(),
            commands: watch.commands(),
            pending: watch.pending(),
            nodes: watch.nodes(),
            peers: watch.peers(),
        }
    }
}

/// What the table of limits says of itself; nothing where there is none.
#[derive(Debug, Default, Clone, Copy)]
pub struct LimitFacts {
    /// Counters whose window has not ended.
    pub counters: usize,
    /// Counters that had to go before their window ended, so far.
    pub evicted: u64,
    /// Requests that could not be counted, so far.
    pub contended: u64,
}

/// When configurations were read, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct ReloadTimes {
    /// One was put to use, or refused.
    pub last_unix_ms: u64,
    /// One was put to use.
    pub success_unix_ms: u64,
}

impl ReloadTimes {
    /// One is put to use.
    pub fn now() -> ReloadTimes {
        let now_ms = now_unix_ms();
        ReloadTimes { last_unix_ms: now_ms, success_unix_ms: now_ms }
    }
}

/// One of the families.
struct Own {
    measure: Measure,
    declared: Arc<DeclaredFamily>,
    labels: Vec<Label>,
}

/// The control thread's end of the metrics.
pub struct OwnMetrics {
    writer: Writer,
    families: Vec<Own>,
    hostname: String,
    started_unix_s: f64,
    counted: Counted,
}

/// How far the counters have got; they only take what is added.
#[derive(Default)]
struct Counted {
    dropped_lines: u64,
    lost: u64,
    route_cache_hits: u64,
    route_cache_misses: u64,
    http2_requests_refused: u64,
    /// Requests, tunnels, streams.
    cut: [u64; 3],
    tls_handshakes: u64,
    tls_handshakes_failed: [u64; FailureReason::COUNT],
    tunnels: u64,
    acme_failures: u64,
    datagrams_dropped: u64,
    limits_evicted: u64,
    limits_contended: u64,
    directory_commands: u64,
    cpu_s: f64,
    sent: BTreeMap<&'static str, Sent>,
    /// Plugins that were ignored at some time.
    ignored: BTreeSet<&'static str>,
    lua: lua::Counted,
}

impl Counted {
    /// What has been told of a measure that only grows.
    fn of(&mut self, measure: Measure) -> &mut u64 {
        match measure {
            Measure::ApisixMetricErrors => &mut self.lost,
            Measure::Http2RequestsRefused => &mut self.http2_requests_refused,
            Measure::TlsHandshakes => &mut self.tls_handshakes,
            Measure::RouteCacheHits => &mut self.route_cache_hits,
            Measure::RouteCacheMisses => &mut self.route_cache_misses,
            Measure::AcmeFailures => &mut self.acme_failures,
            Measure::Tunnels => &mut self.tunnels,
            Measure::StreamDatagramsDropped => &mut self.datagrams_dropped,
            Measure::LimitEvicted => &mut self.limits_evicted,
            Measure::LimitContended => &mut self.limits_contended,
            Measure::DeviceDirectoryCommands => &mut self.directory_commands,
            _ => &mut self.dropped_lines,
        }
    }
}

impl OwnMetrics {
    /// Declares the families that are wanted.
    pub fn new(
        writer: Writer,
        started_unix_s: f64,
        settings: &Metrics,
        registry: &Registry,
    ) -> Result<OwnMetrics, RegistryError> {
        let (hostname, counted) = (process_stats::hostname(), Counted::default());
        let mut own = OwnMetrics { writer, families: Vec::new(), hostname, started_unix_s, counted };
        own.declare(settings, registry)?;
        Ok(own)
    }

    /// Takes over what other settings want.
    pub fn declare(&mut self, settings: &Metrics, registry: &Registry) -> Result<(), RegistryError> {
        let mut families = Vec::new();
        for spec in settings.families().filter(|spec| !spec.per_request && !spec.measure.is_of_workers()) {
            let Some(family) = spec.family(settings) else { continue };
            let label = |source| match source {
                LabelSource::Label(label) => Some(label),
                LabelSource::Variable(_) | LabelSource::Nothing => None,
            };
            let labels = spec.label_plan(settings).into_iter().filter_map(label).collect();
            families.push(Own { measure: spec.measure, declared: registry.declare(family)?, labels });
        }
        self.families = families;
        Ok(())
    }

    /// When what has been counted so far began, in milliseconds since 1970: with the process.
    fn since_ms(&self) -> u64 {
        (self.started_unix_s * 1e3) as u64
    }

    /// The family of a measure, where it is wanted.
    pub fn declared(&self, measure: Measure) -> Option<&Arc<DeclaredFamily>> {
        self.families.iter().find(|own| own.measure == measure).map(|own| &own.declared)
    }

    /// Tells of all nodes of the first Plan; those of the next ones are told by `orders`.
    pub fn tell_nodes(&mut self, metrics: &MetricsPlan, plan: &Plan) {
        metrics.tell_new_nodes(plan, None, &mut self.writer);
    }

    /// Tells what active checks have found of a node, which is one of `endpoints`.
    pub fn tell_checked(&mut self, metrics: &MetricsPlan, upstream: &str, node: &Endpoint, endpoints: &[Endpoint]) {
        self.writer.tick(now_unix_ms());
        metrics.tell_checked(&mut self.writer, upstream, node, endpoints);
        self.writer.tick(now_unix_ms());
    }

    /// Tells when certificates end, in seconds since 1970, by the ids of their entries.
    pub fn tell_certificates(&mut self, ends: &BTreeMap<String, i64>) {
        let Some(declared) = self.declared(Measure::TlsCertificateExpiry).cloned() else { return };
        self.writer.tick(now_unix_ms());
        for (id, seconds) in ends {
            let handle = self.writer.series(&declared, &[id.as_bytes()]);
            // Refused only where there was no memory for the series, and that the writer has counted.
            let _ = self.writer.set(handle, *seconds as f64);
        }
        self.writer.tick(now_unix_ms());
    }

    /// Tells which plugins are ignored, and in how many resources; 0 of those that are not any more.
    pub fn tell_ignored(&mut self, ignored: &BTreeMap<&'static str, usize>) {
        let Some(declared) = self.declared(Measure::ConfigIgnoredPlugins).cloned() else { return };
        let OwnMetrics { writer, counted, .. } = self;
        counted.ignored.extend(ignored.keys());
        writer.tick(now_unix_ms());
        for plugin in &counted.ignored {
            let handle = writer.series(&declared, &[plugin.as_bytes()]);
            let resources = ignored.get(plugin).copied().unwrap_or_default();
            // Refused only where there was no memory for the series, and that the writer has counted.
            let _ = writer.set(handle, resources as f64);
        }
        writer.tick(now_unix_ms());
    }

    /// Tells what became of the entries of plugins that log or trace, of those that had any.
    pub fn tell_sent(&mut self, sent: impl Iterator<Item = (&'static str, Sent)>) {
        let of = |measure| self.declared(measure).cloned();
        let (entries, bytes, dropped, held) = (
            of(Measure::LoggerSent),
            of(Measure::LoggerSentBytes),
            of(Measure::LoggerDropped),
            of(Measure::LoggerBytes),
        );
        let since_ms = self.since_ms();
        let OwnMetrics { writer, counted, .. } = self;
        writer.tick(now_unix_ms());
        // Refused only where there was no memory for the series, and that the writer has counted; so in all of these.
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

    /// Tells everything; `lost`: what could not be recorded at all so far.
    pub fn tell(&mut self, facts: &Facts, lost: u64) {
        let now_ms = now_unix_ms();
        let usage = process_stats::usage();
        let since_ms = self.since_ms();
        let OwnMetrics { writer, families, hostname, counted, started_unix_s } = self;
        // Also for what has been set on a reload since.
        writer.tick(now_ms);
        for Own { measure, declared, labels } in families.iter() {
            let values: Vec<&[u8]> = labels
                .iter()
                .map(|label| match label {
                    Label::Version => env!("CARGO_PKG_VERSION").as_bytes(),
                    Label::Hostname => hostname.as_bytes(),
                    _ => b"",
                })
                .collect();
            let handle = match measure {
                // The collector sets these.
                Measure::MetricsBytes | Measure::MetricsSeries => continue,
                // These have a series for each certificate, and for each plugin.
                Measure::TlsCertificateExpiry
                | Measure::ConfigIgnoredPlugins
                | Measure::LoggerSent
                | Measure::LoggerSentBytes
                | Measure::LoggerDropped
                | Measure::LoggerBytes => continue,
                Measure::ConfigRejected => {
                    let counts = Kind::all().zip(facts.rejected).map(|(kind, count)| (kind.name(), f64::from(count)));
                    tell_each(writer, declared, counts);
                    continue;
                }
                Measure::ApisixEtcdModifyIndexes => {
                    let indexes = facts.source.iter().flat_map(SourceFacts::modify_indexes);
                    tell_each(writer, declared, indexes.map(|(key, index)| (key, index as f64)));
                    continue;
                }
                // And these where functions have run.
                Measure::LuaTraces
                | Measure::LuaAborts
                | Measure::LuaFlushes
                | Measure::LuaMachineCode
                | Measure::LuaFunctions => continue,
                Measure::TlsHandshakesFailed => {
                    tell_failed_handshakes(writer, declared, counted, &facts.workers, since_ms);
                    continue;
                }
                Measure::ShutdownCut => {
                    tell_cut(writer, declared, counted, &facts.workers, since_ms);
                    continue;
                }
                // What has been counted so far has been since the start.
                _ => writer.series_since(declared, &values, since_ms),
            };
            // Refused only where there was no memory for the series, and that the writer has counted.
            let _ = match amount(*measure, facts, &usage, *started_unix_s, lost) {
                Some(Amount::Now(value)) => writer.set(handle, value),
                Some(Amount::SoFar(total)) => {
                    let before = counted.of(*measure);
                    writer.add(handle, total.saturating_sub(std::mem::replace(before, total)))
                }
                Some(Amount::SoFarFloat(total)) => {
                    writer.add_float(handle, total - std::mem::replace(&mut counted.cpu_s, total))
                }
                None => continue,
            };
        }
        writer.tick(now_ms);
    }
}

/// Gauges of a family with one label.
fn tell_each(writer: &mut Writer, declared: &Arc<DeclaredFamily>, values: impl Iterator<Item = (&'static str, f64)>) {
    for (label, value) in values {
        let handle = writer.series(declared, &[label.as_bytes()]);
        // Refused only where there was no memory for the series, and that the writer has counted.
        let _ = writer.set(handle, value);
    }
}

/// Of each reason, also of those that have not come about: an alert on a rate must see the first of them.
fn tell_failed_handshakes(
    writer: &mut Writer,
    declared: &Arc<DeclaredFamily>,
    counted: &mut Counted,
    workers: &Counters,
    since_ms: u64,
) {
    for reason in FailureReason::ALL {
        let total = workers.tls_handshakes_failed[reason as usize];
        let before = std::mem::replace(&mut counted.tls_handshakes_failed[reason as usize], total);
        let handle = writer.series_since(declared, &[reason.as_str().as_bytes()], since_ms);
        // Refused only where there was no memory for the series, and that the writer has counted.
        let _ = writer.add(handle, total.saturating_sub(before));
    }
}

/// Also of kinds of which nothing was cut off.
fn tell_cut(
    writer: &mut Writer,
    declared: &Arc<DeclaredFamily>,
    counted: &mut Counted,
    workers: &Counters,
    since_ms: u64,
) {
    let Counters { cut_requests, cut_tunnels, cut_streams, .. } = *workers;
    let kinds = [("request", cut_requests), ("tunnel", cut_tunnels), ("stream", cut_streams)];
    for ((kind, total), before) in kinds.into_iter().zip(&mut counted.cut) {
        let handle = writer.series_since(declared, &[kind.as_bytes()], since_ms);
        // Refused only where there was no memory for the series, and that the writer has counted.
        let _ = writer.add(handle, total.saturating_sub(std::mem::replace(before, total)));
    }
}

/// What a family is told.
enum Amount {
    Now(f64),
    SoFar(u64),
    SoFarFloat(f64),
}

/// `None`: there is nothing to tell.
fn amount(measure: Measure, facts: &Facts, usage: &Usage, started_unix_s: f64, lost: u64) -> Option<Amount> {
    let now = |value: u64| Some(Amount::Now(value as f64));
    match measure {
        Measure::BuildInfo | Measure::ApisixNodeInfo => now(1),
        Measure::ConfigGeneration => now(facts.generation),
        Measure::ConfigLastReloadSuccessful => now(u64::from(facts.last_reload_successful)),
        Measure::ConfigPendingRestartKeys => now(facts.pending_restart as u64),
        Measure::ConfigLastReloadTime => Some(Amount::Now(facts.reloads.last_unix_ms as f64 / 1e3)),
        Measure::ConfigLastReloadSuccessTime => Some(Amount::Now(facts.reloads.success_unix_ms as f64 / 1e3)),
        Measure::ConfigSourceUp => now(u64::from(facts.source?.is_up)),
        Measure::ConfigSourceRevision => now(facts.source?.revision?),
        Measure::ConfigSourceContactTime => Some(Amount::Now(facts.source?.heard_unix_ms? as f64 / 1e3)),
        Measure::ApisixEtcdReachable => {
            let source = facts.source?;
            source.etcd.and_then(|_| now(u64::from(source.is_up)))
        }
        Measure::ApisixHttpRequests => now(facts.workers.requests_total),
        Measure::AccessLogDroppedLines => facts.dropped_lines.map(Amount::SoFar),
        Measure::ApisixMetricErrors => Some(Amount::SoFar(lost)),
        Measure::ProcessCpu => Some(Amount::SoFarFloat(usage.cpu_s)),
        Measure::ProcessResidentMemory => now(usage.resident_bytes?),
        Measure::ProcessVirtualMemory => now(usage.virtual_bytes?),
        Measure::ProcessOpenFds => now(usage.open_fds?),
        Measure::ProcessMaxFds => now(usage.max_fds?),
        Measure::Http2RequestsRefused => Some(Amount::SoFar(facts.workers.http2_requests_refused)),
        Measure::TlsHandshakes => Some(Amount::SoFar(facts.workers.tls_handshakes)),
        Measure::RouteCacheBytes => now(facts.workers.route_cache_bytes),
        Measure::RouteCacheEntries => now(facts.workers.route_cache_entries),
        Measure::RouteCacheHits => Some(Amount::SoFar(facts.workers.route_cache_hits)),
        Measure::RouteCacheMisses => Some(Amount::SoFar(facts.workers.route_cache_misses)),
        Measure::AcmeFailures => Some(Amount::SoFar(facts.acme_failures)),
        Measure::TunnelsOpen => now(facts.workers.tunnels_open),
        Measure::Tunnels => Some(Amount::SoFar(facts.workers.tunnels_total)),
        Measure::DevicesConnected => now(facts.workers.devices_open),
        Measure::DeviceDirectoryUp => now(u64::from(facts.directory?.is_up)),
        Measure::DeviceDirectoryCommands => Some(Amount::SoFar(facts.directory?.commands)),
        Measure::DeviceDirectoryPending => now(facts.directory?.pending as u64),
        Measure::DeviceNodes => now(facts.directory?.nodes as u64),
        Measure::DevicePeersConnected => now(facts.directory?.peers as u64),
        Measure::StreamSessionsOpen => now(facts.workers.stream_sessions_open),
        Measure::StreamDatagramsDropped => Some(Amount::SoFar(facts.workers.udp_datagrams_dropped)),
        Measure::LimitCounters => now(facts.limits.counters as u64),
        Measure::LimitEvicted => Some(Amount::SoFar(facts.limits.evicted)),
        Measure::LimitContended => Some(Amount::SoFar(facts.limits.contended)),
        Measure::ProcessStartTime => Some(Amount::Now(started_unix_s)),
        // Workers record requests, connections, nodes and upstreams; the collector records the size of the metrics.
        _ => None,
    }
}
