//! Connections for protocols of plugins: connected as calls are, and kept by server and pool.

use super::breaker::Trial;
use super::pool::Pool;
use super::{CALLS_MAX, Calls, ORIGINS_MAX, connect, message};
use crate::connection::stream::Stream;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin::{CallError, CallOrigin, Exchange, Exchanged, Keep, Link, LinkTo, LocalFuture};
use tokio::time::{Instant, timeout};

/// Idle connections of one pool, whatever a plugin configures.
const IDLE_MAX: usize = 256;

/// Idle connections by server and pool, the last one used last.
#[derive(Default)]
pub(super) struct IdleLinks(RefCell<HashMap<Key, Vec<IdleLink>>>);

type Key = (Arc<CallOrigin>, Box<str>);

struct IdleLink {
    stream: Stream,
    reused: u32,
    until: Instant,
}

impl IdleLinks {
    fn take(&self, key: &Key, now: Instant) -> Option<(Stream, u32)> {
        let mut all = self.0.borrow_mut();
        let idle = all.get_mut(key)?;
        idle.retain(|kept| kept.until > now);
        while let Some(mut kept) = idle.pop() {
            if !kept.stream.is_dead() {
                return Some((kept.stream, kept.reused + 1));
            }
        }
        all.remove(key);
        None
    }

    fn give(&self, key: Key, stream: Stream, reused: u32, keep: Keep, now: Instant) {
        let mut all = self.0.borrow_mut();
        if all.len() >= ORIGINS_MAX && !all.contains_key(&key) {
            all.retain(|_, idle| idle.iter().any(|kept| kept.until > now));
            if all.len() >= ORIGINS_MAX {
                return;
            }
        }
        let idle = all.entry(key).or_default();
        idle.retain(|kept| kept.until > now);
        let most = keep.connections_max.min(IDLE_MAX);
        if idle.len() >= most && !idle.is_empty() {
            idle.remove(0);
        }
        if most > 0 {
            idle.push(IdleLink { stream, reused, until: now + keep.idle });
        }
    }
}

/// A connection, which counts as a call under way for as long as it is open.
struct ActiveLink {
    stream: Stream,
    reused: u32,
    key: Key,
    open: Open,
}

struct Open {
    calls: Rc<Calls>,
    pool: Rc<Pool>,
}

impl Open {
    fn begin(calls: Rc<Calls>, pool: Rc<Pool>) -> Result<Open, CallError> {
        if pool.under_way.get() >= CALLS_MAX {
            return Err(CallError::Busy);
        }
        pool.under_way.set(pool.under_way.get() + 1);
        Ok(Open { calls, pool })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.pool.under_way.set(self.pool.under_way.get() - 1);
    }
}

impl Calls {
    /// Connects, or returns a connection that was kept.
    pub(crate) async fn link(self: Rc<Self>, to: LinkTo) -> Result<Box<dyn Link>, CallError> {
        let pool = self.pool(&to.origin);
        let key = (to.origin, to.pool);
        let open = Open::begin(self.clone(), pool.clone())?;
        if let Some((stream, reused)) = self.links.take(&key, Instant::now()) {
            return Ok(Box::new(ActiveLink { stream, reused, key, open }));
        }
        let trial = Trial::begin(&pool.breaker, Instant::now())?;
        let connected = timeout(to.timeout, connect::connect(&pool, &self.begin_http2)).await;
        let connected = connected.unwrap_or(Err(CallError::Timeout));
        if let Some(is_paused) = trial.end(connected.is_ok(), Instant::now()) {
            is_paused.log(&pool.origin);
        }
        Ok(Box::new(ActiveLink { stream: connected?, reused: 0, key, open }))
    }
}

impl Link for ActiveLink {
    fn reused(&self) -> u32 {
        self.reused
    }

    fn exchange(mut self: Box<Self>, exchange: Exchange) -> LocalFuture<Exchanged> {
        Box::pin(async move {
            let Exchange { message, send_timeout, read_timeout, reply_bytes_max, mut whole } = exchange;
            let sent = timeout(send_timeout, message::send(&mut self.stream, &message)).await;
            sent.map_err(|_| CallError::Timeout)?.map_err(|_| CallError::Closed)?;
            drop(message);
            let stream = &mut self.stream;
            let receive = async move {
                let mut received = Vec::new();
                loop {
                    if let Some(length) = whole(&received)? {
                        // Unsolicited bytes belong to no reply.
                        return if length == received.len() { Ok(received) } else { Err(CallError::BadReply) };
                    }
                    if received.len() > reply_bytes_max {
                        return Err(CallError::TooLarge);
                    }
                    if !message::read(stream, &mut received).await? {
                        return Err(CallError::Closed);
                    }
                }
            };
            let received = timeout(read_timeout, receive).await.map_err(|_| CallError::Timeout)??;
            Ok((received, self as Box<dyn Link>))
        })
    }

    fn keep(self: Box<Self>, keep: Keep) {
        let ActiveLink { stream, reused, key, open } = *self;
        open.calls.links.give(key, stream, reused, keep, Instant::now());
    }
}
