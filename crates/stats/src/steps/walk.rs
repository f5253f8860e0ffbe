//! The position of a step while the machine drifts, without a plug-in estimate of the walk, which would mistake part of
//! a step for drift.
//!
//! Noise is normal here, each reading with its own variance, so that outliers count little. These variances are
//! estimates from the readings, so the likelihood is taken to the power that leaves it the information of Student's t.
//! Level and walk are then summed over exactly, by one Kalman filter for each speed of the walk; it turns readings and
//! steps into numbers that are independent of each other, and among these a step is a regression with one coefficient
//! (as Durbin & Koopman 2012, "Time Series Analysis by State Space Methods", section 6.2). The scale of the noise and
//! the size of the step are summed over, too.
//!
//! The drift of the machine over time is shown as a random walk, estimated from the residuals of the levels and
//! subtracted: a local level model (Harvey 1989, "Forecasting, Structural Time Series Models and the Kalman Filter",
//! section 2.2) with the reading's number as time. Its speed is estimated; if a walk explains the readings hardly
//! better than a constant does, there is no drift.

use super::chain::{ChainRow, TAILS};

/// Variances of a step of the walk, in variances of a reading's noise, with their prior probabilities; the first means no
/// walk.
const WALKS: [(f64, f64); 6] = [(0.0, 0.5), (0.001, 0.1), (0.004, 0.1), (0.015, 0.1), (0.06, 0.1), (0.25, 0.1)];

/// Variance of the first level, in variances of the noise: the level is unknown.
const LEVEL_VARIANCE: f64 = 1e6;

/// Sizes of a step are summed over this many standard errors on each side of the likeliest, at most this far apart.
const REACH_ERRORS: f64 = 5.0;
const SIZES_APART_ERRORS: f64 = 0.4;
const SIZES_APART_MAX: f64 = 0.01;
const SIZES_MAX: f64 = 400.0;

/// Residuals no larger than this are rounding, in the unit of the values.
const RESIDUAL_MIN: f64 = 1e-7;

/// The belief about none and one step.
pub(super) struct WalkPosterior {
    /// Probability that the machine drifts.
    pub(super) share: f64,
    /// Given that it does: the probability of no step, and of one step between each two rows; their sum is 1.
    pub(super) none: f64,
    pub(super) gaps: Vec<f64>,
}

/// One reading: its value, its variance relative to the usual one, and the number of its row.
pub(super) struct WalkReading {
    pub(super) value: f64,
    pub(super) variance: f64,
    pub(super) row: usize,
}

/// `readings` are in the order they were taken, with the variances of Student's t with `degrees` degrees of freedom;
/// `ends` are the weights of chains with none, one, two steps.
pub(super) fn walked(
    readings: &[WalkReading],
    degrees: f64,
    rows: &[ChainRow],
    ends: [f64; 3],
    step_min: f64,
) -> Option<WalkPosterior> {
    // A reading of Student's t carries (degrees + 1) / (degrees + 3) of the information about a level, in units of its squared
    // scale (Lange, Little & Taylor 1989, "Robust Statistical Modeling Using the t Distribution"); with its variance estimated
    // it would count as 1.
    let power = (degrees + 1.0) / (degrees + 3.0);
    let regression_degrees = power * (readings.len() as f64 - 1.0);
    let middle = readings.iter().map(|reading| reading.value).sum::<f64>() / readings.len() as f64;
    let values: Vec<f64> = readings.iter().map(|reading| reading.value - middle).collect();
    let behind =
        |gap: usize| -> Vec<f64> { readings.iter().map(|reading| if reading.row > gap { 1.0 } else { 0.0 }).collect() };
    let behind: Vec<Vec<f64>> = (0..rows.len() - 1).map(behind).collect();
    // For each walk, the logarithms of no step and of a step in each gap.
    let mut logs: Vec<Vec<f64>> = Vec::new();
    for (walk, prior) in WALKS {
        let filter = Filter::new(readings, walk);
        let whitened = filter.whiten(&values);
        let floor = readings.len() as f64 * RESIDUAL_MIN * RESIDUAL_MIN;
        let squares = dot(&whitened, &whitened).max(floor);
        let front = prior.ln() - power * filter.log_variances / 2.0;
        let mut of_walk = vec![front + ends[0].ln() - regression_degrees / 2.0 * squares.ln()];
        for (row, behind) in rows[1..].iter().zip(&behind) {
            let step = filter.whiten(behind);
            let regression = Regression {
                squares,
                degrees: regression_degrees,
                floor,
                with: dot(&step, &whitened),
                own: dot(&step, &step),
            };
            of_walk.push(front + (ends[1] * row.one).ln() + regression.log_evidence(step_min));
        }
        logs.push(of_walk);
    }
    let best = logs.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    if !best.is_finite() {
        return None;
    }
    let mass = |log: &f64| (log - best).exp();
    let all: f64 = logs.iter().flatten().map(mass).sum();
    let summed: Vec<f64> = (0..rows.len()).map(|at| logs[1..].iter().map(|of_walk| mass(&of_walk[at])).sum()).collect();
    let walking: f64 = summed.iter().sum();
    let share = walking / all;
    if walking <= 0.0 {
        return None;
    }
    let shares: Vec<f64> = summed.iter().map(|mass| mass / walking).collect();
    Some(WalkPosterior { share, none: shares[0], gaps: shares[1..].to_vec() })
}

