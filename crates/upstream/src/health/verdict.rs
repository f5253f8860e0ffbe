//! What active checks have found of an endpoint, told to all workers.
//!
//! The control thread makes the checks and is the only one that writes; a worker reads it with one load whenever it
//! chooses. It is part of the endpoint and stays as long as that does, so that a reload forgets nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Healthy until told otherwise. Two are equal only if they are the same.
#[derive(Debug, Default)]
pub struct Verdict {
    /// How often it has changed, so that a change cannot be missed; odd: unhealthy.
    changes: AtomicU64,
}

impl Verdict {
    /// Whether requests may be sent there.
    #[inline]
    pub fn is_healthy(&self) -> bool {
        self.changes.load(Relaxed).is_multiple_of(2)
    }

    /// For the one thread that makes the checks. Whether it is news.
    pub fn set(&self, is_healthy: bool) -> bool {
        let is_news = self.is_healthy() != is_healthy;
        if is_news {
            self.changes.store(self.changes.load(Relaxed) + 1, Relaxed);
        }
        is_news
    }

    /// How often it has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

impl PartialEq for Verdict {
    fn eq(&self, other: &Verdict) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Verdict {}
