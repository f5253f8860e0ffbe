//! How many calls to one server are under way, for which clients: while there are many, each client has a share of the rest.

use super::breaker::Pool;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use stillgate_plugin_api::CallError;
use stillgate_plugin_api::facts::client_network;

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
