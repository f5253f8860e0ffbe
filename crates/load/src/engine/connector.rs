//! The endpoints of a run, and which connections to open next, and when: all at once if that works, with pauses if it does
//! not.
//!
//! A target that refuses must not be met by a loop of attempts: after a failure one attempt is made at a time, with
//! pauses that double. This only decides; the owner of the sockets opens them.
//!
//! Before, it raises the limit of file descriptors for a run, or reports a clear error before it begins.

use crate::plan::Load;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use stillgate_rig::{descriptors, ports, proc};

/// Attempts under way at once in a thread: a target's queue of connections not yet accepted is often 128 long.
const CONNECTING_MAX: usize = 128;

/// While all are opened for the first time: attempts in a burst, before a while for the target to accept them.
/// Connections that its queue has no room for are lost, and the system tries again only after one, three and seven
/// seconds.
const BURST_MAX: usize = 32;

/// The time between two bursts.
const BURST_INTERVAL_NS: u64 = 5_000_000;

/// The pause after a first failure.
const PAUSE_MIN_NS: u64 = 10_000_000;

/// The longest pause between two attempts. Requests that are due meanwhile wait for it, so it must be short compared
/// with the time a target needs to come back; a tenth of a second makes a few attempts per second and thread, which is
/// harmless.
const PAUSE_MAX_NS: u64 = 100_000_000;

/// The connections of a thread that are not open.
#[derive(Debug)]
pub(super) struct Connector {
    endpoints: Endpoints,
    /// The destination in use, or tried now.
    destination: usize,
    /// This thread's connections have the numbers `offset`, `offset + step` and so on among all.
    offset: usize,
    step: usize,
    connections: usize,
    closed: VecDeque<u32>,
    connecting: usize,
    /// Zero if the last attempt did not fail.
    pause_ns: u64,
    retry_at_ns: u64,
    /// Attempts left of the burst, and when the next begins; `None` if bursts are not limited.
    burst: Option<(usize, u64)>,
    /// Whether some connection was ever open.
    reached: bool,
    /// The last failure.
    failure: Option<(SocketAddr, io::Error)>,
}

impl Connector {
    /// With all of a thread's connections still to be opened.
    pub(super) fn new(endpoints: Endpoints, connections: usize, thread: usize, threads: usize) -> Self {
        Connector {
            endpoints,
            destination: 0,
            offset: thread,
            step: threads,
            closed: (0..connections as u32).collect(),
            connections,
            connecting: 0,
            pause_ns: 0,
            retry_at_ns: 0,
            burst: Some((0, 0)),
            reached: false,
            failure: None,
        }
    }

    /// Adds a connection that was closed and must be opened again.
    pub(super) fn add(&mut self, number: usize) {
        self.closed.push_back(number as u32);
    }

    /// The connection to open now, if any.
    #[inline]
    pub(super) fn next(&mut self, now_ns: u64) -> Option<usize> {
        if self.closed.is_empty() || now_ns < self.retry_at_ns {
            return None;
        }
        let limit = if self.reached && self.pause_ns == 0 { CONNECTING_MAX } else { 1 };
        if self.connecting >= limit {
            return None;
        }
        if let Some((left, next_ns)) = &mut self.burst {
            if now_ns >= *next_ns {
                (*left, *next_ns) = (BURST_MAX, now_ns + BURST_INTERVAL_NS);
            }
            *left = left.checked_sub(1)?;
        }
        self.connecting += 1;
        self.closed.pop_front().map(|number| number as usize)
    }

    /// Removes the limit of bursts: a target that closes connections should get new ones as fast.
    pub(super) fn hurry(&mut self) {
        self.burst = None;
    }

    /// The destination of a connection, and its source.
    pub(super) fn ends(&self, number: usize) -> (SocketAddr, Option<IpAddr>) {
        let source = self.endpoints.source(self.offset + number * self.step);
        (self.endpoints.destinations[self.destination], source)
    }

    /// An attempt succeeded.
    pub(super) fn on_success(&mut self) {
        self.connecting -= 1;
        self.reached = true;
        self.retry_at_ns = 0;
    }

    /// Records a failed attempt; its connection will be tried again.
    pub(super) fn on_failure(&mut self, number: usize, error: io::Error, now_ns: u64) {
        self.connecting -= 1;
        self.add(number);
        self.failure = Some((self.endpoints.destinations[self.destination], error));
        if !self.reached && self.destination + 1 < self.endpoints.destinations.len() {
            self.destination += 1;
        } else {
            self.slow_down(now_ns);
        }
    }

    /// A connection failed early. Of several failures at the same time only the first doubles the pause.
    pub(super) fn slow_down(&mut self, now_ns: u64) {
        if now_ns >= self.retry_at_ns {
            self.pause_ns = (self.pause_ns * 2).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
            self.retry_at_ns = now_ns + self.pause_ns;
        }
    }

    /// A connection gave an answer, so pauses begin small again.
    #[inline]
    pub(super) fn proven(&mut self) {
        self.pause_ns = 0;
    }

    /// Why nothing can be opened: every destination was tried, and no connection was ever open.
    pub(super) fn unreachable(&mut self) -> Option<(SocketAddr, io::Error)> {
        let is_given_up = !self.reached && self.pause_ns > 0;
        self.failure.take_if(|_| is_given_up)
    }

