//! HTTP calls to servers that are not nodes, on the worker's event loop: for plugins that call external services. A call is written
//! in HTTP/1.1; a gRPC server gets it as an HTTP/2 stream. Plugins with a protocol of their own get a connection.
//!
//! ```text
//!   Call ──▶ pool of its server ──▶ breaker ──▶ a kept connection, or: name ▶ connect ▶ TLS ──▶ message ──▶ Reply
//! ```
//!
//! Only TLS configurations are shared with other workers. Each step has a time limit, the number of calls under way and of kept
//! connections has a bound, and a server that fails is left alone for a while.

mod addresses;
mod breaker;
mod message;

use crate::connection::http2::NodeConnection;
use crate::connection::stream::{Stream, Tls};
use addresses::{Resolve, resolve_by_system};
use breaker::{ConnectFailure, Pool, Trial};
pub(crate) use message::exchange;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stillgate_plugin_api::client_bound::Lease;
use stillgate_plugin_api::{Call, CallError, CallOrigin, Exchange, Keep, Link, LinkReply, LinkTo, LocalFuture, Reply};
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{ServiceRoots, towards_service};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// Servers that a worker keeps connections to.
const ORIGINS_MAX: usize = 256;
/// Fire-and-forget calls of a worker that may be under way.
const SENT_MAX: usize = 256;
/// Bytes of such calls.
const SENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Begins HTTP/2 on a new connection, which a task drives from then on.
pub(crate) type BeginHttp2 = Box<dyn Fn(Stream, SocketAddr) -> LocalFuture<io::Result<NodeConnection>>>;

/// The servers that a worker's plugins call.
pub(crate) struct Calls {
    begin_http2: BeginHttp2,
    resolve: Resolve,
    pools: RefCell<HashMap<Arc<CallOrigin>, Rc<Pool>>>,
    links: IdleLinks,
    sent: Cell<(usize, usize)>,
}

impl Calls {
    pub(crate) fn new(begin_http2: BeginHttp2) -> Calls {
        let resolve = resolve_by_system();
        Calls { begin_http2, resolve, pools: RefCell::default(), links: IdleLinks::default(), sent: Cell::default() }
    }

    /// Makes a call.
    pub(crate) async fn call(self: Rc<Self>, mut call: Call) -> Result<Reply, CallError> {
        let pool = self.pool(&call.origin);
        let _under_way = pool.under_way.take_place(call.client).map_err(|_| CallError::Busy)?;
        self.exchange(&pool, &mut call).await
    }

