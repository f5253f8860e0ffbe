//! The addresses of a server, and a TCP connection to one of them.
//!
//! Addresses that are known are used at once: a task renews them meanwhile, which no call cancels. Only a call that knows none waits
//! for a lookup, and for a moment one that follows a long silence. The C library may take longer for a lookup than a call has,
//! whenever a DNS server is silent.

use super::breaker::ConnectFailure;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::{CallError, CallOrigin, LocalFuture};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet, spawn_local};
use tokio::time::{Instant, sleep, timeout_at};

/// How long the addresses of a name are used before it is resolved again.
const ADDRESSES: Duration = Duration::from_secs(10);
/// An address that has not answered for so long is joined by the next one, as in RFC 8305.
const NEXT_ATTEMPT: Duration = Duration::from_millis(250);

/// Finds the addresses of a name, with a port.
pub(super) type Resolve = Rc<dyn Fn(&str, u16) -> LocalFuture<io::Result<Vec<SocketAddr>>>>;

/// Asks the system, off the worker.
pub(super) fn resolve_by_system() -> Resolve {
    Rc::new(|host, port| {
        let host = host.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    })
}

/// The addresses of one server.
pub(super) struct Addresses {
    origin: Arc<CallOrigin>,
    /// `None`: the server is configured by its address.
    resolve: Option<Resolve>,
    /// In the order in which they are tried: the one that worked last is the first, one that failed the last.
    known: RefCell<Vec<KnownAddress>>,
    /// They need not be looked up until then.
    until: Cell<Option<Instant>>,
    /// The last lookup.
    lookup: RefCell<Option<Lookup>>,
}

struct KnownAddress {
    address: SocketAddr,
    has_failed: bool,
}

/// A lookup, which ends when nobody has its addresses any more.
struct Lookup {
    task: AbortHandle,
    ended: LookupEnd,
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct LookupEnd {
    begun: Instant,
    /// Its sender is dropped when the lookup has ended.
    receiver: watch::Receiver<()>,
}

impl LookupEnd {
    fn has_come(&self) -> bool {
        self.receiver.has_changed().is_err()
    }

    async fn wait(&mut self) {
        while self.receiver.changed().await.is_ok() {}
    }
}

impl Addresses {
    pub(super) fn new(origin: Arc<CallOrigin>, resolve: Resolve) -> Rc<Addresses> {
        let ip = origin.host.parse::<IpAddr>().ok();
        let only = ip.map(|ip| KnownAddress { address: SocketAddr::new(ip, origin.port), has_failed: false });
        let known = RefCell::new(only.into_iter().collect());
        let resolve = ip.is_none().then_some(resolve);
        Rc::new(Addresses { origin, resolve, known, until: Cell::default(), lookup: RefCell::default() })
    }

    /// Connects to the first address that answers. The caller limits the time to `time`, and each address gets a share of it: the
    /// next one is tried when one has failed, and beside one that is silent. `failure` becomes what it means if that fails.
    pub(super) async fn connect(
        self: &Rc<Self>,
        time: Duration,
        failure: &mut ConnectFailure,
    ) -> Result<(TcpStream, SocketAddr), CallError> {
        let start = Instant::now();
        let mut renewal = self.wait_for_some(time, failure).await?;
        let (mut tried, mut attempts) = (Vec::new(), JoinSet::new());
        let mut next = self.others(&tried);
        loop {
            if let Some(address) = next.pop_front() {
                tried.push(address);
                attempts.spawn_local(async move { (address, TcpStream::connect(address).await) });
            }
            let left = time.saturating_sub(start.elapsed());
            let shares = u32::try_from(next.len()).unwrap_or(u32::MAX).saturating_add(1);
            tokio::select! {
                Some(Ok((address, connected))) = attempts.join_next() => match connected {
                    Ok(stream) => {
                        self.prefer(address);
                        return Ok((stream, address));
                    }
                    Err(_) => self.put_last(address),
                },
                // Noted now, because this call may end in the next attempt.
                () = sleep(NEXT_ATTEMPT.min(left / shares)), if !next.is_empty() => {
                    tried.last().into_iter().for_each(|silent| self.put_last(*silent));
                }
                // The server may have moved since the last lookup.
                () = end_of(&mut renewal), if renewal.is_some() => {
                    renewal = None;
                    next = self.others(&tried);
                }
                else => return Err(CallError::Connect),
            }
        }
    }

