//! The gateway's metrics, under the names that dashboards use.
//!
//! One table per dialect, so that the configuration, the recording code and `docs/metrics.md` cannot disagree. A family is as in
//! the table unless an operator disables it or some of its labels, or adds labels: see `values::metrics`. The code that records a
//! family determines its values.

mod feature_tables;
mod labels;
mod tables;

use FamilyKind::{Counter, Gauge};
use Label::{Plugin, Reason, State};
pub use labels::Label;
use std::collections::{BTreeMap, BTreeSet};
use stillgate_metrics::Merge::{self, Last, Sum};
use tables::of_process;

/// The origin of the names, labels, units and buckets of families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Prometheus' conventions: base units, `_total`.
    Native,
    /// The conventions of APISIX's `prometheus` plugin, for dashboards and alerts made for it.
    Apisix,
}

/// The measures: one for each family of either dialect. A family that both dialects have is one measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Measure {
    /// A count of the workers without labels, by its name in `stillgate_proxy::Counters`.
    WorkerCount(&'static str),
    /// `stillgate_http_requests_total`
    HttpRequests,
    /// `stillgate_http_request_duration_seconds`
    HttpRequestDuration,
    /// `stillgate_http_upstream_duration_seconds`
    HttpUpstreamDuration,
    /// `stillgate_http_gateway_duration_seconds`
    HttpGatewayDuration,
    /// `stillgate_http_tunnel_duration_seconds`
    HttpTunnelDuration,
    /// `stillgate_http_bytes_total`
    HttpBytes,
    /// `stillgate_connections`
    Connections,
    /// `stillgate_upstream_healthy`
    UpstreamHealthy,
    /// `apisix_http_status`
    ApisixHttpStatus,
    /// `apisix_http_latency`
    ApisixHttpLatency,
    /// `apisix_bandwidth`
    ApisixBandwidth,
    /// `apisix_nginx_http_current_connections`
    ApisixConnections,
    /// `apisix_node_info`
    ApisixNodeInfo,
    /// `apisix_upstream_status`
    ApisixUpstreamStatus,
    /// `apisix_nginx_metric_errors_total`
    ApisixMetricErrors,
    /// `apisix_etcd_reachable`
    ApisixEtcdReachable,
    /// `apisix_etcd_modify_indexes`
    ApisixEtcdModifyIndexes,
    /// `stillgate_access_log_dropped_lines_total`
    AccessLogDroppedLines,
    /// `stillgate_build_info`
    BuildInfo,
    /// `stillgate_config_generation`
    ConfigGeneration,
    /// `stillgate_config_last_reload_successful`
    ConfigLastReloadSuccessful,
    /// `stillgate_config_pending_restart_keys`
    ConfigPendingRestartKeys,
    /// `stillgate_config_rejected`
    ConfigRejected,
    /// `stillgate_config_last_reload_timestamp_seconds`
    ConfigLastReloadTime,
    /// `stillgate_config_last_reload_success_timestamp_seconds`
    ConfigLastReloadSuccessTime,
    /// `stillgate_config_ignored_plugins`
    ConfigIgnoredPlugins,
    /// `stillgate_config_source_up`
    ConfigSourceUp,
    /// `stillgate_config_source_revision`
    ConfigSourceRevision,
    /// `stillgate_config_source_last_contact_timestamp_seconds`
    ConfigSourceContactTime,
    /// `stillgate_connections_accepted_total`
    ConnectionsAccepted,
    /// `stillgate_connections_refused_total`
    ConnectionsRefused,
    /// `stillgate_proxy_protocol_errors_total`
    ProxyProtocolErrors,
    /// `stillgate_worker_cpu_seconds_total`
    WorkerCpu,
    /// `stillgate_worker_connections`
    WorkerConnections,
    /// `stillgate_worker_turn_seconds`
    WorkerTurns,
    /// `stillgate_metrics_bytes`
    MetricsBytes,
    /// `stillgate_metrics_series`
    MetricsSeries,
    /// `stillgate_plugin_seconds`
    PluginDuration,
    /// `stillgate_plugin_answers_total`
    PluginAnswers,
    /// `stillgate_plugin_panics_total`
    PluginPanics,
    /// `stillgate_plugin_offloads_total`
    PluginOffloads,
    /// `stillgate_plugin_offloads_refused_total`
    PluginOffloadsRefused,
    /// `stillgate_plugin_waits_total`
    PluginWaits,
    /// `stillgate_plugin_waits_refused_total`
    PluginWaitsRefused,
    /// `stillgate_plugin_heads_refused_total`
    PluginHeadsRefused,
    /// `stillgate_plugin_bodies_refused_total`
    PluginBodiesRefused,
    /// `stillgate_plugin_failures_total`
    PluginFailures,
    /// `stillgate_plugin_sends_dropped_total`
    PluginSendsDropped,
    /// `process_cpu_seconds_total`
    ProcessCpu,
    /// `process_resident_memory_bytes`
    ProcessResidentMemory,
    /// `process_virtual_memory_bytes`
    ProcessVirtualMemory,
    /// `process_open_fds`
    ProcessOpenFds,
    /// `process_max_fds`
    ProcessMaxFds,
    /// `process_start_time_seconds`
    ProcessStartTime,
    /// `stillgate_upstream_connect_duration_seconds`
    UpstreamConnectDuration,
    /// `stillgate_upstream_retries_total`
    UpstreamRetries,
    /// `stillgate_upstream_retries_over_budget_total`
    RetriesOverBudget,
    /// `stillgate_upstream_requests_shed_total`
    RequestsShed,
    /// `stillgate_upstream_requests_queued_total`
    RequestsQueued,
    /// `stillgate_upstream_requests_waiting`
    RequestsWaiting,
    /// `stillgate_shutdown_cut_total`
    ShutdownCut,
    /// `stillgate_tls_handshakes_failed_total`
    TlsHandshakesFailed,
    /// `stillgate_tls_certificate_expiry_timestamp_seconds`
    TlsCertificateExpiry,
    /// `stillgate_acme_failures_total`
    AcmeFailures,
    /// `stillgate_device_connections_total`
    DeviceConnections,
    /// `stillgate_device_disconnections_total`
    DeviceDisconnections,
    /// `stillgate_device_messages_total`
    DeviceMessages,
    /// `stillgate_device_events_dropped_total`
    DeviceEventsDropped,
    /// `stillgate_device_directory_up`
    DeviceDirectoryUp,
    /// `stillgate_device_directory_commands_total`
    DeviceDirectoryCommands,
    /// `stillgate_device_directory_pending`
    DeviceDirectoryPending,
    /// `stillgate_device_nodes`
    DeviceNodes,
    /// `stillgate_device_peers_connected`
    DevicePeersConnected,
    /// `stillgate_device_peers_refused_total`
    DevicePeersRefused,
    /// `stillgate_stream_sessions_total`
    StreamSessions,
    /// `stillgate_stream_bytes_total`
    StreamBytes,
    /// `stillgate_limit_counters`
    LimitCounters,
    /// `stillgate_limit_evicted_total`
    LimitEvicted,
    /// `stillgate_limit_contended_total`
    LimitContended,
    /// `stillgate_logger_sent_total`
    LoggerSent,
    /// `stillgate_logger_sent_bytes_total`
    LoggerSentBytes,
    /// `stillgate_logger_dropped_total`
    LoggerDropped,
    /// `stillgate_logger_bytes`
    LoggerBytes,
    /// `stillgate_lua_traces_total`
    LuaTraces,
    /// `stillgate_lua_aborts_total`
    LuaAborts,
    /// `stillgate_lua_flushes_total`
    LuaFlushes,
    /// `stillgate_lua_machine_code_bytes`
    LuaMachineCode,
    /// `stillgate_lua_functions`
    LuaFunctions,
}

