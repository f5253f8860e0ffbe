//! Random numbers from the system, for initial values that must differ: from the seeds that std draws for hash maps.
//!
//! Clients cannot guess them, which is sufficient for hash tables; keys and tokens need more.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Any number.
pub fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A number from 0 to 1, excluding 1.
pub fn share() -> f64 {
    // The fraction of an `f64` has this many bits.
    (number() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_and_shares_fill_their_range() {
        assert_ne!(number(), number());
        let shares: Vec<f64> = (0..1000).map(|_| share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        assert!(shares.iter().any(|share| *share < 0.1) && shares.iter().any(|share| *share > 0.9));
    }
}
