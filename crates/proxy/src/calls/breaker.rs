//! A server that fails repeatedly is left alone for a while; then one call probes whether it works again.

use super::addresses::{Addresses, Resolve};
use crate::connection::stream::Stream;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::facts::client_network;
use stillgate_plugin_api::{CallError, CallOrigin, Keep};
use tokio::time::Instant;

/// Consecutive failures after which a server is left alone.
const FAILURES_MAX: u32 = 5;
/// How long it is left alone.
const REST: Duration = Duration::from_secs(5);

/// What is known of one server.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: Cell<u32>,
    /// It rests until then.
    until: Cell<Option<Instant>>,
    /// A call is probing.
    is_tried: Cell<bool>,
}

/// Whether calls to a server are paused; a failed probe prolongs a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IsPaused(bool);

impl IsPaused {
    /// Reports it once for each change, by each worker.
    pub(super) fn log(self, origin: &CallOrigin) {
        let (host, port) = (&*origin.host, origin.port);
        match self {
            IsPaused(true) => tracing::warn!(
                host,
                port,
                "calls of plugins to this server are paused: connecting to it has failed {FAILURES_MAX} times in a row; one call \
                 tries it again every {} s",
                REST.as_secs()
            ),
            IsPaused(false) => tracing::info!(host, port, "calls of plugins to this server are made again"),
        }
    }
}

/// What it means if connecting fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectFailure {
    /// The server cannot be connected to.
    Server,
    /// Its name is not resolved by a lookup that another call began, and counts.
    OtherLookup,
}

/// A connection that may be made.
pub(super) struct Trial<'a> {
    breaker: &'a Breaker,
    /// It probes whether the server works again.
    is_probe: bool,
}

#[cfg(test)]
impl Breaker {
    /// As after failures whose pause ends then.
    pub(super) fn pause_until(&self, until: Instant) {
        self.failures.set(FAILURES_MAX);
        self.until.set(Some(until));
    }
}

impl<'a> Trial<'a> {
    /// Whether the server may be connected to now.
    pub(super) fn begin(breaker: &'a Breaker, now: Instant) -> Result<Trial<'a>, CallError> {
        let rests = breaker.until.get();
        if rests.is_some_and(|until| now < until || breaker.is_tried.get()) {
            return Err(CallError::Resting);
        }
        let is_probe = rests.is_some();
        breaker.is_tried.set(is_probe);
        Ok(Trial { breaker, is_probe })
    }

    /// Records the result. Returns whether calls are paused from now on, if that has changed.
    pub(super) fn end(self, is_good: bool, now: Instant) -> Option<IsPaused> {
        let Breaker { failures, until, .. } = self.breaker;
        if is_good {
            failures.set(0);
            return until.take().map(|_| IsPaused(false));
        }
        failures.set(failures.get().saturating_add(1));
        if failures.get() < FAILURES_MAX {
            return None;
        }
        until.replace(Some(now + REST)).is_none().then_some(IsPaused(true))
    }

    /// Records a failure. Returns what `end` does.
    pub(super) fn fail(self, failure: ConnectFailure, now: Instant) -> Option<IsPaused> {
        match failure {
            // Otherwise the next call would probe at once.
            ConnectFailure::OtherLookup if !self.is_probe => None,
            ConnectFailure::Server | ConnectFailure::OtherLookup => self.end(false, now),
        }
    }
}

/// Also runs for a call that was abandoned before its end, which has shown nothing.
impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.breaker.is_tried.set(false);
        }
    }
}

// What a worker has of one server: idle connections, the last one used first, and its addresses.

/// Idle connections to one server, whatever a configuration says.
const IDLE_MAX: usize = 256;

/// What a worker has of one server.
pub(super) struct Pool {
    pub(super) origin: Arc<CallOrigin>,
    pub(super) breaker: Breaker,
    /// Calls under way.
    pub(super) under_way: CallCounts,
    pub(super) addresses: Rc<Addresses>,
    idle: RefCell<Vec<IdleStream>>,
}

struct IdleStream {
    stream: Stream,
    until: Instant,
}

impl Pool {
    pub(super) fn new(origin: Arc<CallOrigin>, resolve: Resolve) -> Pool {
        let addresses = Addresses::new(origin.clone(), resolve);
        Pool {
            origin,
            breaker: Breaker::default(),
            under_way: CallCounts::default(),
            addresses,
            idle: RefCell::default(),
        }
    }

    /// A live connection, if one is kept.
    pub(super) fn take(&self, now: Instant) -> Option<Stream> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|kept| kept.until > now);
        for place in (0..idle.len()).rev() {
            if idle[place].stream.is_dead() {
                idle.remove(place);
            } else if !idle[place].stream.is_full() {
                return Some(idle.remove(place).stream);
            }
        }
        None
    }

    /// Keeps a connection, in place of the oldest if there are enough.
    pub(super) fn give(&self, stream: Stream, keep: Keep, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|kept| kept.until > now);
        if idle.len() >= keep.connections_max.min(IDLE_MAX) && !idle.is_empty() {
            idle.remove(0);
        }
        idle.push(IdleStream { stream, until: now + keep.idle });
    }
}

