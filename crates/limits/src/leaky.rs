//! A leaky bucket: requests pour in, `rate` of them leak out per second, and those above `burst` overflow.
//!
//! It decides like APISIX's `limit-req` (`resty.limit.req`): after a request that passed with an excess of `e`, one
//! that comes `t` seconds later has an excess of `max(e - rate * t + 1, 0)`. It is rejected above `burst`, and
//! otherwise delayed by the time in which its excess leaks out. A rejected request changes nothing.
//!
//! ```text
//!             epoch begins                         now          level
//!                  ├────────── has leaked ──────────┼── excess ───┤   in thousandths of a request
//! ```
//!
//! A counter holds one number, so that it can change in one step: the *level*, which is the amount that will have
//! leaked out when the bucket is empty, minus one request. It is counted from the beginning of an epoch, since a
//! counter has few bits. When an epoch ends, the first request of the next one closes its counter ([`CLOSED`]), and
//! takes over the level. No count is lost: a late request that finds the counter closed counts in the next one.

use crate::COUNT_MAX;

/// A request, in the unit of levels.
const REQUEST: u64 = 1_000;
/// The bit of a counter that was taken over by the next epoch.
pub(crate) const CLOSED: u64 = 1 << 39;
/// Shortest epoch: keys that are used once make room after about this time.
const EPOCH_MS_MIN: u64 = 10_000;
/// Clocks of threads differ by less. A counter that was closed longer before its end was closed before the clock was
/// set back.
const CLOCKS_DIFFER_MAX_MS: u64 = 1_000;

/// The fastest leak, in requests a second.
pub const RATE_MAX: f64 = 1e6;
/// The slowest leak: a request in about eleven days.
pub const RATE_MIN: f64 = 1e-6;
/// The largest burst, in requests.
pub const BURST_MAX: f64 = 1e6;

/// A leaky bucket's two numbers, within their bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leak {
    /// Thousandths of a request per millisecond, which equals requests per second.
    rate: f64,
    /// Burst in thousandths of a request.
    burst: u64,
    epoch_ms: u64,
}

/// The outcome of a request to a leaky bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyDecision {
    /// Whether the request may pass.
    pub admitted: bool,
    /// Microseconds until the requests before it have leaked out.
    pub delay_us: u64,
}

impl Leak {
    /// A leak of `rate` requests per second, with `burst` above it. Values out of bounds become the bound.
    pub fn new(rate: f64, burst: f64) -> Leak {
        let (rate, burst) = (rate.clamp(RATE_MIN, RATE_MAX), burst.clamp(0.0, BURST_MAX));
        // A full bucket is empty after this time, so that a level lasts for at most one epoch after its own.
        let empties_ms = ((burst + 1.0) * 1_000.0 / rate).ceil() as u64;
        Leak { rate, burst: (burst * 1_000.0) as u64, epoch_ms: empties_ms.max(EPOCH_MS_MIN) }
    }

    /// The amount that leaks out in this time from the beginning of an epoch.
    fn leaked_amount(self, since_ms: u64) -> u64 {
        (since_ms as f64 * self.rate) as u64
    }

    /// The level that remains when its epoch has ended; an empty one stays empty.
    pub(crate) fn carried_level(self, level: u64) -> u64 {
        (level & !CLOSED).saturating_sub(self.leaked_amount(self.epoch_ms))
    }

    /// Decides at a level; `None` if the request changes nothing. A new bucket has a level of 0.
    pub(crate) fn pour(self, level: u64, since_ms: u64) -> (LeakyDecision, Option<u64>) {
        let leaked = self.leaked_amount(since_ms);
        let excess = level.saturating_sub(leaked);
        if excess > self.burst {
            return (LeakyDecision { admitted: false, delay_us: 0 }, None);
        }
        let delay_us = (excess as f64 * 1_000.0 / self.rate) as u64;
        (LeakyDecision { admitted: true, delay_us }, Some(level.max(leaked) + REQUEST))
    }
}

/// The position of the present time in epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Since 1970.
    pub(crate) number: u64,
    pub(crate) since_ms: u64,
    /// When its counter is not taken over any more: the end of the next epoch.
    pub(crate) end_ms: u64,
    /// Time until it ends.
    remaining_ms: u64,
}

impl Epoch {
    pub(crate) fn of(leak: Leak, now_ms: u64) -> Epoch {
        let (number, since_ms) = (now_ms / leak.epoch_ms, now_ms % leak.epoch_ms);
        let remaining_ms = leak.epoch_ms - since_ms;
        let end_ms = now_ms.saturating_add(remaining_ms).saturating_add(leak.epoch_ms);
        Epoch { number, since_ms, end_ms, remaining_ms }
    }

