//! Wilcoxon's signed-rank test of paired differences.

use crate::estimate::is_sample;
use crate::normal;
use crate::ranks::{MidRanks, mid_ranks};

/// The most differences whose null distribution is counted; up to here every probability is exact in an `f64`.
pub(crate) const EXACT_PAIRS_MAX: usize = 50;

/// The result of [`signed_rank`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignedRank {
    /// The sum of the ranks of the positive differences.
    pub w_plus: f64,
    /// Two-sided: the chance of at least as lopsided a sum if each sign is a fair coin.
    pub p_value: f64,
    /// Whether the p-value was counted and not approximated.
    pub exact: bool,
}

/// Tests whether differences lie symmetrically around zero (Wilcoxon 1945; Hollander & Wolfe 1999, section 3.1).
///
/// Zeros are dropped, as Wilcoxon, R and SciPy do. Up to 50 others the p-value is exact, with ties too: the sum's
/// distribution over all signs of the present mid-ranks (Pratt & Gibbons 1981, chapter 3). Above, the normal
/// approximation with tie and continuity correction, as R's `wilcox.test(exact = FALSE)`. If all are zero there is no
/// evidence of a difference: the p-value is 1. `None` without values or where one is not finite.
pub fn signed_rank(diffs: &[f64]) -> Option<SignedRank> {
    if !is_sample(diffs) {
        return None;
    }
    let moved: Vec<f64> = diffs.iter().copied().filter(|&diff| diff != 0.0).collect();
    let sizes: Vec<f64> = moved.iter().map(|diff| diff.abs()).collect();
    let ranks = mid_ranks(&sizes);
    let positive = |(diff, &rank): (&f64, &u64)| if *diff > 0.0 { rank } else { 0 };
    let doubled: u64 = moved.iter().zip(&ranks.doubled).map(positive).sum();
    let exact = moved.len() <= EXACT_PAIRS_MAX;
    let p_value = if exact {
        let total: u64 = ranks.doubled.iter().sum();
        (2.0 * Null::new(&ranks.doubled).lower_tail(doubled.min(total - doubled))).min(1.0)
    } else {
        approximate(&ranks, doubled)
    };
    Some(SignedRank { w_plus: doubled as f64 / 2.0, p_value, exact })
}

/// The distribution of the doubled rank sum if each sign is a fair coin.
pub(crate) struct Null {
    /// The chance of each doubled sum from 0 up.
    masses: Vec<f64>,
}

impl Null {
    /// Counts it by adding one rank after the other. At most [`EXACT_PAIRS_MAX`] ranks.
    pub(crate) fn new(doubled_ranks: &[u64]) -> Self {
        let total: u64 = doubled_ranks.iter().sum();
        let mut masses = vec![0.0; total as usize + 1];
        masses[0] = 1.0;
        let mut reached = 0;
        for rank in doubled_ranks.iter().map(|&rank| rank as usize) {
            reached += rank;
            for sum in (0..=reached).rev() {
                let with = if sum >= rank { masses[sum - rank] } else { 0.0 };
                masses[sum] = 0.5 * (masses[sum] + with);
            }
        }
        Self { masses }
    }

    /// The distribution for the ranks 1 to `pairs`, without ties.
    pub(crate) fn untied(pairs: usize) -> Self {
        Self::new(&(1..=pairs as u64).map(|rank| 2 * rank).collect::<Vec<u64>>())
    }

    /// The chance of a doubled sum of at most `doubled`.
    pub(crate) fn lower_tail(&self, doubled: u64) -> f64 {
        self.masses.iter().take(doubled as usize + 1).sum()
    }

    /// The number of sums from the lowest up (in whole ranks) whose total chance is at most `tail`, and that chance.
    pub(crate) fn lower_region(&self, tail: f64) -> (usize, f64) {
        let (mut sums, mut chance) = (0, 0.0);
        for mass in self.masses.iter().step_by(2) {
            if chance + mass > tail {
                break;
            }
            chance += mass;
            sums += 1;
        }
        (sums, chance)
    }
}

/// Hollander & Wolfe 1999, equations 3.8 and 3.13, with the continuity correction.
fn approximate(ranks: &MidRanks, doubled: u64) -> f64 {
    let n = ranks.doubled.len() as f64;
    let distance = (doubled as f64 / 2.0 - n * (n + 1.0) / 4.0).abs();
    let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ranks.ties / 48.0;
    normal::two_sided((distance - 0.5).max(0.0) / variance.sqrt())
}
