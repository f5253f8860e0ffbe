//! How a worker stops accepting: it first takes the connections waiting in its queues.

use super::worker_listeners::WorkerListeners;
use crate::handover::LeavingWorker;
use crate::worker::Worker;
use std::rc::Rc;

impl Worker {
    /// Closes the listeners, except those that a successor has as well.
    pub(super) fn start_draining(self: &Rc<Self>, serving: &WorkerListeners, giving: Option<Rc<LeavingWorker>>) {
        serving.end(self, |bound| giving.as_ref().is_some_and(|giving| giving.leaves_listener(bound)));
        self.draining.set(true);
        let gives_nothing = giving.is_none();
        self.giving.replace(giving);
        // Connections that are handed over are woken a few at a time.
        if gives_nothing {
            self.clock.wake_all();
        }
    }
}