    /// The beginning of the next epoch, which another thread's clock may have reached already.
    pub(crate) fn next(self, leak: Leak) -> Epoch {
        let end_ms = self.end_ms.saturating_add(leak.epoch_ms);
        Epoch { number: self.number.wrapping_add(1), since_ms: 0, end_ms, remaining_ms: leak.epoch_ms }
    }

    /// Whether a closed counter of this epoch must be left for the next: its end is near.
    pub(crate) fn is_over_elsewhere(self) -> bool {
        self.remaining_ms <= CLOCKS_DIFFER_MAX_MS
    }
}

// The level of a full bucket at the end of an epoch plus one more request does not reach the bit.
const _: () = assert!(2 * (BURST_MAX as u64 + 2) * REQUEST + EPOCH_MS_MIN * (RATE_MAX as u64) < CLOSED);
const _: () = assert!(CLOSED <= COUNT_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The computation of `resty.limit.req`, in requests and seconds.
    struct Plain {
        rate: f64,
        burst: f64,
        last: Option<(f64, f64)>,
    }

    impl Plain {
        fn ask(&mut self, now_s: f64) -> Option<f64> {
            let excess = match self.last {
                None => 0.0,
                Some((excess, last)) => (excess - self.rate * (now_s - last) + 1.0).max(0.0),
            };
            if excess > self.burst {
                return None;
            }
            self.last = Some((excess, now_s));
            Some(excess / self.rate)
        }
    }

    proptest! {
        /// Except for excesses so close to `burst` that the two round differently.
        #[test]
        fn it_decides_as_its_model(
            rate in 0.01..2000.0f64, burst in 0.0..50.0f64, gaps in proptest::collection::vec(0u64..3000, 1..200),
        ) {
            let leak = Leak::new(rate, burst);
            let mut plain = Plain { rate, burst, last: None };
            let (mut level, mut now_ms) = (0, 1_795_220_833_000);
            let mut number = Epoch::of(leak, now_ms).number;
            for gap in gaps {
                now_ms += gap;
                let epoch = Epoch::of(leak, now_ms);
                while number < epoch.number {
                    level = leak.carried_level(level);
                    number += 1;
                }
                let near = |offset: f64| {
                    Plain { rate, burst: burst + offset, last: plain.last }.ask(now_ms as f64 / 1000.0).is_some()
                };
                if near(-0.05) != near(0.05) {
                    break;
                }
                let (poured, after) = leak.pour(level, epoch.since_ms);
                let expected = plain.ask(now_ms as f64 / 1000.0);
                prop_assert_eq!(poured.admitted, expected.is_some());
                if let Some(delay_s) = expected {
                    let differs_s = (poured.delay_us as f64 / 1e6 - delay_s).abs();
                    prop_assert!(differs_s * rate < 0.05, "{} {}", poured.delay_us, delay_s);
                }
                level = after.unwrap_or(level);
            }
        }
    }

    #[test]
    fn a_burst_at_once() {
        for (rate, burst, admitted) in [(1.0, 0.0, 1), (1.0, 2.0, 3), (0.5, 2.5, 3), (1000.0, 10.0, 11)] {
            let leak = Leak::new(rate, burst);
            let (mut level, mut delays) = (0, Vec::new());
            for _ in 0..50 {
                let (poured, after) = leak.pour(level, 0);
                if poured.admitted {
                    delays.push(poured.delay_us);
                }
                level = after.unwrap_or(level);
            }
            let expected: Vec<u64> = (0..admitted).map(|before| (f64::from(before) / rate * 1e6) as u64).collect();
            assert_eq!(delays, expected, "{rate} {burst}");
        }
    }

    #[test]
    fn bounds() {
        for (rate, burst) in [(0.0, -1.0), (f64::MAX, f64::MAX), (f64::MIN_POSITIVE, f64::MAX), (f64::MAX, 0.0)] {
            let leak = Leak::new(rate, burst);
            for now_ms in [0, 1, 1 << 50, u64::MAX] {
                let epoch = Epoch::of(leak, now_ms);
                let (_, level) = leak.pour(leak.leaked_amount(epoch.since_ms) + leak.burst, epoch.since_ms);
                assert!(level.is_some_and(|level| level < CLOSED), "{leak:?}");
                epoch.next(leak);
            }
        }
    }
}
