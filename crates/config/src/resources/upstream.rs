//! Compiles an upstream's keys, by themselves and in combination.

use super::ssls::{Ssls, refuse_without_https};
use crate::keys::checks::{ActiveCheck, Checks, QUEUE_TIMEOUT_DEFAULT, UpstreamLimits};
use crate::keys::nodes::NodeEntry;
use crate::keys::resources::{HashOn, HostChoice, Scheme, Type, UpstreamKeys};
use crate::model::{Balance, HashKey, Node, NodeProtocol, PassHost, Upstream, UpstreamTimeouts, UpstreamTls};
use crate::values::{CheckType, ProxyProtocol};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::{Template, TemplatePart};
use stillgate_route::Variable;
use stillgate_schema::kind::At;
use stillgate_schema::matching::parse_variable;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// The default `timeout` of routes and upstreams; APISIX's default.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// The default port of a node with `scheme: http`.
const HTTP_PORT: u16 = 80;
/// The default port with `scheme: https`.
const HTTPS_PORT: u16 = 443;

pub(crate) fn upstream(
    mut keys: UpstreamKeys,
    key: &str,
    ssls: &Ssls,
    drops_underscores: bool,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Upstream {
    let bound = UPSTREAM_TIMEOUT;
    let defaults = UpstreamTimeouts { connect: bound, send: bound, read: bound, per_try: None };
    let balance = match keys.r#type {
        Type::RoundRobin => Balance::RoundRobin,
        Type::LeastConn => Balance::LeastConn,
        Type::Ewma => Balance::Ewma,
        Type::ConsistentHash => Balance::ConsistentHash(hash_key(keys.hash_on.clone(), keys.key.clone(), path, sink)),
    };
    if keys.r#type != Type::ConsistentHash
        && let Some(key) = &keys.key
    {
        let fault = Fault::new("has no effect without `type: chash`");
        sink.warning(key.at, &path.key("key"), fault.hint("remove it"));
    }
    if drops_underscores && keys.r#type == Type::ConsistentHash && keys.hash_on.value == HashOn::Header {
        warn_of_dropped_field(keys.key.as_ref(), path, sink);
    }
    check_stream_keys(&mut keys, &balance, path, sink);
    let grpc = matches!(keys.scheme.value, Scheme::Grpc | Scheme::Grpcs);
    let http2 = keys.http2.value || grpc;
    let has_ports = keys.nodes.as_ref().is_none_or(|nodes| nodes.value.iter().all(|node| node.port.is_some()));
    let protocol = match keys.scheme.value {
        Scheme::Http if !http2 && has_ports => NodeProtocol::Plain,
        scheme => scheme.protocol(),
    };
    let tls_path = path.key("tls");
    let port = match keys.scheme.value {
        Scheme::Http | Scheme::Grpc => Some(HTTP_PORT),
        Scheme::Https | Scheme::Grpcs => Some(HTTPS_PORT),
        Scheme::Tcp | Scheme::Tls | Scheme::Udp | Scheme::Plain => None,
    };
    let tls = match keys.scheme.value {
        Scheme::Https | Scheme::Grpcs | Scheme::Tls => Some(ssls.upstream(keys.tls, &tls_path, sink)),
        Scheme::Http | Scheme::Grpc | Scheme::Tcp | Scheme::Udp | Scheme::Plain => {
            refuse_without_https(keys.tls, &tls_path, sink);
            None
        }
    };
    Upstream {
        key: key.to_owned(),
        nodes: keys.nodes.map_or(Vec::new(), |n| nodes(n, port, &path.key("nodes"), sink)),
        options: keys.options,
        limits: limits(keys.limits, path, sink),
        checks: checks(keys.checks, &balance, tls.as_ref(), http2, path, sink),
        timeout: defaults.overridden_by(&keys.timeout),
        pass_host: pass_host(keys.pass_host, keys.upstream_host, path, sink),
        keepalive: keys.keepalive_pool,
        balance,
        protocol,
        proxy_protocol: keys.proxy_protocol.and_then(|version| version.value),
        http2,
        grpc,
        tls,
    }
}

/// The header field of the key arrives under another name.
fn warn_of_dropped_field(key: Option<&At<String>>, path: &Path<'_>, sink: &mut Sink) {
    let Some(key) = key.filter(|key| key.value.contains('_')) else { return };
    let name = key.value.replace('_', "-");
    let fault = Fault::new(format!(
        "header fields with \"_\" in their names are dropped, so that only {name:?} is hashed, and without it the client's address"
    ));
    let hint = format!("set gateway.underscores_in_headers: true, or write {name:?}");
    sink.warning(key.at, &path.key("key"), fault.hint(hint));
}

