//! Tails of the binomial distribution for counts from one to a million million.
//!
//! Not computed from differences of log-gammas, which lose a digit for each that the count has: a p99.9 of an hour's
//! requests would have few left.

use std::f64::consts::PI;

use crate::normal;

/// The largest `k` with P(B < k) <= `tail` for B of `count` trials with chance `chance`; 0 where even P(B = 0) is more.
///
/// `tail` is below one half, so that the sum starts left of the middle and its terms fall.
pub(crate) fn lower_rank(count: u64, chance: f64, tail: f64) -> u64 {
    let mean = count as f64 * chance;
    let deviation = (mean * (1.0 - chance)).sqrt();
    let guess = (mean - normal::upper_quantile(tail) * deviation).floor().max(0.0);
    let mut k = guess as u64;
    let mut term = mass(count, chance, k);
    // P(B <= k), corrected step by step from the guess, which is a few places off.
    let mut below = lower_sum(count, chance, k, term);
    while below <= tail && k < count {
        k += 1;
        term = mass(count, chance, k);
        below += term;
    }
    while below > tail {
        if k == 0 {
            return 0;
        }
        below = lower_sum(count, chance, k - 1, mass(count, chance, k - 1));
        k -= 1;
    }
    k + 1
}

/// P(B <= k) by its terms downwards from `term`, which is P(B = k).
fn lower_sum(count: u64, chance: f64, k: u64, term: f64) -> f64 {
    let odds = (1.0 - chance) / chance;
    let (mut sum, mut term) = (term, term);
    for below in (1..=k).rev() {
        term *= below as f64 / (count - below + 1) as f64 * odds;
        sum += term;
        if term <= sum * 1e-18 {
            break;
        }
    }
    sum
}

/// P(B = k) by the saddle point (Loader 2000, "Fast and Accurate Computation of Binomial Probabilities").
fn mass(count: u64, chance: f64, k: u64) -> f64 {
    let (n, x, rest) = (count as f64, k as f64, (count - k) as f64);
    if k == 0 {
        return (n * (-chance).ln_1p()).exp();
    }
    if k == count {
        return (n * chance.ln()).exp();
    }
    let exponent = stirling_error(count)
        - stirling_error(k)
        - stirling_error(count - k)
        - deviance(x, n * chance)
        - deviance(rest, n * (1.0 - chance));
    exponent.exp() * (n / (2.0 * PI * x * rest)).sqrt()
}

/// The error of Stirling's formula for ln(n!), n at least 1.
fn stirling_error(n: u64) -> f64 {
    let x = n as f64;
    if n <= 15 {
        return libm::lgamma(x + 1.0) - (x + 0.5) * x.ln() + x - 0.5 * (2.0 * PI).ln();
    }
    let square = x * x;
    let series = 1.0 / 1260.0 - (1.0 / 1680.0 - 1.0 / 1188.0 / square) / square;
    (1.0 / 12.0 - (1.0 / 360.0 - series / square) / square) / x
}

/// x ln(x / mean) + mean - x, without the cancellation where x is near the mean.
fn deviance(x: f64, mean: f64) -> f64 {
    let ratio = (x - mean) / (x + mean);
    if ratio.abs() >= 0.1 {
        return x * (x / mean).ln() + mean - x;
    }
    let mut sum = (x - mean) * ratio;
    let mut term = 2.0 * x * ratio;
    for odd in (3..).step_by(2) {
        term *= ratio * ratio;
        let next = sum + term / f64::from(odd);
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn ranks_of_scipy() {
        let all: Value = serde_json::from_str(include_str!("../tests/data/scipy.json")).unwrap();
        for case in all["binomial"].as_array().unwrap() {
            let rank = lower_rank(
                case["count"].as_u64().unwrap(),
                case["chance"].as_f64().unwrap(),
                case["tail"].as_f64().unwrap(),
            );
            assert_eq!(Some(rank), case["rank"].as_u64(), "{case}");
        }
    }

    #[test]
    fn masses_sum_to_one() {
        for (count, chance) in [(1, 0.3), (15, 0.5), (16, 0.5), (40, 0.001), (500, 0.99), (20_000, 0.25)] {
            let sum: f64 = (0..=count).map(|k| mass(count, chance, k)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{count} {chance}: {sum}");
        }
    }
}