/// The gains of a Kalman filter, which depend on the variances only.
struct Filter {
    gains: Vec<f64>,
    deviations: Vec<f64>,
    log_variances: f64,
}

impl Filter {
    fn new(readings: &[WalkReading], walk: f64) -> Filter {
        let mut filter = Filter { gains: Vec::new(), deviations: Vec::new(), log_variances: 0.0 };
        let mut variance = LEVEL_VARIANCE;
        for reading in readings {
            let expected = variance + reading.variance;
            let gain = variance / expected;
            filter.gains.push(gain);
            filter.deviations.push(expected.sqrt());
            filter.log_variances += expected.ln();
            variance = variance * (1.0 - gain) + walk;
        }
        filter
    }

    /// The innovation of each value, in standard deviations.
    fn whiten(&self, values: &[f64]) -> Vec<f64> {
        let mut level = 0.0;
        let mut whitened = Vec::with_capacity(values.len());
        for ((value, gain), deviation) in values.iter().zip(&self.gains).zip(&self.deviations) {
            let off = value - level;
            level += gain * off;
            whitened.push(off / deviation);
        }
        whitened
    }
}

/// The readings' sum of squares after a step of size d: `squares - 2 d with + d² own`.
struct Regression {
    squares: f64,
    degrees: f64,
    floor: f64,
    with: f64,
    own: f64,
}

impl Regression {
    /// Logarithm of the likelihood, summed over the scale of the noise and the size of the step.
    fn log_evidence(&self, step_min: f64) -> f64 {
        let left = |size: f64| (self.squares - 2.0 * size * self.with + size * size * self.own).max(self.floor);
        let likeliest = self.with / self.own;
        let error = (left(likeliest) / self.degrees / self.own).sqrt();
        let apart = (SIZES_APART_ERRORS * error).clamp(f64::MIN_POSITIVE, SIZES_APART_MAX);
        let count = (2.0 * REACH_ERRORS * error / apart).ceil().min(SIZES_MAX);
        if !(self.own > 0.0 && count > 0.0) {
            return f64::NEG_INFINITY;
        }
        let best = left(likeliest).ln();
        let mut sum = 0.0;
        let mut index = 0.0;
        while index <= count {
            let size = likeliest + apart * (index - count / 2.0);
            sum += density(size.abs() - step_min) * (-self.degrees / 2.0 * (left(size).ln() - best)).exp();
            index += 1.0;
        }
        (sum * apart).ln() - self.degrees / 2.0 * best
    }
}

