//! Student's t distribution, central and noncentral.
//!
//! The central tails come from the incomplete beta function for few degrees of freedom and from a normal expansion for
//! many; quantiles are solved for. (`statrs` ends its beta function after 140 terms, even if it has not converged.)

use std::f64::consts::PI;

use crate::normal;
use crate::quadrature;
use crate::root::rising_root;

/// From here on the expansion in 1 / degrees is exact to 10 digits, and the gamma functions below it no longer are.
const EXPANSION_DF_MIN: f64 = 10_000.0;

/// Several times the number of terms at which it converges for fewer degrees.
const FRACTION_TERMS_MAX: u32 = 2000;

/// How far the scale's density is integrated around its middle, in its standard deviations.
const SCALE_DEVIATIONS: f64 = 12.0;

/// Panels between two cuts of the scale.
const PANELS: usize = 12;

/// P(|T| >= |t|), `df` above 0.
pub(crate) fn two_sided(t: f64, df: f64) -> f64 {
    if t == 0.0 || (t * t).is_infinite() {
        return if t == 0.0 { 1.0 } else { 0.0 };
    }
    if df >= EXPANSION_DF_MIN {
        return normal::two_sided(normal_equivalent(t.abs(), df));
    }
    // The tail is the regularised incomplete beta function of df/2 and 1/2 at `outer`; either it or its complement is
    // quick to sum (DLMF 8.17.4 and 8.17.22).
    let a = df / 2.0;
    let (outer, inner) = (df / (df + t * t), t * t / (df + t * t));
    let log_front = libm::lgamma(a + 0.5) - libm::lgamma(a) - a * (t * t / df).ln_1p();
    let front = (inner / PI).sqrt() * log_front.exp();
    if outer < (a + 1.0) / (a + 2.5) {
        front / (a * beta_fraction(a, 0.5, outer))
    } else {
        1.0 - front / (0.5 * beta_fraction(0.5, a, inner))
    }
}

/// The t with P(|T| >= t) = `p`, for `p` in (0, 1).
pub(crate) fn two_sided_quantile(p: f64, df: f64) -> f64 {
    let mut high = normal::upper_quantile(p / 2.0).max(1.0);
    while two_sided(high, df) > p {
        high *= 2.0;
    }
    rising_root(0.0, high, |t| p - two_sided(t, df))
}

/// P(|T| >= t) of the t distribution with noncentrality `shift`.
///
/// T is (Z + shift) / S with S independent, S^2 a chi-square over `df`: the normal tails are averaged over S's
/// density, which is normalised by its own integral (so no gamma function is needed).
pub(crate) fn noncentral_two_sided(t: f64, df: f64, shift: f64) -> f64 {
    let (mut inside, mut weight_sum) = (0.0, 0.0);
    for (scale, width) in scale_nodes(t, df, shift) {
        let weight = width * scale_density(scale, df);
        weight_sum += weight;
        inside += weight * (normal::upper_tail(t * scale - shift) + normal::upper_tail(t * scale + shift));
    }
    inside / weight_sum
}

/// The density of S at `scale`, relative to that at 1.
fn scale_density(scale: f64, df: f64) -> f64 {
    let off = scale - 1.0;
    ((df - 1.0) * off.ln_1p() - df * off * (1.0 + off / 2.0)).exp()
}

/// Nodes that are dense both where S's density is and where the normal tail turns from 0 to 1 (at `shift` / `t`).
fn scale_nodes(t: f64, df: f64, shift: f64) -> Vec<(f64, f64)> {
    let reach = SCALE_DEVIATIONS / (2.0 * df).sqrt();
    let (low, high) = ((1.0 - reach).max(0.0), 1.0 + reach);
    let turn = |deviations: f64| ((shift.abs() + deviations) / t).clamp(low, high);
    // Over the root of the scale, since the density is a fractional power of it at 0.
    let cuts = [low, turn(-9.0), turn(-3.0), turn(3.0), turn(9.0), high].map(f64::sqrt);
    let piece = |ends: &[f64]| quadrature::nodes(ends[0], ends[1], if ends[0] < ends[1] { PANELS } else { 0 });
    cuts.windows(2).flat_map(piece).map(|(root, width)| (root * root, 2.0 * root * width)).collect()
}

/// The continued fraction of the incomplete beta function, DLMF 8.17.22, by Lentz's method (Thompson & Barnett 1986);
/// the function is its front factor over this.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for term in 1..=FRACTION_TERMS_MAX {
        let m = f64::from(term / 2);
        let numerator = if term % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / (1.0 + numerator * d);
        c = 1.0 + numerator / c;
        value *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    value
}

/// The z whose normal tail is that of `t` (Hill 1970, "Algorithm 395: Student's t-Distribution").
fn normal_equivalent(t: f64, df: f64) -> f64 {
    let a = df - 0.5;
    let b = 48.0 * a * a;
    let square = a * (t * t / df).ln_1p();
    let inner = ((-0.4 * square - 3.3) * square - 24.0) * square - 85.5;
    ((inner / (0.8 * square * square + 100.0 + b) + square + 3.0) / b + 1.0) * square.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Compares `function` of each case of `kind` with its value `want`.
    fn check(kind: &str, want: &str, tolerance: f64, floor: f64, function: impl Fn(&dyn Fn(&str) -> f64) -> f64) {
        let all: Value = serde_json::from_str(include_str!("../tests/data/scipy.json")).unwrap();
        for case in all["student"][kind].as_array().unwrap() {
            let number = |key: &str| case[key].as_f64().unwrap();
            let (got, want) = (function(&number), number(want));
            assert!((got - want).abs() <= tolerance * want.abs() + floor, "{got} of {case}");
        }
    }

    #[test]
    fn central_of_scipy() {
        check("central", "p", 1e-10, 0.0, |case| two_sided(case("t"), case("df")));
    }

    #[test]
    fn quantile_of_scipy() {
        check("quantile", "t", 1e-10, 0.0, |case| two_sided_quantile(case("p"), case("df")));
    }

    #[test]
    fn noncentral_of_scipy() {
        check("noncentral", "p", 1e-8, 1e-13, |case| noncentral_two_sided(case("t"), case("df"), case("shift")));
    }

    #[test]
    fn no_shift_is_central() {
        for df in [1.0, 2.5, 7.0, 100.0, 1e5, 1e9] {
            for t in [0.1, 1.0, 3.0, 8.0] {
                let (shifted, central) = (noncentral_two_sided(t, df, 0.0), two_sided(t, df));
                assert!((shifted - central).abs() < 1e-12, "{t} {df}: {shifted} {central}");
            }
        }
    }

    #[test]
    fn infinite_t_is_certain() {
        assert_eq!((two_sided(f64::INFINITY, 5.0), two_sided(f64::INFINITY, 1e6)), (0.0, 0.0));
    }
}
