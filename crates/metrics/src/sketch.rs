//! Estimates how many distinct values a label has had: HyperLogLog (Flajolet et al., 2007) in 256 bytes, within some
//! 7%.
//!
//! All writers of the process share one for each label. It is touched only when a label set is new, or collapsed.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const REGISTERS: usize = 256;
/// The constant of the estimate for so many registers.
const ALPHA: f64 = 0.7213 / (1.0 + 1.079 / REGISTERS as f64);

/// One label's sketch.
#[derive(Debug)]
pub(crate) struct Sketch([AtomicU8; REGISTERS]);

impl Default for Sketch {
    fn default() -> Self {
        Sketch([const { AtomicU8::new(0) }; REGISTERS])
    }
}

impl Sketch {
    /// Records a value, by its hash.
    pub(crate) fn note(&self, hash: u64) {
        // A hash that suits a table may be too regular here (the finaliser of SplitMix64).
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let hash = hash ^ (hash >> 31);
        let register = &self.0[(hash >> 56) as usize];
        let rank = ((hash << 8 | 1 << 7).leading_zeros() + 1) as u8;
        // Usually the register does not change, and then nothing is stored that others would have to fetch.
        if register.load(Relaxed) < rank {
            register.fetch_max(rank, Relaxed);
        }
    }

    /// Clears the sketch. Values recorded at the same time may be lost or not.
    pub(crate) fn reset(&self) {
        self.0.iter().for_each(|register| register.store(0, Relaxed));
    }

    /// The estimated number of distinct values.
    pub(crate) fn estimate(&self) -> u64 {
        let ranks = self.0.iter().map(|register| register.load(Relaxed));
        let zeros = ranks.clone().filter(|rank| *rank == 0).count();
        let sum: f64 = ranks.map(|rank| (-f64::from(rank)).exp2()).sum();
        let m = REGISTERS as f64;
        let raw = ALPHA * m * m / sum;
        // While registers are empty, counting those is more exact.
        let estimate = if raw <= 2.5 * m && zeros > 0 { m * (m / zeros as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates() {
        for count in [0u64, 1, 5, 50, 1000, 20_000, 1_000_000] {
            let sketch = Sketch::default();
            for number in 0..count {
                // SplitMix64.
                let mut x = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                sketch.note(x ^ (x >> 31));
            }
            let estimate = sketch.estimate();
            let error = estimate.abs_diff(count) as f64;
            assert!(error <= (count as f64 * 0.2).max(1.0), "{count}: {estimate}");
        }
    }
}
