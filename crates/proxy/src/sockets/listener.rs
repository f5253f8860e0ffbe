//! A listener as a worker knows it: how incoming connections are handled, and counts of them.
//!
//! Its connections hold it, so that it exists until the last of them has ended, even if it was removed meanwhile. A listener that
//! returns to its place is the same as before: its counters continue.

use crate::basics::counters::Count;
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use stillgate_config::{ListenPlace, Listener as Configured, ListenerKind, Transport};

/// Counted events of connections, by listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    Accepted,
    /// The worker had reached its limit.
    Refused,
    /// There was no valid PROXY protocol header.
    NoProxyHeader,
}

/// How many events there are.
pub(crate) const CONNECTION_EVENTS: usize = ConnectionEvent::NoProxyHeader as usize + 1;

/// One of a worker's listeners.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The place that identifies it.
    pub(crate) place: ListenPlace,
    /// The place that it is bound to: its port is not zero.
    pub(crate) bound: ListenPlace,
    /// Its address as configured, for metrics.
    pub(crate) label: String,
    kind: Cell<ListenerKind>,
    /// When the last of its connections must have ended, by the worker's clock; `u64::MAX` unless it was removed.
    end_ms: Cell<u64>,
    /// Open now: HTTP connections, or UDP sessions.
    pub(crate) open: Count,
    /// Open connections with a request whose head is here; one of HTTP/2 counts once, however many it has.
    pub(crate) active: Count,
    /// Open connections with bytes of a request.
    pub(crate) busy: Count,
    events: [Cell<u64>; CONNECTION_EVENTS],
    /// How many of the events the metrics already have.
    told: [Cell<u64>; CONNECTION_EVENTS],
}

impl Listener {
    pub(crate) fn new(configured: Configured, bound: ListenPlace) -> Listener {
        Listener {
            place: configured.place(),
            bound,
            label: configured.address.to_string(),
            kind: Cell::new(configured.kind),
            end_ms: Cell::new(u64::MAX),
            open: Count::default(),
            active: Count::default(),
            busy: Count::default(),
            events: Default::default(),
            told: Default::default(),
        }
    }

    /// How a new connection is handled.
    pub(crate) fn kind(&self) -> ListenerKind {
        self.kind.get()
    }

    pub(crate) fn is_http(&self) -> bool {
        matches!(self.kind.get(), ListenerKind::Http { .. })
    }

    pub(crate) fn takes_connections(&self) -> bool {
        self.place.transport == Transport::Tcp
    }

    /// Whether HTTP/2 is spoken as well as HTTP/1.1.
    pub(crate) fn speaks_http2(&self) -> bool {
        matches!(self.kind.get(), ListenerKind::Http { http2: true, .. })
    }

    /// Marks it as present; new connections are handled like this.
    pub(crate) fn configure(&self, kind: ListenerKind) {
        self.kind.set(kind);
        self.end_ms.set(u64::MAX);
    }

    /// Marks it as removed; its connections end at that time at the latest.
    pub(crate) fn remove(&self, end_ms: u64) {
        self.end_ms.set(end_ms);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.end_ms.get() != u64::MAX
    }

    /// When the last of its connections must have ended; `u64::MAX` unless it was removed.
    pub(crate) fn end_ms(&self) -> u64 {
        self.end_ms.get()
    }

    pub(crate) fn note(&self, event: ConnectionEvent) {
        let count = &self.events[event as usize];
        count.set(count.get() + 1);
    }

    /// How often it has happened since the last call; `None`: not once, and it is not due.
    pub(crate) fn news(&self, event: ConnectionEvent, due: bool) -> Option<u64> {
        let (count, told) = (self.events[event as usize].get(), &self.told[event as usize]);
        (count != told.get() || due).then(|| count - told.replace(count))
    }
}

/// All listeners of a worker, including removed ones that still have connections.
#[derive(Default)]
pub(crate) struct Listeners(RefCell<Vec<Rc<Listener>>>);

impl Listeners {
    /// Adds a listener that is new, or back at its place.
    pub(crate) fn add(&self, configured: Configured, bound: ListenPlace) -> Rc<Listener> {
        if let Some(known) = self.find(configured.place()).filter(|known| known.bound == bound) {
            known.configure(configured.kind);
            return known;
        }
        let listener = Rc::new(Listener::new(configured, bound));
        self.0.borrow_mut().push(listener.clone());
        listener
    }

    /// Finds the listener identified by this place.
    pub(crate) fn find(&self, place: ListenPlace) -> Option<Rc<Listener>> {
        self.0.borrow().iter().find(|listener| listener.place == place).cloned()
    }

    /// Finds the listener that is present, and was not removed.
    pub(crate) fn find_bound(&self, bound: ListenPlace) -> Option<Rc<Listener>> {
        self.0.borrow().iter().find(|listener| listener.bound == bound && !listener.is_removed()).cloned()
    }

    pub(crate) fn all(&self) -> Ref<'_, Vec<Rc<Listener>>> {
        self.0.borrow()
    }

    /// Drops listeners that were removed and have no connections left. The metrics have all their events by now.
    pub(crate) fn forget_ended(&self) {
        self.0.borrow_mut().retain(|listener| !listener.is_removed() || Rc::strong_count(listener) > 1);
    }
}

/// Counts a connection on which bytes of a request have arrived, even if its task is dropped.
pub(crate) struct BusyGuard(Rc<Listener>);

impl BusyGuard {
    pub(crate) fn new(listener: &Rc<Listener>) -> BusyGuard {
        listener.busy.add(1);
        BusyGuard(listener.clone())
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.busy.sub(1);
    }
}

/// Counts a connection on which a request is served, even if its task is dropped.
pub(crate) struct ActiveGuard(Rc<Listener>);

impl ActiveGuard {
    pub(crate) fn new(listener: &Rc<Listener>) -> ActiveGuard {
        listener.active.add(1);
        ActiveGuard(listener.clone())
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.active.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_metrics_know_is_not_news() {
        let configured = Configured { address: "127.0.0.1:1".parse().unwrap(), kind: ListenerKind::Udp };
        let listener = Listener::new(configured, configured.place());
        assert_eq!(listener.news(ConnectionEvent::Refused, false), None);
        assert_eq!(listener.news(ConnectionEvent::Refused, true), Some(0));
        listener.note(ConnectionEvent::Refused);
        listener.note(ConnectionEvent::Refused);
        assert_eq!(listener.news(ConnectionEvent::Accepted, false), None);
        assert_eq!(listener.news(ConnectionEvent::Refused, false), Some(2));
        assert_eq!(listener.news(ConnectionEvent::Refused, false), None);
    }
}
