//! The verdict of active checks on an endpoint, shared with all workers.
//!
//! The control thread makes the checks and is the only writer; a worker reads it with one load for each choice. It
//! is part of the endpoint and stays as long as that does, so that a reload does not reset it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Healthy until set otherwise. Two are equal only if they are identical.
#[derive(Debug, Default)]
pub struct HealthVerdict {
    /// The number of changes, so that none can be missed; odd if unhealthy.
    changes: AtomicU64,
}

impl HealthVerdict {
    /// Whether requests may be sent there.
    #[inline]
    pub fn is_healthy(&self) -> bool {
        self.changes.load(Relaxed).is_multiple_of(2)
    }

    /// To be called by the thread that makes the checks. Returns whether this is a change.
    pub fn set(&self, is_healthy: bool) -> bool {
        let is_news = self.is_healthy() != is_healthy;
        if is_news {
            self.changes.store(self.changes.load(Relaxed) + 1, Relaxed);
        }
        is_news
    }

    /// The number of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

impl PartialEq for HealthVerdict {
    fn eq(&self, other: &HealthVerdict) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for HealthVerdict {}
