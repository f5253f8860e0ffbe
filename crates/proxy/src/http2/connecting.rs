//! Requests that come while a connection to their node is being made wait for it, rather than making one each.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::sync::Notify;

/// The connections that a worker is making.
#[derive(Default)]
pub(crate) struct Connecting(RefCell<Vec<(SocketAddr, Rc<Notify>)>>);

impl Connecting {
    /// Says that one is being made from now on, or who tells when another one is there or has failed.
    pub(crate) fn begin(&self, address: SocketAddr) -> Result<Making<'_>, Rc<Notify>> {
        let mut list = self.0.borrow_mut();
        match list.iter().find(|entry| entry.0 == address) {
            Some((_, other)) => Err(other.clone()),
            None => {
                list.push((address, Rc::default()));
                Ok(Making { list: self, address })
            }
        }
    }
}

/// A connection that is being made.
pub(crate) struct Making<'a> {
    list: &'a Connecting,
    address: SocketAddr,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut list = self.list.0.borrow_mut();
        if let Some(at) = list.iter().position(|entry| entry.0 == self.address) {
            list.swap_remove(at).1.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_makes_it_and_the_others_are_told() {
        let connecting = Connecting::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let making = connecting.begin(address).ok().unwrap();
        assert!(connecting.begin(SocketAddr::from(([127, 0, 0, 1], 81))).is_ok(), "another node");
        let Err(other) = connecting.begin(address) else { panic!("two at once") };
        let told = other.notified();
        drop(making);
        told.await;
        assert!(connecting.begin(address).is_ok());
    }
}
