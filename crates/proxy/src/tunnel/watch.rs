//! Tells tunnels that their route was changed or removed.
//!
//! Only those are on the list whose route says that it matters (`on_change`), and the list is looked at only after a Plan
//! that revoked a lease: as long as nothing changes, nothing is done.

use crate::plan::Lease;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

/// A worker's tunnels that want to know.
#[derive(Default)]
pub(crate) struct Watches {
    list: RefCell<Vec<Rc<Watch>>>,
    /// The count of revocations that was last looked at.
    seen: Cell<u64>,
}

/// One tunnel's place on the list.
pub(super) struct Watch {
    lease: Arc<Lease>,
    waker: RefCell<Option<Waker>>,
    at: Cell<usize>,
}

impl Watches {
    /// Wakes the tunnels whose lease was revoked, where there is a Plan that revoked some.
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

    pub(super) fn add(&self, lease: Arc<Lease>) -> Rc<Watch> {
        let mut list = self.list.borrow_mut();
        let watch = Rc::new(Watch { lease, waker: RefCell::default(), at: Cell::new(list.len()) });
        list.push(watch.clone());
        watch
    }

    pub(super) fn remove(&self, watch: &Watch) {
        let mut list = self.list.borrow_mut();
        list.swap_remove(watch.at.get());
        if let Some(moved) = list.get(watch.at.get()) {
            moved.at.set(watch.at.get());
        }
        // It keeps the task's memory.
        watch.waker.take();
    }
}

impl Watch {
    /// This task is woken.
    pub(super) fn wakes(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
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
        let leases: Vec<Arc<Lease>> = (0..5).map(|_| Arc::new(Lease::new(OnChange::Close, None))).collect();
        let woken: Vec<Arc<Woken>> = leases.iter().map(|_| Arc::default()).collect();
        let places: Vec<Rc<Watch>> = leases.iter().map(|lease| watches.add(lease.clone())).collect();
        for (place, woken) in places.iter().zip(&woken) {
            place.wakes(&Context::from_waker(&woken.clone().into()));
        }
        // The last one takes the place of each that goes.
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