impl Measure {
    /// The measure of APISIX's exporter with the same meaning; itself if there is none.
    pub(crate) fn in_apisix(self) -> Measure {
        match self {
            Measure::HttpRequests => Measure::ApisixHttpStatus,
            Measure::HttpRequestDuration
            | Measure::HttpUpstreamDuration
            | Measure::HttpGatewayDuration
            | Measure::HttpTunnelDuration => Measure::ApisixHttpLatency,
            Measure::HttpBytes => Measure::ApisixBandwidth,
            other => other,
        }
    }
}

/// One family in a dialect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FamilySpec {
    /// What it measures.
    pub measure: Measure,
    /// The name in expositions.
    pub name: &'static str,
    /// The help text in expositions.
    pub help: &'static str,
    /// OpenMetrics' unit, or empty.
    pub unit: &'static str,
    /// The type of its series.
    pub kind: FamilyKind,
    /// The labels in the order in which they are exposed.
    pub labels: &'static [Label],
    /// Labels that it has only if `gateway.metrics.enable` names them; they come after its own.
    pub optional: &'static [Label],
    /// Whether each request adds to one of its series. Only such a family can have labels from variables of the request, and only
    /// its labels can be disabled: elsewhere a label distinguishes series that cannot be added up.
    pub per_request: bool,
}

