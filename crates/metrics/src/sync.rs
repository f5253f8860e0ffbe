//! The atomics of the shared memory: std's, or loom's where `--cfg loom` explores every interleaving of the protocol; and what
//! a reader has of them.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A word that can be read. The load is relaxed: in memory that is mapped for reading only, std promises no other. Order comes
/// from the fences of `protocol`.
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

/// A word of memory that this side may have mapped for reading only: it has no stores.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct Shown<W>(W);

#[cfg(not(loom))]
impl<W: Word> Word for Shown<W> {
    type Value = W::Value;

    #[inline]
    fn get(&self) -> W::Value {
        self.0.get()
    }
}
