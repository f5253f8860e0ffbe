//! The drift of the machine over time: a random walk, estimated from the residuals of the levels and subtracted.
//!
//! A local level model (Harvey 1989, "Forecasting, Structural Time Series Models and the Kalman Filter", section 2.2)
//! with the reading's number as time. Its speed is estimated; if a walk explains the readings hardly better than a
//! constant does, there is no drift.

/// The candidates for the variance of a step of the walk, in variances of a reading's noise.
const WALKS: [f64; 5] = [0.001, 0.004, 0.015, 0.06, 0.25];

/// How much more likely a walk must be, as a logarithm: three standard errors.
const LOG_GAIN_MIN: f64 = 4.5;

/// A reading farther from the walk than this many noises counts as if it were this far: outliers do not walk.
const RESIDUAL_NOISES_MAX: f64 = 3.0;

/// A drift that moves less than this between two estimates has settled.
pub(super) const SETTLED_NOISES: f64 = 0.05;

/// The smoothed walk of the residuals of the levels, with mean 0; `None` where there is hardly any. `before` is the
/// previous estimate of the walk: a reading far from it is an outlier.
pub(super) fn smoothed(left: &[f64], before: &[f64], noise: f64) -> Option<Vec<f64>> {
    let bound = RESIDUAL_NOISES_MAX * noise;
    let near = |(value, walk): (&f64, &f64)| (walk + (value - walk).clamp(-bound, bound)) / noise;
    let values: Vec<f64> = left.iter().zip(before).map(near).collect();
    let still = filtered(&values, 0.0).log_likelihood;
    let best = WALKS
        .iter()
        .map(|walk| filtered(&values, *walk))
        .max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood))?;
    if best.log_likelihood < still + LOG_GAIN_MIN {
        return None;
    }
    let walk = best.smooth();
    let mean = walk.iter().sum::<f64>() / walk.len() as f64;
    Some(walk.iter().map(|value| (value - mean) * noise).collect())
}

/// A Kalman filter after its pass over the values.
struct FilteredWalk {
    log_likelihood: f64,
    walk: f64,
    means: Vec<f64>,
    variances: Vec<f64>,
}

fn filtered(values: &[f64], walk: f64) -> FilteredWalk {
    let mut out = FilteredWalk { log_likelihood: 0.0, walk, means: Vec::new(), variances: Vec::new() };
    // In units of the readings' variance, which is then the one that fits best.
    let mut squares = 0.0;
    // The start is unknown, but the residuals of the levels have mean 0.
    let (mut mean, mut variance) = (0.0_f64, 1.0_f64);
    for value in values {
        let expected = variance + 1.0;
        let off = value - mean;
        out.log_likelihood -= expected.ln() / 2.0;
        squares += off * off / expected;
        let gain = variance / expected;
        mean += gain * off;
        variance *= 1.0 - gain;
        out.means.push(mean);
        out.variances.push(variance);
        variance += walk;
    }
    let count = values.len() as f64;
    out.log_likelihood -= count / 2.0 * (squares / count).max(f64::MIN_POSITIVE).ln();
    out
}

impl FilteredWalk {
    /// Smooths with the later values, too (Rauch, Tung & Striebel 1965).
    fn smooth(&self) -> Vec<f64> {
        let mut smooth = self.means.clone();
        for index in (0..smooth.len().saturating_sub(1)).rev() {
            let gain = self.variances[index] / (self.variances[index] + self.walk);
            smooth[index] += gain * (smooth[index + 1] - self.means[index]);
        }
        smooth
    }
}
