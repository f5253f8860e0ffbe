//! What one worker has only so much of, with a bound for each client once half of it is in use: so a client that needs much of it
//! for long, over however many connections, leaves some for the others.

use crate::facts::client_network;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

/// Bytes or places of one worker.
#[derive(Debug)]
pub struct ClientBound {
    max: usize,
    /// How much one client may have if more than half of `max` is in use.
    client_max: usize,
    used: Cell<usize>,
    /// Clients that have some.
    clients: RefCell<HashMap<IpAddr, usize>>,
}

/// The bound that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The bound of the worker.
    Worker,
    /// The bound of one client.
    Client,
}

/// A part of it, counted until it is dropped.
#[derive(Debug)]
pub struct Lease {
    amount: usize,
    /// `None`: it is for all clients.
    client: Option<IpAddr>,
    of: Rc<ClientBound>,
}

impl ClientBound {
    /// Nothing is in use yet.
    pub fn new(max: usize, client_max: usize) -> Rc<ClientBound> {
        Rc::new(ClientBound { max, client_max, used: Cell::default(), clients: RefCell::default() })
    }

    /// How much is in use.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Begins with nothing, for a client or for all.
    pub fn begin(self: &Rc<ClientBound>, client: impl Into<Option<IpAddr>>) -> Lease {
        Lease { amount: 0, client: client.into().map(client_network), of: self.clone() }
    }

    /// Takes one place, for a client or for all.
    pub fn take_place(self: &Rc<ClientBound>, client: impl Into<Option<IpAddr>>) -> Result<Lease, Full> {
        let mut lease = self.begin(client);
        lease.set(1).map(|()| lease)
    }
}

impl Lease {
    /// Whose it is.
    pub fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// Sets how much it is now. It is counted even if it is too much: what is refused is dropped soon.
    pub fn set(&mut self, amount: usize) -> Result<(), Full> {
        if amount == self.amount {
            return Ok(());
        }
        let ClientBound { max, client_max, used, clients } = &*self.of;
        let has_grown = amount > self.amount;
        let all = used.get() - self.amount + amount;
        let mut of_client = 0;
        if let Some(client) = self.client {
            let mut clients = clients.borrow_mut();
            let counted = clients.entry(client).or_default();
            *counted = *counted - self.amount + amount;
            of_client = *counted;
            if of_client == 0 {
                clients.remove(&client);
            }
        }
        used.set(all);
        self.amount = amount;
        match () {
            () if !has_grown => Ok(()),
            () if all > max / 2 && of_client > *client_max => Err(Full::Client),
            () if all > *max => Err(Full::Worker),
            () => Ok(()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A smaller amount is never refused.
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn memory() -> Rc<ClientBound> {
        ClientBound::new(64 * MIB, 8 * MIB)
    }

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn all_is_given_back() {
        let worker = memory();
        let mut held: Vec<Lease> = (0..4).map(|number| worker.begin(client(number % 2))).collect();
        for (number, held) in held.iter_mut().enumerate() {
            assert_eq!(held.set(number * MIB), Ok(()));
            assert_eq!(held.set(number * MIB + 1), Ok(()));
        }
        assert_eq!((worker.used(), worker.clients.borrow().len()), (6 * MIB + 4, 2));
        held.remove(3);
        assert_eq!((worker.used(), worker.clients.borrow()[&client(1)]), (3 * MIB + 3, MIB + 1));
        drop(held);
        assert_eq!((worker.used(), worker.clients.borrow().len()), (0, 0));
    }

    #[test]
    fn one_client_leaves_memory_for_others() {
        let worker = memory();
        let mut greedy: Vec<Lease> = Vec::new();
        let refused = loop {
            let mut held = worker.begin(client(1));
            let set = held.set(MIB);
            if set.is_err() {
                break set;
            }
            greedy.push(held);
        };
        assert_eq!((refused, greedy.len()), (Err(Full::Client), 32));
        let mut others: Vec<Lease> = (2..6).map(|number| worker.begin(client(number))).collect();
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

    #[test]
    fn places_for_all_clients_have_no_share() {
        let worker = ClientBound::new(16, 2);
        let places: Vec<_> = (0..16).map(|_| worker.take_place(None).unwrap()).collect();
        assert_eq!(worker.take_place(None).err(), Some(Full::Worker));
        assert_eq!(worker.take_place(client(1)).err(), Some(Full::Worker));
        drop(places);
        let places: Vec<_> = (0..8).map(|_| worker.take_place(client(1)).unwrap()).collect();
        assert_eq!(worker.take_place(client(1)).err(), Some(Full::Client));
        assert!(worker.take_place(client(2)).is_ok());
        drop(places);
        assert_eq!((worker.used(), worker.clients.borrow().len()), (0, 0));
    }
}
