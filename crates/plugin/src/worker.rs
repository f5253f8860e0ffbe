//! What a worker keeps for plugins: the present time, and memory of each plugin's own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// What plugins have of the worker that runs them. It never leaves the worker's thread.
#[derive(Default)]
pub struct Worker {
    now_ms: Cell<u64>,
    /// By [`crate::Entry::instance`]: caches of regexes and the like. Bounded by the number of plugins in the Plan, since what
    /// is of no entry any more is dropped with [`Worker::keep`].
    own: RefCell<HashMap<u64, Box<dyn Any>>>,
}

impl Worker {
    /// Milliseconds since 1970, as of the present turn of the event loop.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Sets the present time.
    #[inline]
    pub fn set_now_ms(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
    }

    /// Calls `then` with the memory of one configured plugin, made with `make` when it is first asked for. The plugin must not
    /// ask for its memory again within `then`.
    pub fn own<T: 'static, R>(&self, instance: u64, make: impl FnOnce() -> T, then: impl FnOnce(&mut T) -> R) -> R {
        let taken = self.own.borrow_mut().remove(&instance);
        let mut own = taken.and_then(|own| own.downcast::<T>().ok()).unwrap_or_else(|| Box::new(make()));
        let result = then(&mut own);
        self.own.borrow_mut().insert(instance, own);
        result
    }

    /// Drops the memory of plugins for which `is_there` does not hold.
    pub fn keep(&self, mut is_there: impl FnMut(u64) -> bool) {
        self.own.borrow_mut().retain(|instance, _| is_there(*instance));
    }
}
