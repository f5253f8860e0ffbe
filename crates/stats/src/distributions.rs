//! Distributions, and the arithmetic that they need: the standard normal and the binomial, integration, and the zero of
//! a function.
//!
//! The standard normal distribution is precise far into its tails. It is computed from `erfc` of `libm`, never as one
//! minus a probability: a p-value of 1e-30 keeps its digits. (The `erfc` of `statrs` is wrong in the 11th digit: its
//! constants are single precision.)
//!
//! Tails of the binomial distribution are for counts from one to a million million. They are not computed from
//! differences of log-gammas, which lose a digit for each that the count has: a p99.9 of an hour's requests would have
//! few left.
//!
//! Smooth functions are integrated over a finite range by Gauss and Legendre's rule on equal panels.

use crate::distributions;
use libm::erfc;
use std::f64::consts::{PI, SQRT_2};
use std::sync::LazyLock;

/// Enough for Newton's method from three right digits to all sixteen, with one to spare.
const NEWTON_STEPS: u32 = 4;

/// P(Z > z).
pub(crate) fn upper_tail(z: f64) -> f64 {
    0.5 * erfc(z / SQRT_2)
}

/// P(Z <= z).
pub(crate) fn lower_tail(z: f64) -> f64 {
    upper_tail(-z)
}

/// P(|Z| >= |z|).
pub(crate) fn two_sided(z: f64) -> f64 {
    erfc(z.abs() / SQRT_2)
}

/// The z with P(Z > z) = `tail`; infinite where `tail` is 0 or 1.
///
/// From the approximation 26.2.23 of Abramowitz & Stegun 1964, by Newton's method on the tail's logarithm.
pub(crate) fn upper_quantile(tail: f64) -> f64 {
    if tail > 0.5 {
        return -upper_quantile(1.0 - tail);
    }
    if tail < f64::MIN_POSITIVE {
        return f64::INFINITY;
    }
    let root = (-2.0 * tail.ln()).sqrt();
    let above = 2.515517 + root * (0.802853 + root * 0.010328);
    let below = 1.0 + root * (1.432788 + root * (0.189269 + root * 0.001308));
    let mut z = root - above / below;
    for _ in 0..NEWTON_STEPS {
        let now = upper_tail(z);
        z += (now / tail).ln() * now * (2.0 * PI).sqrt() * (z * z / 2.0).exp();
    }
    z
}

/// The largest `k` with P(B < k) <= `tail` for B of `count` trials with chance `chance`; 0 where even P(B = 0) is more.
///
/// `tail` is below one half, so that the sum starts left of the middle and its terms fall.
pub(crate) fn lower_rank(count: u64, chance: f64, tail: f64) -> u64 {
    let mean = count as f64 * chance;
    let deviation = (mean * (1.0 - chance)).sqrt();
    let guess = (mean - distributions::upper_quantile(tail) * deviation).floor().max(0.0);
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

/// Nodes in a panel; over a panel as wide as a Gaussian's standard deviation the error is below 1e-15.
const NODES: usize = 12;

/// Nodes on [-1, 1] and their weights.
static RULE: LazyLock<[(f64, f64); NODES]> = LazyLock::new(rule);

/// The nodes of `panels` equal panels over `[low, high]`, with the weights that integrate over it.
pub(crate) fn nodes(low: f64, high: f64, panels: usize) -> Vec<(f64, f64)> {
    let half = (high - low) / (2 * panels) as f64;
    let panel = |index: usize| {
        let middle = low + half * (2 * index + 1) as f64;
        RULE.iter().map(move |&(node, weight)| (middle + half * node, half * weight))
    };
    (0..panels).flat_map(panel).collect()
}

/// Newton's iteration on the Legendre polynomial (Press et al., Numerical Recipes 3rd ed., section 4.6).
fn rule() -> [(f64, f64); NODES] {
    let mut result = [(0.0, 0.0); NODES];
    for (index, slot) in result.iter_mut().enumerate() {
        let mut x = -(PI * (index as f64 + 0.75) / (NODES as f64 + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..20 {
            let (value, derivative) = legendre(x);
            slope = derivative;
            x -= value / slope;
        }
        *slot = (x, 2.0 / ((1.0 - x * x) * slope * slope));
    }
    result
}

/// The Legendre polynomial of degree `NODES` and its derivative.
fn legendre(x: f64) -> (f64, f64) {
    let (mut previous, mut value) = (1.0, x);
    for degree in 2..=NODES {
        let k = degree as f64;
        (previous, value) = (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * previous) / k);
    }
    (value, NODES as f64 * (x * value - previous) / (x * x - 1.0))
}

/// Enough to halve any bracket down to neighbouring numbers.
const HALVINGS_MAX: u32 = 200;

/// Bisects `[low, high]` for the zero of `f`, which must rise from at most 0 at `low` to at least 0 at `high`.
///
/// Bisection and not a faster method: it cannot leave the bracket, and the functions to solve are flat in
/// places.
pub(crate) fn rising_root(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..HALVINGS_MAX {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high || high - low <= f64::EPSILON * high.abs() {
            break;
        }
        if f(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low + (high - low) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn tails_of_scipy_and_back() {
        let all: Value = serde_json::from_str(include_str!("../tests/data/scipy.json")).unwrap();
        for case in all["normal"].as_array().unwrap() {
            let (z, want) = (case["z"].as_f64().unwrap(), case["upper"].as_f64().unwrap());
            // The last bit of z is z^2 of the tail.
            let tolerance = 1e-15 * (2.0 + z * z);
            assert!((upper_tail(z) / want - 1.0).abs() < tolerance, "{} of {case}", upper_tail(z));
            assert_eq!(lower_tail(-z), upper_tail(z));
            // Near 1 the tail itself does not distinguish values of z.
            if z > -6.0 {
                assert!((upper_quantile(want) - z).abs() < 1e-9, "{} of {case}", upper_quantile(want));
            }
        }
        assert_eq!(upper_quantile(0.0), f64::INFINITY);
    }

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

    #[test]
    fn polynomials_and_a_gaussian() {
        let power: f64 = nodes(-1.0, 3.0, 1).iter().map(|&(x, weight)| weight * x.powi(23)).sum();
        let exact = (3.0_f64.powi(24) - 1.0) / 24.0;
        assert!((power / exact - 1.0).abs() < 1e-13, "{power}");
        let bell: f64 = nodes(-9.0, 9.0, 18).iter().map(|&(x, weight)| weight * (-x * x / 2.0).exp()).sum();
        assert!((bell - (2.0 * PI).sqrt()).abs() < 1e-14, "{bell}");
    }
}