    /// Returns when some addresses are known; with the end of the lookup that renews them, if one is under way.
    async fn wait_for_some(
        self: &Rc<Self>,
        time: Duration,
        failure: &mut ConnectFailure,
    ) -> Result<Option<LookupEnd>, CallError> {
        let Some((mut end, is_ours)) = self.lookup() else { return Ok(None) };
        if !self.known.borrow().is_empty() {
            // No call has renewed them for long: they may be another server's by now, so a lookup has a head start.
            let is_old = self.until.get().is_none_or(|until| until + ADDRESSES < Instant::now());
            let head_start = end.begun + NEXT_ATTEMPT.min(time / 4);
            let has_ended = is_old && timeout_at(head_start, end.wait()).await.is_ok();
            return Ok((!has_ended).then_some(end));
        }
        let connecting = *failure;
        if !is_ours {
            *failure = ConnectFailure::OtherLookup;
        }
        end.wait().await;
        if self.known.borrow().is_empty() {
            return Err(CallError::Resolve);
        }
        *failure = connecting;
        Ok(None)
    }

    /// The end of the lookup under way, which is begun if it is due, and whether it has been begun now.
    fn lookup(self: &Rc<Self>) -> Option<(LookupEnd, bool)> {
        let resolve = self.resolve.as_ref()?;
        let mut last = self.lookup.borrow_mut();
        if let Some(under_way) = last.as_ref().filter(|lookup| !lookup.ended.has_come()) {
            return Some((under_way.ended.clone(), false));
        }
        if self.until.get().is_some_and(|until| until > Instant::now()) {
            return None;
        }
        let (sender, receiver) = watch::channel(());
        let (found, asking) = (resolve(&self.origin.host, self.origin.port), Rc::downgrade(self));
        let task = spawn_local(async move {
            let found = found.await;
            if let Some(addresses) = asking.upgrade() {
                addresses.learn(found);
            }
            drop(sender);
        });
        let ended = LookupEnd { begun: Instant::now(), receiver };
        *last = Some(Lookup { task: task.abort_handle(), ended: ended.clone() });
        Some((ended, true))
    }

    /// A lookup has ended. Old addresses are better than none: they are used for another period if it has failed.
    fn learn(&self, found: io::Result<Vec<SocketAddr>>) {
        let (host, mut known) = (&*self.origin.host, self.known.borrow_mut());
        let found = found.inspect_err(|error| tracing::debug!(host, %error, "a server of plugins was not found"));
        let found = found.unwrap_or_default();
        if !found.is_empty() {
            let has_failed = |address| known.iter().any(|known| known.address == address && known.has_failed);
            let mut renewed: Vec<KnownAddress> =
                found.into_iter().map(|address| KnownAddress { address, has_failed: has_failed(address) }).collect();
            // Otherwise in the order of the answer, with which DNS servers spread load.
            renewed.sort_by_key(|known| known.has_failed);
            *known = renewed;
        }
        if !known.is_empty() {
            self.until.set(Some(Instant::now() + ADDRESSES));
        }
    }

    /// Known addresses without those that were tried.
    fn others(&self, tried: &[SocketAddr]) -> VecDeque<SocketAddr> {
        self.known.borrow().iter().map(|known| known.address).filter(|address| !tried.contains(address)).collect()
    }

    fn prefer(&self, address: SocketAddr) {
        if self.forget(address) {
            self.known.borrow_mut().insert(0, KnownAddress { address, has_failed: false });
        }
    }

    fn put_last(&self, address: SocketAddr) {
        if self.forget(address) {
            self.known.borrow_mut().push(KnownAddress { address, has_failed: true });
        }
    }

    /// Whether it was known.
    fn forget(&self, address: SocketAddr) -> bool {
        let mut known = self.known.borrow_mut();
        let before = known.len();
        known.retain(|known| known.address != address);
        known.len() < before
    }
}

#[cfg(test)]
impl Addresses {
    /// The next call looks them up.
    pub(super) fn expire(&self) {
        self.until.set(Some(Instant::now()));
    }

    /// They were not used for a while.
    pub(super) fn expire_long_ago(&self) {
        self.until.set(None);
    }

    pub(super) fn ips(&self) -> Vec<IpAddr> {
        self.known.borrow().iter().map(|known| known.address.ip()).collect()
    }
}

/// Waits forever if there is nothing to wait for.
async fn end_of(renewal: &mut Option<LookupEnd>) {
    match renewal {
        Some(end) => end.wait().await,
        None => std::future::pending().await,
    }
}
