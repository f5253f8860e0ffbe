//! The families of each dialect, exactly as they are exposed.
//!
//! Names, labels, help texts and buckets are contracts with dashboards; none changes without a line in the changelog.
//!
//! Families and labels of APISIX (3.x, `apisix/plugins/prometheus/exporter.lua`) that `APISIX` here omits, since there is nothing
//! to measure: `shared_dict_capacity_bytes` and `shared_dict_free_space_bytes` (no shared dictionaries), `stream_connection_total`
//! (see `stillgate_stream_sessions_total`) and `xrpc_*`, `batch_process_entries` (no batch processors), `llm_*` and the labels
//! `request_type`, `request_llm_model` and `llm_model` of the versions that have them (no AI proxy).

use super::FamilyKind::{Counter, FloatCounter, Gauge, Histogram, Info};
use super::Label::{
    Code, Consumer, Direction, Family, Hostname, Ip, Key, Kind, Listener, MatchedHost, MatchedUri, Method, Name, Node,
    Part, Port, Protocol, Reason, Route, Service, Ssl, State, StreamRoute, Type, Upstream, Version, Worker,
};
use super::{FamilyKind, FamilySpec, Label, Measure};
use stillgate_metrics::Merge::{Last, Sum, Total};

/// Durations of a request, an upstream or a connect, in seconds: from a node on the same machine to a timeout of a minute, two or
/// three bounds a decade. Their number is the most that can be compared without a branch (`bucket_of` in `stillgate-metrics`).
const DURATION_SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Durations of a tunnel, in seconds: from one that is closed at once to one of a day.
const TUNNEL_SECONDS: &[f64] =
    &[0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0];

/// Seconds added by the gateway itself: tens of microseconds if all is well; with the bounds above, every value would be in the
/// first bucket. A turn of a worker's event loop takes similarly long.
const OVERHEAD_SECONDS: &[f64] = &[
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];

/// Milliseconds; APISIX's `DEFAULT_BUCKETS`.
const APISIX_MILLISECONDS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 30000.0, 60000.0];

/// The families of the dialect `native` only.
pub(super) const NATIVE: &[FamilySpec] = &[
    of_requests(
        Measure::HttpRequests,
        "stillgate_http_requests_total",
        "",
        Counter,
        &[Route, Service, Node, Consumer, Code],
        "Requests answered.",
    ),
    of_requests(
        Measure::HttpRequestDuration,
        "stillgate_http_request_duration_seconds",
        "seconds",
        Histogram(DURATION_SECONDS),
        &[Route, Service],
        "Time from the first byte of a request to the last byte of its response; tunnels have a separate family.",
    ),
    of_requests(
        Measure::HttpUpstreamDuration,
        "stillgate_http_upstream_duration_seconds",
        "seconds",
        Histogram(DURATION_SECONDS),
        &[Route, Service],
        "Time from choosing a node to the end of its response, over all tries.",
    ),
    of_requests(
        Measure::HttpGatewayDuration,
        "stillgate_http_gateway_duration_seconds",
        "seconds",
        Histogram(OVERHEAD_SECONDS),
        &[Route, Service],
        "Time of a request that the gateway itself added.",
    ),
    of_requests(
        Measure::HttpTunnelDuration,
        "stillgate_http_tunnel_duration_seconds",
        "seconds",
        Histogram(TUNNEL_SECONDS),
        &[Route, Service],
        "Time from the first byte of a request that became a tunnel (WebSocket and other upgrades) to the tunnel's end.",
    ),
    of_requests(
        Measure::HttpBytes,
        "stillgate_http_bytes_total",
        "bytes",
        Counter,
        &[Route, Service, Direction],
        "Bytes of requests and responses on client connections, heads included.",
    ),
    of_process(
        Measure::Connections,
        "stillgate_connections",
        "",
        Gauge(Sum),
        &[Listener, State],
        "Client connections open now.",
    ),
    of_process(
        Measure::UpstreamHealthy,
        "stillgate_upstream_healthy",
        "",
        Gauge(Last),
        &[Upstream, Node],
        "Whether a node is given requests: 1, or 0 while it is set aside after failures or active checks fail.",
    ),
];

