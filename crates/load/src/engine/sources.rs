//! The endpoints of a run: the addresses of the target in use, and source addresses with enough ports.
//!
//! A connection is identified by its two addresses and ports, so one source address allows about 28,000 connections to
//! one destination. On the loopback network every address of 127.0.0.0/8 is this machine's: there, as many sources as
//! needed are found without configuration.

use crate::plan::Load;
use std::fmt;
use std::io;
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

// Why a run could not begin, for the person who has to make it possible.

/// Why a run could not begin. `Display` explains how to fix it.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A value of the [`crate::Load`] makes no sense.
    Invalid(&'static str),
    /// A request that HTTP/2 cannot carry.
    NotHttp2 {
        /// Its name.
        request: String,
        /// Why HTTP/2 cannot carry it.
        reason: String,
    },
    /// More connections than this process may have files open.
    Descriptors {
        /// Files that would be open.
        needed: u64,
        /// The limit of open files.
        limit: u64,
    },
    /// More connections than the source addresses have ports.
    SourcePorts {
        /// The number of connections of the load.
        connections: usize,
        /// Source addresses that would be used.
        sources: usize,
        /// The number of ports of each.
        ports: usize,
    },
    /// A source address from which no address of the target can be reached.
    SourceFamily {
        /// The source.
        source: IpAddr,
    },
    /// A thread could not be put on its CPU.
    Cpu {
        /// The CPU of the load.
        cpu: usize,
        /// The system's error.
        error: io::Error,
    },
    /// A thread could not be started.
    Thread(io::Error),
    /// The system refused to report events.
    Epoll(io::Error),
    /// It was interrupted before the measured time began.
    Interrupted(PreparationPhase),
    /// No connection could be opened.
    Unreachable {
        /// The address tried last.
        address: SocketAddr,
        /// The URL of the target.
        url: String,
        /// The system's error.
        error: io::Error,
    },
}

/// Phases of a run before its measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreparationPhase {
    /// Its connections were being opened.
    Connecting,
    /// See [`crate::Load::warm_up`].
    WarmUp,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Invalid(what) => f.write_str(what),
            LoadError::NotHttp2 { request, reason } => write!(f, "{request} cannot be sent over HTTP/2: {reason}"),
            LoadError::Descriptors { needed, limit } => write!(
                f,
                "so many connections need {needed} file descriptors, and this process may have {limit}; use fewer connections, or raise the limit (`ulimit -n {needed}` in the shell that starts it, as root \
                 `ulimit -Hn {needed}` first)"
            ),
            LoadError::SourcePorts { connections, sources, ports } => write!(
                f,
                "{connections} connections need more source ports than {sources} source address(es) with {ports} each \
                 have; give at least {} source addresses of this machine (for a target on it, take one in 127.0.0.0/8: \
                 sources are then found by themselves), or widen net.ipv4.ip_local_port_range",
                connections.div_ceil(*ports)
            ),
            LoadError::SourceFamily { source } => write!(
                f,
                "no address of the target can be reached from the source address {source}: one is IPv4, the other \
                 IPv6; give source addresses of the target's kind"
            ),
            LoadError::Cpu { cpu, error } => write!(
                f,
                "a generator thread cannot run on CPU {cpu}: {error}; `nproc` shows how many this process may use, `taskset -p $$` which"
            ),
            LoadError::Thread(error) => {
                write!(f, "a generator thread could not be started: {error}; use fewer threads")
            }
            LoadError::Epoll(error) => {
                write!(f, "epoll: {error}; the generator needs Linux 5.11 or later, and epoll_pwait2 allowed to it")
            }
            LoadError::Interrupted(PreparationPhase::Connecting) => {
                f.write_str("stopped while connections were being opened; nothing was measured")
            }
            LoadError::Interrupted(PreparationPhase::WarmUp) => {
                f.write_str("stopped in the warm-up; nothing was measured")
            }
            LoadError::Unreachable { address, url, error } => {
                write!(f, "no connection to {address} ({url}): {error}; {}", advice(error))
            }
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Cpu { error, .. }
            | LoadError::Thread(error)
            | LoadError::Epoll(error)
            | LoadError::Unreachable { error, .. } => Some(error),
            _ => None,
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(_)) = tls {
        return "is it the right server, and was its certificate issued by an authority that is trusted here?";
    }
    match error.kind() {
        io::ErrorKind::InvalidData => "does the target speak this protocol on this port?",
        io::ErrorKind::UnexpectedEof => "does the target expect another protocol on this port?",
        io::ErrorKind::ConnectionRefused => "nothing listens there: is the target running, and is this its port?",
        io::ErrorKind::TimedOut => "nothing answers there: is the address right, and does a firewall let it through?",
        io::ErrorKind::AddrNotAvailable => "is the source address one of this machine, and has it ports left?",
        io::ErrorKind::PermissionDenied => "a firewall of this machine forbids it",
        _ => "can this machine reach it?",
    }
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
