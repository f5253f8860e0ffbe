//! Endpoints: the addresses of an upstream's nodes.
//!
//! A literal node is one endpoint. A DNS name is one endpoint per resolved address, and *each* has the node's whole
//! weight, as in nginx: a name with three addresses gets three times the traffic of a literal of the same weight, as
//! intended by an operator who scales a service up behind its name. Resolving is not done here.

use crate::health::HealthVerdict;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use stillgate_config::{Host, Upstream};

/// One address that requests can be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address to connect to.
    pub address: SocketAddr,
    /// Share of the traffic; with zero it is never chosen.
    pub weight: u32,
    /// Tier, higher first.
    pub priority: i32,
    /// The configured node in the form of a `Host` header (see [`host_header`]).
    pub host: Arc<str>,
    /// The verdict of active checks; `None` if there are none.
    pub verdict: Option<Arc<HealthVerdict>>,
}

impl Endpoint {
    /// The bytes that place the endpoint on a hash ring. For a literal node they are those of nginx's and APISIX's
    /// rings, so the three agree on a key's node; a name's endpoints also contain the name, so that two names with one
    /// address have two places.
    pub(crate) fn ring_id(&self) -> String {
        let ip = self.address.ip();
        let port = self.address.port();
        let is_literal = [port, 0].iter().any(|default| host_header(&Host::Ip(ip), port, *default) == *self.host);
        if is_literal {
            match ip {
                IpAddr::V4(ip) => format!("{ip}\0{port}"),
                IpAddr::V6(ip) => format!("[{ip}]\0{port}"),
            }
        } else {
            format!("{}\0{ip}\0{port}", self.host)
        }
    }
}

/// The `Host` field value for a node: its port is left out if it is the scheme's default, an IPv6 address is bracketed.
pub fn host_header(host: &Host, port: u16, default_port: u16) -> String {
    let mut text = match host {
        Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]"),
        Host::Ip(IpAddr::V4(ip)) => ip.to_string(),
        Host::Name(name) => name.clone(),
    };
    if port != default_port {
        text.push_str(&format!(":{port}"));
    }
    text
}

/// The endpoints of an upstream in the order of its nodes; `resolve` returns the addresses of a name, none if it is not
/// known (yet). A peer that results twice is one endpoint with the sum of the weights, in the higher tier.
pub fn expand<'a>(upstream: &Upstream, resolve: impl Fn(&str) -> &'a [IpAddr]) -> Vec<Endpoint> {
    let default_port = if upstream.tls.is_some() { 443 } else { 80 };
    let mut endpoints = Vec::with_capacity(upstream.nodes.len());
    let mut places = HashMap::new();
    for node in &upstream.nodes {
        let literal;
        let addresses = match &node.host {
            Host::Ip(ip) => {
                literal = [*ip];
                &literal[..]
            }
            Host::Name(name) => resolve(name),
        };
        let host: Arc<str> = host_header(&node.host, node.port, default_port).into();
        for ip in addresses {
            let endpoint = Endpoint {
                address: SocketAddr::new(*ip, node.port),
                weight: node.weight,
                priority: node.priority,
                host: host.clone(),
                verdict: None,
            };
            let peer = (endpoint.address, host.clone());
            match places.entry(peer) {
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(endpoints.len());
                    endpoints.push(endpoint);
                }
                std::collections::hash_map::Entry::Occupied(place) => {
                    let first: &mut Endpoint = &mut endpoints[*place.get()];
                    first.weight = first.weight.saturating_add(endpoint.weight);
                    first.priority = first.priority.max(endpoint.priority);
                }
            }
        }
    }
    endpoints
}

/// Shares the verdicts of active checks among the endpoints of an upstream: a peer that is in `before` keeps its
/// verdict.
pub fn share_verdicts(endpoints: &mut [Endpoint], before: &[Endpoint]) {
    let known: HashMap<_, _> = before.iter().map(|old| ((old.address, &old.host), &old.verdict)).collect();
    for endpoint in endpoints {
        let verdict = known.get(&(endpoint.address, &endpoint.host)).copied().cloned().flatten();
        endpoint.verdict = Some(verdict.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use stillgate_config::{Balance, KeepalivePool, Node, PassHost, UpstreamTimeouts};

    fn upstream(nodes: &[(&str, u16, u32, i32)]) -> Upstream {
        let second = Duration::from_secs(1);
        Upstream {
            key: "u".into(),
            balance: Balance::RoundRobin,
            nodes: nodes
                .iter()
                .map(|&(host, port, weight, priority)| Node {
                    host: host.parse().map_or_else(|_| Host::Name(host.into()), Host::Ip),
                    port,
                    weight,
                    priority,
                })
                .collect(),
            options: stillgate_config::UpstreamOptions::default(),
            limits: stillgate_config::UpstreamLimits { requests: None, queue: 0, queue_timeout: second },
            checks: None,
            timeout: UpstreamTimeouts { connect: second, send: second, read: second, per_try: None },
            pass_host: PassHost::Node,
            keepalive: KeepalivePool { size: 1, idle_timeout: second, requests: 1 },
            protocol: stillgate_config::NodeProtocol::Http,
            proxy_protocol: None,
            http2: false,
            grpc: false,
            tls: None,
        }
    }

    fn check(nodes: &[(&str, u16, u32, i32)], expected: &[&str]) {
        let addresses: [IpAddr; 2] = ["10.0.0.8".parse().unwrap(), "2001:db8::8".parse().unwrap()];
        let resolve = |name: &str| match name {
            "two.test" => &addresses[..],
            "one.test" => &addresses[..1],
            _ => &[],
        };
        let found: Vec<String> = expand(&upstream(nodes), resolve)
            .iter()
            .map(|e| format!("{} {} {} {}", e.address, e.weight, e.priority, e.host))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn literals_and_names() {
        check(
            &[("10.0.0.1", 8080, 2, 0), ("::1", 80, 0, -1), ("two.test", 80, 3, 1), ("gone.test", 80, 1, 0)],
            &[
                "10.0.0.1:8080 2 0 10.0.0.1:8080",
                "[::1]:80 0 -1 [::1]",
                "10.0.0.8:80 3 1 two.test",
                "[2001:db8::8]:80 3 1 two.test",
            ],
        );
    }

    #[test]
    fn a_peer_listed_twice_is_one_endpoint() {
        check(
            &[("one.test", 81, 2, 0), ("10.0.0.8", 81, 1, 0), ("one.test", 81, 5, 3)],
            &["10.0.0.8:81 7 3 one.test:81", "10.0.0.8:81 1 0 10.0.0.8:81"],
        );
    }
}