    /// The destination that is being tried, to report that it was tried for too long.
    pub(super) fn destination(&self) -> SocketAddr {
        self.endpoints.destinations[self.destination]
    }

    pub(super) fn has_reached(&self) -> bool {
        self.reached
    }

    /// Whether no connection is open, and the last attempts failed.
    pub(super) fn is_shut_out(&self) -> bool {
        self.pause_ns > 0 && self.not_open() == self.connections
    }

    /// Connections that are not open, those being opened included.
    pub(super) fn not_open(&self) -> usize {
        self.closed.len() + self.connecting
    }
}

/// Descriptors of each thread besides its connections: epoll and its scheduler statistics.
const PER_THREAD: u64 = 2;

/// Files that the process opens meanwhile: results, the display.
const RESERVE: u64 = 64;

/// Raises this process's own limit as far as a run needs it and the system allows; not further, because programs started
/// later inherit it, and some walk through all of it.
pub(super) fn provide_descriptors(connections: usize, threads: usize) -> Result<(), LoadError> {
    let needed = (connections as u64)
        .saturating_add(threads as u64 * PER_THREAD)
        .saturating_add(RESERVE)
        .saturating_add(open_now());
    match descriptors::raise_to(needed) {
        true => Ok(()),
        false => Err(LoadError::Descriptors { needed, limit: descriptors::limit().hard }),
    }
}

fn open_now() -> u64 {
    // Without /proc, the reserve has to do.
    proc::descriptors("self").map_or(0, |count| count as u64)
}

// The endpoints of a run: the addresses of the target in use, and source addresses with enough ports.
//
// A connection is identified by its two addresses and ports, so one source address allows about 28,000 connections to
// one destination. On the loopback network every address of 127.0.0.0/8 is this machine's: there, as many sources as
// needed are found without configuration.

/// Addresses of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoints {
    /// At least one, in the order they are tried; the first that answers is used.
    destinations: Vec<SocketAddr>,
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

    const MS: u64 = 1_000_000;

    fn connector(destinations: &[&str], connections: usize) -> Connector {
        let destinations = destinations.iter().map(|text| text.parse().unwrap()).collect();
        Connector::new(Endpoints { destinations, sources: Vec::new() }, connections, 0, 1)
    }

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    fn taken(connector: &mut Connector, now_ns: u64) -> usize {
        std::iter::from_fn(|| connector.next(now_ns)).count()
    }

    #[test]
    fn one_first_then_many() {
        let mut connector = connector(&["127.0.0.1:1"], 500);
        assert_eq!(taken(&mut connector, 0), 1);
        connector.on_success();
        assert_eq!(taken(&mut connector, MS), BURST_MAX - 1);
        assert_eq!(taken(&mut connector, 5 * MS), BURST_MAX);
        connector.hurry();
        assert_eq!(taken(&mut connector, 5 * MS), CONNECTING_MAX - 2 * BURST_MAX + 1);
        connector.on_success();
        assert_eq!((taken(&mut connector, 5 * MS), connector.not_open()), (1, 498));
    }

    #[test]
    fn pauses_double_until_an_answer() {
        let mut connector = connector(&["127.0.0.1:1"], 500);
        connector.hurry();
        let first = connector.next(0).unwrap();
        connector.on_success();
        connector.add(first);
        assert_eq!(taken(&mut connector, 0), CONNECTING_MAX);
        // All fail at once, which counts as one failure.
        for number in 0..CONNECTING_MAX {
            connector.on_failure(number, refused(), 0);
        }
        let mut now = 0;
        for pause_ms in [10, 20, 40, 80, 100, 100] {
            assert_eq!(taken(&mut connector, now + pause_ms * MS - 1), 0, "before {pause_ms} ms");
            now += pause_ms * MS;
            assert_eq!(taken(&mut connector, now), 1, "after {pause_ms} ms");
            connector.on_failure(0, refused(), now);
        }
        assert!(connector.unreachable().is_none());
        assert_eq!(taken(&mut connector, now + 100 * MS), 1);
        connector.on_success();
        assert_eq!(taken(&mut connector, now + 100 * MS), 1);
        connector.proven();
        assert_eq!(taken(&mut connector, now + 100 * MS), CONNECTING_MAX - 1);
    }

    #[test]
    fn the_first_address_that_answers() {
        let mut connector = connector(&["[::1]:1", "127.0.0.1:1"], 3);
        let number = connector.next(0).unwrap();
        assert!(connector.ends(number).0.is_ipv6());
        connector.on_failure(number, refused(), 0);
        assert!(connector.unreachable().is_none());
        let number = connector.next(0).unwrap();
        assert!(connector.ends(number).0.is_ipv4());
        connector.on_failure(number, refused(), 0);
        assert_eq!(connector.unreachable().unwrap().1.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn too_many_are_refused_with_the_figures() {
        let Err(LoadError::Descriptors { needed, limit }) = provide_descriptors(usize::MAX / 2, 1) else {
            // A machine without any limit.
            return;
        };
        assert!(needed > limit);
        let message = LoadError::Descriptors { needed, limit }.to_string();
        assert!(message.contains(&format!("ulimit -n {needed}")), "{message}");
        assert!(provide_descriptors(10, 2).is_ok());
    }

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
