//! Whose turn it is to have work done by other threads, and each client's share of that work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::QueueFull;
use stillgate_plugin_api::facts::client_network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Work of one client of a route, from one worker, that may wait while half of the queue is taken: the other half is for the others.
/// Of work for one client's bodies, no more waits at any time.
const SHARE_MAX: usize = 8;

/// Whose turn it is: work with one of these is done in its order, and alternates with that of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TurnKey(u64);

impl TurnKey {
    #[cfg(test)]
    pub(crate) const ANYBODY: TurnKey = TurnKey(0);

    /// A client of a route.
    pub(crate) fn of(route: &str, client: IpAddr) -> TurnKey {
        // A collision only lets two wait for each other.
        let mut hasher = DefaultHasher::new();
        (route, client_network(client)).hash(&mut hasher);
        TurnKey(hasher.finish())
    }

    /// A client's bodies under way, on all routes.
    pub(crate) fn of_bodies(client: IpAddr) -> TurnKey {
        TurnKey::of("", client)
    }
}

/// The work of each client that one worker waits for.
#[derive(Default)]
pub(crate) struct TurnShares {
    /// Pieces of work, for requests: those beyond a share are refused.
    requests: RefCell<HashMap<TurnKey, usize>>,
    /// Shares of work for bodies, which waits for one.
    bodies: RefCell<HashMap<TurnKey, Arc<Semaphore>>>,
}

/// A piece of such work, counted until it is dropped.
pub(crate) struct TurnShare {
    turn: TurnKey,
    of: Rc<TurnShares>,
}

impl TurnShares {
    /// Counts one more; fails if the client has its share, and others need the rest.
    pub(crate) fn begin(self: &Rc<TurnShares>, turn: TurnKey, is_crowded: bool) -> Result<TurnShare, QueueFull> {
        let mut counts = self.requests.borrow_mut();
        let count = counts.entry(turn).or_default();
        if is_crowded && *count >= SHARE_MAX {
            return Err(QueueFull);
        }
        *count += 1;
        Ok(TurnShare { turn, of: self.clone() })
    }

    /// Waits until a client has fewer pieces of work for its bodies under way, or waiting for a place, than its share.
    pub(crate) fn wait(self: &Rc<TurnShares>, turn: TurnKey) -> impl Future<Output = BodyShare> + use<> {
        let of_client =
            self.bodies.borrow_mut().entry(turn).or_insert_with(|| Arc::new(Semaphore::new(SHARE_MAX))).clone();
        let mut share = BodyShare { turn, of: self.clone(), permit: None, of_client };
        async move {
            // A semaphore that nobody closes always gives a permit.
            share.permit = share.of_client.clone().acquire_owned().await.ok();
            share
        }
    }
}

impl Drop for TurnShare {
    fn drop(&mut self) {
        let mut counts = self.of.requests.borrow_mut();
        if let Some(count) = counts.get_mut(&self.turn) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.turn);
            }
        }
    }
}

/// The share of a piece of work for a body, or the wait for it.
pub(crate) struct BodyShare {
    turn: TurnKey,
    of: Rc<TurnShares>,
    permit: Option<OwnedSemaphorePermit>,
    of_client: Arc<Semaphore>,
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.permit = None;
        // Otherwise another share holds it beside this one and the table.
        if Arc::strong_count(&self.of_client) == 2 {
            self.of.bodies.borrow_mut().remove(&self.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, yield_now};

    #[test]
    fn a_client_with_much_leaves_places_to_others() {
        let shares = Rc::new(TurnShares::default());
        let of = |network: u8| TurnKey::of("r", IpAddr::from([192, 0, 2, network]));
        let mut held: Vec<_> = (0..100).map(|_| shares.begin(of(1), false).unwrap()).collect();
        assert!(shares.begin(of(1), true).is_err());
        let others: Vec<_> = (0..SHARE_MAX).map(|_| shares.begin(of(2), true).unwrap()).collect();
        assert!(shares.begin(of(2), true).is_err());
        held.truncate(SHARE_MAX - 1);
        assert!(shares.begin(of(1), true).is_ok());
        drop((held, others));
        assert!(shares.requests.borrow().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let of = |address: &str| TurnKey::of("r", address.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn bodies_of_one_client_wait_for_each_other_and_not_others_for_them() {
        let shares = Rc::new(TurnShares::default());
        let of = |network: u8| TurnKey::of_bodies(IpAddr::from([192, 0, 2, network]));
        let runtime = Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let mut held = Vec::new();
            for _ in 0..SHARE_MAX {
                held.push(shares.wait(of(1)).await);
            }
            let ninth = tokio::task::spawn_local(shares.wait(of(1)));
            let given_up = tokio::task::spawn_local(shares.wait(of(1)));
            yield_now().await;
            assert!(!ninth.is_finished());
            drop(shares.wait(of(2)).await);
            given_up.abort();
            held.pop();
            held.push(ninth.await.unwrap());
            assert!(given_up.await.is_err());
            assert_eq!(shares.bodies.borrow().len(), 1);
            drop(held);
            assert!(shares.bodies.borrow().is_empty(), "what is over takes no memory");
        });
    }
}
