//! Finds the places in a series where the distribution changes, without knowing how often or in which property.

use crate::estimate::{is_level, is_sample};
use crate::random::Random;

/// Two statistics that differ by less than this share are equal: permutations that tie differ by rounding.
const TIE_TOLERANCE: f64 = 1e-9;

/// A change found by [`e_divisive`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    /// The index of the first value after the change.
    pub at: usize,
    /// The share of permutations, including the series itself, that divide as well as the series did.
    pub p_value: f64,
    /// The divergence of the two sides, in the unit of the series times their size.
    pub q: f64,
}

/// The changes of a series, ascending: E-divisive (Matteson & James 2014, "A Nonparametric Approach for Multiple Change
/// Point Analysis of Multivariate Data", sections 2.2 to 2.4), with the exponent 1 on distances.
///
/// The segment whose best division diverges most is divided, if a permutation test within the segments is significant
/// at `significance`; then again, until one is not. No two changes are closer than `segment_min` values, nor to an end.
/// Time grows with the square of the length for each permutation; distances of single numbers are as quickly computed
/// as looked up, so memory grows with the length only.
///
/// Values must be exchangeable but for the changes: a slow drift is found as changes too. `None` without values, where
/// one is not finite or their sums would overflow, where `segment_min` is below 2, `significance` is not in (0, 1), or
/// `permutations` are too few to reach it (1 in 1 + `permutations`).
pub fn e_divisive(
    series: &[f64],
    significance: f64,
    segment_min: usize,
    permutations: usize,
    random: &mut Random,
) -> Option<Vec<ChangePoint>> {
    let reachable = (permutations as f64 + 1.0) * significance >= 1.0 - TIE_TOLERANCE;
    if !is_sample(series) || segment_min < 2 || !is_level(significance) || !reachable || overflows(series) {
        return None;
    }
    let mut segments = vec![series];
    let mut changes: Vec<ChangePoint> = Vec::new();
    while let Some((index, division)) = most_divergent(&segments, segment_min) {
        let p_value = permutation_p(&segments, segment_min, division.q, permutations, random);
        if p_value > significance {
            break;
        }
        let start: usize = segments[..index].iter().map(|segment| segment.len()).sum();
        changes.push(ChangePoint { at: start + division.left, p_value, q: division.q });
        let (left, right) = segments[index].split_at(division.left);
        segments.splice(index..=index, [left, right]);
    }
    changes.sort_unstable_by_key(|change| change.at);
    Some(changes)
}

fn overflows(series: &[f64]) -> bool {
    let low = series.iter().copied().fold(f64::INFINITY, f64::min);
    let high = series.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let pairs = (series.len() as f64).powi(2);
    !((high - low) * pairs).is_finite()
}

/// A segment in two.
#[derive(Clone, Copy)]
struct Division {
    /// Values on the left.
    left: usize,
    /// Above 0.
    q: f64,
}

/// The segment with the best division of all, the first of equal ones.
fn most_divergent(segments: &[&[f64]], segment_min: usize) -> Option<(usize, Division)> {
    let mut best: Option<(usize, Division)> = None;
    for (index, segment) in segments.iter().enumerate() {
        if let Some(division) = divide(segment, segment_min)
            && best.is_none_or(|(_, best)| division.q > best.q)
        {
            best = Some((index, division));
        }
    }
    best
}

/// How often series permuted within the segments divide at least as well as with `q`.
fn permutation_p(segments: &[&[f64]], segment_min: usize, q: f64, permutations: usize, random: &mut Random) -> f64 {
    let mut shuffled: Vec<Vec<f64>> = segments.iter().map(|segment| segment.to_vec()).collect();
    let threshold = q * (1.0 - TIE_TOLERANCE);
    let mut as_good = 1_usize;
    for _ in 0..permutations {
        let mut reached = false;
        for segment in &mut shuffled {
            random.shuffle(segment);
            // Shuffled in any case: the draws of later permutations must not depend on this one.
            reached = reached || divide(segment, segment_min).is_some_and(|division| division.q >= threshold);
        }
        as_good += usize::from(reached);
    }
    as_good as f64 / (permutations + 1) as f64
}

