//! When to ping a quiet connection, and when to give up on it.
//!
//! Any byte from the peer is a sign of life. After `ping_interval` without one, or up to a quarter of it sooner so that
//! thousands of connections that began together do not ping together, a ping is due; after another `ping_timeout` the
//! peer is dead. So a dead peer is found within `ping_interval + ping_timeout` of its last byte. A sign of life is a
//! single store: the connection's timer may fire early and checks again.

/// Limits in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PulseLimits {
    /// The longest silence before a ping.
    pub ping_interval_ms: u32,
    /// The longest silence after it.
    pub ping_timeout_ms: u32,
}

/// The action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Nothing before this time.
    Quiet {
        /// When to call again.
        until_ms: u64,
    },
    /// Send a ping now, and call again then.
    Ping {
        /// When to call again.
        until_ms: u64,
    },
    /// The peer has not answered: close without a close frame.
    Dead,
}

/// The pulse of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    heard_ms: u64,
    /// When the last ping was sent; before `heard_ms` once it was answered.
    pinged_ms: Option<u64>,
    /// How much sooner than the interval the next ping is due, in 1/65536 of a quarter of it.
    sooner: u16,
}

impl Pulse {
    /// The pulse of a connection that begins now.
    pub fn new(now_ms: u64, random: u16) -> Pulse {
        Pulse { heard_ms: now_ms, pinged_ms: None, sooner: random }
    }

    /// Bytes have come from the peer.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
        self.pinged_ms = None;
    }

    /// The action that is due now. A [`Beat::Ping`] counts as sent.
    pub fn beat(&mut self, now_ms: u64, random: u16, limits: PulseLimits) -> Beat {
        if let Some(pinged_ms) = self.pinged_ms {
            let until_ms = pinged_ms.saturating_add(u64::from(limits.ping_timeout_ms));
            return if now_ms >= until_ms { Beat::Dead } else { Beat::Quiet { until_ms } };
        }
        let interval_ms = u64::from(limits.ping_interval_ms);
        let until_ms = self.heard_ms.saturating_add(interval_ms - ((interval_ms / 4 * u64::from(self.sooner)) >> 16));
        if now_ms < until_ms {
            return Beat::Quiet { until_ms };
        }
        self.pinged_ms = Some(now_ms);
        self.sooner = random;
        Beat::Ping { until_ms: now_ms.saturating_add(u64::from(limits.ping_timeout_ms)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: PulseLimits = PulseLimits { ping_interval_ms: 60_000, ping_timeout_ms: 10_000 };

    #[test]
    fn a_peer_that_answers_lives() {
        let mut pulse = Pulse::new(0, 0);
        assert_eq!(pulse.beat(59_999, 0, LIMITS), Beat::Quiet { until_ms: 60_000 });
        assert_eq!(pulse.beat(60_000, 0, LIMITS), Beat::Ping { until_ms: 70_000 });
        assert_eq!(pulse.beat(60_001, 0, LIMITS), Beat::Quiet { until_ms: 70_000 });
        pulse.heard(60_050);
        assert_eq!(pulse.beat(70_000, 0, LIMITS), Beat::Quiet { until_ms: 120_050 });
    }

    proptest! {
        #[test]
        fn a_dead_peer_is_found_in_time(heard_ms in 0u64..1_000_000, random: u16, interval in 0u32..100_000, timeout in 0u32..100_000) {
            let limits = PulseLimits { ping_interval_ms: interval, ping_timeout_ms: timeout };
            let mut pulse = Pulse::new(0, random);
            pulse.heard(heard_ms);
            let (mut now_ms, mut pings) = (heard_ms, 0);
            loop {
                match pulse.beat(now_ms, random, limits) {
                    Beat::Quiet { until_ms } => {
                        prop_assert!(until_ms > now_ms);
                        now_ms = until_ms;
                    }
                    Beat::Ping { until_ms } => (now_ms, pings) = (until_ms, pings + 1),
                    Beat::Dead => break,
                }
            }
            let (interval, timeout) = (u64::from(interval), u64::from(timeout));
            prop_assert_eq!(pings, 1);
            prop_assert!(now_ms - heard_ms <= interval + timeout);
            prop_assert!(now_ms - heard_ms >= interval - interval / 4 + timeout);
        }
    }
}
