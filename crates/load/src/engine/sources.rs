//! The endpoints of a run: the addresses of the target in use, and source addresses with enough ports.
//!
//! A connection is identified by its two addresses and ports, so one source address allows about 28,000 connections to
//! one destination. On the loopback network every address of 127.0.0.0/8 is this machine's: there, as many sources as
//! needed are found without configuration.

use super::worker::LoadError;
use crate::plan::Load;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use stillgate_rig::ports;

/// Addresses of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoints {
    /// At least one, in the order they are tried; the first that answers is used.
    pub(super) destinations: Vec<SocketAddr>,
    /// Used in turn; empty for the system's choice.
    pub(super) sources: Vec<IpAddr>,
}

impl Endpoints {
    /// For the connections of a run.
    pub(super) fn of(load: &Load) -> Result<Endpoints, LoadError> {
        Endpoints::choose(&load.target.addresses, &load.sources, load.connections, ports::of_connections().len())
    }

    fn choose(
        addresses: &[SocketAddr],
        sources: &[IpAddr],
        connections: usize,
        ports: usize,
    ) -> Result<Endpoints, LoadError> {
        let mut endpoints = Endpoints { destinations: addresses.to_vec(), sources: sources.to_vec() };
        if endpoints.destinations.is_empty() {
            return Err(LoadError::Invalid("the target has no address; resolve its URL before the run"));
        }
        let loopback = |address: &SocketAddr| matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback());
        if sources.is_empty() && connections > ports && addresses.iter().any(loopback) {
            endpoints.destinations.retain(loopback);
            endpoints.sources = loopback_sources(connections.div_ceil(ports));
        } else if let Some(source) = sources.first() {
            endpoints.destinations.retain(|address| address.is_ipv4() == source.is_ipv4());
            if endpoints.destinations.is_empty() || sources.iter().any(|other| other.is_ipv4() != source.is_ipv4()) {
                return Err(LoadError::SourceFamily { source: *source });
            }
        }
        let count = endpoints.sources.len().max(1);
        if connections > count.saturating_mul(ports) {
            return Err(LoadError::SourcePorts { connections, sources: count, ports });
        }
        Ok(endpoints)
    }

    /// The source of a connection; `None` for the system's choice.
    pub(super) fn source(&self, connection: usize) -> Option<IpAddr> {
        (!self.sources.is_empty()).then(|| self.sources[connection % self.sources.len()])
    }
}

fn loopback_sources(count: usize) -> Vec<IpAddr> {
    let first = u32::from(Ipv4Addr::LOCALHOST);
    // No machine has enough ports to reach the network's end: descriptors are 2^31 at most.
    (0..count as u32).map(|number| IpAddr::V4(Ipv4Addr::from(first + number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(addresses: &[&str], sources: &[&str], connections: usize, expected: Result<(usize, &[&str]), &str>) {
        let addresses: Vec<SocketAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let sources: Vec<IpAddr> = sources.iter().map(|text| text.parse().unwrap()).collect();
        let chosen = Endpoints::choose(&addresses, &sources, connections, 1000);
        match (chosen, expected) {
            (Ok(endpoints), Ok((destinations, sources))) => {
                let found: Vec<String> = endpoints.sources.iter().map(IpAddr::to_string).collect();
                assert_eq!(
                    (endpoints.destinations.len(), found),
                    (destinations, sources.iter().map(|s| (*s).to_owned()).collect())
                );
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (chosen, expected) => panic!("{chosen:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn sources_for_the_connections() {
        check(&["127.0.0.1:80"], &[], 1000, Ok((1, &[])));
        check(&["127.0.0.1:80"], &[], 1001, Ok((1, &["127.0.0.1", "127.0.0.2"])));
        check(&["[::1]:80", "127.0.0.1:80"], &[], 5, Ok((2, &[])));
        check(&["[::1]:80", "127.0.0.1:80"], &[], 2500, Ok((1, &["127.0.0.1", "127.0.0.2", "127.0.0.3"])));
        check(&["192.0.2.1:80"], &[], 1001, Err("at least 2 source addresses"));
        check(&["192.0.2.1:80"], &["192.0.2.7"], 1001, Err("at least 2 source addresses"));
        check(&["192.0.2.1:80"], &["192.0.2.7", "192.0.2.8"], 2000, Ok((1, &["192.0.2.7", "192.0.2.8"])));
        check(&["[::1]:80", "127.0.0.1:80"], &["127.0.0.9"], 5, Ok((1, &["127.0.0.9"])));
        check(&["[::1]:80"], &["127.0.0.9"], 5, Err("127.0.0.9"));
        check(&["127.0.0.1:80"], &["127.0.0.9", "::1"], 5, Err("IPv6"));
        check(&[], &[], 5, Err("no address"));
    }
}
