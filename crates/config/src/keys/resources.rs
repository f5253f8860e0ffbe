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
    /// One configuration file: the process under `gateway`, and the resources by APISIX's names and meaning. A scalar
    /// may hold `${NAME}` or `${NAME:-default}`, which stand for an environment variable; `$${` stands for `${`, and
    /// `${uri}` and other variables of a request are left to plugins. As in APISIX,
    /// scalars and keys may hold `${{NAME}}` or `${{NAME:=default}}`, and a resource without an `id` has its position in its
    /// list, from 1.
    /// A duration without a unit is in seconds.
    pub(crate) struct File {
        /// The process: where it listens, its bounds, its logs.
        gateway: Gateway = map::<Gateway>() => nested;
        /// Which requests go where, in the order that breaks ties.
        routes: Vec<Resource<RouteKeys>> = resources::<RouteKeys>(false) => default(Vec::new());
        /// What several routes have in common.
        services: Vec<Resource<ServiceKeys>> = resources::<ServiceKeys>(false) => default(Vec::new());
        /// Nodes that routes and services name by id.
        upstreams: Vec<Resource<UpstreamKeys>> = resources::<UpstreamKeys>(false) => default(Vec::new());
        /// Certificates: of listeners with `tls: true`, and those shown to upstreams.
        ssls: Vec<Resource<SslKeys>> = resources::<SslKeys>(false) => default(Vec::new());
        /// Which connections of `gateway.stream_proxy` go where, in the order that breaks ties.
        stream_routes: Vec<Resource<StreamRouteKeys>> = resources::<StreamRouteKeys>(false) => default(Vec::new());
        /// Plugins that routes share.
        plugin_configs: Vec<Resource<PluginConfigKeys>> = resources::<PluginConfigKeys>(false) => default(Vec::new());
        /// Plugins that run for every request.
        global_rules: Vec<Resource<GlobalRuleKeys>> = resources::<GlobalRuleKeys>(false) => default(Vec::new());
        /// The clients that may send requests.
        consumers: Vec<Resource<ConsumerKeys>> = ConsumerItems => default(Vec::new());
        /// Plugins that consumers share.
        consumer_groups: Vec<Resource<ConsumerGroupKeys>> = resources::<ConsumerGroupKeys>(false) => default(Vec::new());
        /// What a plugin has in common wherever it is configured. `id` is the plugin's name.
        plugin_metadata: Vec<Resource<MetadataKeys>> = PluginMetadata => default(Vec::new());
        /// Managers of secrets, which references name.
        secrets: Vec<Resource<SecretManagerKeys>> = resources::<SecretManagerKeys>(true) => default(Vec::new());
        /// Definitions of Protocol Buffers, for `stillgate apply`: a store and etcd keep them for other programs. A gateway whose resources come from this file ignores them, with a warning.
        protos: Vec<Resource<ProtoKeys>> = resources::<ProtoKeys>(false) => default(Vec::new());
        /// The plugins that APISIX would load, by name. Here all are there; a warning names those that a resource has and this list does not, for APISIX would leave them out.
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
        /// Whether it is one of streams.
        stream: bool = Flag => default(false);
    }
}

