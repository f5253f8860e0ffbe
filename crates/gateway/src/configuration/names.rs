//! The DNS names in a configuration, and their current addresses.
//!
//! Looking them up is the resolver's business; here is only what the start and a reload both need.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use stillgate_config::{Config, Host};
use stillgate_upstream::Resolver;
use tracing::warn;

/// Maximum number of names in one line of the log.
const NAMES_SHOWN_MAX: usize = 10;

/// The DNS names of a configuration's nodes.
pub(crate) fn of(config: &Config) -> BTreeSet<String> {
    let nodes = config.upstreams.iter().flat_map(|upstream| &upstream.nodes);
    nodes
        .filter_map(|node| match &node.host {
            Host::Name(name) => Some(name.clone()),
            Host::Ip(_) => None,
        })
        .collect()
}

/// Current addresses of the names of a configuration.
pub(crate) fn addresses(resolver: &Resolver, config: &Config) -> HashMap<String, Vec<IpAddr>> {
    of(config)
        .into_iter()
        .map(|name| {
            let addresses = resolver.addresses(&name).to_vec();
            (name, addresses)
        })
        .collect()
}

/// Warns of names without addresses: their nodes are left out until they have some.
pub(crate) fn warn_unresolved(resolver: &Resolver) {
    let unresolved = resolver.unresolved();
    for name in unresolved.iter().take(NAMES_SHOWN_MAX) {
        warn!("{name}; its nodes are left out until it is");
    }
    if unresolved.len() > NAMES_SHOWN_MAX {
        warn!("and {} more names", unresolved.len() - NAMES_SHOWN_MAX);
    }
}
