//! Ranks with ties shared, as whole numbers.
//!
//! Twice the mid-rank is a whole number, which lets null distributions be counted without rounding.

/// Twice the mid-rank of each value, and the amount by which ties reduce a variance: the sum of t^3 - t over the tied
/// groups.
pub(crate) struct MidRanks {
    /// In the order of the values given.
    pub(crate) doubled: Vec<u64>,
    /// Exactly 0 if no two values are equal.
    pub(crate) ties: f64,
}

/// Ranks `values` (finite) from 1 upwards; equal values share the mean of their ranks.
pub(crate) fn mid_ranks(values: &[f64]) -> MidRanks {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = MidRanks { doubled: vec![0; values.len()], ties: 0.0 };
    let mut start = 0;
    // Uses `==`, not `total_cmp`: 0.0 and -0.0 are equal values, and they are adjacent.
    for group in order.chunk_by(|&a, &b| values[a] == values[b]) {
        for &index in group {
            ranks.doubled[index] = (2 * start + group.len() + 1) as u64;
        }
        let size = group.len() as f64;
        ranks.ties += size * (size * size - 1.0);
        start += group.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_the_mean_rank() {
        let check = |values: &[f64], doubled: &[u64], ties: f64| {
            let ranks = mid_ranks(values);
            assert_eq!((ranks.doubled.as_slice(), ranks.ties), (doubled, ties), "{values:?}");
        };
        check(&[], &[], 0.0);
        check(&[3.0, 1.0, 2.0], &[6, 2, 4], 0.0);
        check(&[5.0, 5.0, 1.0], &[5, 5, 2], 6.0);
        check(&[0.0, -0.0, 0.0], &[4, 4, 4], 24.0);
    }
}
