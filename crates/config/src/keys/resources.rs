//! The keys of the resources, as APISIX has them: routes, services, upstreams. (Those of TLS are in `ssls`.)
//!
//! These structs are what was written. References, keys that exclude one another and defaults that depend on other keys
//! are the business of the room `resources`.
//!
//! No plugin reads `protos`, definitions of Protocol Buffers: a store keeps them, as the Admin API of APISIX does, for other programs
//! that share it; a file may have them on their way there.

use crate::keys::checks::{Checks, RetryBudget, UpstreamLimits};
use crate::keys::gateway::Gateway;
use crate::keys::nodes::{NodeEntry, Nodes, parse_authority};
use crate::keys::plugins::{
    ConsumerGroupKeys, ConsumerItems, ConsumerKeys, GlobalRuleKeys, MetadataKeys, PluginConfigKeys, PluginMetadata,
    Plugins,
};
use crate::keys::resource_list::{Resource, resources};
use crate::keys::secrets::SecretManagerKeys;
use crate::keys::shared::{ID, ON_CHANGE, STATUS, resource};
use crate::keys::ssls::{SslKeys, UpstreamTlsKeys};
use crate::keys::stream_routes::StreamRouteKeys;
use crate::values::{OnChange, ProxyProtocol};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Value as Json, json};
use std::time::Duration;
use stillgate_route::vars::Expr;
use stillgate_route::{Expression, HostPattern, Method, PathPattern};
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{At, Choice, Flag, Kind, LocatedKind, TEXT, Text, int, list, read, some, text, unplaced};
use stillgate_schema::matching::{Expressions, HOST, METHOD, NETWORK, PATH, Vars};
use stillgate_schema::object;
use stillgate_schema::object::{map, unwritten};
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Path, Sink};
use stillgate_schema::text::tree::{Node, Value};

/// The largest `retries`.
pub const RETRIES_MAX: u32 = 100;
/// The largest `keepalive_pool.size`.
pub const POOL_SIZE_MAX: usize = 65_536;
/// The largest `keepalive_pool.requests`.
pub const POOL_REQUESTS_MAX: u32 = 1_000_000_000;
/// The largest `priority` of a route, as of Kong's expression routes.
pub const ROUTE_PRIORITY_MAX: i64 = (1 << 46) - 1;

const DAY: Duration = Duration::from_secs(24 * 3600);
const UPSTREAM_TIMEOUT: DurationRange = span(Duration::from_millis(1), DAY);
const FROM_ZERO: DurationRange = span(Duration::ZERO, DAY);
object! {
    /// One file configures the process (`gateway`) and the resources, with APISIX's names and semantics. Scalars can
    /// contain `${NAME}` or `${NAME:-default}`, which expand to an environment variable; `$${` is a literal `${`.
    /// `${uri}` and other request variables are left to plugins. As in APISIX, scalars and keys can contain `${{NAME}}`
    /// or `${{NAME:=default}}`, and `id` defaults to the resource's 1-based position in its list. A duration without a
    /// unit is in seconds.
    pub(crate) struct File {
        /// The process: listeners, limits and logs.
        gateway: Gateway = map::<Gateway>() => nested;
        /// Routing rules for requests. List order breaks ties.
        routes: Vec<Resource<RouteKeys>> = resources::<RouteKeys>(false) => default(Vec::new());
        /// Settings shared by several routes.
        services: Vec<Resource<ServiceKeys>> = resources::<ServiceKeys>(false) => default(Vec::new());
        /// Groups of nodes, referenced by id.
        upstreams: Vec<Resource<UpstreamKeys>> = resources::<UpstreamKeys>(false) => default(Vec::new());
        /// Certificates for listeners with `tls: true`, and for TLS to upstreams.
        ssls: Vec<Resource<SslKeys>> = resources::<SslKeys>(false) => default(Vec::new());
        /// Routing rules for `gateway.stream_proxy` connections. List order breaks ties.
        stream_routes: Vec<Resource<StreamRouteKeys>> = resources::<StreamRouteKeys>(false) => default(Vec::new());
        /// Plugins that routes share.
        plugin_configs: Vec<Resource<PluginConfigKeys>> = resources::<PluginConfigKeys>(false) => default(Vec::new());
        /// Plugins that run for every request.
        global_rules: Vec<Resource<GlobalRuleKeys>> = resources::<GlobalRuleKeys>(false) => default(Vec::new());
        /// The clients that may send requests.
        consumers: Vec<Resource<ConsumerKeys>> = ConsumerItems => default(Vec::new());
        /// Plugins that consumers share.
        consumer_groups: Vec<Resource<ConsumerGroupKeys>> = resources::<ConsumerGroupKeys>(false) => default(Vec::new());
        /// Settings of a plugin that apply wherever it is used. `id` is the plugin's name.
        plugin_metadata: Vec<Resource<MetadataKeys>> = PluginMetadata => default(Vec::new());
        /// Secret managers, named in references.
        secrets: Vec<Resource<SecretManagerKeys>> = resources::<SecretManagerKeys>(true) => default(Vec::new());
        /// Protocol Buffers definitions, for `stillgate apply`: a store or etcd keeps them for other programs. With
        /// `source: file`, they are ignored with a warning.
        protos: Vec<Resource<ProtoKeys>> = resources::<ProtoKeys>(false) => default(Vec::new());
        /// Names of the plugins that APISIX would load. Here, all plugins are enabled; a warning lists those in use but
        /// not named here, because APISIX would skip them.
        plugins: Vec<String> = LoadedPlugins => optional;
    }
}

