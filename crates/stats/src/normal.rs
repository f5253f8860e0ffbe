//! The standard normal distribution, precise far into its tails.
//!
//! Computed from `erfc` of `libm`, never as one minus a probability: a p-value of 1e-30 keeps its digits. (The
//! `erfc` of `statrs` is wrong in the 11th digit: its constants are single precision.)

use std::f64::consts::{PI, SQRT_2};

use libm::erfc;

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
}