resource! {
    /// Which requests a route takes, and where they go.
    pub(crate) struct RouteKeys {
        /// Unique among routes; the position in the list, from 1, where it is absent.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The path: `/a` for that path, `/a/*` for all below, `/a/:name/b` for any one segment, `/a/*/b` for any number of
        /// them, `*` for all paths. This, `uris` or `expression`.
        uri: At<PathPattern> = LocatedKind(PATH) => optional;
        /// Several paths, any of which may match.
        uris: At<Vec<PathPattern>> = LocatedKind(some(PATH)) => optional;
        /// `example.com`, `*.example.com`, or `*` for any host, after those that are named; also any host where neither this nor
        /// `hosts` is there.
        host: At<HostPattern> = LocatedKind(HOST) => optional;
        /// Several hosts, any of which may match.
        hosts: At<Vec<HostPattern>> = LocatedKind(some(HOST)) => optional;
        /// HTTP methods in upper case; any where it is absent.
        methods: At<Vec<Method>> = LocatedKind(list(METHOD)) => optional;
        /// Address or network that the client must have.
        remote_addr: At<IpNet> = LocatedKind(NETWORK) => optional;
        /// Several of them, any of which may match.
        remote_addrs: At<Vec<IpNet>> = LocatedKind(some(NETWORK)) => optional;
        /// A condition in Kong's expression language, in place of paths, hosts, methods, addresses and `vars`. Routes with
        /// one come before all others.
        expression: At<Expression> = LocatedKind(Expressions) => optional;
        /// Higher first, among routes of the same host and path, or among those with an expression.
        priority: i64 = int(-ROUTE_PRIORITY_MAX, ROUTE_PRIORITY_MAX) => default(0);
        /// Conditions on variables of the request, in the language of lua-resty-expr.
        vars: At<Expr> = LocatedKind(Vars) => optional;
        /// A function in Lua, `function(vars) … end`: the route takes the request only where it gives neither `nil` nor `false`.
        filter_func: At<String> = LocatedKind(TEXT) => optional;
        /// 1: enabled; 0: the route does not exist.
        status: bool = STATUS => default(true);
        /// Where requests go, written here. This, `upstream_id` or `service_id`, or `plugins` that answer all requests.
        upstream: At<UpstreamKeys> = LocatedKind(map::<UpstreamKeys>()) => optional;
        /// Where requests go, by the id of one of `upstreams`.
        upstream_id: At<String> = LocatedKind(ID) => optional;
        /// The service whose upstream and hosts hold where the route has none; with an `expression` it must not have hosts.
        service_id: At<String> = LocatedKind(ID) => optional;
        /// Overrides the upstream's.
        timeout: TimeoutKeys = map::<TimeoutKeys>() => optional;
        /// Whether a client may ask for another protocol (`Upgrade`): WebSocket or any other, but none that would carry HTTP requests past the routes (`h2c`, `HTTP`, `TLS`). Without it such a request is an ordinary one. Where it is absent, the service's holds.
        enable_websocket: bool = Flag => optional;
        /// What becomes of the route's open tunnels when it is changed or removed: `keep` leaves them alone; `drain` closes each when nothing has moved in it for a second, and after `gateway.timeouts.drain` at the latest; `close` closes them at once. A shared upstream or a service that changes is not the route. Not in APISIX.
        on_change: OnChange = ON_CHANGE => default(OnChange::Keep);
        /// Its plugins, by name. One takes the place of the plugin config's and of the service's of that name.
        plugins: Node = Plugins => optional;
        /// The plugin config whose plugins hold where the route has none of that name.
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
    /// What several routes have in common.
    pub(crate) struct ServiceKeys {
        /// Unique among services.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// Hosts of those routes that name none.
        hosts: Vec<HostPattern> = some(HOST) => default(Vec::new());
        /// Where requests go, written here.
        upstream: At<UpstreamKeys> = LocatedKind(map::<UpstreamKeys>()) => optional;
        /// Where requests go, by the id of one of `upstreams`.
        upstream_id: At<String> = LocatedKind(ID) => optional;
        /// Whether its routes let clients ask for another protocol (`Upgrade`), where they do not say themselves.
        enable_websocket: bool = Flag => default(false);
        /// Plugins of its routes, where they have none of that name themselves.
        plugins: Node = Plugins => optional;
        unbuilt {
            script: "scripts are";
        }
    }
}

resource! {
    /// Nodes, and how one is chosen and talked to.
    pub(crate) struct UpstreamKeys {
        /// Unique among upstreams; has no meaning for one that is written inside a route or service.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// How a node is chosen: smooth weighted round robin, fewest requests in flight, consistent hash, or least
        /// latency of two random choices.
        r#type: Type = TYPE => default(Type::RoundRobin);
        /// A map of `"host:port"` to weight, or a list of `{host, port, weight, priority}`.
        nodes: At<Vec<NodeEntry>> = LocatedKind(Nodes) => expected;
        /// With `type: chash`, what kind of thing `key` names.
        hash_on: At<HashOn> = LocatedKind(HASH_ON) => default(unplaced(HashOn::Vars));
        /// With `type: chash`, the variable, header or cookie that is hashed; `remote_addr` with `hash_on: vars`. With
        /// `hash_on: consumer` the consumer's name is, with `vars_combinations` a text such as `$host$remote_addr`.
        key: At<String> = LocatedKind(TEXT) => optional;
        /// What is taken on at once. Not in APISIX.
        limits: At<UpstreamLimits> = LocatedKind(map::<UpstreamLimits>()) => nested;
        /// How the health of the nodes is found out.
        checks: At<Checks> = LocatedKind(map::<Checks>()) => optional;
        /// Bounds on each try.
        timeout: TimeoutKeys = map::<TimeoutKeys>() => nested;
        /// What `Host` the node sees: the client's, the node's own, or `upstream_host`.
        pass_host: At<HostChoice> = LocatedKind(PASS_HOST) => default(unplaced(HostChoice::Pass));
        /// The `Host` that the node sees with `pass_host: rewrite`.
        upstream_host: At<String> = LocatedKind(AUTHORITY) => optional;
        /// The protocol towards the nodes; `grpc` and `grpcs` are `http` and `https` in HTTP/2, with gRPC-Web
        /// turned into gRPC; `tcp`, `tls` (TCP through TLS) and `udp` are for `stream_routes`. With `http`, a stream route
        /// passes on TCP and UDP as they come.
        scheme: At<Scheme> = LocatedKind(SCHEME) => default(unplaced(Scheme::Http));
        /// Whether nodes are spoken to in HTTP/2: without TLS by prior knowledge, with it by ALPN. Not in APISIX.
        http2: At<bool> = LocatedKind(Flag) => default(unplaced(false));
        /// With `scheme: tcp` or `tls`, the PROXY protocol header that a node's connection begins with, with the client's addresses: `v1`, `v2` or `off`. Not in APISIX.
        proxy_protocol: At<Option<ProxyProtocol>> = LocatedKind(PROXY_PROTOCOL) => optional;
        /// With `scheme: https` or `tls`, what nodes are shown and what is asked of them.
        tls: At<UpstreamTlsKeys> = LocatedKind(map::<UpstreamTlsKeys>()) => optional;
        /// Bounds of the idle connections kept.
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
        /// Further nodes tried after the first failed; as many as there are other nodes where it is absent.
        retries: u32 = int(0, RETRIES_MAX as i64) => optional;
        /// Time after which no further try is begun; 0: no bound.
        retry_timeout: Duration = FROM_ZERO => default(Duration::ZERO);
        /// A bound on retries in flight; none where it is absent. Not in APISIX.
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
    /// Bounds on one try. Each that is absent is the upstream's in a route, and otherwise 60 s where nothing else is said.
    pub struct TimeoutKeys: Copy, Eq, Serialize {
        /// TCP connect.
        connect: Duration = UPSTREAM_TIMEOUT => optional;
        /// While part of a request waits for the node, the node must read at least 1,024 bytes, or all of it, within this
        /// time. In tunnels and streams any byte counts.
        send: Duration = UPSTREAM_TIMEOUT => optional;
        /// Between two successful reads.
        read: Duration = UPSTREAM_TIMEOUT => optional;
        /// One whole try up to the response's head, from its start or from the last part of the request's body that came;
        /// no bound where it is absent. Not in APISIX.
        per_try: Duration = UPSTREAM_TIMEOUT => optional;
    }
}

object! {
    /// Bounds of the idle connections that are kept.
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
    /// A definition of Protocol Buffers.
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