/// The type of a family's series; [`stillgate_metrics::FamilyType`] as a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FamilyKind {
    /// Only grows, by whole numbers.
    Counter,
    /// Only grows, by any amount.
    FloatCounter,
    /// Goes up and down.
    Gauge(Merge),
    /// Always 1.
    Info,
    /// Classic buckets with these finite upper bounds, in the family's unit.
    Histogram(&'static [f64]),
}

impl Dialect {
    /// Every dialect with its name in `gateway.metrics.dialect`.
    pub const ALL: [(&'static str, Dialect); 2] = [("native", Dialect::Native), ("apisix", Dialect::Apisix)];

    /// The labels that are off unless `gateway.metrics.enable` names them.
    pub(crate) fn optional_labels(self) -> BTreeSet<Label> {
        self.families().flat_map(|spec| spec.optional).copied().collect()
    }

    /// Every family of the dialect.
    pub fn families(self) -> impl Iterator<Item = &'static FamilySpec> + Clone {
        let own = match self {
            Dialect::Native => tables::NATIVE,
            Dialect::Apisix => tables::APISIX,
        };
        own.iter()
            .chain(tables::COMMON)
            .chain(SOURCE)
            .chain(feature_tables::DEVICES)
            .chain(feature_tables::PLUGINS)
            .chain(LUA)
    }

    /// The family with this name, which may lack the dialect's prefix: `http_status` is `apisix_http_status`.
    pub fn find(self, name: &str) -> Option<&'static FamilySpec> {
        self.families().find(|spec| spec.name == name || self.short(spec) == name)
    }

    /// A family's name without the prefix of the dialect, as the configuration names it.
    pub fn short(self, spec: &FamilySpec) -> &'static str {
        let prefix = match self {
            Dialect::Native => "stillgate_",
            Dialect::Apisix => "apisix_",
        };
        spec.name.strip_prefix(prefix).unwrap_or(spec.name)
    }

    /// The name in `gateway.metrics.dialect`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Dialect::Native => "native",
            Dialect::Apisix => "apisix",
        }
    }
}

impl Measure {
    /// Whether each worker records it; the control thread sets the others.
    pub fn is_of_workers(self) -> bool {
        matches!(
            self,
            Measure::Connections
                | Measure::ApisixConnections
                | Measure::ConnectionsAccepted
                | Measure::ConnectionsRefused
                | Measure::ProxyProtocolErrors
                | Measure::WorkerCpu
                | Measure::WorkerConnections
                | Measure::WorkerTurns
                | Measure::UpstreamHealthy
                | Measure::ApisixUpstreamStatus
                | Measure::UpstreamConnectDuration
                | Measure::UpstreamRetries
                | Measure::RetriesOverBudget
                | Measure::RequestsShed
                | Measure::RequestsQueued
                | Measure::RequestsWaiting
                | Measure::PluginDuration
                | Measure::PluginAnswers
                | Measure::PluginPanics
                | Measure::PluginOffloads
                | Measure::PluginOffloadsRefused
                | Measure::PluginWaits
                | Measure::PluginWaitsRefused
                | Measure::PluginHeadsRefused
                | Measure::PluginBodiesRefused
                | Measure::PluginFailures
                | Measure::PluginSendsDropped
                | Measure::StreamSessions
                | Measure::StreamBytes
                | Measure::DeviceConnections
                | Measure::DeviceDisconnections
                | Measure::DeviceMessages
                | Measure::DeviceEventsDropped
        )
    }
}

