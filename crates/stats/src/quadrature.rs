//! Integration of smooth functions over a finite range by Gauss and Legendre's rule on equal panels.

use std::f64::consts::PI;
use std::sync::LazyLock;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_and_a_gaussian() {
        let power: f64 = nodes(-1.0, 3.0, 1).iter().map(|&(x, weight)| weight * x.powi(23)).sum();
        let exact = (3.0_f64.powi(24) - 1.0) / 24.0;
        assert!((power / exact - 1.0).abs() < 1e-13, "{power}");
        let bell: f64 = nodes(-9.0, 9.0, 18).iter().map(|&(x, weight)| weight * (-x * x / 2.0).exp()).sum();
        assert!((bell - (2.0 * PI).sqrt()).abs() < 1e-14, "{bell}");
    }
}
