//! What a worker has of one server: idle connections, the last one used first, and the addresses of its name.

use super::breaker::Breaker;
use crate::connection::stream::Stream;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin::{CallError, CallOrigin, Keep};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long the addresses of a name are used before it is resolved again.
const ADDRESSES: Duration = Duration::from_secs(10);
/// Idle connections to one server, whatever a configuration says.
const IDLE_MAX: usize = 256;

/// What a worker has of one server.
pub(super) struct Pool {
    pub(super) origin: Arc<CallOrigin>,
    pub(super) breaker: Breaker,
    /// Calls under way.
    pub(super) under_way: Cell<usize>,
    idle: RefCell<Vec<IdleStream>>,
    addresses: RefCell<Option<(Vec<SocketAddr>, Instant)>>,
    /// One call resolves the name; the others wait for its result.
    asking: Semaphore,
}

struct IdleStream {
    stream: Stream,
    until: Instant,
}

impl Pool {
    pub(super) fn new(origin: Arc<CallOrigin>) -> Pool {
        Pool {
            origin,
            breaker: Breaker::default(),
            under_way: Cell::new(0),
            idle: RefCell::default(),
            addresses: RefCell::default(),
            asking: Semaphore::const_new(1),
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

    /// The server's addresses; a name is resolved by the system, off the worker.
    pub(super) async fn addresses(&self) -> Result<Vec<SocketAddr>, CallError> {
        let (host, port) = (&*self.origin.host, self.origin.port);
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let _asking = self.asking.acquire().await.map_err(|_| CallError::Resolve)?;
        let known = self.addresses.borrow().clone();
        if let Some((addresses, _)) = known.as_ref().filter(|(_, until)| *until > Instant::now()) {
            return Ok(addresses.clone());
        }
        let found: io::Result<Vec<SocketAddr>> = tokio::net::lookup_host((host, port)).await.map(Iterator::collect);
        match (found, known) {
            (Ok(found), _) if !found.is_empty() => {
                self.addresses.replace(Some((found.clone(), Instant::now() + ADDRESSES)));
                Ok(found)
            }
            // Old addresses are better than none.
            (_, Some((stale, _))) => Ok(stale),
            (_, None) => Err(CallError::Resolve),
        }
    }
}
