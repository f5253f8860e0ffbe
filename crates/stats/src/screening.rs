//! Up to three looks at many series of paired differences: a small one at all of them, a larger one at those that look
//! changed, and an even larger one at those that are still uncertain.
//!
//! The looks use different measurements, so the chance that an unchanged series passes all of them is the product of
//! their chances. Each uses signed ranks: outliers of a shared machine count by their rank only. Most series that look
//! changed at first are unchanged, so the second look is small, and the third, which few need, can be large: with as
//! many measurements, smaller changes are found than with a single second look.

use crate::false_discovery::benjamini_hochberg;
use crate::signed_rank::signed_rank;

/// The p-values up to which a series is looked at again, after the first look and after the second. Missing a change here is
/// worse than another look for nothing.
pub const SCREEN_LEVELS: [f64; 2] = [0.3, 0.1];

/// The second look or the third may report a change: each may spend half of the error.
const BRANCHES: f64 = 2.0;

/// The looks at one series after the first one; `None` if they were not requested.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looks<'a> {
    /// Taken if the first look was suspicious.
    pub second: Option<&'a [f64]>,
    /// Taken if the second was not decisive.
    pub third: Option<&'a [f64]>,
}

/// Whether the first look calls for a second one. No if it has no result.
pub fn is_suspicious(first: &[f64]) -> bool {
    signed_rank(first).is_some_and(|tested| tested.p_value <= SCREEN_LEVELS[0])
}

/// Whether a second look, one of `comparisons`, calls for a third: it still looks changed, but not so that `error`
/// would hold for all.
pub fn is_undecided(second: &[f64], comparisons: usize, error: f64) -> bool {
    signed_rank(second).is_some_and(|tested| {
        let is_certain = after_second(tested.p_value) * comparisons as f64 <= error;
        tested.p_value <= SCREEN_LEVELS[1] && !is_certain
    })
}

/// The p-values of all series, adjusted by Benjamini and Hochberg's correction, 1 without a second look.
/// Reporting those at most q as changed has an error of at most q: among all reports if some changed, for any report if
/// none did.
pub fn screened(all: &[Looks<'_>]) -> Vec<f64> {
    let after = |diffs: Option<&[f64]>, spent: fn(f64) -> f64| {
        diffs.and_then(signed_rank).map_or(1.0, |tested| spent(tested.p_value).min(1.0))
    };
    let of_one = |looks: &Looks<'_>| after(looks.second, after_second).min(after(looks.third, after_third));
    benjamini_hochberg(&all.iter().map(of_one).collect::<Vec<f64>>())
}

/// The p-value that the last look must reach by itself to result in `error` over `comparisons`, if no other is changed.
pub fn third_look_level(comparisons: usize, error: f64) -> f64 {
    error / comparisons.max(1) as f64 / after_third(1.0)
}

fn after_second(p_value: f64) -> f64 {
    BRANCHES * SCREEN_LEVELS[0] * p_value
}

fn after_third(p_value: f64) -> f64 {
    BRANCHES * SCREEN_LEVELS[0] * SCREEN_LEVELS[1] * p_value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` values, `others` of which have the opposite sign; each has its own rank.
    fn diffs(count: usize, others: usize) -> Vec<f64> {
        (1..=count).map(|rank| if rank <= others { -(rank as f64) } else { rank as f64 }).collect()
    }

    #[test]
    fn each_look_asks_for_the_next_where_it_leaves_doubt() {
        assert!(is_suspicious(&diffs(10, 4)) && !is_suspicious(&diffs(10, 6)) && !is_suspicious(&[]));
        // Certainly changed; uncertain; unchanged.
        assert!(!is_undecided(&diffs(25, 2), 40, 0.01));
        assert!(is_undecided(&diffs(25, 13), 40, 0.01));
        assert!(!is_undecided(&diffs(25, 17), 40, 0.01) && !is_undecided(&[], 40, 0.01));
    }

    #[test]
    fn p_values_are_products_of_the_looks() {
        let (second, third) = (diffs(25, 13), diffs(100, 40));
        let p_value = |diffs: &[f64]| signed_rank(diffs).unwrap().p_value;
        let one = |looks: Looks<'_>| screened(&[looks])[0];
        assert_eq!(one(Looks::default()), 1.0);
        let of_second = one(Looks { second: Some(&second), third: None });
        assert!((of_second - 2.0 * 0.3 * p_value(&second)).abs() < 1e-15, "{of_second}");
        let of_both = one(Looks { second: Some(&second), third: Some(&third) });
        assert!((of_both - 2.0 * 0.3 * 0.1 * p_value(&third)).abs() < 1e-15 && of_both < of_second);
        assert!((third_look_level(40, 0.01) - 0.01 / 40.0 / 0.06).abs() < 1e-12);
    }
}
