//! Time as the engine counts it: nanoseconds since the run was prepared, the same for all its threads.
//!
//! Plain integers, because a latency is one subtraction and an intended start one comparison. Monotonic: a step of the
//! wall clock is not a latency.

use std::time::{Duration, Instant};

/// Later than any time.
pub(super) const NEVER_NS: u64 = u64::MAX;

/// The run's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock that is at zero now.
    pub(super) fn start() -> Self {
        Clock { epoch: Instant::now() }
    }

    /// Nanoseconds since the start; enough for five centuries.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// In nanoseconds, capped at five centuries.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}
