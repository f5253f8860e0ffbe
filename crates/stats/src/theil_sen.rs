//! The slope of a line through scattered points, without trusting any single one.

use crate::estimate::{Estimate, Interval, is_level};
use crate::normal;
use crate::quantile::median;

/// The median of the slopes between any two points of different `x`, with Sen's interval (Sen 1968, "Estimates of the
/// Regression Coefficient Based on Kendall's Tau"): all slopes whose residuals correlate with `x` no more than chance
/// explains, by the normal approximation of Kendall's S with ties.
///
/// `None` where lengths differ, a value is not finite, `confidence` is not in (0, 1), no two `x` differ, or where there
/// are too few points for the interval.
pub fn theil_sen(x: &[f64], y: &[f64], confidence: f64) -> Option<Estimate> {
    if x.len() != y.len() || !x.iter().chain(y).all(|value| value.is_finite()) || !is_level(confidence) {
        return None;
    }
    let mut slopes = Vec::new();
    for (first, (x1, y1)) in x.iter().zip(y).enumerate() {
        let others = x[first + 1..].iter().zip(&y[first + 1..]);
        slopes.extend(others.filter(|(x2, _)| *x2 != x1).map(|(x2, y2)| (y2 - y1) / (x2 - x1)));
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let value = median(&slopes)?;
    let n = x.len() as f64;
    let variance = (weight(n) - of_ties(x) - of_ties(y)) / 18.0;
    let half = normal::upper_quantile((1.0 - confidence) / 2.0) * variance.max(0.0).sqrt() / 2.0;
    let count = slopes.len() as f64;
    let (low, high) = ((count / 2.0 - half).round() - 1.0, (count / 2.0 + half).round());
    (low >= 0.0 && high < count).then(|| {
        let interval = Interval { low: slopes[low as usize], high: slopes[high as usize] };
        Estimate { value, interval }
    })
}

/// The amount by which a group of `size` equal values reduces 18 times the variance of S; all of it if all values are
/// equal.
fn weight(size: f64) -> f64 {
    size * (size - 1.0) * (2.0 * size + 5.0)
}

fn of_ties(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.chunk_by(|a, b| a == b).map(|group| weight(group.len() as f64)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_bends_no_line() {
        let x: Vec<f64> = (0..12).map(f64::from).collect();
        let mut y: Vec<f64> = x.iter().map(|x| 3.0 + 2.0 * x).collect();
        y[11] = 500.0;
        let slope = theil_sen(&x, &y, 0.95).unwrap();
        assert!(slope.value == 2.0 && slope.interval.low == 2.0 && slope.interval.high < 50.0, "{slope:?}");
    }

    #[test]
    fn what_says_nothing_gives_nothing() {
        let check = |x: &[f64], y: &[f64], confidence| assert_eq!(theil_sen(x, y, confidence), None, "{x:?}");
        check(&[], &[], 0.95);
        check(&[1.0, 2.0], &[1.0], 0.95);
        check(&[1.0, 1.0, 1.0, 1.0], &[1.0, 2.0, 3.0, 4.0], 0.95);
        check(&[1.0, 2.0], &[1.0, f64::NAN], 0.95);
        check(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 1.0);
        // Three points cannot be that certain.
        check(&[1.0, 2.0, 3.0], &[1.0, 5.0, 3.0], 0.999);
    }
}
