//! The atomics of the shared memory, and the subset that a reader has. `xtask/interleavings` replaces them by loom's
//! and explores every interleaving.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Waits a moment for another thread.
#[inline]
pub(crate) fn relax() {
    std::hint::spin_loop();
}

/// A word that can be read. The load is relaxed: std promises no other in memory that is mapped read-only. Ordering
/// comes from the fences of `protocol`.
pub(crate) trait Word {
    type Value;

    fn get(&self) -> Self::Value;
}

impl Word for AtomicU64 {
    type Value = u64;

    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

impl Word for AtomicU32 {
    type Value = u32;

    #[inline]
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
}

/// A word of memory that this side may have mapped read-only: it has no stores.
#[repr(transparent)]
pub(crate) struct ReadOnly<W>(W);

impl<W: Word> Word for ReadOnly<W> {
    type Value = W::Value;

    #[inline]
    fn get(&self) -> W::Value {
        self.0.get()
    }
}
