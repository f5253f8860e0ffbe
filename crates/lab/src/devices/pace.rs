//! A schedule of evenly spaced events that does not wait for late ones.

/// A fixed rate per second from `begin_ns` on.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    begin_ns: u64,
    interval_ns: f64,
    taken: u64,
}

impl Pace {
    /// The first is due at once.
    pub(super) fn new(per_s: f64, now_ns: u64) -> Pace {
        Pace { begin_ns: now_ns, interval_ns: 1e9 / per_s, taken: 0 }
    }

    /// When the next one is due.
    pub(super) fn due_ns(&self) -> u64 {
        self.begin_ns + (self.taken as f64 * self.interval_ns) as u64
    }

    /// Takes the next one if it is due, and returns when it was.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.due_ns();
        (due <= now_ns).then(|| {
            self.taken += 1;
            due
        })
    }

    /// The schedule continues from now: missed events are not made up for in a burst.
    pub(super) fn skip_to(&mut self, now_ns: u64) {
        if self.due_ns() < now_ns {
            *self = Pace { begin_ns: now_ns, taken: 0, interval_ns: self.interval_ns };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_keeps_its_time() {
        let mut pace = Pace::new(1000.0, 5_000_000);
        assert_eq!(pace.take(4_999_999), None);
        assert_eq!(pace.take(7_500_000), Some(5_000_000));
        assert_eq!(pace.take(7_500_000), Some(6_000_000));
        assert_eq!(pace.take(7_500_000), Some(7_000_000));
        assert_eq!(pace.take(7_500_000), None);
        pace.skip_to(20_000_000);
        assert_eq!((pace.take(20_000_000), pace.take(20_000_000)), (Some(20_000_000), None));
    }
}
