//! How much filters of bodies may hold, including their output that was not yet taken: a bound for one worker, and one for a client
//! once half of the worker's is in use.
//!
//! So a client that does not read its responses, on however many connections, leaves memory for the others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use stillgate_plugin_api::facts::client_network;

/// How much filters of one worker may hold.
pub(crate) const WORKER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How much those for one client may hold if more than half of [`WORKER_BYTES_MAX`] is in use.
pub(crate) const CLIENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The memory of one worker.
#[derive(Default)]
pub(crate) struct BodyMemory {
    held: Cell<usize>,
    /// Clients that hold something. There are no more than bodies.
    clients: RefCell<HashMap<IpAddr, usize>>,
}

/// The bound that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Worker,
    Client,
}

/// Bytes of one body, counted as long as they are held.
pub(crate) struct BodyLease {
    bytes: usize,
    client: IpAddr,
    of_worker: Rc<BodyMemory>,
}

impl BodyMemory {
    /// Begins with nothing held for this client.
    pub(crate) fn begin(self: &Rc<BodyMemory>, client: IpAddr) -> BodyLease {
        BodyLease { bytes: 0, client: client_network(client), of_worker: self.clone() }
    }
}

impl BodyLease {
    /// Whose it is.
    pub(crate) fn client(&self) -> IpAddr {
        self.client
    }

    /// Sets how much is held now. It is counted even if it is too much: what is refused is dropped soon.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Full> {
        if bytes == self.bytes {
            return Ok(());
        }
        let BodyMemory { held, clients } = &*self.of_worker;
        let has_grown = bytes > self.bytes;
        let all = held.get() - self.bytes + bytes;
        let mut clients = clients.borrow_mut();
        let of_client = clients.entry(self.client).or_default();
        *of_client = *of_client - self.bytes + bytes;
        let of_client = *of_client;
        if of_client == 0 {
            clients.remove(&self.client);
        }
        held.set(all);
        self.bytes = bytes;
        match () {
            () if !has_grown => Ok(()),
            () if all > WORKER_BYTES_MAX => Err(Full::Worker),
            () if all > WORKER_BYTES_MAX / 2 && of_client > CLIENT_BYTES_MAX => Err(Full::Client),
            () => Ok(()),
        }
    }
}

impl Drop for BodyLease {
    fn drop(&mut self) {
        // A smaller amount is never refused.
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn all_is_given_back() {
        let worker = Rc::new(BodyMemory::default());
        let mut held: Vec<BodyLease> = (0..4).map(|number| worker.begin(client(number % 2))).collect();
        for (number, held) in held.iter_mut().enumerate() {
            assert_eq!(held.set(number * MIB), Ok(()));
            assert_eq!(held.set(number * MIB + 1), Ok(()));
        }
        assert_eq!((worker.held.get(), worker.clients.borrow().len()), (6 * MIB + 4, 2));
        held.remove(3);
        assert_eq!((worker.held.get(), worker.clients.borrow()[&client(1)]), (3 * MIB + 3, MIB + 1));
        drop(held);
        assert_eq!((worker.held.get(), worker.clients.borrow().len()), (0, 0));
    }

    #[test]
    fn one_client_leaves_memory_for_others() {
        let worker = Rc::new(BodyMemory::default());
        let mut greedy: Vec<BodyLease> = Vec::new();
        let refused = loop {
            let mut held = worker.begin(client(1));
            let set = held.set(MIB);
            if set.is_err() {
                break set;
            }
            greedy.push(held);
        };
        assert_eq!((refused, greedy.len()), (Err(Full::Client), 32));
        let mut others: Vec<BodyLease> = (2..6).map(|number| worker.begin(client(number))).collect();
        for held in &mut others {
            assert_eq!(held.set(8 * MIB), Ok(()));
        }
        assert_eq!(worker.begin(client(9)).set(1), Err(Full::Worker));
        greedy.truncate(8);
        assert_eq!(worker.begin(client(2)).set(1), Err(Full::Client));
        assert_eq!(worker.begin(client(9)).set(8 * MIB), Ok(()));
        // Shrinking is always accepted.
        assert_eq!(greedy[0].set(MIB - 1), Ok(()));
    }
}