/// Variables that APISIX accepts as `key`: names of the machine and of nginx's `server` block, and what its plugin `mqtt-proxy`
/// sets.
const WITHOUT_REQUEST_VALUE: [&str; 3] = ["hostname", "mqtt_client_id", "server_name"];

/// The input selected by `hash_on` and `key`.
fn hash_key(on: At<HashOn>, key: Option<At<String>>, path: &Path<'_>, sink: &mut Sink) -> HashKey {
    // Its name is fixed; APISIX ignores another `key`.
    if on.value == HashOn::Consumer {
        return Variable::ConsumerName.into();
    }
    let Some(key) = key else {
        let hint = match on.value {
            HashOn::Combination => "write the text to hash, such as \"$host$remote_addr\"",
            _ => "name the header or cookie to hash",
        };
        if on.value != HashOn::Vars {
            sink.error(on.at, &path.key("hash_on"), Fault::new("needs the key \"key\"").hint(hint));
        }
        return Variable::RemoteAddr.into();
    };
    if on.value == HashOn::Vars && WITHOUT_REQUEST_VALUE.contains(&&*key.value) {
        let fault =
            Fault::new(format!("no request has \"{}\" of its own, so the client's address is hashed", key.value));
        sink.warning(key.at, &path.key("key"), fault.hint("write remote_addr, or a header with `hash_on: header`"));
        return Variable::RemoteAddr.into();
    }
    let mut refuse = |fault| sink.error(key.at, &path.key("key"), fault);
    let name = match on.value {
        HashOn::Vars | HashOn::Consumer => key.value.clone(),
        HashOn::Header => format!("http_{}", key.value.to_ascii_lowercase().replace('-', "_")),
        HashOn::Cookie => format!("cookie_{}", key.value),
        HashOn::Combination => {
            let template = Template::parse_lenient(&key.value, &mut |error| refuse(Fault::new(error.to_string())));
            for variable in template.variables().filter(|variable| !is_known_before_the_node(variable)) {
                refuse(Fault::new(format!("\"{variable}\": not known before the node is chosen")));
            }
            return HashKey::new(&key.value, template);
        }
    };
    let late = Variable::parse_late(&name).ok().filter(is_known_before_the_node);
    let variable = late.map_or_else(|| parse_variable(&name), Ok).unwrap_or_else(|fault| {
        refuse(fault);
        Variable::RemoteAddr
    });
    variable.into()
}

/// Whether a request has it when its node is chosen, with and without plugins.
fn is_known_before_the_node(variable: &Variable) -> bool {
    !matches!(
        variable,
        Variable::Status | Variable::Recorded(_) | Variable::SentHeader(_) | Variable::UpstreamHeader(_)
    )
}

fn nodes(entries: At<Vec<NodeEntry>>, scheme_port: Option<u16>, path: &Path<'_>, sink: &mut Sink) -> Vec<Node> {
    let mut nodes = Vec::with_capacity(entries.value.len());
    let mut places = HashMap::with_capacity(entries.value.len());
    for entry in entries.value {
        let NodeEntry { at, host, port, weight, priority } = entry;
        let Some(port) = port.or(scheme_port) else {
            let fault = Fault::new("the node has no port, and its upstream's scheme has none of its own");
            sink.error(at, path, fault.hint("write it as \"HOST:PORT\""));
            continue;
        };
        let node = Node { host, port, weight, priority };
        match places.entry((node.host.clone(), node.port)) {
            Entry::Vacant(place) => {
                place.insert(nodes.len());
                nodes.push(node);
            }
            // As in APISIX, the weight of the last one counts.
            Entry::Occupied(place) if nodes[*place.get()].priority == priority => {
                nodes[*place.get()].weight = weight;
                let fault = Fault::new("this node is listed twice, and the last weight counts");
                sink.warning(at, path, fault.hint("keep one of them"));
            }
            Entry::Occupied(_) => {
                let fault = Fault::new("this node is listed twice, with different priorities");
                sink.error(at, path, fault.hint("keep one of them"));
            }
        }
    }
    if nodes.iter().all(|node| node.weight == 0) {
        sink.warning(entries.at, path, "no node can be chosen; every request is answered 503");
    }
    nodes
}