/// `plugins`; an empty value is not a list.
struct LoadedPlugins;

impl Kind for LoadedPlugins {
    type Out = Vec<String>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<String>> {
        if node.is_null() { None } else { read(&list(LoadedPlugin), node, path, sink) }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut schema = list(LoadedPlugin).schema(definitions);
        schema["type"] = json!(["array", "null"]);
        schema
    }
}

/// An item of `plugins`: a name, or `{name: NAME, stream: true}`.
struct LoadedPlugin;

impl Kind for LoadedPlugin {
    type Out = String;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<String> {
        match &node.value {
            Value::Map(_) => read(&map::<LoadedPluginKeys>(), node, path, sink).map(|keys| keys.name),
            _ => read(&TEXT, node, path, sink),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        json!({"anyOf": [TEXT.schema(definitions), map::<LoadedPluginKeys>().schema(definitions)]})
    }
}

object! {
    /// A plugin that APISIX would load.
    struct LoadedPluginKeys {
        /// Its name.
        name: String = TEXT => required;
        /// Whether it is for streams.
        stream: bool = Flag => default(false);
    }
}

resource! {
    /// Which requests match, and where they are sent.
    pub(crate) struct RouteKeys {
        /// Unique among routes. Default: the 1-based position in the list.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// Path to match: `/a` exactly, `/a/*` all paths below, `/a/:name/b` any one segment, `/a/*/b` any number of
        /// them, `*` all paths. Set this, `uris` or `expression`.
        uri: At<PathPattern> = LocatedKind(PATH) => optional;
        /// Several paths; one of them must match.
        uris: At<Vec<PathPattern>> = LocatedKind(some(PATH)) => optional;
        /// `example.com`, `*.example.com`, or `*` for any host, tried after named hosts. Without `host` and `hosts`,
        /// any host matches.
        host: At<HostPattern> = LocatedKind(HOST) => optional;
        /// Several hosts; one of them must match.
        hosts: At<Vec<HostPattern>> = LocatedKind(some(HOST)) => optional;
        /// HTTP methods, in upper case. Default: any.
        methods: At<Vec<Method>> = LocatedKind(list(METHOD)) => optional;
        /// Client address or network to match.
        remote_addr: At<IpNet> = LocatedKind(NETWORK) => optional;
        /// Several of them; one must match.
        remote_addrs: At<Vec<IpNet>> = LocatedKind(some(NETWORK)) => optional;
        /// A condition in Kong's expression language, replacing paths, hosts, methods, addresses and `vars`. Such
        /// routes are tried before all others.
        expression: At<Expression> = LocatedKind(Expressions) => optional;
        /// Higher first, among routes with the same host and path, or among expression routes.
        priority: i64 = int(-ROUTE_PRIORITY_MAX, ROUTE_PRIORITY_MAX) => default(0);
        /// Conditions on request variables, in lua-resty-expr syntax.
        vars: At<Expr> = LocatedKind(Vars) => optional;
        /// A Lua function, `function(vars) … end`: the route matches only if it returns neither `nil` nor `false`.
        filter_func: At<String> = LocatedKind(TEXT) => optional;
        /// 1: enabled; 0: disabled, as if absent.
        status: bool = STATUS => default(true);
        /// Inline upstream. Set this, `upstream_id` or `service_id`, or `plugins` that answer all requests.
        upstream: At<UpstreamKeys> = LocatedKind(map::<UpstreamKeys>()) => optional;
        /// The id of an entry in `upstreams`.
        upstream_id: At<String> = LocatedKind(ID) => optional;
        /// The service whose upstream and hosts apply if the route has none; with an `expression`, it must not have
        /// hosts.
        service_id: At<String> = LocatedKind(ID) => optional;
        /// Overrides the upstream's.
        timeout: TimeoutKeys = map::<TimeoutKeys>() => optional;
        /// Whether clients may switch protocols (`Upgrade`): to WebSocket or any other, except those that would carry
        /// HTTP requests past the routes (`h2c`, `HTTP`, `TLS`). If not, such a request is an ordinary one. Default:
        /// the service's value.
        enable_websocket: bool = Flag => optional;
        /// What happens to open tunnels when the route is changed or removed: `keep` leaves them open; `drain` closes
        /// each after one second without data, or after `gateway.timeouts.drain` at the latest; `close` closes them at
        /// once. Changes to a shared upstream or service do not count. Not in APISIX.
        on_change: OnChange = ON_CHANGE => default(OnChange::Keep);
        /// The plugins, by name. They override plugins of the same name in the plugin config and service.
        plugins: Node = Plugins => optional;
        /// The plugin config to use. The route's plugins of the same name override it.
        plugin_config_id: At<String> = LocatedKind(ID) => optional;
        any_of {
            "nothing says which requests the route takes": uri | uris | expression;
            "nothing says where requests go": upstream | upstream_id | service_id | plugins;
        }
        unbuilt {
            script: "scripts are";
            script_id: "scripts are";
            service_protocol: "service protocols are";
        }
    }
}

resource! {
    /// Settings shared by several routes.
    pub(crate) struct ServiceKeys {
        /// Unique among services.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// Hosts for routes without their own.
        hosts: Vec<HostPattern> = some(HOST) => default(Vec::new());
        /// Inline upstream.
        upstream: At<UpstreamKeys> = LocatedKind(map::<UpstreamKeys>()) => optional;
        /// The id of an entry in `upstreams`.
        upstream_id: At<String> = LocatedKind(ID) => optional;
        /// Whether clients may switch protocols (`Upgrade`), on routes that do not set this themselves.
        enable_websocket: bool = Flag => default(false);
        /// Plugins for its routes, unless a route has its own of that name.
        plugins: Node = Plugins => optional;
        unbuilt {
            script: "scripts are";
        }
    }
}

resource! {
    /// Nodes, load balancing and node connections.
    pub(crate) struct UpstreamKeys {
        /// Unique among upstreams; has no meaning for an inline upstream of a route or service.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// Load balancing: smooth weighted round robin, fewest requests in flight, consistent hashing, or the faster of
        /// two random nodes.
        r#type: Type = TYPE => default(Type::RoundRobin);
        /// A map of `"host:port"` to weight, or a list of `{host, port, weight, priority}`.
        nodes: At<Vec<NodeEntry>> = LocatedKind(Nodes) => expected;
        /// With `type: chash`, what `key` refers to.
        hash_on: At<HashOn> = LocatedKind(HASH_ON) => default(unplaced(HashOn::Vars));
        /// With `type: chash`, the variable, header or cookie to hash. Default (`hash_on: vars`): `remote_addr`.
        /// `hash_on: consumer` hashes the consumer's name; `vars_combinations`, a template such as `$host$remote_addr`.
        key: At<String> = LocatedKind(TEXT) => optional;
        /// Concurrency limits. Not in APISIX.
        limits: At<UpstreamLimits> = LocatedKind(map::<UpstreamLimits>()) => nested;
        /// Health checks of the nodes.
        checks: At<Checks> = LocatedKind(map::<Checks>()) => optional;
        /// Timeouts per try.
        timeout: TimeoutKeys = map::<TimeoutKeys>() => nested;
        /// `Host` sent to the node: the client's, the node's own, or `upstream_host`.
        pass_host: At<HostChoice> = LocatedKind(PASS_HOST) => default(unplaced(HostChoice::Pass));
        /// The `Host` to send with `pass_host: rewrite`.
        upstream_host: At<String> = LocatedKind(AUTHORITY) => optional;
        /// Protocol to the nodes: `grpc` and `grpcs` are `http` and `https` over HTTP/2, with gRPC-Web converted to
        /// gRPC; `tcp`, `tls` (TCP over TLS) and `udp` are for `stream_routes`. With `http`, a stream route proxies TCP
        /// as TCP and UDP as UDP.
        scheme: At<Scheme> = LocatedKind(SCHEME) => default(unplaced(Scheme::Http));
        /// Whether to use HTTP/2 to nodes: without TLS by prior knowledge, with TLS by ALPN. Not in APISIX.
        http2: At<bool> = LocatedKind(Flag) => default(unplaced(false));
        /// With `scheme: tcp` or `tls`, the PROXY protocol version to send client addresses to nodes with: `v1`, `v2`
        /// or `off`. Not in APISIX.
        proxy_protocol: At<Option<ProxyProtocol>> = LocatedKind(PROXY_PROTOCOL) => optional;
        /// With `scheme: https` or `tls`, the TLS settings for connections to nodes.
        tls: At<UpstreamTlsKeys> = LocatedKind(map::<UpstreamTlsKeys>()) => optional;
        /// Limits on idle connections.
        keepalive_pool: KeepalivePool = map::<KeepalivePool>() => nested;
        parts {
            /// Keys that mean what they say.
            options: UpstreamOptions;
        }
        unbuilt {
            discovery_args: "service discovery is";
            discovery_type: "service discovery is";
            service_name: "service discovery is";
        }
    }
}

object! {
    /// Upstream keys that need no cross-checks. A new one is a line here, and its use.
    pub struct UpstreamOptions: Serialize {
        /// Maximum further nodes to try after the first fails. Default: the number of other nodes.
        retries: u32 = int(0, RETRIES_MAX as i64) => optional;
        /// Time after which no retry is started; 0: unlimited.
        retry_timeout: Duration = FROM_ZERO => default(Duration::ZERO);
        /// Limit on retries in flight. Default: no limit. Not in APISIX.
        retry_budget: RetryBudget = map::<RetryBudget>() => optional;
    }
}

/// What holds where nothing is written.
impl Default for UpstreamOptions {
    fn default() -> Self {
        unwritten().expect("none of its keys must be there")
    }
}

object! {
    /// Timeouts per try. Default in a route: the upstream's value; elsewhere: 60 s unless stated otherwise.
    pub struct TimeoutKeys: Copy, Eq, Serialize {
        /// TCP connect.
        connect: Duration = UPSTREAM_TIMEOUT => optional;
        /// While request data is pending, the node must read at least 1,024 bytes, or all of it, within this time. In
        /// tunnels and streams, any byte counts.
        send: Duration = UPSTREAM_TIMEOUT => optional;
        /// Between two successful reads.
        read: Duration = UPSTREAM_TIMEOUT => optional;
        /// A whole try up to the response head, from its start or from the last part of the request body received.
        /// Default: unlimited. Not in APISIX.
        per_try: Duration = UPSTREAM_TIMEOUT => optional;
    }
}

object! {
    /// Limits on idle connections to nodes.
    pub struct KeepalivePool: Copy, Eq, Serialize {
        /// Idle connections kept per worker, over all nodes.
        size: usize = int(1, POOL_SIZE_MAX as i64) => default(320);
        /// How long one is kept.
        idle_timeout: Duration = FROM_ZERO => default(Duration::from_secs(60));
        /// Requests after which a connection is closed.
        requests: u32 = int(1, POOL_REQUESTS_MAX as i64) => default(1000);
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Type {
    RoundRobin,
    LeastConn,
    ConsistentHash,
    Ewma,
}

const TYPE: Choice<Type> = Choice {
    words: &[
        ("roundrobin", Type::RoundRobin),
        ("least_conn", Type::LeastConn),
        ("chash", Type::ConsistentHash),
        ("ewma", Type::Ewma),
    ],
    unbuilt: &[],
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum HashOn {
    Vars,
    Header,
    Cookie,
    Consumer,
    Combination,
}

const HASH_ON: Choice<HashOn> = Choice {
    words: &[
        ("vars", HashOn::Vars),
        ("header", HashOn::Header),
        ("cookie", HashOn::Cookie),
        ("consumer", HashOn::Consumer),
        ("vars_combinations", HashOn::Combination),
    ],
    unbuilt: &[],
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum HostChoice {
    Pass,
    Node,
    Rewrite,
}

const PASS_HOST: Choice<HostChoice> = Choice {
    words: &[("pass", HostChoice::Pass), ("node", HostChoice::Node), ("rewrite", HostChoice::Rewrite)],
    unbuilt: &[],
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scheme {
    Http,
    Https,
    Grpc,
    Grpcs,
    Tcp,
    Tls,
    Udp,
    /// What clients speak. It is `http`, or nothing, in the upstream of a stream route.
    Plain,
}

const SCHEME: Choice<Scheme> = Choice {
    words: &[
        ("http", Scheme::Http),
        ("https", Scheme::Https),
        ("grpc", Scheme::Grpc),
        ("grpcs", Scheme::Grpcs),
        ("tcp", Scheme::Tcp),
        ("tls", Scheme::Tls),
        ("udp", Scheme::Udp),
    ],
    unbuilt: &["kafka"],
};

const PROXY_PROTOCOL: Choice<Option<ProxyProtocol>> =
    Choice { words: &[("off", None), ("v1", Some(ProxyProtocol::V1)), ("v2", Some(ProxyProtocol::V2))], unbuilt: &[] };

/// `host` or `host:port`, kept as written.
const AUTHORITY: Text<String> = text("a host", |text| parse_authority(text).map(|_| text.to_owned()));

resource! {
    /// A Protocol Buffers definition.
    pub(crate) struct ProtoKeys {
        /// Unique among protos.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The text of a `.proto` file, or a compiled descriptor set in base64.
        content: String = TEXT => required;
    }
}
