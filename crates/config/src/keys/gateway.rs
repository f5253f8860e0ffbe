//! The keys of the `gateway:` section, which describes the process.
//!
//! The structs made here are what the rest of the program uses; nothing in this section refers to anything outside it.
//!
//! `gateway.debug` lets operators look inside the running process, and `gateway.lua` says where plugins in Lua are: their
//! keys are here, too.

use crate::keys::access_log::ACCESS_LOG;
use crate::keys::acme::Acme;
use crate::keys::admin::{Admin, AdminSection};
use crate::keys::control_plane::{ConfigSourceKeys, DataEncryption};
use crate::keys::devices::{Devices, DevicesSection};
use crate::keys::files::WHOLE_PATH;
use crate::keys::metrics::METRICS;
use crate::keys::stream_proxy::StreamProxy;
use crate::values::{AccessLog, LogFormat, Metrics, RouteCacheMode};
use ipnet::IpNet;
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stillgate_schema::description::{Definitions, or_environment};
use stillgate_schema::json_of;
use stillgate_schema::kind::{
    ADDRESS, At, Choice, Flag, Kind, LocatedKind, Text, int, list, read, report_expected, some, text,
};
use stillgate_schema::matching::NETWORK;
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{DurationRange, Size, size, span};
use stillgate_schema::text::diagnostic::{Fault, Path, Sink};
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::text::tree::{Node, Value};

/// The largest `gateway.limits.head_bytes`, and the largest `gateway.limits.headers`.
pub use stillgate_wire::{HEAD_BYTES_MAX, HEADERS_MAX};

/// Most worker threads.
pub const WORKERS_MAX: usize = 256;
/// The largest `gateway.limits.connections_per_worker`.
pub const CONNECTIONS_PER_WORKER_MAX: usize = 1 << 20;

/// The largest `gateway.limits.counters_bytes`.
const COUNTERS_BYTES_MAX: usize = 16 << 30;

/// The largest `gateway.route_cache.entries`.
pub const ROUTE_CACHE_ENTRIES_MAX: usize = 1 << 20;
/// The largest `gateway.route_cache.bytes`.
pub const ROUTE_CACHE_BYTES_MAX: usize = 1 << 30;

const CLIENT_TIMEOUT: DurationRange = span(Duration::from_millis(1), Duration::from_secs(3600));
const DRAIN: DurationRange = span(Duration::ZERO, Duration::from_secs(3600));
const UPGRADE: DurationRange = span(Duration::ZERO, YEAR);
const TUNNEL_IDLE: DurationRange = span(Duration::from_millis(1), YEAR);
const TUNNEL_TOTAL: DurationRange = span(Duration::ZERO, YEAR);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const HEAD_BYTES: Size = size(1024, HEAD_BYTES_MAX);
const ROUTE_CACHE_BYTES: Size = size(64 * 1024, ROUTE_CACHE_BYTES_MAX);
const COUNTERS_BYTES: Size = size(64 * 1024, COUNTERS_BYTES_MAX);
const TARGET_BYTES: Size = size(64, HEAD_BYTES_MAX);

