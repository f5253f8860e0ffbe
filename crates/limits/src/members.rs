//! The slots of a bucket that hold a counter, in one word: every change of it is one compare-and-swap, so that all
//! threads agree on the order in which counters were added and removed.
//!
//! ```text
//!  63        40 39      30 29        15 14         0
//!  ├ version ───┼ claimed ─┼ claimed ───┼ shown ─────┤
//!  │ of changes │ at, 8 s  │ a bit a    │ a bit a    │
//!                            slot         slot
//! ```
//!
//! A slot is *free* (neither bit), *claimed* by a thread that writes a counter's key into it, or *shown* to all. The
//! version makes any two states differ, even if a slot's counter was replaced and restored.

/// Slots that the word has bits for.
pub(crate) const WAYS_MAX: usize = 15;
/// The unit of the time of a claim.
const CLAIM_UNIT_MS: u64 = 8_192;
const CLAIMED_SHIFT: u32 = 15;
const AT_SHIFT: u32 = 30;
/// All bits of a claim's time.
const AT: u64 = (1 << 10) - 1;
const VERSION_SHIFT: u32 = 40;
const BITS: u64 = (1 << WAYS_MAX) - 1;

/// A bucket's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Members(pub(crate) u64);

impl Members {
    pub(crate) fn is_shown(self, way: usize) -> bool {
        self.0 >> way & 1 == 1
    }

    pub(crate) fn is_claimed(self, way: usize) -> bool {
        self.0 >> CLAIMED_SHIFT >> way & 1 == 1
    }

    /// The shown slots.
    pub(crate) fn shown_slots(self) -> impl Iterator<Item = usize> {
        let mut bits = self.0 & BITS;
        std::iter::from_fn(move || {
            let way = (bits != 0).then_some(bits.trailing_zeros() as usize);
            bits &= bits.wrapping_sub(1);
            way
        })
    }

    /// Drops abandoned claims. Claims are abandoned if the bucket's last claim is at least 8 to 16 seconds ago, while
    /// writing three words and a compare-and-swap takes less than a microsecond: the claiming thread was killed. It
    /// gets no version of its own, since it is stored together with a claim.
    pub(crate) fn without_old_claims(self, now_ms: u64) -> Members {
        let age = unit(now_ms).wrapping_sub(self.0 >> AT_SHIFT) & AT;
        // Clocks of threads differ: the last claim may be a little ahead of the present.
        let is_recent = matches!(age, 0 | 1 | AT);
        if is_recent { self } else { Members(self.0 & !(BITS << CLAIMED_SHIFT)) }
    }

    /// Claims a slot for one thread, so that it is no longer shown.
    pub(crate) fn with_claim(self, way: usize, now_ms: u64) -> Members {
        let bits = self.0 & !(1 << way) & !(AT << AT_SHIFT);
        Members(bits | 1 << CLAIMED_SHIFT << way | unit(now_ms) << AT_SHIFT).with_next_version()
    }

    /// Shows a claimed slot to all.
    pub(crate) fn with_shown(self, way: usize) -> Members {
        Members(self.without_claim(way).0 | 1 << way)
    }

    /// Gives a claimed slot back.
    pub(crate) fn without_claim(self, way: usize) -> Members {
        Members(self.0 & !(1 << CLAIMED_SHIFT << way)).with_next_version()
    }

    fn with_next_version(self) -> Members {
        Members(self.0.wrapping_add(1 << VERSION_SHIFT))
    }
}

/// The time of a claim in the word's unit; it wraps around after two hours.
fn unit(now_ms: u64) -> u64 {
    (now_ms / CLAIM_UNIT_MS) & AT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_claimed_then_shown_then_claimed() {
        let mut members = Members(0);
        for way in 0..WAYS_MAX {
            let claimed = members.with_claim(way, u64::MAX);
            assert!(claimed.is_claimed(way) && !claimed.is_shown(way));
            members = claimed.with_shown(way);
            assert!(!members.is_claimed(way) && members.is_shown(way));
            assert_eq!(members.shown_slots().collect::<Vec<_>>(), (0..=way).collect::<Vec<_>>());
        }
        assert_eq!(members.0 >> VERSION_SHIFT, 2 * WAYS_MAX as u64);
        let again = members.with_claim(3, 0);
        assert!(again.is_claimed(3) && !again.is_shown(3) && again.shown_slots().count() == WAYS_MAX - 1);
        assert_ne!(again.with_shown(3), members);
        assert_eq!(again.without_claim(3).shown_slots().count(), WAYS_MAX - 1);
    }

    #[test]
    fn a_claim_grows_old() {
        for now_ms in [0, CLAIM_UNIT_MS - 1, 1023 * CLAIM_UNIT_MS, 1_795_220_833_000] {
            let members = Members(0).with_claim(0, now_ms).with_shown(0).with_claim(3, now_ms).with_claim(5, now_ms);
            for recent_ms in [now_ms, now_ms + CLAIM_UNIT_MS, now_ms.saturating_sub(CLAIM_UNIT_MS)] {
                assert_eq!(members.without_old_claims(recent_ms), members);
            }
            for later_ms in [now_ms + 2 * CLAIM_UNIT_MS, now_ms + 60_000] {
                let without = members.without_old_claims(later_ms);
                assert!(without.is_shown(0) && (0..WAYS_MAX).all(|way| !without.is_claimed(way)));
            }
        }
    }
}
