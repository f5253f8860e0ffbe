//! Enforces a minimum rate at which a peer reads. Otherwise a peer that takes a byte now and then would hold memory, and a
//! connection to a node, for as long as it likes.

/// Bytes that a client must take per second, on average over the time for sending, while more waits for it. This is slower than any
/// network.
const CLIENT_BYTES_PER_SECOND_MIN: u64 = 240;
/// Bytes that any peer must take within the time for sending, however short that is.
pub(crate) const BYTES_MIN: u64 = 1_024;

/// Bytes that a client must take within its time for sending.
pub(crate) fn client_bytes_min(send_ms: u64) -> u64 {
    (send_ms.saturating_mul(CLIENT_BYTES_PER_SECOND_MIN) / 1_000).max(BYTES_MIN)
}

/// When the current measurement began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinRate {
    since_ms: u64,
    /// Bytes taken up to then.
    taken: u64,
}

impl MinRate {
    /// Begins to measure, after so many bytes.
    pub(crate) fn begin(now_ms: u64, taken: u64) -> MinRate {
        MinRate { since_ms: now_ms, taken }
    }

    /// `taken` is the number of bytes taken so far, which only grows. Measuring restarts whenever another `bytes_min` have been
    /// taken.
    pub(crate) fn update(&mut self, now_ms: u64, taken: u64, bytes_min: u64) {
        if taken >= self.taken + bytes_min {
            *self = MinRate::begin(now_ms, taken);
        }
    }

    pub(crate) fn since_ms(&self) -> u64 {
        self.since_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drip_does_not_count_as_progress() {
        let mut rate = MinRate::begin(100, 5_000);
        for taken in 0..BYTES_MIN {
            rate.update(101 + taken, 5_000 + taken, BYTES_MIN);
        }
        assert_eq!(rate.since_ms(), 100);
        rate.update(2_000, 5_000 + BYTES_MIN, BYTES_MIN);
        assert_eq!(rate.since_ms(), 2_000);
    }

    #[test]
    fn clients_have_a_least_rate() {
        assert_eq!([1, 1_000, 60_000, u64::MAX].map(client_bytes_min), [1_024, 1_024, 14_400, u64::MAX / 1_000]);
    }
}