object! {
    /// The process: listeners, limits and logs.
    pub struct Gateway {
        /// Number of worker threads. `auto`: one per CPU available to the process (by affinity and cgroup quota; 1.5
        /// CPUs give 2).
        workers: Option<NonZeroUsize> = Workers => default(None);
        /// Listening addresses; must not be empty.
        listeners: Vec<HttpListener> = Listeners => default(vec![HttpListener {
            address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 9080),
            tls: false,
            proxy_protocol: false,
            http2: true,
        }]);
        /// Proxying of TCP and UDP.
        stream_proxy: StreamProxy = map::<StreamProxy>() => nested;
        /// The admin API; if absent, no admin address is opened.
        admin: Admin = AdminSection => optional;
        /// Long-lived device connections, and the API to send to devices.
        devices: Devices = DevicesSection => optional;
        /// Where the resources come from.
        config: ConfigSourceKeys = map::<ConfigSourceKeys>() => nested;
        /// Encryption of credentials and private keys of resources in a store or in etcd.
        data_encryption: DataEncryption = map::<DataEncryption>() => nested;
        /// What to measure and where to expose it. If absent, the defaults apply, exposed on `/metrics` of the admin
        /// address.
        metrics: Option<Metrics> = METRICS => nested;
        /// The ACME server that issues certificates for `ssls` with `acme: true`.
        acme: Acme = map::<Acme>() => optional;
        /// PID file, for `stillgate upgrade`: written when the process serves, and by its successor on takeover;
        /// removed at exit, unless a successor has taken it over.
        pid_file: PathBuf = WHOLE_PATH => optional;
        /// Addresses and networks of trusted proxies. Their `X-Forwarded-For`, or `X-Real-IP` if that is absent, gives the
        /// client's address. Nodes get this address as `X-Real-IP`, and the other `X-Forwarded-*` fields unchanged.
        trusted_proxies: Vec<IpNet> = list(NETWORK) => default(Vec::new());
        /// Whether to replace the node's `Server` header with the gateway's (without version).
        server_header: bool = Flag => default(true);
        /// Whether request header fields with `_` in their names are passed on, like nginx's directive of the same
        /// name. If not, they are dropped before any other processing: CGI, WSGI and PHP nodes cannot tell `X_User`
        /// from `X-User`.
        underscores_in_headers: bool = Flag => default(false);
        /// Whether `:name` in a route's `uri` matches any one segment, as in APISIX's router
        /// `radixtree_uri_with_parameter`. If not, it is literal text, as in APISIX's other routers.
        path_parameters: bool = Flag => default(true);
        /// Client-side and shutdown timeouts.
        timeouts: Timeouts = map::<Timeouts>() => nested;
        /// Size and count limits.
        limits: Limits = map::<Limits>() => nested;
        /// Cache of route lookups.
        route_cache: RouteCache = map::<RouteCache>() => nested;
        /// Where and how to log requests; if absent, none are logged.
        access_log: AccessLog = ACCESS_LOG => optional;
        /// The process's own log.
        log: Log = map::<Log>() => nested;
        /// Lua plugins.
        lua: LuaKeys = map::<LuaKeys>() => nested;
        /// Profiling the running process.
        debug: Debug = map::<Debug>() => nested;
    }
}

object! {
    /// One listening address.
    pub struct HttpListener: Copy, Eq {
        /// Listen address: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
        /// Whether to terminate TLS, with the certificates in `ssls`.
        tls: bool = Flag => default(false);
        /// Whether every connection must begin with a PROXY protocol header (version 1 or 2) from a load balancer. It
        /// gives the client address for `X-Forwarded-For`, routes and logs; if it indicates TLS, `X-Forwarded-Proto`
        /// and `$scheme` are `https`. Anyone who can connect can forge the header: allow only the load balancer. A
        /// connection without a valid header within `timeouts.head` is closed.
        proxy_protocol: bool = Flag => default(false);
        /// Whether to accept HTTP/2 in addition to HTTP/1.1: negotiated by ALPN with TLS, and without TLS from clients
        /// with prior knowledge.
        http2: bool = Flag => default(true);
    }
}

object! {
    /// Client-side and shutdown timeouts.
    pub struct Timeouts: Copy, Eq {
        /// Time to receive a request head from its first byte; then 408.
        head: Duration = CLIENT_TIMEOUT => default(Duration::from_secs(60));
        /// Time between two reads of a request body; then 408. There is no minimum rate: any byte counts, because
        /// streaming calls send small messages.
        body: Duration = CLIENT_TIMEOUT => default(Duration::from_secs(60));
        /// While response data is pending, the client must read an average of 240 bytes per second over this time, and
        /// at least 1,024 bytes. Otherwise its connection or HTTP/2 stream is closed.
        send: Duration = CLIENT_TIMEOUT => default(Duration::from_secs(60));
        /// Idle time after which a connection is closed.
        keepalive: Duration = CLIENT_TIMEOUT => default(Duration::from_secs(75));
        /// How long the gateway keeps serving after SIGTERM while `/v1/health` already returns 503, so that load
        /// balancers stop sending before listeners close. A second signal ends the process at once.
        shutdown_delay: Duration = DRAIN => default(Duration::ZERO);
        /// Time for requests in flight and tunnels to finish after SIGTERM and `shutdown_delay`; then they are aborted,
        /// logged and counted.
        drain: Duration = DRAIN => default(Duration::from_secs(30));
        /// After an upgrade, time for what stays with the old process to finish: TLS and HTTP/2 connections, requests
        /// in flight. Then they are closed.
        upgrade: Duration = UPGRADE => default(Duration::from_secs(900));
        /// Time without data in either direction after which a tunnel (an upgraded connection) is closed. Default:
        /// `timeout.read` of the route or its upstream, as in APISIX and nginx.
        tunnel_idle: Duration = TUNNEL_IDLE => optional;
        /// Maximum lifetime of a tunnel, busy or idle. 0: unlimited.
        tunnel_total: Duration = TUNNEL_TOTAL => default(Duration::ZERO);
    }
}

