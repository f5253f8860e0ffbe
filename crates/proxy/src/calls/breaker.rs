//! A server that fails repeatedly is left alone for a while; then one call probes whether it works again.

use super::addresses::{Addresses, Resolve};
use crate::connection::stream::Stream;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::client_bound::ClientBound;
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
    pub(super) under_way: Rc<ClientBound>,
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
            under_way: ClientBound::new(CALLS_MAX, CLIENT_CALLS_MAX),
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

/// Calls of a worker under way to one server.
pub(super) const CALLS_MAX: usize = 1024;
/// Calls of them that are made for one client while half of them are: the server may take long for what that client sends.
pub(super) const CLIENT_CALLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::addresses::resolve_by_system;
    use std::net::IpAddr;
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
        let pool = Pool::new(origin, resolve_by_system());
        let begin = |client: u8| pool.under_way.take_place(IpAddr::from([192, 0, 2, client]));
        // As many as it needs while there is room for all.
        let mut calls: Vec<_> = (0..CALLS_MAX / 2).map(|_| begin(1).unwrap()).collect();
        assert!(begin(1).is_err());
        for other in 2..10 {
            calls.extend((0..CLIENT_CALLS_MAX).map(|_| begin(other).unwrap()));
        }
        assert!(begin(20).is_err());
        assert_eq!(pool.under_way.used(), CALLS_MAX);
    }
}
