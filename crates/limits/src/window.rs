//! The decision of a limit: pure arithmetic over a counter's value and the present, like APISIX's `limit-count` with
//! its policy `local`.
//!
//! Fixed windows are those of `resty.limit.count`: a window begins with a key's first request and lasts `window_ms`. A
//! request that does not fit is charged there anyway, so the rest of its window is used up; with a cost of 1 that makes
//! no difference, as only a full window rejects.
//!
//! Sliding windows are those of `limit-count/sliding-window`: counters of windows aligned to the epoch, the previous one
//! weighted by the part of it that a window ending now would still cover. A rejected request changes nothing. Where
//! APISIX computes with floats, this is exact in integers.

use crate::COUNT_MAX;

/// Longer windows are this long: some thousand years.
const WINDOW_MS_MAX: u64 = 1 << 48;

/// A limit: a count per window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Requests admitted in a window; a value above [`COUNT_MAX`] counts as that.
    pub count: u64,
    /// The length of a window in milliseconds; 0 counts as 1.
    pub window_ms: u64,
}

/// The outcome of a request to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitDecision {
    /// Whether the request may pass.
    pub admitted: bool,
    /// How much more the window admits; 0 if this request was rejected. As in APISIX a sliding window admits while its
    /// estimate is below the count, independent of this request's cost: it may be below zero.
    pub remaining: i64,
    /// Milliseconds until the window ends, or for a rejected request of a sliding window until the estimate is below
    /// the count. Values of sliding windows are rounded up to hundredths of a second. For its header APISIX rounds both
    /// kinds down to hundredths.
    pub reset_ms: u64,
}

/// The answer, and the counter's new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowVerdict {
    pub(crate) taken: LimitDecision,
    pub(crate) count: u64,
}

impl Limit {
    /// Limits its values to their bounds.
    pub(crate) fn clamp_to_bounds(self) -> Limit {
        Limit { count: self.count.min(COUNT_MAX), window_ms: self.window_ms.clamp(1, WINDOW_MS_MAX) }
    }

    /// Decides for a fixed window that has counted `count` and ends at `end_ms`.
    pub(crate) fn decide_fixed(self, count: u64, cost: u64, end_ms: u64, now_ms: u64) -> WindowVerdict {
        let reset_ms = end_ms.saturating_sub(now_ms).min(self.window_ms);
        let after = count.saturating_add(cost);
        let admitted = after <= self.count;
        let remaining = if admitted { to_signed(self.count - after) } else { 0 };
        // A request that does not fit uses up the window. A full one is unchanged, without a store.
        let count = if admitted { after } else { count.max(self.count) };
        WindowVerdict { taken: LimitDecision { admitted, remaining, reset_ms }, count }
    }

    /// Decides for a sliding window with these counters.
    pub(crate) fn decide_sliding(self, at: AlignedWindow, previous: u64, count: u64, cost: u64) -> WindowVerdict {
        let previous = previous.min(self.count);
        let wide = |number: u64| u128::from(number);
        // Everything in units of a request times a millisecond.
        let weighted = wide(previous) * wide(at.remaining_ms);
        let room = wide(self.count.saturating_sub(count)) * wide(self.window_ms);
        if weighted >= room {
            // Without any room the present window has to end. Otherwise the weight has to fall.
            let reset_ms = match room {
                0 => wide(at.remaining_ms).next_multiple_of(10),
                _ => (weighted - room).div_ceil(wide(previous) * 10) * 10,
            };
            let reset_ms = u64::try_from(reset_ms).unwrap_or(u64::MAX);
            return WindowVerdict { taken: LimitDecision { admitted: false, remaining: 0, reset_ms }, count };
        }
        let after = count.saturating_add(cost).min(COUNT_MAX);
        let of_previous = u64::try_from(weighted.div_ceil(wide(self.window_ms))).unwrap_or(COUNT_MAX);
        let remaining = to_signed(self.count) - to_signed(after) - to_signed(of_previous);
        let reset_ms = at.remaining_ms.next_multiple_of(10);
        WindowVerdict { taken: LimitDecision { admitted: true, remaining, reset_ms }, count: after }
    }
}

/// The position of the present time in windows that are aligned to the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AlignedWindow {
    /// The number of the window since the epoch.
    pub(crate) number: u64,
    /// Time until it ends; at least 1.
    pub(crate) remaining_ms: u64,
    /// When this window's counter is not used any more: the end of the next window.
    pub(crate) end_ms: u64,
}

impl AlignedWindow {
    pub(crate) fn new(window_ms: u64, now_ms: u64) -> AlignedWindow {
        let remaining_ms = window_ms - now_ms % window_ms;
        let end_ms = now_ms.saturating_add(remaining_ms).saturating_add(window_ms);
        AlignedWindow { number: now_ms / window_ms, remaining_ms, end_ms }
    }
}