/// Density of a step's size beyond the smallest, up or down.
fn density(over: f64) -> f64 {
    if over < 0.0 {
        return 0.0;
    }
    TAILS.iter().map(|(share, length)| share / (2.0 * length) * (-over / length).exp()).sum()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The candidates for the variance of a step of the walk, in variances of a reading's noise.
const WALK_VARIANCES: [f64; 5] = [0.001, 0.004, 0.015, 0.06, 0.25];

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
    let best = WALK_VARIANCES
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

#[cfg(test)]
mod tests {
    use super::super::Reading;
    use super::super::chain::rows;
    use super::*;
    use crate::random::Random;

    /// Solves by elimination, independently of the filter.
    fn solved(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
        let n = right.len();
        for pivot in 0..n {
            for row in pivot + 1..n {
                let factor = matrix[row][pivot] / matrix[pivot][pivot];
                let of_pivot = matrix[pivot].clone();
                for (cell, above) in matrix[row].iter_mut().zip(&of_pivot).skip(pivot) {
                    *cell -= factor * above;
                }
                right[row] -= factor * right[pivot];
            }
        }
        for row in (0..n).rev() {
            let known: f64 = (row + 1..n).map(|column| matrix[row][column] * right[column]).sum();
            right[row] = (right[row] - known) / matrix[row][row];
        }
        right
    }

    #[test]
    fn whitened_products_are_those_of_the_inverse_covariance() {
        let mut random = Random::new(7);
        for walk in [0.0, 0.06] {
            let seen: Vec<WalkReading> = (0..8)
                .map(|row| WalkReading { value: random.normal(), variance: 0.5 + random.uniform(), row })
                .collect();
            let covariance = |a: usize, b: usize| {
                let own = if a == b { seen[a].variance } else { 0.0 };
                own + LEVEL_VARIANCE + walk * a.min(b) as f64
            };
            let matrix: Vec<Vec<f64>> = (0..8).map(|a| (0..8).map(|b| covariance(a, b)).collect()).collect();
            let y: Vec<f64> = seen.iter().map(|seen| seen.value).collect();
            let step: Vec<f64> = (0..8).map(|at| if [1, 4, 5].contains(&at) { 1.0 } else { 0.0 }).collect();
            let filter = Filter::new(&seen, walk);
            let (of_y, of_step) = (filter.whiten(&y), filter.whiten(&step));
            for (got, a, b) in [(dot(&of_y, &of_step), &y, &step), (dot(&of_y, &of_y), &y, &y)] {
                let want = dot(a, &solved(matrix.clone(), b.clone()));
                assert!((got - want).abs() < 1e-6, "{walk}: {got}, not {want}");
            }
        }
    }

    /// Log likelihood of these values under Student's t with scale 1 about the best-fitting level.
    fn of_students_t(values: &[f64], degrees: f64) -> f64 {
        let mut level = 0.0;
        for _ in 0..50 {
            let weight = |value: &f64| 1.0 / (degrees + (value - level) * (value - level));
            level =
                values.iter().map(|value| value * weight(value)).sum::<f64>() / values.iter().map(weight).sum::<f64>();
        }
        let logs = values.iter().map(|value| (1.0 + (value - level) * (value - level) / degrees).ln());
        -(degrees + 1.0) / 2.0 * logs.sum::<f64>()
    }

    #[test]
    fn a_place_is_as_sure_as_students_t_makes_it() {
        let (degrees, each, size) = (5.0, 1000, 0.2);
        let mut random = Random::new(11);
        let (mut got, mut want) = (0.0, 0.0);
        for _ in 0..20 {
            // Three places, with the step before the second.
            let level = |row: usize| if row > 0 { size } else { 0.0 };
            let mut of_rows = [const { Vec::new() }; 3];
            let mut seen = Vec::new();
            for at in 0..3 * each {
                let squares: f64 = (0..5).map(|_| random.normal().powi(2)).sum();
                let (row, left) = (at % 3, random.normal() / (squares / degrees).sqrt());
                of_rows[row].push(level(row) + left);
                seen.push(WalkReading {
                    value: level(row) + left,
                    variance: (degrees + left * left) / (degrees + 1.0),
                    row,
                });
            }
            let readings: Vec<Reading> = (0..3).map(|place| Reading { place, value: 0.0 }).collect();
            let known = walked(&seen, degrees, &rows(&readings, &[0.5, 0.5]), [0.25, 0.65, 0.1], 0.01).unwrap();
            got += (known.gaps[0] / known.gaps[1]).ln();
            let [first, second, third] = of_rows;
            // A step before the third place would have half the size, which was likelier a priori.
            want += (density(size - 0.01) / density(size / 2.0 - 0.01)).ln();
            want += of_students_t(&first, degrees) + of_students_t(&[second.clone(), third.clone()].concat(), degrees)
                - of_students_t(&[first, second].concat(), degrees)
                - of_students_t(&third, degrees);
        }
        assert!((got / want - 1.0).abs() < 0.1, "{got}, not {want}");
    }

    #[test]
    fn the_sum_over_sizes_is_that_of_small_steps() {
        let check = |with: f64, own: f64| {
            let regression = Regression { squares: 0.06, degrees: 60.0, floor: 1e-12, with, own };
            let fine = (-40_000..40_000).map(|at| {
                let size = f64::from(at) * 1e-5;
                density(size.abs() - 0.01) * (0.06 - 2.0 * size * with + size * size * own).powf(-30.0)
            });
            let want = (fine.sum::<f64>() * 1e-5).ln();
            let got = regression.log_evidence(0.01);
            // The smallest size cuts through a step of the sum.
            assert!((got - want).abs() < 0.2, "{with} {own}: {got}, not {want}");
        };
        check(0.45, 15.0);
        check(-0.45, 15.0);
        check(0.0, 15.0);
        check(0.1, 4.0);
    }
}
