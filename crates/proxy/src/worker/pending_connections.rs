//! Requests that arrive while a connection to their node is being made wait for it, rather than making one each.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use stillgate_tls::rustls::pki_types::ServerName;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The connections that a worker is making.
#[derive(Default)]
pub(crate) struct PendingConnections(RefCell<Vec<(ConnectionKey, Rc<ConnectionOutcome>)>>);

/// Result for those that wait for a connection.
#[derive(Default)]
pub(crate) struct ConnectionOutcome {
    done: Notify,
    is_made: Cell<bool>,
}

impl ConnectionOutcome {
    /// Ready when there is a connection, or when making it has failed.
    pub(crate) fn wait(&self) -> Notified<'_> {
        self.done.notified()
    }

    /// Whether there is a connection; others may have filled it since.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.get()
    }
}

/// What two requests must have in common to share a connection.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ConnectionKey {
    /// The pool in which it will be kept, by its address in memory: the protocol is that upstream's choice.
    pub(crate) pool: usize,
    pub(crate) address: SocketAddr,
    /// The name that the node's certificate must be valid for.
    pub(crate) name: Option<ServerName<'static>>,
}

impl PendingConnections {
    /// Records that a connection is being made from now on, or returns the outcome of one that is already being made.
    pub(crate) fn begin(&self, wanted: ConnectionKey) -> Result<PendingConnection<'_>, Rc<ConnectionOutcome>> {
        let mut list = self.0.borrow_mut();
        match list.iter().find(|entry| entry.0 == wanted) {
            Some((_, other)) => Err(other.clone()),
            None => {
                list.push((wanted.clone(), Rc::default()));
                Ok(PendingConnection { list: self, wanted })
            }
        }
    }
}

/// A connection that is being made.
pub(crate) struct PendingConnection<'a> {
    list: &'a PendingConnections,
    wanted: ConnectionKey,
}

impl PendingConnection<'_> {
    /// The connection is in the pool.
    pub(crate) fn made(&self) {
        if let Some((_, outcome)) = self.list.0.borrow().iter().find(|entry| entry.0 == self.wanted) {
            outcome.is_made.set(true);
        }
    }
}

impl Drop for PendingConnection<'_> {
    fn drop(&mut self) {
        let mut list = self.list.0.borrow_mut();
        if let Some(at) = list.iter().position(|entry| entry.0 == self.wanted) {
            list.swap_remove(at).1.done.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pool: usize, port: u16, name: Option<&'static str>) -> ConnectionKey {
        let name = name.map(|name| ServerName::try_from(name).unwrap());
        ConnectionKey { pool, address: SocketAddr::from(([127, 0, 0, 1], port)), name }
    }

    #[tokio::test]
    async fn one_makes_it_and_the_others_are_notified() {
        let connecting = PendingConnections::default();
        let one = || wanted(1, 80, Some("a.test"));
        let making = connecting.begin(one()).ok().unwrap();
        for (other, what) in [
            (wanted(1, 81, Some("a.test")), "another node"),
            (wanted(1, 80, Some("b.test")), "another name"),
            (wanted(2, 80, Some("a.test")), "another upstream"),
            (wanted(2, 80, None), "without TLS"),
        ] {
            assert!(connecting.begin(other).is_ok(), "{what}");
        }
        let Err(other) = connecting.begin(one()) else { panic!("two at once") };
        let told = other.wait();
        making.made();
        drop(making);
        told.await;
        assert!(other.is_made());
        let making = connecting.begin(one()).ok().unwrap();
        let Err(other) = connecting.begin(one()) else { panic!("two at once") };
        drop(making);
        assert!(!other.is_made());
    }
}
