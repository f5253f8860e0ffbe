//! Limits how often passwords are compared with hashes: wrong ones must not use up the threads that do it.
//!
//! Each comparison costs a credit of the pair of user and address, and one of the address. A correct password returns
//! them. The credits of an address that has none left come back with time. A correct password that was compared before
//! needs none.

use crate::digest_cache::DigestCache;
use std::net::IpAddr;

/// Burst of comparisons for one user and one address; and the time after which one credit comes back.
const OF_BOTH: CreditRate = CreditRate { credits: 32, back_ms: 4_000 };
/// The rate for all users of one address.
const OF_ADDRESS: CreditRate = CreditRate { credits: 256, back_ms: 250 };

/// `Retry-After` of a refused request, in seconds.
pub(super) const RETRY_AFTER_S: &str = "4";
const _: () = assert!(OF_BOTH.back_ms == 4_000, "`RETRY_AFTER_S` says so");

struct CreditRate {
    credits: u64,
    back_ms: u64,
}

/// Spent credits, per worker. The least recently used entry is dropped.
pub(super) struct Attempts {
    /// When all credits will be back, in milliseconds since 1970.
    spent: DigestCache<u64>,
}

/// One comparison.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    both: u128,
    address: u128,
}

impl Attempts {
    pub(super) fn new() -> Attempts {
        Attempts { spent: DigestCache::new() }
    }

    /// Takes the credits of a comparison; `None`: none are left.
    pub(super) fn begin(&mut self, credential: u128, client: IpAddr, now_ms: u64) -> Option<Attempt> {
        let address = address_of(client);
        let attempt = Attempt {
            both: self.spent.digest(&[&address, &credential.to_le_bytes()]),
            address: self.spent.digest(&[&address]),
        };
        let both = self.back_at(attempt.both, &OF_BOTH, now_ms)?;
        let of_address = self.back_at(attempt.address, &OF_ADDRESS, now_ms)?;
        self.spent.put(attempt.both, both);
        self.spent.put(attempt.address, of_address);
        Some(attempt)
    }

    /// Returns the credits: the password was correct, or was not compared.
    pub(super) fn give_back(&mut self, attempt: Attempt) {
        for (digest, rate) in [(attempt.both, &OF_BOTH), (attempt.address, &OF_ADDRESS)] {
            if let Some(back_at) = self.spent.get(digest).copied() {
                self.spent.put(digest, back_at.saturating_sub(rate.back_ms));
            }
        }
    }

    /// When all credits will be back if one more is taken.
    fn back_at(&mut self, digest: u128, rate: &CreditRate, now_ms: u64) -> Option<u64> {
        let back_at = self.spent.get(digest).copied().unwrap_or(0).max(now_ms) + rate.back_ms;
        (back_at <= now_ms + rate.credits * rate.back_ms).then_some(back_at)
    }
}

/// An address, or the network of a client that can choose among many.
fn address_of(client: IpAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    match client.to_canonical() {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes.copy_from_slice(&address.octets()[..8]),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_spent_and_come_back() {
        let mut attempts = Attempts::new();
        let (client, other): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "2001:db8:0:1::1".parse().unwrap());
        let now = 1_700_000_000_000;
        let spend = |attempts: &mut Attempts, user, client, now| {
            (0..1000).take_while(|_| attempts.begin(user, client, now).is_some()).count()
        };
        assert_eq!(spend(&mut attempts, 1, client, now), 32);
        // The same network, another user, another network.
        assert_eq!(spend(&mut attempts, 1, "2001:db8::2".parse().unwrap(), now), 0);
        assert_eq!(spend(&mut attempts, 2, client, now), 32);
        assert_eq!(spend(&mut attempts, 1, other, now), 32);
        assert_eq!(spend(&mut attempts, 1, client, now + 3_999), 0);
        assert_eq!(spend(&mut attempts, 1, client, now + 4_000), 1);
        assert_eq!(spend(&mut attempts, 1, client, now + 1_000_000), 32);
        // Correct passwords cost nothing.
        for _ in 0..1000 {
            let attempt = attempts.begin(3, client, now + 2_000_000).unwrap();
            attempts.give_back(attempt);
        }
        assert_eq!(spend(&mut attempts, 3, client, now + 2_000_000), 32);
        // An address has credits for some users, but not for many.
        let of_many: usize = (10..30).map(|user| spend(&mut attempts, user, client, now + 9_000_000)).sum();
        assert_eq!(of_many, 256);
    }
}
