//! Memory that each worker has for one configured plugin: copies of regular expressions, buffers, caches.
//!
//! It is part of the plugin. So it survives a reload that leaves the configuration unchanged, is dropped with the last
//! Plan that has the plugin, off the workers, and is found without a search.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use thread_local::ThreadLocal;

/// A value for each worker that has used it.
pub struct PerWorker<T: Send>(OnceLock<Box<ThreadLocal<Own<T>>>>);

/// One worker's value; empty while it is used. Two workers do not share a cache line.
#[repr(align(64))]
struct Own<T>(Cell<Option<T>>);

impl<T: Send> PerWorker<T> {
    /// Creates it without memory, which is allocated on first use.
    pub const fn new() -> PerWorker<T> {
        PerWorker(OnceLock::new())
    }

    /// Calls `then` with this worker's value, which `make` creates on first use. After a panic in `then` the value is
    /// created again.
    #[inline]
    pub fn with<R>(&self, make: impl FnOnce() -> T, then: impl FnOnce(&mut T) -> R) -> R {
        let own = &self.0.get_or_init(Box::default).get_or(|| Own(Cell::new(None))).0;
        let mut value = own.take().unwrap_or_else(make);
        let result = then(&mut value);
        own.set(Some(value));
        result
    }
}

impl<T: Send> Default for PerWorker<T> {
    fn default() -> PerWorker<T> {
        PerWorker::new()
    }
}

impl<T: Send> fmt::Debug for PerWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerWorker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::thread;

    fn count(own: &PerWorker<u32>) -> u32 {
        let next = |value: &mut u32| {
            *value += 1;
            *value
        };
        own.with(|| 0, next)
    }

    #[test]
    fn each_thread_has_a_value_that_stays() {
        let own = PerWorker::new();
        assert_eq!((count(&own), count(&own)), (1, 2));
        thread::scope(|scope| {
            let other = scope.spawn(|| (count(&own), count(&own)));
            assert_eq!(other.join().unwrap(), (1, 2));
        });
        assert_eq!(count(&own), 3);
    }

    #[test]
    fn a_panic_loses_the_value_and_nothing_else() {
        let own = PerWorker::new();
        count(&own);
        let broken = catch_unwind(AssertUnwindSafe(|| own.with(|| 0, |_| panic!("half done"))));
        assert!(broken.is_err());
        assert_eq!(count(&own), 1);
    }

    #[test]
    fn what_workers_have_goes_with_the_plugin() {
        let (own, held) = (PerWorker::new(), Arc::new(()));
        own.with(|| held.clone(), |_| ());
        thread::scope(|scope| drop(scope.spawn(|| own.with(|| held.clone(), |_| ()))));
        assert_eq!(Arc::strong_count(&held), 3);
        drop(own);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
