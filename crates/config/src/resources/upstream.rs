//! Compiles an upstream's keys, by themselves and in combination.

use super::checks::{checks, limits};
use super::ssls::{Ssls, refuse_without_https};
use super::stream_upstreams::check_stream_keys;
use crate::keys::nodes::NodeEntry;
use crate::keys::resources::{HashOn, HostChoice, Scheme, Type, UpstreamKeys};
use crate::model::{Balance, HashKey, Node, NodeProtocol, PassHost, Upstream, UpstreamTimeouts};
use std::collections::HashMap;
use std::time::Duration;
use stillgate_plugin::Template;
use stillgate_route::Variable;
use stillgate_schema::kind::At;
use stillgate_schema::matching::parse_variable;
use stillgate_schema::text::diagnostic::{Fault, Path, Sink};

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
    let mut lines = HashMap::with_capacity(entries.value.len());
    for entry in entries.value {
        let NodeEntry { at, host, port, weight, priority } = entry;
        let Some(port) = port.or(scheme_port) else {
            let fault = Fault::new("the node has no port, and its upstream's scheme has none of its own");
            sink.error(at, path, fault.hint("write it as \"HOST:PORT\""));
            continue;
        };
        let node = Node { host, port, weight, priority };
        if let Some(first) = lines.insert((node.host.clone(), node.port), at.line) {
            let fault = Fault::new(format!("this node is listed twice, first in line {first}"));
            sink.error(at, path, fault.hint("keep one of them"));
        }
        nodes.push(node);
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