/// The families of the dialect `apisix` only.
pub(super) const APISIX: &[FamilySpec] = &[
    of_requests(
        Measure::ApisixHttpStatus,
        "apisix_http_status",
        "",
        Counter,
        &[Code, Route, MatchedUri, MatchedHost, Service, Consumer, Node],
        "HTTP status codes per service in APISIX",
    ),
    of_requests(
        Measure::ApisixHttpLatency,
        "apisix_http_latency",
        "",
        Histogram(APISIX_MILLISECONDS),
        &[Type, Route, Service, Consumer, Node],
        "HTTP request latency in milliseconds per service in APISIX",
    ),
    of_requests(
        Measure::ApisixBandwidth,
        "apisix_bandwidth",
        "",
        Counter,
        &[Type, Route, Service, Consumer, Node],
        "Total bandwidth in bytes consumed per service in APISIX",
    ),
    of_process(
        Measure::WorkerCount("requests_total"),
        "apisix_http_requests_total",
        "",
        Gauge(Total),
        &[],
        "The total number of client requests since APISIX started",
    ),
    of_process(
        Measure::ApisixConnections,
        "apisix_nginx_http_current_connections",
        "",
        Gauge(Sum),
        &[State],
        "Number of HTTP connections",
    ),
    // A gauge instead of `Info`, as APISIX declares it.
    of_process(
        Measure::ApisixNodeInfo,
        "apisix_node_info",
        "",
        Gauge(Last),
        &[Hostname, Version],
        "Info of APISIX node",
    ),
    of_process(
        Measure::ApisixUpstreamStatus,
        "apisix_upstream_status",
        "",
        Gauge(Last),
        &[Name, Ip, Port],
        "Upstream status from health check",
    ),
    // Alerts check whether it grows. Here it counts values that could not be recorded at all.
    of_process(
        Measure::ApisixMetricErrors,
        "apisix_nginx_metric_errors_total",
        "",
        Counter,
        &[],
        "Number of nginx-lua-prometheus errors",
    ),
    of_process(
        Measure::ApisixEtcdReachable,
        "apisix_etcd_reachable",
        "",
        Gauge(Last),
        &[],
        "Config server etcd reachable from APISIX, 0 is unreachable",
    ),
    of_process(
        Measure::ApisixEtcdModifyIndexes,
        "apisix_etcd_modify_indexes",
        "",
        Gauge(Last),
        &[Key],
        "Etcd modify index for APISIX keys",
    ),
];

