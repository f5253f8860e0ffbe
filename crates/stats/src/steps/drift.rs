//! What the machine does with time: a random walk, taken out of what levels leave of the readings.
//!
//! A local level model (Harvey 1989, "Forecasting, Structural Time Series Models and the Kalman Filter", section 2.2) with
//! the reading's number as time. How quickly it walks is estimated; where a walk explains the readings hardly better than
//! standing still, there is none.

/// Variances of a step of the walk that are tried, in variances of a reading's noise.
const WALKS: [f64; 5] = [0.001, 0.004, 0.015, 0.06, 0.25];

/// By how much a walk must be the likelier, as a logarithm: three standard errors.
const LOG_GAIN_MIN: f64 = 4.5;

/// What is farther from the walk than this many noises counts as this far: outliers do not walk.
const RESIDUAL_NOISES_MAX: f64 = 3.0;

/// A drift that moves less than this between two estimates has settled.
pub(super) const SETTLED_NOISES: f64 = 0.05;

/// The walk under what levels leave of the readings, with mean 0; none where there is hardly one. `before` is the walk
/// as it was last estimated: what is far from it is an outlier.
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

/// A Kalman filter that has gone over the values.
struct Filtered {
    log_likelihood: f64,
    walk: f64,
    means: Vec<f64>,
    variances: Vec<f64>,
}

fn filtered(values: &[f64], walk: f64) -> Filtered {
    let mut out = Filtered { log_likelihood: 0.0, walk, means: Vec::new(), variances: Vec::new() };
    // In units of the readings' variance, which is then the one that suits best.
    let mut squares = 0.0;
    // Where it begins is not known, but levels leave residuals of mean 0.
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

impl Filtered {
    /// With what came later, too (Rauch, Tung & Striebel 1965).
    fn smooth(&self) -> Vec<f64> {
        let mut smooth = self.means.clone();
        for index in (0..smooth.len().saturating_sub(1)).rev() {
            let gain = self.variances[index] / (self.variances[index] + self.walk);
            smooth[index] += gain * (smooth[index + 1] - self.means[index]);
        }
        smooth
    }
}