object! {
    /// Size and count limits.
    pub struct Limits: Copy, Eq {
        /// Maximum head size of a request (else 431) or response (502).
        head_bytes: usize = HEAD_BYTES => default(16 * 1024);
        /// Maximum request target size; else 414.
        target_bytes: usize = TARGET_BYTES => default(8 * 1024);
        /// Maximum header fields per head; else 431 (or 502).
        headers: usize = int(1, HEADERS_MAX as i64) => default(100);
        /// Maximum client connections per worker; each HTTP/2 request counts as one more. Further connections get 503
        /// and are closed; streams are refused.
        connections_per_worker: usize = int(1, CONNECTIONS_PER_WORKER_MAX as i64) => default(10_240);
        /// Memory, per process, for counters of plugins such as limit-count; 16MiB holds 491,000. Allocated when the
        /// first limit is configured.
        counters_bytes: usize = COUNTERS_BYTES => default(16 * 1024 * 1024);
    }
}

object! {
    /// Caches route lookups, keyed by the values of exactly those request fields that routes read.
    pub struct RouteCache: Copy, Eq {
        /// `on`, `off`, or `auto`: on if the measured cost of matching justifies it.
        mode: RouteCacheMode = ROUTE_CACHE_MODE => default(RouteCacheMode::Auto);
        /// Maximum entries, per worker.
        entries: usize = int(1, ROUTE_CACHE_ENTRIES_MAX as i64) => default(8192);
        /// Maximum memory, per worker.
        bytes: usize = ROUTE_CACHE_BYTES => default(4 * 1024 * 1024);
    }
}

const ROUTE_CACHE_MODE: Choice<RouteCacheMode> = Choice {
    words: &[("auto", RouteCacheMode::Auto), ("on", RouteCacheMode::On), ("off", RouteCacheMode::Off)],
    unbuilt: &[],
};

object! {
    /// The process's own log.
    pub struct Log: Eq {
        /// `off`, `error`, `warn`, `info`, `debug` or `trace`; also per module: `info,stillgate_proxy=debug`.
        level: String = LOG_LEVEL => default("info".to_owned());
        /// `human`, `json`, or `auto`: human on a terminal, JSON otherwise.
        format: LogFormat = LOG_FORMAT => default(LogFormat::Auto);
    }
}

const LOG_FORMAT: Choice<LogFormat> = Choice {
    words: &[("auto", LogFormat::Auto), ("human", LogFormat::Human), ("json", LogFormat::Json)],
    unbuilt: &[],
};

const LOG_LEVEL: Text<String> = text("a log level", parse_log_level).shown();

/// The part of `tracing`'s filter language that is about levels: `LEVEL` and `MODULE=LEVEL`, separated by commas.
fn parse_log_level(text: &str) -> Result<String, Fault> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in text.split(',') {
        let (module, level) = directive.split_once('=').unwrap_or(("", directive));
        let module_ok = module.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
        if !module_ok || !LEVELS.contains(&level) {
            let fault = Fault::new(format!("{directive:?} is not a log level"));
            return Err(fault.hint(format!("write one of {}, or MODULE=LEVEL", LEVELS.join(", "))));
        }
    }
    Ok(text.to_owned())
}

/// At least one listener, no two of them on one address.
struct Listeners;

