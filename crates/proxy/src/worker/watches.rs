//! Notifies tunnels that their route was changed or removed.
//!
//! The list contains only those whose route requires it (`on_change`), and is looked at only after a Plan that revoked a lease: as
//! long as nothing changes, nothing is done.

use crate::plan::Lease;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use stillgate_config::OnChange;

/// How long a tunnel must have been idle for `on_change: drain` to close it.
pub(crate) const QUIET_MS: u64 = 1_000;
/// A worker's tunnels that want to be notified.
#[derive(Default)]
pub(crate) struct Watches {
    list: RefCell<Vec<Rc<TunnelWatch>>>,
    /// The count of revocations at the last check.
    seen: Cell<u64>,
}

/// One tunnel's place on the list.
struct TunnelWatch {
    lease: Arc<Lease>,
    waker: RefCell<Option<Waker>>,
    at: Cell<usize>,
}

impl Watches {
    /// Wakes the tunnels whose lease was revoked, if there is a Plan that revoked some.
    pub(crate) fn look(&self, revocations: u64) {
        if self.seen.replace(revocations) == revocations {
            return;
        }
        for watch in self.list.borrow().iter().filter(|watch| watch.lease.is_revoked()) {
            if let Some(waker) = &*watch.waker.borrow() {
                waker.wake_by_ref();
            }
        }
    }

    fn add(&self, lease: Arc<Lease>) -> Rc<TunnelWatch> {
        let mut list = self.list.borrow_mut();
        let watch = Rc::new(TunnelWatch { lease, waker: RefCell::default(), at: Cell::new(list.len()) });
        list.push(watch.clone());
        watch
    }

    fn remove(&self, watch: &TunnelWatch) {
        let mut list = self.list.borrow_mut();
        list.swap_remove(watch.at.get());
        if let Some(moved) = list.get(watch.at.get()) {
            moved.at.set(watch.at.get());
        }
        // The waker keeps the task's memory.
        watch.waker.take();
    }
}

impl TunnelWatch {
    /// Registers this task to be woken.
    fn wakes(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}

/// How a tunnel is notified that its route was changed.
pub(crate) struct WatchedLease {
    pub(crate) lease: Arc<Lease>,
    watch: Rc<TunnelWatch>,
    /// When the revocation was first seen.
    pub(crate) since_ms: Option<u64>,
}

impl WatchedLease {
    pub(crate) fn new(watches: &Watches, lease: Arc<Lease>) -> WatchedLease {
        let watch = watches.add(lease.clone());
        WatchedLease { lease, watch, since_ms: None }
    }

    /// Checks whether it was revoked; the task is woken when it is.
    pub(crate) fn look(&mut self, cx: &Context<'_>, now_ms: u64) {
        self.watch.wakes(cx);
        if self.since_ms.is_none() && self.lease.is_revoked() {
            self.since_ms = Some(now_ms);
        }
    }

    /// When it ends if it last moved then, and whether that is because of inactivity; `None`: it continues.
    pub(crate) fn end_ms(&self, moved_ms: u64, drain_ms: u64) -> Option<(u64, bool)> {
        let since_ms = self.since_ms?;
        match self.lease.policy {
            OnChange::Keep => None,
            OnChange::Drain => {
                let (quiet_ms, last_ms) = (moved_ms.max(since_ms) + QUIET_MS, since_ms + drain_ms);
                Some((quiet_ms.min(last_ms), quiet_ms < last_ms))
            }
            OnChange::Close => Some((0, false)),
        }
    }

    /// Stops waiting for it.
    pub(crate) fn end(&self, watches: &Watches) {
        watches.remove(&self.watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use stillgate_config::OnChange;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn those_are_woken_whose_lease_was_revoked() {
        let watches = Watches::default();
        let leases: Vec<Arc<Lease>> = (0..5).map(|_| Arc::new(Lease::new(OnChange::Close))).collect();
        let woken: Vec<Arc<Woken>> = leases.iter().map(|_| Arc::default()).collect();
        let places: Vec<Rc<TunnelWatch>> = leases.iter().map(|lease| watches.add(lease.clone())).collect();
        for (place, woken) in places.iter().zip(&woken) {
            place.wakes(&Context::from_waker(&woken.clone().into()));
        }
        // The last one takes the place of each removed one.
        watches.remove(&places[1]);
        watches.remove(&places[4]);
        assert_eq!(Arc::strong_count(&woken[1]), 1, "the task of one that went is let go");
        let seen = || woken.iter().map(|woken| woken.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
        for revoked in [0, 1, 3] {
            leases[revoked].revoke();
        }
        watches.look(0);
        assert_eq!(seen(), [0; 5], "no Plan has revoked any");
        watches.look(1);
        assert_eq!(seen(), [1, 0, 0, 1, 0]);
        watches.look(1);
        assert_eq!(seen(), [1, 0, 0, 1, 0]);
        [0, 2, 3].iter().for_each(|at| watches.remove(&places[*at]));
        assert!(watches.list.borrow().is_empty());
    }
}
