//! HTTP calls to servers that are no nodes, on the worker's event loop: for plugins that ask others. A call is written in HTTP/1.1;
//! a server of gRPC gets it as a stream of HTTP/2. Plugins with a protocol of their own get a connection (`link.rs`).
//!
//! ```text
//!   Call ──▶ pool of its server ──▶ breaker ──▶ a kept connection, or: name ▶ connect ▶ TLS ──▶ message ──▶ Reply
//! ```
//!
//! Nothing here is shared with other workers but what TLS is made with. Each step has a time, the number of calls under way and
//! of kept connections a bound, and a server that fails is left alone for a while.

mod breaker;
mod connect;
mod link;
mod message;
mod pool;

use crate::connection::http2::NodeConnection;
use crate::connection::stream::Stream;
use breaker::Trial;
use link::IdleLinks;
pub(crate) use message::exchange;
use pool::Pool;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin::{Call, CallError, CallOrigin, LocalFuture, Reply};
use tokio::time::{Instant, timeout};

/// Servers that a worker keeps connections to.
const ORIGINS_MAX: usize = 256;
/// Calls of a worker under way to one server.
const CALLS_MAX: usize = 1024;
/// A call that its server ends without a reply after this share of its time has held the request up, and counts as failed.
const SLOW_SHARE: u32 = 4;
/// Calls of a worker that nobody waits for.
const SENT_MAX: usize = 256;
/// Their bytes.
const SENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Begins HTTP/2 on a connection just made, which somebody drives from then on.
pub(crate) type BeginHttp2 = Box<dyn Fn(Stream, SocketAddr) -> LocalFuture<io::Result<NodeConnection>>>;

/// The servers that a worker's plugins ask.
pub(crate) struct Calls {
    begin_http2: BeginHttp2,
    pools: RefCell<HashMap<Arc<CallOrigin>, Rc<Pool>>>,
    links: IdleLinks,
    sent: Cell<(usize, usize)>,
}

impl Calls {
    pub(crate) fn new(begin_http2: BeginHttp2) -> Calls {
        Calls { begin_http2, pools: RefCell::default(), links: IdleLinks::default(), sent: Cell::default() }
    }

    /// Makes a call.
    pub(crate) async fn call(self: Rc<Self>, mut call: Call) -> Result<Reply, CallError> {
        let pool = self.pool(&call.origin);
        let _under_way = UnderWay::begin(&pool.under_way)?;
        let began = Instant::now();
        let trial = Trial::begin(&pool.breaker, began)?;
        let result = self.exchange(&pool, &mut call).await;
        match result {
            // Too large a reply is a reply.
            Ok(_) | Err(CallError::TooLarge) => trial.end(true, Instant::now()),
            // A client's request, which such a call may carry, can be what the server closes the connection on. Where that takes no
            // time, there is nothing to spare.
            Err(CallError::Closed) if began.elapsed() < call.timeout / SLOW_SHARE => drop(trial),
            Err(_) => trial.end(false, Instant::now()),
        }
        result
    }

    /// Makes a call that nobody waits for; false: too many are under way. One that fails later is told to `lost`.
    pub(crate) fn send(self: &Rc<Self>, call: Call, lost: impl FnOnce() + 'static) -> bool {
        let (count, bytes) = self.sent.get();
        let after = (count + 1, bytes + call.bytes());
        let has_room = after.0 <= SENT_MAX && after.1 <= SENT_BYTES_MAX;
        if has_room {
            self.sent.set(after);
            let sent = Sent { calls: self.clone(), bytes: call.bytes() };
            tokio::task::spawn_local(async move {
                let origin = call.origin.clone();
                match sent.calls.clone().call(call).await {
                    // Too large a reply is a reply, and nobody reads it.
                    Ok(_) | Err(CallError::TooLarge) => {}
                    Err(error) => {
                        tracing::debug!(host = &*origin.host, port = origin.port, "a call failed: {error}");
                        lost();
                    }
                }
            });
        }
        has_room
    }

    fn pool(&self, origin: &Arc<CallOrigin>) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        if let Some(pool) = pools.get(origin) {
            return pool.clone();
        }
        if pools.len() >= ORIGINS_MAX {
            pools.retain(|_, pool| pool.under_way.get() > 0);
        }
        let pool = Rc::new(Pool::new(origin.clone()));
        if pools.len() < ORIGINS_MAX {
            pools.insert(origin.clone(), pool.clone());
        }
        pool
    }

    /// One call, on a kept connection first: where that has ended meanwhile, on a new one.
    async fn exchange(&self, pool: &Pool, call: &mut Call) -> Result<Reply, CallError> {
        let message = call.take_message();
        if let Some(kept) = pool.take(Instant::now()) {
            let mut kept = share(pool, call, kept);
            match message::exchange(&mut kept, call, &message).await {
                Err((CallError::Closed, false)) => {}
                result => return keep(pool, call, kept, result),
            }
        }
        let fresh = timeout(call.timeout, connect::connect(pool, &self.begin_http2)).await;
        let mut fresh = share(pool, call, fresh.map_err(|_| CallError::Timeout)??);
        let result = message::exchange(&mut fresh, call, &message).await;
        keep(pool, call, fresh, result)
    }
}

/// Counts a call that nobody waits for, whatever becomes of its task.
struct Sent {
    calls: Rc<Calls>,
    bytes: usize,
}

impl Drop for Sent {
    fn drop(&mut self) {
        let (count, bytes) = self.calls.sent.get();
        self.calls.sent.set((count - 1, bytes - self.bytes));
    }
}

/// Counts a call while it is under way.
struct UnderWay<'a>(&'a Cell<usize>);

impl<'a> UnderWay<'a> {
    fn begin(count: &'a Cell<usize>) -> Result<UnderWay<'a>, CallError> {
        if count.get() >= CALLS_MAX {
            return Err(CallError::Busy);
        }
        count.set(count.get() + 1);
        Ok(UnderWay(count))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Of a connection that carries many calls at once this one gets a stream; the connection is kept for others.
fn share(pool: &Pool, call: &Call, stream: Stream) -> Stream {
    let Some(one) = stream.share() else { return stream };
    if let Some(keep) = call.keep {
        pool.give(stream, keep, Instant::now());
    }
    one
}

fn keep(
    pool: &Pool,
    call: &Call,
    stream: Stream,
    result: Result<(Reply, bool), (CallError, bool)>,
) -> Result<Reply, CallError> {
    let (reply, is_kept) = result.map_err(|(error, _)| {
        if error == CallError::Timeout {
            stream.retire();
        }
        error
    })?;
    if let Some(keep) = call.keep.filter(|_| is_kept && !stream.is_one_request()) {
        pool.give(stream, keep, Instant::now());
    }
    Ok(reply)
}

#[cfg(test)]
mod tests;
