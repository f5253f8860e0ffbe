//! The labels of the dialects' families: their names, and the meaning of their values.

/// The meaning of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// `code`
    Code,
    /// `consumer`
    Consumer,
    /// `direction`
    Direction,
    /// `family`
    Family,
    /// `hostname`
    Hostname,
    /// `ip`
    Ip,
    /// `key`
    Key,
    /// `kind`
    Kind,
    /// `listener`
    Listener,
    /// `matched_host`
    MatchedHost,
    /// `matched_uri`
    MatchedUri,
    /// `method`
    Method,
    /// `name`
    Name,
    /// `node`
    Node,
    /// `part`
    Part,
    /// `phase`
    Phase,
    /// `plugin`
    Plugin,
    /// `port`
    Port,
    /// `protocol`
    Protocol,
    /// `reason`
    Reason,
    /// `route`
    Route,
    /// `service`
    Service,
    /// `ssl`
    Ssl,
    /// `state`
    State,
    /// `stream_route`
    StreamRoute,
    /// `type`
    Type,
    /// `upstream`
    Upstream,
    /// `version`
    Version,
    /// `worker`
    Worker,
}

impl Label {
    /// The name in expositions.
    pub fn name(self) -> &'static str {
        self.described().0
    }

    /// Whether requests may be counted without it. Without `type`, `apisix_http_latency` would count each request three
    /// times over, with three different times.
    pub(crate) fn can_be_left_out(self) -> bool {
        self != Label::Type
    }

    /// Its name, and the meaning of its values.
    pub(super) fn described(self) -> (&'static str, &'static str) {
        match self {
            Label::Code => (
                "code",
                "The status of the response. For streams 200, or why the stream was not served: 404 no stream route, 421 \
                 missing client certificate for its name, 502 or 504 its node failed, 503 no node, or limits.requests \
                 reached.",
            ),
            Label::Consumer => {
                ("consumer", "The name of the consumer who sent the request; empty where no plugin has found out.")
            }
            Label::Direction => ("direction", "`ingress`: received from clients; `egress`: sent to them."),
            Label::Family => ("family", "The family's name."),
            Label::Hostname => ("hostname", "The machine's name."),
            Label::Ip => ("ip", "The node's IP address."),
            Label::Key => (
                "key",
                "Of `apisix_etcd_modify_indexes`: a kind of resource, whose newest revision it is, as `routes`; \
                 `max_modify_index`: the newest of these; `prev_index`: the revision that was read last; `x_etcd_index`: the \
                 newest that etcd has named.",
            ),
            Label::Kind => ("kind", "The kind of resource, as in the configuration: `routes`, `consumers`."),
            Label::Listener => ("listener", "The listener's address as the configuration has it, `IP:PORT`."),
            Label::MatchedHost => {
                ("matched_host", "The route's host that matched, as configured; empty if the route has none.")
            }
            Label::MatchedUri => ("matched_uri", "The route's path that matched, as configured: `/orders/*`."),
            Label::Method => (
                "method",
                "The request's method: GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE, PATCH or PURGE, `__other__` \
                 for any other method, and empty if no request could be read. Off by default.",
            ),
            Label::Name => {
                ("name", "The upstream, as `/apisix/upstreams/ID`, `/apisix/services/ID` or `/apisix/routes/ID`.")
            }
            Label::Node => {
                ("node", "The node asked last: native `host:port`, apisix its IP address; empty where none was.")
            }
            Label::Part => (
                "part",
                "`log`: the series as they are recorded; `index`: how they are found; `reader`: the merged values; \
                 `cache`: encoded and compressed text.",
            ),
            Label::Phase => ("phase", "`rewrite`, `access`, `before_proxy`, `header_filter` or `log`."),
            Label::Plugin => ("plugin", "The plugin's name."),
            Label::Port => ("port", "The node's port."),
            Label::Protocol => ("protocol", "`tcp` or `udp`. Of devices `json`, `cbor` or `raw`."),
            Label::Reason => (
                "reason",
                "Why a TLS handshake with a client failed: `not_tls`, `unknown_name` (no entry of `ssls`), `incompatible` (version, \
                 cipher or protocol), `no_certificate`, `bad_certificate` (the client's), `alert` (sent by the client; it \
                 may not trust the gateway's certificate), `closed`, `timeout` or `other`. Why a plugin refused a body: `too_large`, `malformed` (not in the \
                 coding that its head names), `memory` or `client_memory` (the worker's plugins, or those for this client, hold as \
                 much as they may), `time` (of the CPU) or `busy` (its threads had too much other work). Why LuaJIT did not compile: [jit-health.md](jit-health.md#reasons). Why the connection of a device has ended: \
                 [devices.md](devices.md#metrics).",
            ),
            Label::Route => ("route", "The route's id, never a path; empty where none matched."),
            Label::Service => ("service", "The id of the route's service; empty where it has none."),
            Label::Ssl => ("ssl", "The id of the entry of `ssls`."),
            Label::State => (
                "state",
                "Of functions in Lua: [jit-health.md](jit-health.md). Of connections, native: `active` (requests in flight) or `idle`, as tunnels are; apisix: `active`, `reading`, `writing` and `waiting` \
                 now, `accepted` and `handled` so far.",
            ),
            Label::StreamRoute => ("stream_route", "The stream route's id; empty where none takes the connection."),
            Label::Type => (
                "type",
                "Of `apisix_http_latency`: `request` (all of it), `upstream` (waiting for the node) or `apisix` (the \
                 rest); of `apisix_bandwidth`: `ingress` or `egress`.",
            ),
            Label::Upstream => (
                "upstream",
                "The upstream's id, or `routes/ID`, `services/ID` or `stream_routes/ID` for one written inline.",
            ),
            Label::Version => ("version", "The version of Stillgate."),
            Label::Worker => ("worker", "The worker's number, from 0; its thread is named `worker-N`."),
        }
    }
}