/// The families of both dialects: the process, its configuration and the metrics themselves.
pub(super) const COMMON: &[FamilySpec] = &[
    of_process(
        Measure::AccessLogDroppedLines,
        "stillgate_access_log_dropped_lines_total",
        "",
        Counter,
        &[],
        "Access log lines that were lost because their destination was too slow or failed.",
    ),
    of_process(Measure::BuildInfo, "stillgate_build_info", "", Info, &[Version], "The version that is running."),
    of_process(
        Measure::ConfigGeneration,
        "stillgate_config_generation",
        "",
        Gauge(Last),
        &[],
        "How many configurations this process has put to use; that of the first is 1.",
    ),
    of_process(
        Measure::ConfigLastReloadSuccessful,
        "stillgate_config_last_reload_successful",
        "",
        Gauge(Last),
        &[],
        "Whether the configuration as it was last read is in use: 1, or 0 where it was refused.",
    ),
    of_process(
        Measure::ConfigPendingRestartKeys,
        "stillgate_config_pending_restart_keys",
        "",
        Gauge(Last),
        &[],
        "Configuration keys whose new values take effect only at the next start; /v1/status lists them.",
    ),
    of_process(
        Measure::ConfigRejected,
        "stillgate_config_rejected",
        "",
        Gauge(Last),
        &[Kind],
        "Resources that are not served as they were put; /v1/status lists them. A file is refused as a whole, so it has none.",
    ),
    of_process(
        Measure::ConfigLastReloadTime,
        "stillgate_config_last_reload_timestamp_seconds",
        "seconds",
        Gauge(Last),
        &[],
        "When a configuration was last applied or refused, in seconds since 1970; the start counts.",
    ),
    of_process(
        Measure::ConfigLastReloadSuccessTime,
        "stillgate_config_last_reload_success_timestamp_seconds",
        "seconds",
        Gauge(Last),
        &[],
        "When a configuration was last applied, in seconds since 1970.",
    ),
    of_process(
        Measure::ConnectionsAccepted,
        "stillgate_connections_accepted_total",
        "",
        Counter,
        &[Listener],
        "Connections accepted, including TCP streams and connections refused afterwards.",
    ),
    of_process(
        Measure::ConnectionsRefused,
        "stillgate_connections_refused_total",
        "",
        Counter,
        &[Listener],
        "Connections answered 503 or closed because the worker had reached limits.connections_per_worker.",
    ),
    of_process(
        Measure::ProxyProtocolErrors,
        "stillgate_proxy_protocol_errors_total",
        "",
        Counter,
        &[Listener],
        "Connections closed because their PROXY protocol header was malformed or late.",
    ),
    of_process(
        Measure::WorkerCpu,
        "stillgate_worker_cpu_seconds_total",
        "seconds",
        FloatCounter,
        &[Worker],
        "User and system CPU time used by a worker thread.",
    ),
    of_process(
        Measure::WorkerConnections,
        "stillgate_worker_connections",
        "",
        Gauge(Sum),
        &[Worker],
        "Open client connections of a worker, including TCP streams.",
    ),
    of_process(
        Measure::WorkerTurns,
        "stillgate_worker_turn_seconds",
        "seconds",
        Histogram(OVERHEAD_SECONDS),
        &[Worker],
        "Duration of one turn of a worker's event loop; new events wait until it ends. A worker that is not blocked makes \
         at least one turn a second.",
    ),
    of_process(
        Measure::MetricsBytes,
        "stillgate_metrics_bytes",
        "bytes",
        Gauge(Last),
        &[Part],
        "Memory that the metrics take.",
    ),
    of_process(Measure::MetricsSeries, "stillgate_metrics_series", "", Gauge(Last), &[Family], "Series of a family."),
    of_process(
        Measure::ProcessCpu,
        "process_cpu_seconds_total",
        "seconds",
        FloatCounter,
        &[],
        "Total user and system CPU time spent in seconds.",
    ),
    of_process(
        Measure::ProcessMaxFds,
        "process_max_fds",
        "",
        Gauge(Last),
        &[],
        "Maximum number of open file descriptors.",
    ),
    of_process(Measure::ProcessOpenFds, "process_open_fds", "", Gauge(Last), &[], "Number of open file descriptors."),
    of_process(
        Measure::ProcessResidentMemory,
        "process_resident_memory_bytes",
        "bytes",
        Gauge(Last),
        &[],
        "Resident memory size in bytes.",
    ),
    of_process(
        Measure::ProcessStartTime,
        "process_start_time_seconds",
        "seconds",
        Gauge(Last),
        &[],
        "Start time of the process since unix epoch in seconds.",
    ),
    of_process(
        Measure::ProcessVirtualMemory,
        "process_virtual_memory_bytes",
        "bytes",
        Gauge(Last),
        &[],
        "Virtual memory size in bytes.",
    ),
    of_process(
        Measure::WorkerCount("route_cache_bytes"),
        "stillgate_route_cache_bytes",
        "bytes",
        Gauge(Sum),
        &[],
        "Memory that the workers' route caches use.",
    ),
    of_process(
        Measure::WorkerCount("route_cache_entries"),
        "stillgate_route_cache_entries",
        "",
        Gauge(Sum),
        &[],
        "Requests whose route the workers' route caches know.",
    ),
    of_process(
        Measure::WorkerCount("route_cache_hits"),
        "stillgate_route_cache_hits_total",
        "",
        Counter,
        &[],
        "Requests whose route a route cache knew.",
    ),
    of_process(
        Measure::WorkerCount("route_cache_misses"),
        "stillgate_route_cache_misses_total",
        "",
        Counter,
        &[],
        "Requests whose route a route cache was asked for and did not know.",
    ),
    of_process(
        Measure::UpstreamConnectDuration,
        "stillgate_upstream_connect_duration_seconds",
        "seconds",
        Histogram(DURATION_SECONDS),
        &[Upstream],
        "Time to open a new connection to a node, including the TLS handshake; failed attempts do not count.",
    ),
    of_process(
        Measure::UpstreamRetries,
        "stillgate_upstream_retries_total",
        "",
        Counter,
        &[Upstream],
        "Requests that were sent a second time, or to another node.",
    ),
    of_process(
        Measure::RetriesOverBudget,
        "stillgate_upstream_retries_over_budget_total",
        "",
        Counter,
        &[Upstream],
        "Retries that were not made because the upstream's retry_budget was spent.",
    ),
    of_process(
        Measure::RequestsShed,
        "stillgate_upstream_requests_shed_total",
        "",
        Counter,
        &[Upstream],
        "Requests answered 503, and TCP connections of stream_routes closed, because the upstream had reached \
         limits.requests.",
    ),
    of_process(
        Measure::RequestsQueued,
        "stillgate_upstream_requests_queued_total",
        "",
        Counter,
        &[Upstream],
        "Requests that waited in the upstream's queue (limits.queue), whether served afterwards or not.",
    ),
    of_process(
        Measure::RequestsWaiting,
        "stillgate_upstream_requests_waiting",
        "",
        Gauge(Sum),
        &[Upstream],
        "Requests now waiting in the upstream's queue.",
    ),
    of_process(
        Measure::WorkerCount("http2_requests_refused"),
        "stillgate_http2_requests_refused_total",
        "",
        Counter,
        &[],
        "Requests of HTTP/2 reset or answered 431 before they were complete: malformed, with too large fields, or more at once than a connection may have.",
    ),
    of_process(
        Measure::ShutdownCut,
        "stillgate_shutdown_cut_total",
        "",
        Counter,
        &[Kind],
        "What did not end within timeouts.drain, or timeouts.upgrade, and was cut off, by kind: request, tunnel or stream.",
    ),
    of_process(
        Measure::WorkerCount("tls_handshakes"),
        "stillgate_tls_handshakes_total",
        "",
        Counter,
        &[],
        "Completed TLS handshakes with clients.",
    ),
    of_process(
        Measure::TlsHandshakesFailed,
        "stillgate_tls_handshakes_failed_total",
        "",
        Counter,
        &[Reason],
        "Failed TLS handshakes with clients, and unreadable ClientHellos with tls_passthrough.",
    ),
    of_process(
        Measure::TlsCertificateExpiry,
        "stillgate_tls_certificate_expiry_timestamp_seconds",
        "seconds",
        Gauge(Last),
        &[Ssl],
        "When the first certificate of an ssls entry expires, in seconds since 1970.",
    ),
    of_process(
        Measure::AcmeFailures,
        "stillgate_acme_failures_total",
        "",
        Counter,
        &[],
        "Tries to order a certificate that failed.",
    ),
    of_process(
        Measure::WorkerCount("tunnels_open"),
        "stillgate_tunnels_open",
        "",
        Gauge(Sum),
        &[],
        "Tunnels (WebSocket and other upgrades) open now.",
    ),
    of_process(
        Measure::WorkerCount("tunnels_total"),
        "stillgate_tunnels_total",
        "",
        Counter,
        &[],
        "Tunnels opened. Each adds to the families of requests when it ends.",
    ),
    of_process(
        Measure::StreamSessions,
        "stillgate_stream_sessions_total",
        "",
        Counter,
        &[StreamRoute, Node, Protocol, Code],
        "Connections of TCP and sessions of UDP that have ended, by stream_routes.",
    ),
    of_process(
        Measure::StreamBytes,
        "stillgate_stream_bytes_total",
        "bytes",
        Counter,
        &[StreamRoute, Direction],
        "Bytes of connections and sessions that have ended.",
    ),
    of_process(
        Measure::WorkerCount("stream_sessions_open"),
        "stillgate_stream_sessions_open",
        "",
        Gauge(Sum),
        &[],
        "Connections and sessions to nodes of stream_routes that are open now.",
    ),
    of_process(
        Measure::WorkerCount("udp_datagrams_dropped"),
        "stillgate_stream_datagrams_dropped_total",
        "",
        Counter,
        &[],
        "UDP datagrams that could not be passed on: no stream route, no node, no room.",
    ),
    of_process(
        Measure::LimitCounters,
        "stillgate_limit_counters",
        "",
        Gauge(Last),
        &[],
        "Counters of limits whose window has not ended.",
    ),
    of_process(
        Measure::LimitEvicted,
        "stillgate_limit_evicted_total",
        "",
        Counter,
        &[],
        "Counters of limits dropped before their window ended, because limits.counters_bytes has no room.",
    ),
    of_process(
        Measure::LimitContended,
        "stillgate_limit_contended_total",
        "",
        Counter,
        &[],
        "Requests that could not be counted by a limit, because too many changed its counter at once.",
    ),
];

/// A family to which each request adds.
const fn of_requests(
    measure: Measure,
    name: &'static str,
    unit: &'static str,
    kind: FamilyKind,
    labels: &'static [Label],
    help: &'static str,
) -> FamilySpec {
    FamilySpec { measure, name, help, unit, kind, labels, optional: &[Method], per_request: true }
}

/// A family about the state of the process.
pub(super) const fn of_process(
    measure: Measure,
    name: &'static str,
    unit: &'static str,
    kind: FamilyKind,
    labels: &'static [Label],
    help: &'static str,
) -> FamilySpec {
    FamilySpec { measure, name, help, unit, kind, labels, optional: &[], per_request: false }
}
