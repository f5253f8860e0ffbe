//! Owners of work that other threads do, and each client's share of that work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::QueueFull;
use stillgate_plugin_api::facts::client_network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pieces of one client's work, from up to 32 workers, that may be in a plugin's queue at once: the rest of it is for the others.
/// Each further worker adds one.
const CLIENT_WORK_MAX: usize = 32;
/// Pieces of it from one worker.
const SHARE_MAX: usize = 8;
/// Pieces of one client's work that may wait for its share of one worker.
pub(crate) const WAITING_MAX: usize = 256;

/// The owner of a piece of work: clients take turns, and so do the routes of one client. Work of one owner is done in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkOwner {
    /// Its address, or the beginning of it.
    pub(crate) client: IpAddr,
    /// A collision only lets two routes wait for each other.
    pub(crate) route: u64,
}

impl WorkOwner {
    /// A client of a route.
    pub(crate) fn of(route: &str, client: IpAddr) -> WorkOwner {
        let mut hasher = DefaultHasher::new();
        route.hash(&mut hasher);
        WorkOwner { client: client_network(client), route: hasher.finish() }
    }

    /// A client's bodies under way, on all routes.
    pub(crate) fn of_bodies(client: IpAddr) -> WorkOwner {
        WorkOwner::of("", client)
    }
}

/// Each client's share of the work that one worker has done elsewhere.
pub(crate) struct ClientShares {
    share: usize,
    clients: RefCell<HashMap<ShareKey, ClientShare>>,
}

/// A client of a plugin: no work waits for that of another plugin.
type ShareKey = (&'static str, IpAddr);

struct ClientShare {
    free: Arc<Semaphore>,
    /// Pieces of work that have a place in the share, or wait for one.
    pieces: usize,
}

impl Default for ClientShares {
    fn default() -> ClientShares {
        ClientShares::new(1)
    }
}

impl ClientShares {
    /// The shares of one of this many workers.
    pub(crate) fn new(workers: usize) -> ClientShares {
        let share = (CLIENT_WORK_MAX / workers.max(1)).clamp(1, SHARE_MAX);
        ClientShares { share, clients: RefCell::default() }
    }

    /// Waits for a place in a client's share; fails if too much of its work waits already.
    pub(crate) fn admit(
        self: &Rc<ClientShares>,
        plugin: &'static str,
        owner: WorkOwner,
    ) -> Result<impl Future<Output = SharePlace> + use<>, QueueFull> {
        let pieces = self.clients.borrow().get(&(plugin, owner.client)).map_or(0, |of_client| of_client.pieces);
        if pieces >= self.share + WAITING_MAX { Err(QueueFull) } else { Ok(self.wait(plugin, owner)) }
    }

    /// Waits for a place in a client's share, with the work on a body that has begun.
    pub(crate) fn wait(
        self: &Rc<ClientShares>,
        plugin: &'static str,
        owner: WorkOwner,
    ) -> impl Future<Output = SharePlace> + use<> {
        let key = (plugin, owner.client);
        let mut clients = self.clients.borrow_mut();
        let new = || ClientShare { free: Arc::new(Semaphore::new(self.share)), pieces: 0 };
        let of_client = clients.entry(key).or_insert_with(new);
        of_client.pieces += 1;
        let free = of_client.free.clone();
        let mut share = SharePlace { key, of: self.clone(), permit: None };
        async move {
            // The semaphore is never closed, so there is always a permit.
            share.permit = free.acquire_owned().await.ok();
            share
        }
    }
}

/// A place in the share of a client, or the wait for one, until it is dropped.
pub(crate) struct SharePlace {
    key: ShareKey,
    of: Rc<ClientShares>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for SharePlace {
    fn drop(&mut self) {
        let mut clients = self.of.clients.borrow_mut();
        if let Some(of_client) = clients.get_mut(&self.key) {
            of_client.pieces -= 1;
            if of_client.pieces == 0 {
                clients.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    fn of(network: u8) -> WorkOwner {
        WorkOwner::of("r", IpAddr::from([192, 0, 2, network]))
    }

    fn run_here(test: impl Future<Output = ()>) {
        LocalSet::new().block_on(&Builder::new_current_thread().build().unwrap(), test);
    }

    #[test]
    fn work_of_one_client_waits_for_itself_and_not_that_of_others() {
        run_here(async {
            let shares = Rc::new(ClientShares::new(2));
            let mut held = Vec::new();
            for number in 0..SHARE_MAX {
                // On whichever routes.
                let owner = WorkOwner { route: number as u64, ..of(1) };
                held.push(shares.wait("a", owner).await);
            }
            let ninth = spawn_local(shares.wait("a", of(1)));
            let given_up = spawn_local(shares.wait("a", of(1)));
            yield_now().await;
            assert!(!ninth.is_finished());
            drop(shares.wait("a", of(2)).await);
            drop(shares.wait("b", of(1)).await);
            given_up.abort();
            held.pop();
            held.push(ninth.await.unwrap());
            assert!(given_up.await.is_err());
            assert_eq!(shares.clients.borrow().len(), 1);
            drop(held);
            assert!(shares.clients.borrow().is_empty(), "what is over takes no memory");
        });
    }

    #[test]
    fn what_waits_is_bounded() {
        let shares = Rc::new(ClientShares::new(2));
        let mut waiting: Vec<_> = (0..SHARE_MAX + WAITING_MAX).map(|_| shares.wait("a", of(1))).collect();
        assert!(shares.admit("a", of(1)).is_err());
        assert!(shares.admit("a", of(2)).is_ok() && shares.admit("b", of(1)).is_ok());
        // A body that has begun is not cut off.
        waiting.push(shares.wait("a", of(1)));
        drop(waiting);
        assert!(shares.admit("a", of(1)).is_ok());
        assert!(shares.clients.borrow().is_empty());
    }

    #[test]
    fn many_workers_have_small_shares() {
        for (workers, share) in [(0, 8), (1, 8), (4, 8), (8, 4), (32, 1), (200, 1)] {
            assert_eq!(ClientShares::new(workers).share, share, "{workers}");
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let of = |address: &str| WorkOwner::of("r", address.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