impl FamilyKind {
    /// The type in expositions.
    fn word(self) -> &'static str {
        match self {
            FamilyKind::Counter | FamilyKind::FloatCounter => "counter",
            FamilyKind::Gauge(_) => "gauge",
            FamilyKind::Info => "info",
            FamilyKind::Histogram(_) => "histogram",
        }
    }
}

// `docs/metrics.md`, written from the tables so that it cannot be stale.

const INTRODUCTION: &str = "\
# Metrics

What the gateway exposes, by dialect, at `/metrics` of the admin address and on `gateway.metrics.address`
([where to scrape](monitoring.md#where-to-scrape)). How to switch families and labels off, how to add labels
from variables of the request and how to bound memory is said in [configuration.md](configuration.md#metrics).

Every peer that reaches `gateway.metrics.address` may scrape; there is no key. On a loopback address a scraper
must ask for an IP address, `localhost`, the machine's own name or one of `gateway.metrics.hosts`
(see [admin.md](admin.md#access)); on other addresses any name works.

A route with the plugin [public-api](plugins/public-api.md#metrics) serves the same to clients of the
gateway.

Formats, by the scraper's `Accept`: text 0.0.4, OpenMetrics 1.0.0, and Prometheus' delimited protobuf. With
`native_histograms: true` histograms have native buckets as well, in the protobuf format.

A label whose values become too many takes the value `__other__`, in existing series, too; the other labels stay exact, and so do
sums ([monitoring.md](monitoring.md#labels-that-explode)). `stillgate_metrics_collapsed_observations_total{family,label}` counts
what came in after that.

Where several processes count at a time (during an upgrade, or with `gateway.metrics.shared`), an exposition shows what all of
them have counted. Of gauges it shows the sum where they tell how much there is (connections, tunnels), and otherwise what was
set last, during an upgrade by the new process: its start, its memory, its configuration. When a process ends its counters and
histograms stay in the totals, and so does `apisix_http_requests_total`; its gauges go. An upgrade hands the totals over in
memory, which takes some beyond `gateway.metrics.memory`: what the former processes' series need, of each family at most twice
`series_per_family`. After a start of any other kind totals start at zero, unless they are in a folder. They also start at zero where
an upgrade changes `gateway.metrics.shared`, and those of a family whose type, unit or buckets the next release changes.
";

/// Every family of every dialect, its labels and its buckets, as Markdown.
pub(crate) fn families_as_markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    let sections = [
        ("Dialect `native`", "Families of the gateway by Prometheus' conventions. The default.", tables::NATIVE),
        (
            "Dialect `apisix`",
            "The families of APISIX's `prometheus` plugin, for dashboards and alerts that were made for it. What has \
             nothing to measure here is left out: shared dictionaries, xRPC, batch processors, AI. \
             `apisix_nginx_metric_errors_total` counts what could not be recorded at all. As in APISIX, `apisix_upstream_status` \
             exists for upstreams with `checks` only.",
            tables::APISIX,
        ),
        (
            "In both dialects",
            "The process, its workers, its configuration, upstreams, streams and the metrics themselves.\n\n\
             Counters with the label `upstream` start at 0 if the upstream's configuration uses what they count,\n\
             so that an alert on their rate sees the first event. With `gateway.metrics.expire` an idle counter\n\
             is removed, and its next event starts it at 1: a rate misses that event. Histograms and\n\
             `stillgate_upstream_requests_waiting` appear with their first value.",
            tables::COMMON,
        ),
        (
            "Where resources come from, in both dialects",
            "Of the store or etcd: [control-plane.md](control-plane.md#monitoring).",
            SOURCE,
        ),
        (
            "Devices, in both dialects",
            "Those about the directory are there on nodes that share one: [devices.md](devices.md#several-nodes).",
            feature_tables::DEVICES,
        ),
        ("Plugins, in both dialects", "Of each plugin that is used.", feature_tables::PLUGINS),
        (
            "Functions in Lua, in both dialects",
            "What LuaJIT compiles: [jit-health.md](jit-health.md). There are none until a worker has run a function.",
            LUA,
        ),
    ];
    for (title, about, families) in sections {
        out +=
            &format!("\n## {title}\n\n{about}\n\n| family | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
        families.iter().for_each(|spec| write_family(&mut out, spec));
    }
    write_labels(&mut out);
    write_buckets(&mut out);
    out
}

fn write_family(out: &mut String, spec: &FamilySpec) {
    let labels: Vec<String> = spec.labels.iter().map(|label| format!("`{}`", label.name())).collect();
    let (name, kind, help) = (spec.name, spec.kind.word(), spec.help);
    *out += &format!("| `{name}` | {kind} | {} | {} | {help} |\n", spec.unit, labels.join(", "));
}

fn write_labels(out: &mut String) {
    let all = Dialect::ALL
        .iter()
        .flat_map(|(_, dialect)| dialect.families())
        .flat_map(|spec| spec.labels.iter().chain(spec.optional));
    let labels: BTreeMap<&str, &Label> = all.map(|label| (label.name(), label)).collect();
    *out += "\n## Labels\n\n";
    *out += "`disable.labels` takes labels of families that count requests, except `type`;\nelsewhere a label separates \
        values that cannot be added up.\n`enable.labels: [method]` adds the label `method` to families that count requests.\n\n| label | values |\n|---|---|\n";
    for label in labels.values() {
        let (name, values) = label.described();
        *out += &format!("| `{name}` | {values} |\n");
    }
}

fn write_buckets(out: &mut String) {
    *out += "\n## Buckets\n\nUpper bounds of the classic buckets, in the family's unit (`apisix_http_latency`: \
             milliseconds); `+Inf` follows.\n\n| family | bounds |\n|---|---|\n";
    let all = tables::NATIVE.iter().chain(tables::APISIX).chain(tables::COMMON).chain(feature_tables::PLUGINS);
    for spec in all {
        if let FamilyKind::Histogram(bounds) = spec.kind {
            let bounds: Vec<String> = bounds.iter().map(f64::to_string).collect();
            *out += &format!("| `{}` | {} |\n", spec.name, bounds.join(", "));
        }
    }
}

// The families about the source of resources, which both dialects have.

/// All of them.
const SOURCE: &[FamilySpec] = &[
    of_process(
        Measure::ConfigIgnoredPlugins,
        "stillgate_config_ignored_plugins",
        "",
        Gauge(Last),
        &[Plugin],
        "Resources that have a plugin which gateway.config.ignore_plugins leaves out.",
    ),
    of_process(
        Measure::ConfigSourceUp,
        "stillgate_config_source_up",
        "",
        Gauge(Last),
        &[],
        "Whether the store or etcd can be followed: 1, or 0 where changes in it cannot be seen or made; /v1/status says why. \
         Absent where resources come from the file.",
    ),
    of_process(
        Measure::ConfigSourceRevision,
        "stillgate_config_source_revision",
        "",
        Gauge(Last),
        &[],
        "The revision of the store or etcd that was read last; the same on all gateways of one etcd that have seen the same changes.",
    ),
    of_process(
        Measure::ConfigSourceContactTime,
        "stillgate_config_source_last_contact_timestamp_seconds",
        "seconds",
        Gauge(Last),
        &[],
        "When the store or etcd last answered, in seconds since 1970; etcd is asked every five seconds. Absent before the first answer.",
    ),
];

// The families about functions in Lua, which both dialects have.

/// The families about LuaJIT.
const LUA: &[FamilySpec] = &[
    of_process(
        Measure::LuaTraces,
        "stillgate_lua_traces_total",
        "",
        Counter,
        &[],
        "Pieces of machine code that LuaJIT has made of functions in Lua.",
    ),
    of_process(
        Measure::LuaAborts,
        "stillgate_lua_aborts_total",
        "",
        Counter,
        &[Reason],
        "Times that LuaJIT began to compile and stopped, by the reason. Some are usual while functions become warm.",
    ),
    of_process(
        Measure::LuaFlushes,
        "stillgate_lua_flushes_total",
        "",
        Counter,
        &[],
        "Times that LuaJIT threw away all machine code of a worker.",
    ),
    of_process(
        Measure::LuaMachineCode,
        "stillgate_lua_machine_code_bytes",
        "bytes",
        Gauge(Sum),
        &[],
        "Machine code that LuaJIT has made, of all workers.",
    ),
    of_process(
        Measure::LuaFunctions,
        "stillgate_lua_functions",
        "",
        Gauge(Sum),
        &[State],
        "Functions in Lua by what has become of them, of all workers: `compiled`, `stitched`, `interpreted`, `blacklisted`.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn words_are_those_of_the_key() {
        for (word, dialect) in Dialect::ALL {
            assert_eq!(dialect.word(), word);
        }
    }

    #[test]
    fn names_and_measures_are_unique() {
        for (word, dialect) in Dialect::ALL {
            let names: HashSet<&str> = dialect.families().flat_map(|spec| [spec.name, dialect.short(spec)]).collect();
            let shortened = dialect.families().filter(|spec| spec.name != dialect.short(spec)).count();
            assert_eq!(names.len(), dialect.families().count() + shortened, "{word}");
            let measures: HashSet<Measure> = dialect.families().map(|spec| spec.measure).collect();
            assert_eq!(measures.len(), dialect.families().count(), "{word}");
        }
    }

    /// During an upgrade two processes expose themselves, so some series exist twice then.
    #[test]
    fn gauges_are_sums_unless_they_are_of_one_process() {
        let is_last = |spec: &&FamilySpec| matches!(spec.kind, FamilyKind::Gauge(Merge::Last));
        let all: BTreeSet<&str> = Dialect::ALL
            .iter()
            .flat_map(|(_, dialect)| dialect.families().filter(is_last))
            .map(|spec| spec.name)
            .collect();
        let of_one = [
            "apisix_etcd_modify_indexes",
            "apisix_etcd_reachable",
            "apisix_node_info",
            "apisix_upstream_status",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
            "stillgate_config_generation",
            "stillgate_config_last_reload_success_timestamp_seconds",
            "stillgate_config_last_reload_successful",
            "stillgate_config_pending_restart_keys",
            "stillgate_config_rejected",
            "stillgate_config_ignored_plugins",
            "stillgate_config_last_reload_timestamp_seconds",
            "stillgate_config_source_last_contact_timestamp_seconds",
            "stillgate_config_source_revision",
            "stillgate_config_source_up",
            "stillgate_device_directory_pending",
            "stillgate_device_directory_up",
            "stillgate_device_nodes",
            "stillgate_device_peers_connected",
            "stillgate_limit_counters",
            "stillgate_logger_bytes",
            "stillgate_metrics_bytes",
            "stillgate_metrics_series",
            "stillgate_tls_certificate_expiry_timestamp_seconds",
            "stillgate_upstream_healthy",
        ];
        assert_eq!(all, BTreeSet::from(of_one));
    }

    #[test]
    fn families_are_found_with_and_without_the_prefix() {
        let check = |dialect: Dialect, name: &str, want: Option<Measure>| {
            assert_eq!(dialect.find(name).map(|spec| spec.measure), want, "{dialect:?} {name}");
        };
        check(Dialect::Native, "http_requests_total", Some(Measure::HttpRequests));
        check(Dialect::Native, "stillgate_http_requests_total", Some(Measure::HttpRequests));
        check(Dialect::Native, "apisix_http_requests_total", None);
        check(Dialect::Apisix, "http_requests_total", Some(Measure::WorkerCount("requests_total")));
        check(Dialect::Apisix, "apisix_http_status", Some(Measure::ApisixHttpStatus));
        check(Dialect::Apisix, "stillgate_metrics_series", Some(Measure::MetricsSeries));
        check(Dialect::Native, "process_open_fds", Some(Measure::ProcessOpenFds));
        check(Dialect::Native, "", None);
    }
}