    /// Makes a fire-and-forget call; false: too many are under way. A call that fails later is reported to `lost`.
    pub(crate) fn send(self: &Rc<Self>, call: Call, lost: impl FnOnce() + 'static) -> bool {
        let (count, bytes) = self.sent.get();
        let after = (count + 1, bytes + call.bytes());
        let has_room = after.0 <= SENT_MAX && after.1 <= SENT_BYTES_MAX;
        if has_room {
            self.sent.set(after);
            let sent = CallGuard { calls: self.clone(), bytes: call.bytes() };
            tokio::task::spawn_local(async move {
                let origin = call.origin.clone();
                match sent.calls.clone().call(call).await {
                    // A reply that is too large is still a reply, and it is not read.
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
            pools.retain(|_, pool| pool.under_way.used() > 0);
        }
        let pool = Rc::new(Pool::new(origin.clone(), self.resolve.clone()));
        if pools.len() < ORIGINS_MAX {
            pools.insert(origin.clone(), pool.clone());
        }
        pool
    }

    /// Makes one call, on a kept connection first: if that has been closed meanwhile, on a new one.
    async fn exchange(&self, pool: &Pool, call: &mut Call) -> Result<Reply, CallError> {
        let message = call.take_message();
        if let Some(kept) = pool.take(Instant::now()) {
            let mut kept = share(pool, call, kept);
            match message::exchange(&mut kept, call, &message).await {
                Err((CallError::Closed, false)) => {}
                result => return finish_call(pool, call, kept, result),
            }
        }
        let mut fresh = share(pool, call, self.connect(pool, call.timeout).await?);
        let result = message::exchange(&mut fresh, call, &message).await;
        finish_call(pool, call, fresh, result)
    }

    /// Connects, unless connecting to the server is paused. Whatever happens on the connection afterwards pauses nothing: the
    /// content of one client's request, which a call may carry, can be the reason for a late or invalid reply, or for none, and
    /// must not take the server away from the others.
    async fn connect(&self, pool: &Pool, time: Duration) -> Result<Stream, CallError> {
        let trial = Trial::begin(&pool.breaker, Instant::now())?;
        let mut failure = ConnectFailure::Server;
        let connected = connect(pool, &self.begin_http2, time, &mut failure).await;
        let is_paused = match connected {
            Ok(_) => trial.end(true, Instant::now()),
            Err(_) => trial.fail(failure, Instant::now()),
        };
        if let Some(is_paused) = is_paused {
            is_paused.log(&pool.origin);
        }
        connected
    }
}

/// Counts a fire-and-forget call, whatever becomes of its task.
struct CallGuard {
    calls: Rc<Calls>,
    bytes: usize,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let (count, bytes) = self.calls.sent.get();
        self.calls.sent.set((count - 1, bytes - self.bytes));
    }
}

/// If the connection carries many calls at once, this call gets one stream of it, and the connection is kept for others.
fn share(pool: &Pool, call: &Call, stream: Stream) -> Stream {
    let Some(one) = stream.share() else { return stream };
    if let Some(keep) = call.keep {
        pool.give(stream, keep, Instant::now());
    }
    one
}

fn finish_call(
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

/// TLS configurations for servers whose certificate is verified and for the others; `None`: it cannot be made.
type Configs = [Option<Arc<ClientConfig>>; 2];

/// Connects within a time. `failure` becomes what it means if that fails.
async fn connect(
    pool: &Pool,
    begin_http2: &BeginHttp2,
    time: Duration,
    failure: &mut ConnectFailure,
) -> Result<Stream, CallError> {
    let connected = timeout(time, async {
        let (stream, address) = pool.addresses.connect(time, failure).await?;
        begin(pool, begin_http2, stream, address).await
    });
    connected.await.unwrap_or(Err(CallError::Timeout))
}

/// Begins what the server speaks on a connection.
async fn begin(
    pool: &Pool,
    begin_http2: &BeginHttp2,
    stream: TcpStream,
    address: SocketAddr,
) -> Result<Stream, CallError> {
    // Without it only latency suffers.
    let _ = stream.set_nodelay(true);
    let stream = match pool.origin.is_https {
        true => tls(&pool.origin, stream).await?,
        false => Stream::Plain(stream),
    };
    if !pool.origin.is_grpc {
        return Ok(stream);
    }
    let connection = begin_http2(stream, address).await.map_err(|_| CallError::Connect)?;
    Ok(Stream::Http2Pooled(Box::new(connection)))
}

async fn tls(origin: &CallOrigin, stream: TcpStream) -> Result<Stream, CallError> {
    let name = ServerName::try_from(origin.host.to_string()).map_err(|_| CallError::Tls)?;
    let config = config(origin.verifies).await.ok_or(CallError::Tls)?;
    let connector = TlsConnector::from(config);
    let connected = match origin.is_grpc {
        true => connector.with_alpn(vec![b"h2".to_vec()]).connect(name.clone(), stream).await,
        false => connector.connect(name.clone(), stream).await,
    };
    let stream = connected.map_err(|error| {
        tracing::warn!(host = &*origin.host, port = origin.port, %error, "TLS with a server that plugins ask failed");
        CallError::Tls
    })?;
    if origin.is_grpc && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(CallError::Tls);
    }
    Ok(Stream::Tls(Box::new(Tls { stream: stream.into(), server_name: Some(name) })))
}

/// Built once per process, off the worker: the system's certificates are in files.
async fn config(verifies: bool) -> Option<Arc<ClientConfig>> {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    let configs = match CONFIGS.get() {
        Some(configs) => configs,
        None => {
            let made = tokio::task::spawn_blocking(make).await.ok()?;
            CONFIGS.get_or_init(|| made)
        }
    };
    configs[usize::from(verifies)].clone()
}

fn make() -> Configs {
    let found = rustls_native_certs::load_native_certs();
    let roots: Vec<Vec<u8>> = found.certs.iter().map(|certificate| certificate.to_vec()).collect();
    [ServiceRoots::Anyone, ServiceRoots::Der(&roots)].map(|roots| {
        towards_service(roots).inspect_err(|error| tracing::error!("plugins cannot speak TLS: {error}")).ok()
    })
}

#[cfg(test)]
mod tests;

// Connections for protocols of plugins: connected as calls are, and kept by server and pool.

/// Idle connections of one pool, whatever a plugin configures.
const IDLE_MAX: usize = 256;

/// Idle connections by server and pool, the last one used last.
#[derive(Default)]
struct IdleLinks(RefCell<HashMap<Key, Vec<IdleLink>>>);

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
    calls: Rc<Calls>,
    _under_way: Lease,
}

impl Calls {
    /// Connects, or returns a connection that was kept.
    pub(crate) async fn link(self: Rc<Self>, to: LinkTo) -> Result<Box<dyn Link>, CallError> {
        let pool = self.pool(&to.origin);
        let key = (to.origin, to.pool);
        let under_way = pool.under_way.take_place(to.client).map_err(|_| CallError::Busy)?;
        if let Some((stream, reused)) = self.links.take(&key, Instant::now()) {
            return Ok(Box::new(ActiveLink { stream, reused, key, calls: self, _under_way: under_way }));
        }
        let stream = self.connect(&pool, to.timeout).await?;
        Ok(Box::new(ActiveLink { stream, reused: 0, key, calls: self, _under_way: under_way }))
    }
}

impl Link for ActiveLink {
    fn reused(&self) -> u32 {
        self.reused
    }

    fn exchange(mut self: Box<Self>, exchange: Exchange) -> LocalFuture<LinkReply> {
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
        let ActiveLink { stream, reused, key, calls, .. } = *self;
        calls.links.give(key, stream, reused, keep, Instant::now());
    }
}