impl Kind for Listeners {
    type Out = Vec<HttpListener>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<HttpListener>> {
        let listeners = some(LocatedKind(map::<HttpListener>())).read(node, path, sink)?;
        let mut lines = HashMap::with_capacity(listeners.len());
        for At { at, value } in &listeners {
            if let Some(first) = lines.insert(value.address, at.line) {
                let message = format!("{} is listed twice, first in line {first}", value.address);
                sink.error(*at, path, Fault::new(message).hint("remove one"));
            }
        }
        Some(listeners.into_iter().map(|l| l.value).collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        some(map::<HttpListener>()).schema(definitions)
    }

    fn show(&self, value: &Vec<HttpListener>) -> Json {
        let listener = |l: &HttpListener| json!({"address": l.address.to_string()});
        value.iter().map(listener).collect()
    }
}

/// `auto` or a number.
struct Workers;

impl Kind for Workers {
    type Out = Option<NonZeroUsize>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Option<NonZeroUsize>> {
        if let Value::Scalar(scalar) = &node.value {
            if &*scalar.text == "auto" {
                return Some(None);
            }
            if let Meaning::Int(number) = scalar.meaning()
                && let Ok(number) = usize::try_from(number)
                && (1..=WORKERS_MAX).contains(&number)
            {
                return Some(NonZeroUsize::new(number));
            }
        }
        report_expected(&format!("auto or a number from 1 to {WORKERS_MAX}"), node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        or_environment(json!({"anyOf": [
            {"enum": ["auto"]},
            {"type": "integer", "minimum": 1, "maximum": WORKERS_MAX},
        ]}))
    }

    fn show(&self, value: &Option<NonZeroUsize>) -> Json {
        value.map_or(json!("auto"), |n| json!(n))
    }
}

object! {
    /// Profiling the running process; see [profiling.md](profiling.md).
    pub struct Debug: Eq {
        /// Whether the admin address serves profiles, under `/debug/pprof/`.
        pprof: bool = Flag => default(false);
        /// CPU profiles of all workers, recorded all the time; if absent, none are.
        profiles: RecordedProfiles = map::<RecordedProfiles>() => optional;
        /// Whether the slowest requests of each minute are kept, for `/v1/slow`.
        slow: bool = Flag => default(false);
        /// Average number of bytes allocated between two heap profile samples; `off`: no samples are taken.
        heap: Option<usize> = HeapSampling(size(16 * 1024, 1 << 30)) => default(None);
    }
}

object! {
    /// Continuous profiles, minute by minute, on disk; see [profiling.md](profiling.md#the-last-day).
    pub struct RecordedProfiles: Eq {
        /// Samples per second of CPU time, such as `19 Hz`.
        cpu: u32 = Rate => default(19);
        /// How long a minute is kept.
        keep: Duration = span(Duration::from_secs(60), YEAR) => default(Duration::from_secs(24 * 3600));
        /// Most bytes of all of them; the oldest are removed.
        bytes: usize = size(1 << 20, 1 << 40) => default(64 << 20);
        /// Their folder, which is created. Only the gateway's user can read it.
        path: PathBuf = WHOLE_PATH.shown() => default(PathBuf::from("/var/lib/stillgate/profiles"));
    }
}

/// Samples per second.
struct Rate;

const RATE_HZ_MAX: u32 = 100;

impl Kind for Rate {
    type Out = u32;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<u32> {
        if let Value::Scalar(scalar) = &node.value
            && let Some(number) = scalar.text.strip_suffix("Hz").map(str::trim_end)
            && let Ok(hz) = number.parse::<u32>()
            && (1..=RATE_HZ_MAX).contains(&hz)
        {
            return Some(hz);
        }
        report_expected(&format!("a rate from 1 Hz to {RATE_HZ_MAX} Hz, such as 19 Hz"), node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        or_environment(json!({"type": "string", "pattern": "^(100|[1-9][0-9]?) *Hz$"}))
    }

    fn show(&self, value: &u32) -> Json {
        json!(format!("{value} Hz"))
    }
}

/// `off` or a size.
struct HeapSampling(Size);

impl Kind for HeapSampling {
    type Out = Option<usize>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Option<usize>> {
        match &node.value {
            Value::Scalar(scalar) if &*scalar.text == "off" => Some(None),
            _ => self.0.read(node, path, sink).map(Some),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        json!({"anyOf": [{"enum": ["off"]}, self.0.schema(definitions)]})
    }

    fn show(&self, value: &Option<usize>) -> Json {
        value.map_or(json!("off"), |bytes| self.0.show(&bytes))
    }
}

object! {
    /// Lua plugins; [lua.md](lua.md#own-plugins) describes how to write them.
    pub struct LuaKeys: Eq {
        /// Absolute path of a file or folder, or a list of them: each file is a plugin, and so is each `*.lua` in a
        /// folder, unless another one requires it as a module.
        path: Vec<PathBuf> = OneOrSeveral => default(Vec::new());
        /// Attributes by plugin name, returned by `apisix.plugin.plugin_attr()`.
        plugin_attr: Arc<Json> = Attributes => default(Arc::new(json!({})));
    }
}

/// Maps by names, of any values.
struct Attributes;

impl Kind for Attributes {
    type Out = Arc<Json>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<Json>> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of plugins", node, path, sink);
            return None;
        };
        if let Some(entry) = entries.iter().find(|entry| !matches!(entry.value.value, Value::Map(_))) {
            report_expected("a map", &entry.value, &path.key(&entry.key), sink);
            return None;
        }
        json_of(node, path, sink).map(Arc::new)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": "object"}})
    }

    fn show(&self, value: &Arc<Json>) -> Json {
        Json::clone(value)
    }
}

/// A path, or a list of them.
struct OneOrSeveral;

impl Kind for OneOrSeveral {
    type Out = Vec<PathBuf>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<PathBuf>> {
        match &node.value {
            Value::List(_) => read(&list(WHOLE_PATH), node, path, sink),
            _ => Some(vec![read(&WHOLE_PATH, node, path, sink)?]),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        json!({"anyOf": [WHOLE_PATH.schema(definitions), list(WHOLE_PATH).schema(definitions)]})
    }

    fn show(&self, value: &Vec<PathBuf>) -> Json {
        json!(value)
    }
}