fn pass_host(choice: At<HostChoice>, upstream_host: Option<At<String>>, path: &Path<'_>, sink: &mut Sink) -> PassHost {
    match (choice.value, upstream_host) {
        (HostChoice::Rewrite, Some(host)) => return PassHost::Rewrite(host.value),
        (HostChoice::Rewrite, None) => {
            let fault = Fault::new("`rewrite` needs the key \"upstream_host\"").hint("add it to the upstream");
            sink.error(choice.at, &path.key("pass_host"), fault);
        }
        (_, Some(host)) => {
            let fault = Fault::new("has no effect without `pass_host: rewrite`").hint("add that, or remove the key");
            sink.warning(host.at, &path.key("upstream_host"), fault);
        }
        (_, None) => {}
    }
    match choice.value {
        HostChoice::Node => PassHost::Node,
        HostChoice::Pass | HostChoice::Rewrite => PassHost::Pass,
    }
}

// Compiles an upstream's `checks` and `limits`, and warns of parts without effect.

/// Compiles an upstream's limits; warns of a queue that is never used, and of a timeout without waiting requests.
pub(crate) fn limits(written: At<UpstreamLimits>, path: &Path<'_>, sink: &mut Sink) -> UpstreamLimits {
    let At { at, value: limits } = written;
    if limits.queue > 0 && limits.requests.is_none() {
        let fault = Fault::new("has no effect without `requests`").hint("say how many requests may be in flight");
        sink.warning(at, &path.key("limits").key("queue"), fault);
    }
    // A value that equals its default is not distinguished from an absent one.
    if limits.queue == 0 && limits.queue_timeout != QUEUE_TIMEOUT_DEFAULT {
        let fault =
            Fault::new("has no effect without `queue`: no request waits").hint("say how many requests may wait");
        sink.warning(at, &path.key("limits").key("queue_timeout"), fault);
    }
    limits
}

