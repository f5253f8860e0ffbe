//! Two looks at many series of paired differences: a small one at all, a larger one at what looks changed.
//!
//! The looks are of different measurements, so the chance that nothing passes both as if it were something is the product
//! of both. Signed ranks at each: outliers of a shared machine count by their rank only.

use crate::false_discovery::benjamini_hochberg;
use crate::signed_rank::signed_rank;

/// The p-value up to which a series is looked at again. Missing a change here is worse than a second look for nothing.
pub const SCREEN_LEVEL: f64 = 0.3;

/// Whether the first look asks for a second one. Not where it says nothing.
pub fn is_suspicious(first: &[f64]) -> bool {
    signed_rank(first).is_some_and(|tested| tested.p_value <= SCREEN_LEVEL)
}

/// The p-values of all series, adjusted by Benjamini and Hochberg's correction: of the second look, times
/// [`SCREEN_LEVEL`], where there was one, else 1. Calling those at most q changed has an error of at most q: of all
/// calls where some changed, of any call where none did.
pub fn screened(second: &[Option<&[f64]>]) -> Vec<f64> {
    let of_one = |diffs: &Option<&[f64]>| {
        let tested = diffs.and_then(signed_rank);
        tested.map_or(1.0, |tested| SCREEN_LEVEL * tested.p_value)
    };
    benjamini_hochberg(&second.iter().map(of_one).collect::<Vec<f64>>())
}
