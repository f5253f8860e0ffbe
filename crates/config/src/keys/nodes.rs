//! The `nodes` of an upstream: a map of `"host:port": weight`, or a list of maps.

use crate::values::Host;
use serde_json::{Value as Json, json};
use stillgate_schema::description::{Definitions, or_environment};
use stillgate_schema::kind::{Kind, LocatedKind, Text, int, list, read, report_expected, text};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink, shortened};
use stillgate_schema::text::tree::{Node, Value};

/// The largest weight of a node.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// Priorities of nodes lie between this and its negative.
pub const PRIORITY_MAX: i32 = 1_000_000;

/// One node as written; the port may follow from the scheme.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeEntry {
    pub(crate) at: Position,
    pub(crate) host: Host,
    pub(crate) port: Option<u16>,
    pub(crate) weight: u32,
    pub(crate) priority: i32,
}

object! {
    /// One node of an upstream.
    pub(crate) struct NodeKeys {
        /// IP address or DNS name.
        host: Host = NODE_HOST => required;
        /// TCP port. Default: 80, or 443 with `scheme: https`.
        port: u16 = int(1, 65535) => optional;
        /// Share of requests, relative to other nodes; 0: never chosen.
        weight: u32 = int(0, WEIGHT_MAX as i64) => default(1);
        /// Higher first; a lower tier is used only if all higher ones are unusable.
        priority: i32 = int(-(PRIORITY_MAX as i64), PRIORITY_MAX as i64) => default(0);
        /// Arbitrary data; has no effect.
        metadata: () = Metadata => optional;
    }
}

/// A map that means nothing to the gateway.
struct Metadata;

impl Kind for Metadata {
    type Out = ();

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<()> {
        if !matches!(node.value, Value::Map(_)) {
            report_expected("a map", node, path, sink);
            return None;
        }
        Some(())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object"})
    }
}

/// The kind of `nodes`.
pub(crate) struct Nodes;

impl Kind for Nodes {
    type Out = Vec<NodeEntry>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<NodeEntry>> {
        let Value::Map(entries) = &node.value else {
            if let Value::List(_) = &node.value {
                let nodes = list(LocatedKind(map::<NodeKeys>())).read(node, path, sink)?;
                return Some(nodes.into_iter().map(|n| listed(n.at, n.value)).collect());
            }
            report_expected("a map of \"host:port\" to weight, or a list of nodes", node, path, sink);
            return None;
        };
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let path = path.key(&entry.key);
            let weight = read(&int(0, WEIGHT_MAX as i64), &entry.value, &path, sink);
            match parse_authority(&entry.key) {
                Err(fault) => sink.error(entry.key_at, &path, fault),
                Ok((host, port)) => {
                    nodes.push(NodeEntry { at: entry.key_at, host, port, weight: weight.unwrap_or(1), priority: 0 })
                }
            }
        }
        Some(nodes)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let weight = or_environment(json!({"type": "integer", "minimum": 0, "maximum": WEIGHT_MAX}));
        json!({"anyOf": [
            {"type": "object", "additionalProperties": weight},
            list(map::<NodeKeys>()).schema(definitions),
        ]})
    }
}

fn listed(at: Position, node: NodeKeys) -> NodeEntry {
    let NodeKeys { host, port, weight, priority, .. } = node;
    NodeEntry { at, host, port, weight, priority }
}

const NODE_HOST: Text<Host> = text("an IP address or DNS name", |text| {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    parse_host(bare)
});

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(crate) fn parse_authority(text: &str) -> Result<(Host, Option<u16>), Fault> {
    if text.contains('@') {
        let fault = Fault::new(format!("{:?} has a user name", shortened(text)));
        return Err(fault.hint("write what comes after the @ only"));
    }
    if let Ok(address) = text.parse::<std::net::Ipv6Addr>() {
        let fault = Fault::new(format!("the IPv6 address {text:?} must be in brackets"));
        return Err(fault.hint(format!("write \"[{address}]:80\"")));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else {
            return Err(Fault::new(format!("{:?} has no closing bracket", shortened(text))));
        };
        let address = address.parse::<std::net::Ipv6Addr>();
        let address = address.map_err(|_| Fault::new(format!("{:?} is not an IPv6 address", shortened(text))))?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(parse_port(port)?),
            None if rest.is_empty() => None,
            None => return Err(Fault::new(format!("{:?} has text behind the bracket", shortened(text)))),
        };
        return Ok((Host::Ip(address.into()), port));
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.starts_with("//") => {
            let fault = Fault::new(format!("{:?} is a URL", shortened(text)));
            Err(fault.hint("write host and port only, without scheme and path"))
        }
        None => Ok((parse_host(text)?, None)),
        Some((host, port)) => Ok((parse_host(host)?, Some(parse_port(port)?))),
    }
}

fn parse_port(text: &str) -> Result<u16, Fault> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits && port > 0 => Ok(port),
        _ => {
            let fault = Fault::new(format!("{:?} is not a port", shortened(text)));
            Err(fault.hint("write a number from 1 to 65535"))
        }
    }
}

/// An address, or a DNS name by the rules of RFC 1035 section 2.3 with `_` allowed, as service names have it.
fn parse_host(text: &str) -> Result<Host, Fault> {
    const NAME_BYTES_MAX: usize = 253;
    const LABEL_BYTES_MAX: usize = 63;
    if let Ok(address) = text.parse() {
        return Ok(Host::Ip(address));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let label_ok = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    // A name that ends in a number is an address that was written wrong (WHATWG URL, "ends in a number").
    let numeric_end = name.rsplit('.').next().is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()));
    if name.len() > NAME_BYTES_MAX || numeric_end || !name.split('.').all(label_ok) {
        return Err(Fault::new(format!("{:?} is neither an IP address nor a DNS name", shortened(text))));
    }
    Ok(Host::Name(name.to_ascii_lowercase()))
}
