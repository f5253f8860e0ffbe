//! Counts wrong keys, and slows down each address that sends them.
//!
//! Only requests with a wrong key wait. The right one is served at once, even from an address from which others guess. The waits of
//! one address are consecutive, so that guessing on many connections is not faster.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tokio::time::Instant;

/// Number of addresses that are remembered. The one whose last wrong key is oldest makes room for a new one.
const SOURCES_MAX: usize = 1024;

/// The wait after the first wrong key; it doubles with each one.
const WAIT_FIRST: Duration = Duration::from_millis(100);

/// The bound of doubling.
const WAIT_EACH_MAX: Duration = Duration::from_secs(3);

/// The longest wait of one request.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// An address without a wrong key for this long starts over.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15 * 60);

/// Bits of an IPv6 address that identify one customer of a network; the customer can choose the rest.
const IPV6_SOURCE_BITS: u32 = 64;

/// The wrong keys so far, by address.
#[derive(Debug, Default)]
pub(super) struct Failures {
    total: u64,
    of_source: HashMap<IpAddr, AddressFailures>,
}

#[derive(Debug)]
struct AddressFailures {
    count: u32,
    last_at: Instant,
    /// When the wait of its last wrong key ends.
    until: Instant,
}

/// The consequence of one wrong key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The wait before the response.
    pub(super) wait: Duration,
    /// Number of wrong keys from this address.
    pub(super) count: u32,
}

impl Wrong {
    /// The number of log lines grows with the logarithm of the wrong keys.
    pub(super) fn is_logged(&self) -> bool {
        self.count.is_power_of_two()
    }
}

impl Failures {
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn record(&mut self, peer: IpAddr, now: Instant) -> Wrong {
        self.total += 1;
        let address = source_of(peer);
        if !self.of_source.contains_key(&address) {
            self.make_place(now);
        }
        let source = self.of_source.entry(address).or_insert(AddressFailures { count: 0, last_at: now, until: now });
        if now.duration_since(source.last_at) > FORGOTTEN_AFTER {
            source.count = 0;
        }
        source.count = source.count.saturating_add(1);
        source.last_at = now;
        let doublings = (source.count - 1).min(16);
        let each = WAIT_FIRST.saturating_mul(1 << doublings).min(WAIT_EACH_MAX);
        source.until = (source.until.max(now) + each).min(now + WAIT_MAX);
        Wrong { wait: source.until - now, count: source.count }
    }

    fn make_place(&mut self, now: Instant) {
        if self.of_source.len() < SOURCES_MAX {
            return;
        }
        self.of_source.retain(|_, source| now.duration_since(source.last_at) <= FORGOTTEN_AFTER);
        if self.of_source.len() >= SOURCES_MAX {
            let oldest = self.of_source.iter().min_by_key(|(_, source)| source.last_at).map(|(address, _)| *address);
            oldest.map(|address| self.of_source.remove(&address));
        }
    }
}

fn source_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => {
            let rest = Ipv6Addr::BITS - IPV6_SOURCE_BITS;
            Ipv6Addr::from_bits(peer.to_bits() >> rest << rest).into()
        }
        peer => peer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_are_bounded() {
        let mut failures = Failures::default();
        let peer = "192.0.2.1".parse().unwrap();
        let now = Instant::now();
        let waits: Vec<u128> = (0..7).map(|_| failures.record(peer, now).wait.as_millis()).collect();
        assert_eq!(waits, [100, 300, 700, 1500, 3100, 6100, 9100]);
        let wrong = (0..10_000).map(|_| failures.record(peer, now)).last().unwrap();
        assert_eq!(wrong, Wrong { wait: WAIT_MAX, count: 10_007 });
        assert_eq!(failures.total(), 10_007);
        let later = now + FORGOTTEN_AFTER + Duration::from_secs(20);
        assert_eq!(failures.record(peer, later), Wrong { wait: WAIT_FIRST, count: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded() {
        let mut failures = Failures::default();
        let now = Instant::now();
        for n in 0..10_000u32 {
            let peer = IpAddr::from(std::net::Ipv4Addr::from_bits(n));
            failures.record(peer, now + Duration::from_millis(n.into()));
            assert!(failures.of_source.len() <= SOURCES_MAX);
        }
        let six = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(six("2001:db8::1"), six("2001:db8::ffff:1"), "one network is one source");
    }
}
