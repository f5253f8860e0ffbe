//! Setting an endpoint aside after it failed to connect.
//!
//! The first failure sets it aside for a second, each further one for twice as long, up to half a minute. When the time
//! is over, one request is let through as a probe and the rest stay away until it succeeded or the time passed again,
//! so that a node that swallows packets costs one connect timeout per period and not one per request.
//! Health checks that send requests of their own are not done here.

/// How long the first failure sets an endpoint aside.
pub const SET_ASIDE_FIRST_MS: u64 = 1_000;
/// The longest an endpoint is set aside.
pub const SET_ASIDE_MAX_MS: u64 = 30_000;

/// What is known of one endpoint's failures.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Health {
    /// Set-aside periods in a row, zero when all is well.
    pub(crate) failures: u32,
    /// Set aside while the clock is below this.
    until_ms: u64,
    /// When it last failed; orders the endpoints when all are set aside.
    pub(crate) last_failed_ms: u64,
    /// A probe was let through and its end is not known.
    probing: bool,
}

impl Health {
    /// Whether a request may be sent there.
    #[inline]
    pub(crate) fn usable(&self, now_ms: u64) -> bool {
        self.failures == 0 || now_ms >= self.until_ms
    }

    /// What is left of the set-aside time.
    pub(crate) fn set_aside_ms(&self, now_ms: u64) -> u64 {
        if self.failures == 0 { 0 } else { self.until_ms.saturating_sub(now_ms) }
    }

    /// The endpoint was chosen: if its time has just passed, this request is the probe and others keep away.
    #[inline]
    pub(crate) fn chosen(&mut self, now_ms: u64) {
        if self.failures > 0 && now_ms >= self.until_ms {
            self.until_ms = now_ms + self.period_ms();
            self.probing = true;
        }
    }

    /// A connection could not be made. Failures of requests that were under way together count as one. For how long the
    /// endpoint is set aside, where this begins it.
    pub(crate) fn failed(&mut self, now_ms: u64) -> Option<u64> {
        self.last_failed_ms = now_ms;
        if !self.usable(now_ms) && !self.probing {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        let period_ms = self.period_ms();
        self.until_ms = now_ms + period_ms;
        self.probing = false;
        Some(period_ms)
    }

    /// A connection was made, or a response came. Whether the endpoint had been set aside.
    #[inline]
    pub(crate) fn succeeded(&mut self) -> bool {
        self.probing = false;
        std::mem::take(&mut self.failures) > 0
    }

    fn period_ms(&self) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(32);
        (SET_ASIDE_FIRST_MS << doublings).min(SET_ASIDE_MAX_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_bound_and_resets() {
        let mut health = Health::default();
        let mut now_ms = 10;
        for expected_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(health.usable(now_ms));
            health.chosen(now_ms);
            health.failed(now_ms);
            assert_eq!(health.set_aside_ms(now_ms), expected_ms);
            assert!(!health.usable(now_ms + expected_ms - 1));
            now_ms += expected_ms;
        }
        health.succeeded();
        assert!(health.usable(now_ms));
        health.failed(now_ms);
        assert_eq!(health.set_aside_ms(now_ms), SET_ASIDE_FIRST_MS);
    }

    #[test]
    fn failures_under_way_together_count_once() {
        let mut health = Health::default();
        for _ in 0..50 {
            health.failed(100);
        }
        assert_eq!(health.set_aside_ms(100), SET_ASIDE_FIRST_MS);
    }

    #[test]
    fn one_probe_a_period() {
        let mut health = Health::default();
        health.failed(0);
        assert!(health.usable(1_000));
        health.chosen(1_000);
        assert!(!health.usable(1_001), "others keep away from the probe");
        assert!(health.usable(2_000), "a probe that never ends is not waited for");
        health.failed(1_500);
        assert_eq!(health.set_aside_ms(1_500), 2_000, "the probe's failure counts");
    }

    #[test]
    fn last_failure_is_kept_while_set_aside() {
        let mut health = Health::default();
        health.failed(0);
        health.failed(500);
        assert_eq!(health.last_failed_ms, 500);
        assert_eq!(health.set_aside_ms(500), 500);
    }
}