/// Compiles the checks of an upstream; warns of parts without effect. `None`: as if there were none.
pub(crate) fn checks(
    written: Option<At<Checks>>,
    balance: &Balance,
    tls: Option<&UpstreamTls>,
    http2: bool,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Arc<Checks>> {
    let At { at, value: checks } = written?;
    let path = path.key("checks");
    if checks.active.is_none() && checks.passive.is_none() && checks.slow_start.is_zero() {
        return None;
    }
    if !checks.slow_start.is_zero() && matches!(balance, Balance::ConsistentHash(_)) {
        let fault = Fault::new("has no effect with `type: chash`, where a key's place does not depend on time");
        sink.warning(at, &path.key("slow_start"), fault.hint("remove it"));
    }
    if let Some(active) = &checks.active {
        check_type(active, tls, http2, at, &path.key("active"), sink);
    }
    let lists = [
        ("active", checks.active.as_ref().map(|c| (&c.healthy.http_statuses, &c.unhealthy.http_statuses))),
        ("passive", checks.passive.as_ref().map(|c| (&c.healthy.http_statuses, &c.unhealthy.http_statuses))),
    ];
    for (key, lists) in lists {
        let Some((healthy, unhealthy)) = lists else { continue };
        if let Some(both) = healthy.iter().find(|status| unhealthy.contains(status)) {
            let fault =
                Fault::new(format!("the status {both} is in both lists of http_statuses; it counts as healthy"));
            sink.warning(at, &path.key(key), fault.hint("name it in one of them"));
        }
    }
    Some(Arc::new(checks))
}

/// Whether active checks use the same protocol as requests.
fn check_type(
    active: &ActiveCheck,
    tls: Option<&UpstreamTls>,
    http2: bool,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    match (active.r#type, tls) {
        // Another port may well answer for the node over HTTP/1.1.
        (CheckType::Http | CheckType::Https, _) if http2 && active.port.is_none() => {
            let fault = Fault::new("checks speak HTTP/1.1, and this upstream's nodes are spoken to in HTTP/2");
            sink.error(at, &path.key("type"), fault.hint("use `type: tcp`, or name the `port` that speaks HTTP/1.1"));
        }
        (CheckType::Https, None) => {
            let fault = Fault::new("checks with TLS need an upstream with TLS");
            sink.error(at, &path.key("type"), fault.hint("write `scheme: https` in the upstream, or `type: http`"));
        }
        (CheckType::Https, Some(tls)) if tls.verify && !active.https_verify_certificate => {
            let fault = Fault::new("checks verify certificates as requests do");
            let fault = fault.hint("remove the key, or write `verify: false` in the upstream's `tls`");
            sink.error(at, &path.key("https_verify_certificate"), fault);
        }
        (CheckType::Http, Some(_)) if active.port.is_none() => {
            let fault = Fault::new("nodes with `scheme: https` are checked without TLS");
            sink.warning(at, &path.key("type"), fault.hint("write `type: https`, or the port that speaks plain HTTP"));
        }
        _ => {}
    }
}

// Checks the combination of an upstream's keys if its nodes do not speak HTTP.

impl Scheme {
    pub(crate) fn protocol(self) -> NodeProtocol {
        match self {
            Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs => NodeProtocol::Http,
            Scheme::Tcp | Scheme::Tls => NodeProtocol::Tcp,
            Scheme::Udp => NodeProtocol::Udp,
            Scheme::Plain => NodeProtocol::Plain,
        }
    }
}

/// Reports keys that cannot be combined with the scheme.
pub(crate) fn check_stream_keys(keys: &mut UpstreamKeys, balance: &Balance, path: &Path<'_>, sink: &mut Sink) {
    let protocol = keys.scheme.value.protocol();
    check_proxy_protocol(keys.proxy_protocol.as_ref(), protocol, path, sink);
    if protocol == NodeProtocol::Http {
        return;
    }
    if keys.http2.value {
        let fault = Fault::new("HTTP/2 is not spoken with `scheme: tcp`, `tls` or `udp`").hint("remove the key");
        sink.error(keys.http2.at, &path.key("http2"), fault);
    }
    let host = keys.upstream_host.as_ref().map(|host| host.at);
    let pass_host = Some(keys.pass_host.at).filter(|at| *at != Position::NOWHERE);
    for (key, at) in [("pass_host", pass_host), ("upstream_host", host)] {
        if let Some(at) = at {
            let fault = Fault::new("has no effect where no HTTP is spoken").hint("remove it");
            sink.warning(at, &path.key(key), fault);
        }
    }
    if keys.limits.value.queue > 0 {
        let limits = path.key("limits");
        let fault = Fault::new("has no effect where no HTTP is spoken: no request waits").hint("remove it");
        sink.warning(keys.limits.at, &limits.key("queue"), fault);
    }
    if let Balance::ConsistentHash(hashed) = balance
        && !hashed.parts().iter().filter_map(TemplatePart::variable).all(is_of_connection)
        && let Some(key) = &keys.key
    {
        let fault = Fault::new("is known of requests only");
        let fault = fault.hint("hash remote_addr, remote_port, server_addr, server_port or ssl_server_name");
        sink.error(key.at, &path.key("key"), fault);
    }
    check_checks(keys, protocol, path, sink);
    // Its value does not matter, since a stream has no status that could be counted; its default is for HTTP.
    if let Some(passive) = keys.checks.as_mut().and_then(|checks| checks.value.passive.as_mut()) {
        passive.r#type = CheckType::Tcp;
    }
}

fn check_proxy_protocol(
    written: Option<&At<Option<ProxyProtocol>>>,
    protocol: NodeProtocol,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    let Some(At { at, value: Some(_) }) = written else { return };
    let fault = match protocol {
        // Datagrams do not use it.
        NodeProtocol::Tcp | NodeProtocol::Plain => return,
        NodeProtocol::Http => Fault::new(
            "a connection kept to a node of HTTP carries requests of many clients, and a header at its beginning names one",
        )
        .hint("remove the key: such nodes learn the client's address from X-Forwarded-For"),
        NodeProtocol::Udp => Fault::new("the header is for TCP; it is not written to UDP nodes").hint("remove the key"),
    };
    sink.error(*at, &path.key("proxy_protocol"), fault);
}

/// Active checks over HTTP, and those of UDP nodes, need a port that answers them.
fn check_checks(keys: &UpstreamKeys, protocol: NodeProtocol, path: &Path<'_>, sink: &mut Sink) {
    let Some(At { at, value: checks }) = &keys.checks else { return };
    let Some(active) = checks.active.as_ref().filter(|active| active.port.is_none()) else { return };
    let path = path.key("checks");
    let path = path.key("active");
    if protocol == NodeProtocol::Udp {
        let fault = Fault::new("UDP nodes are checked over TCP, at a port of their own");
        sink.error(*at, &path.key("port"), fault.hint("name the port that answers checks"));
    } else if active.r#type != CheckType::Tcp {
        let fault = Fault::new("checks speak HTTP, and this upstream's nodes something else");
        sink.error(*at, &path.key("type"), fault.hint("write `type: tcp`, or name the `port` that speaks HTTP"));
    }
}

/// Whether a connection without a request has the variable.
fn is_of_connection(variable: &Variable) -> bool {
    matches!(
        variable,
        Variable::RemoteAddr
            | Variable::RemotePort
            | Variable::PeerAddr
            | Variable::ServerAddr
            | Variable::ServerPort
            | Variable::ServerProtocol
            | Variable::SslServerName
            | Variable::Ssl(_)
    )
}
