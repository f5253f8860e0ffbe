//! When the next of many evenly spaced things is due: a schedule that does not wait for what is late.

/// So many a second from `begin_ns` on.
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

    /// When the next is due.
    pub(super) fn due_ns(&self) -> u64 {
        self.begin_ns + (self.taken as f64 * self.interval_ns) as u64
    }

    /// The next, if it is due: when it was.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.due_ns();
        (due <= now_ns).then(|| {
            self.taken += 1;
            due
        })
    }

    /// The schedule goes on from now: what could not be done before is not made up for in a burst.
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