/// The division whose left side diverges most from some stretch right of it (equations 7 and 8 of the paper): from a
/// stretch and not from all the rest, so that a change that is later undone is not hidden.
///
/// `None` if the segment is too short or all its values are equal.
fn divide(segment: &[f64], segment_min: usize) -> Option<Division> {
    let n = segment.len();
    if n < 2 * segment_min {
        return None;
    }
    // For each value, the distances to all values before it, and to those on the left.
    let mut before = vec![0.0; n];
    for (index, value) in segment.iter().enumerate() {
        before[index] = segment[..index].iter().map(|other| (value - other).abs()).sum();
    }
    let mut to_left = vec![0.0; n];
    let mut within_left = 0.0;
    let mut best = Division { left: 0, q: 0.0 };
    for left in 1..=n - segment_min {
        let moved = segment[left - 1];
        within_left += before[left - 1];
        for (sum, value) in to_left[left..].iter_mut().zip(&segment[left..]) {
            *sum += (value - moved).abs();
        }
        if left >= segment_min {
            let q = best_stretch(&before[left..], &to_left[left..], left, within_left, segment_min);
            if q > best.q * (1.0 + TIE_TOLERANCE) {
                best = Division { left, q };
            }
        }
    }
    (best.q > 0.0).then_some(best)
}

/// The largest divergence of the `left` values from a stretch that begins right of them.
fn best_stretch(before: &[f64], to_left: &[f64], left: usize, within_left: f64, segment_min: usize) -> f64 {
    let m = left as f64;
    let left_mean = within_left / (m * (m - 1.0) / 2.0);
    let (mut between, mut within, mut best) = (0.0, 0.0, 0.0_f64);
    for (index, (before, to_left)) in before.iter().zip(to_left).enumerate() {
        between += to_left;
        within += before - to_left;
        let k = (index + 1) as f64;
        if index + 1 >= segment_min {
            let energy = 2.0 * between / (m * k) - left_mean - within / (k * (k - 1.0) / 2.0);
            best = best.max(m * k / (m + k) * energy);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn division_by_the_definition() {
        let all: Value = serde_json::from_str(include_str!("../tests/data/scipy.json")).unwrap();
        for case in all["change_points"].as_array().unwrap() {
            let series: Vec<f64> =
                case["series"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
            let division = divide(&series, case["segment_min"].as_u64().unwrap() as usize).unwrap();
            assert_eq!(Some(division.left as u64), case["at"].as_u64(), "{case}");
            assert!((division.q / case["q"].as_f64().unwrap() - 1.0).abs() < 1e-12, "{} of {case}", division.q);
        }
    }

    /// The places found, with fixed seed and usual settings.
    fn check(series: &[f64], segment_min: usize, want: Option<&[usize]>) {
        let found = e_divisive(series, 0.05, segment_min, 199, &mut Random::new(9));
        let places = found.map(|changes| changes.iter().map(|change| change.at).collect::<Vec<usize>>());
        assert_eq!(places.as_deref(), want, "{series:?}");
    }

    #[test]
    fn finds_what_is_there() {
        let mut random = Random::new(1);
        let mut level =
            |mean: f64, sd: f64, n: usize| (0..n).map(|_| mean + sd * random.normal()).collect::<Vec<f64>>();
        let step = [level(0.0, 1.0, 30), level(4.0, 1.0, 30)].concat();
        check(&step, 5, Some(&[30]));
        check(&[level(0.0, 1.0, 25), level(6.0, 1.0, 15), level(0.0, 1.0, 25)].concat(), 5, Some(&[25, 40]));
        check(&[level(5.0, 0.1, 40), level(5.0, 8.0, 40)].concat(), 10, Some(&[40]));
        let huge: Vec<f64> = step.iter().map(|value| value * 1e290).collect();
        check(&huge, 5, Some(&[30]));
        let far: Vec<f64> = step.iter().map(|value| value + 1e9).collect();
        check(&far, 5, Some(&[30]));
    }

    #[test]
    fn nothing_to_find_and_no_answer() {
        check(&[3.0; 40], 5, Some(&[]));
        check(&[1.0], 5, Some(&[]));
        check(&[1.0, 1.0, 1.0, 9.0, 9.0], 3, Some(&[]));
        check(&[], 5, None);
        check(&[1.0, f64::NAN, 2.0, 3.0], 2, None);
        check(&[1.0, f64::INFINITY, 2.0, 3.0], 2, None);
        check(&[f64::MAX, f64::MIN, 2.0, 3.0], 2, None);
        check(&[1.0, 2.0, 3.0, 4.0], 1, None);
        let mut random = Random::new(0);
        let series = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        assert_eq!(e_divisive(&series, 0.01, 2, 98, &mut random), None, "98 permutations cannot reach 0.01");
        assert!(e_divisive(&series, 0.01, 2, 99, &mut random).is_some());
        assert_eq!(e_divisive(&series, 0.0, 2, 99, &mut random), None);
        assert_eq!(e_divisive(&series, f64::NAN, 2, 99, &mut random), None);
    }
}