// How many calls are under way, for which clients: while there are many, each client has a share of the rest.

/// Calls of a worker under way to one server.
pub(super) const CALLS_MAX: usize = 1024;
/// Calls of them that are made for one client while half of them are: the server may take long for what that client sends.
pub(super) const CLIENT_CALLS_MAX: usize = 64;

/// Counts of calls under way.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    all: Cell<usize>,
    clients: RefCell<HashMap<IpAddr, usize>>,
}

impl CallCounts {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.get()
    }
}

/// A call, counted until it is dropped.
pub(super) struct UnderWay {
    pool: Rc<Pool>,
    client: Option<IpAddr>,
}

impl UnderWay {
    /// Begins a call for a client; `None`: it is for all.
    pub(super) fn begin(pool: Rc<Pool>, client: Option<IpAddr>) -> Result<UnderWay, CallError> {
        let client = client.map(client_network);
        let CallCounts { all, clients } = &pool.under_way;
        let count = all.get();
        if count >= CALLS_MAX {
            return Err(CallError::Busy);
        }
        if let Some(client) = client {
            let mut clients = clients.borrow_mut();
            let of_client = clients.entry(client).or_default();
            if count >= CALLS_MAX / 2 && *of_client >= CLIENT_CALLS_MAX {
                return Err(CallError::Busy);
            }
            *of_client += 1;
        }
        all.set(count + 1);
        Ok(UnderWay { pool, client })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let CallCounts { all, clients } = &self.pool.under_way;
        all.set(all.get() - 1);
        let Some(client) = self.client else { return };
        let mut clients = clients.borrow_mut();
        if let Some(of_client) = clients.get_mut(&client) {
            *of_client -= 1;
            if *of_client == 0 {
                clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::addresses::resolve_by_system;
    use stillgate_plugin_api::Url;

    #[test]
    fn five_failures_in_a_row_are_followed_by_a_rest() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        let end = |at, is_good| Trial::begin(&breaker, at).map(|trial| trial.end(is_good, at)).ok();
        let call = |at, is_good| end(at, is_good).is_some();
        for _ in 0..3 {
            assert!((1..FAILURES_MAX).all(|_| call(start, false)));
            assert!(call(start, true), "a success in between");
        }
        assert!((0..FAILURES_MAX).all(|_| call(start, false)));
        assert!(!call(start, true) && !call(start + REST / 2, true));
        // One call probes, others are refused meanwhile, and a call that is abandoned shows nothing.
        let after = start + REST;
        let probe = Trial::begin(&breaker, after).ok().unwrap();
        assert!(!call(after, true));
        drop(probe);
        assert!(call(after, false));
        assert!(!call(after, true) && !call(after + REST / 2, true));
        assert_eq!(end(after + REST, true), Some(Some(IsPaused(false))));
        assert_eq!(end(after + REST, true), Some(None));
        // Only the beginning and the end of a pause are news.
        let mut news: Vec<_> = (0..FAILURES_MAX).filter_map(|_| end(after, false)?).collect();
        news.extend(end(after + REST, false).flatten());
        news.extend(end(after + 2 * REST, true).flatten());
        assert_eq!(news, [IsPaused(true), IsPaused(false)]);
    }

    #[test]
    fn one_client_leaves_calls_to_others() {
        let origin = Url::parse("http://127.0.0.1:1/", true).unwrap().origin;
        let pool = Rc::new(Pool::new(origin, resolve_by_system()));
        let begin = |client: u8| UnderWay::begin(pool.clone(), Some(IpAddr::from([192, 0, 2, client])));
        // As many as it needs while there is room for all.
        let mut calls: Vec<UnderWay> = (0..CALLS_MAX / 2).map(|_| begin(1).unwrap()).collect();
        assert_eq!(begin(1).err(), Some(CallError::Busy));
        for other in 2..10 {
            calls.extend((0..CLIENT_CALLS_MAX).map(|_| begin(other).unwrap()));
        }
        assert_eq!((begin(20).err(), pool.under_way.count()), (Some(CallError::Busy), CALLS_MAX));
        drop(calls);
        assert_eq!(pool.under_way.count(), 0);
        assert!(pool.under_way.clients.borrow().is_empty());
        // What is for all has no share.
        let calls: Vec<_> = (0..CALLS_MAX).map(|_| UnderWay::begin(pool.clone(), None).unwrap()).collect();
        assert!(UnderWay::begin(pool.clone(), None).is_err());
        drop(calls);
    }
}
