//! The atomics that the source imports, based on loom's.

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Lets the other threads of a model run.
pub(crate) fn relax() {
    loom::thread::yield_now();
}

/// A readable word, as in the crate.
pub(crate) trait Word {
    type Value;

    fn get(&self) -> Self::Value;
}

impl Word for AtomicU64 {
    type Value = u64;

    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

impl Word for AtomicU32 {
    type Value = u32;

    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
}