/// Counts are far below the sign bit, by [`COUNT_MAX`].
fn to_signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(admitted: bool, remaining: i64, reset_ms: u64) -> LimitDecision {
        LimitDecision { admitted, remaining, reset_ms }
    }

    #[test]
    fn fixed_windows() {
        let limit = Limit { count: 10, window_ms: 60_000 };
        // Counted before, cost, milliseconds since the window began; the answer, counted after.
        for (count, cost, since_ms, wanted, after) in [
            (0, 1, 0, taken(true, 9, 60_000), 1),
            (1, 1, 1_234, taken(true, 8, 58_766), 2),
            (9, 1, 59_999, taken(true, 0, 1), 10),
            (10, 1, 30_000, taken(false, 0, 30_000), 10),
            (10, 1, 60_000, taken(false, 0, 0), 10),
            (0, 10, 0, taken(true, 0, 60_000), 10),
            // Charged although it does not fit.
            (8, 5, 0, taken(false, 0, 60_000), 10),
            (0, 11, 0, taken(false, 0, 60_000), 10),
            (0, u64::MAX, 0, taken(false, 0, 60_000), 10),
        ] {
            let verdict = limit.decide_fixed(count, cost, 1_060_000, 1_000_000 + since_ms);
            assert_eq!((verdict.taken, verdict.count), (wanted, after), "{count} {cost} {since_ms}");
        }
        // A clock that is behind another thread's.
        assert_eq!(limit.decide_fixed(1, 1, 1_060_000, 999_998).taken, taken(true, 8, 60_000));
    }

    #[test]
    fn sliding_windows() {
        let limit = Limit { count: 10, window_ms: 1_000 };
        // Counted in the previous window and in this one, cost, milliseconds into this one; the answer, counted after.
        for (previous, count, cost, into_ms, wanted, after) in [
            (0, 0, 1, 0, taken(true, 9, 1_000), 1),
            (0, 9, 1, 995, taken(true, 0, 10), 10),
            (0, 10, 1, 300, taken(false, 0, 700), 10),
            // Half of the previous window weighs 5.
            (10, 0, 1, 500, taken(true, 4, 500), 1),
            (10, 4, 1, 500, taken(true, 0, 500), 5),
            (10, 5, 1, 500, taken(false, 0, 0), 5),
            (10, 5, 1, 499, taken(false, 0, 10), 5),
            // 4.99 of the previous one: below by the estimate, above with this request.
            (10, 5, 1, 501, taken(true, -1, 500), 6),
            (10, 10, 1, 501, taken(false, 0, 500), 10),
            // A full previous window frees one place each 100 ms.
            (10, 0, 1, 0, taken(false, 0, 0), 0),
            (10, 0, 1, 1, taken(true, -1, 1_000), 1),
            (10, 3, 1, 0, taken(false, 0, 300), 3),
            // More than the count, from larger costs, weighs as the count.
            (50, 4, 1, 500, taken(true, 0, 500), 5),
            (0, 9, 5, 0, taken(true, -4, 1_000), 14),
            (3, 14, 1, 0, taken(false, 0, 1_000), 14),
            (3, 8, 1, 0, taken(false, 0, 340), 8),
        ] {
            let at = AlignedWindow::new(1_000, 77_000 + into_ms);
            let verdict = limit.decide_sliding(at, previous, count, cost);
            assert_eq!((verdict.taken, verdict.count), (wanted, after), "{previous} {count} {cost} {into_ms}");
        }
    }

    #[test]
    fn aligned_windows() {
        for (window_ms, now_ms, number, remaining_ms, end_ms) in [
            (1_000, 0, 0, 1_000, 2_000),
            (1_000, 999, 0, 1, 2_000),
            (60_000, 60_000, 1, 60_000, 180_000),
            (1, 5, 5, 1, 7),
        ] {
            assert_eq!(AlignedWindow::new(window_ms, now_ms), AlignedWindow { number, remaining_ms, end_ms });
        }
    }

    #[test]
    fn nothing_overflows() {
        for limit in [Limit { count: u64::MAX, window_ms: u64::MAX }, Limit { count: 0, window_ms: 0 }] {
            let limit = limit.clamp_to_bounds();
            for now_ms in [0, 1, u64::MAX] {
                let at = AlignedWindow::new(limit.window_ms, now_ms);
                for count in [0, COUNT_MAX] {
                    limit.decide_sliding(at, COUNT_MAX, count, u64::MAX);
                    limit.decide_fixed(count, u64::MAX, u64::MAX, now_ms);
                }
            }
        }
    }
}
