//! The levels and noise models over which a posterior is summed, laid around the readings.
//!
//! Cells are a quarter of the noise where enough of them fit. If levels are far apart compared with the noise, cells
//! get coarser and the noise is assumed to be at least a cell: a step of twenty times the noise is still detected.

use super::Reading;
use crate::quantile::median;

/// Number of cells of levels; time grows with it.
const CELLS_MAX: usize = 80;

/// Width of a cell in scales of the noise.
const CELL_NOISES: f64 = 0.25;

/// The smallest scale of the noise, in cells: a level between two cells must not look like no level at all.
const NOISE_CELLS_MIN: f64 = 1.2;

/// Range of the grid beyond the outermost observed level, in scales of the noise.
const MARGIN_NOISES: f64 = 1.5;
const MARGIN_OF_FEW: f64 = 12.0;

/// How far the only reading of a place moves the edge of the grid: a reading farther away may be an outlier.
const SINGLE_NOISES_MAX: f64 = 3.0;

/// Noise models on each side of the first guess, and the ratio between neighbours as a logarithm: few readings leave
/// the scale open by a factor of several.
const SCALES_BESIDE: i32 = 4;
const SCALE_RATIO_MIN: f64 = 0.12;
const SCALE_RATIO_OF_FEW: f64 = 1.3;

/// Further scales up to the root mean square of the residuals, at most this many, if it is beyond the others.
/// Measurements with several states lie near the median of their place or far from it, and the median of their
/// distances does not include the far ones.
const SCALES_FAR_MAX: usize = 5;
const SCALE_FAR_RATIO: f64 = 1.6;

/// Degrees of freedom: one for the outliers that are usual on shared machines, one for almost none. They are odd, so
/// that densities are whole powers.
const TAILS: [f64; 2] = [3.0, 11.0];

/// Below this share of the values noise cannot be distinguished from rounding.
const NOISE_MIN: f64 = 1e-7;

/// Converts the median absolute deviation of a normal into its standard deviation.
const MAD_TO_DEVIATION: f64 = 1.4826;

/// Student's t as the noise of a reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Noise {
    pub(super) scale: f64,
    pub(super) degrees: f64,
}

/// The levels and the noise models that are considered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    pub(super) low: f64,
    pub(super) cell: f64,
    pub(super) cells: usize,
    pub(super) noises: Vec<Noise>,
}

impl Grid {
    /// A grid that covers these readings.
    pub(super) fn of(readings: &[Reading]) -> Grid {
        let places = by_place(readings);
        let Scatter { median, root_mean_square } = scatter(&places);
        let guess = median.max(NOISE_MIN);
        let (low, high) = reach(&places, guess);
        // A few readings may agree by luck, and a level is estimated from few.
        let margin = MARGIN_NOISES * guess * (1.0 + MARGIN_OF_FEW / readings.len() as f64);
        let (low, high) = (low - margin, high + margin);
        let cell = (CELL_NOISES * guess).max((high - low) / (CELLS_MAX - 1) as f64);
        let cells = ((high - low) / cell).ceil() as usize + 1;
        let ratio = SCALE_RATIO_MIN.max(SCALE_RATIO_OF_FEW / (readings.len() as f64).sqrt());
        let mut scales: Vec<f64> = (-SCALES_BESIDE..=SCALES_BESIDE)
            .map(|step| (guess * (ratio * f64::from(step)).exp()).max(NOISE_CELLS_MIN * cell))
            .collect();
        let reached = scales.last().copied().unwrap_or(guess);
        let far = std::iter::successors(Some(root_mean_square), |scale| Some(scale / SCALE_FAR_RATIO));
        scales.extend(far.take_while(|scale| *scale > reached * SCALE_FAR_RATIO.sqrt()).take(SCALES_FAR_MAX));
        scales.dedup();
        let noises =
            scales.iter().flat_map(|&scale| TAILS.iter().map(move |&degrees| Noise { scale, degrees })).collect();
        Grid { low, cell, cells, noises }
    }

    pub(super) fn level(&self, index: usize) -> f64 {
        self.low + self.cell * index as f64
    }
}

/// The values of each place that has some, and their median.
fn by_place(readings: &[Reading]) -> Vec<(Vec<f64>, f64)> {
    let mut sorted = readings.to_vec();
    sorted.sort_by_key(|reading| reading.place);
    sorted
        .chunk_by(|a, b| a.place == b.place)
        .map(|of_place| {
            let mut values: Vec<f64> = of_place.iter().map(|reading| reading.value).collect();
            values.sort_unstable_by(f64::total_cmp);
            let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
            (values, middle)
        })
        .collect()
}

/// How readings of the same place scatter about its median.
struct Scatter {
    /// From the median of the distances: the scatter of most readings.
    median: f64,
    /// From the squares of the distances: the scatter of all readings.
    root_mean_square: f64,
}

/// The scatter over all places; 0 if none has two readings.
fn scatter(places: &[(Vec<f64>, f64)]) -> Scatter {
    let mut left: Vec<f64> = Vec::new();
    for (values, middle) in places.iter().filter(|(values, _)| values.len() > 1) {
        let n = values.len() as f64;
        left.extend(values.iter().map(|value| (value - middle).abs() * (n / (n - 1.0)).sqrt()));
    }
    left.sort_unstable_by(f64::total_cmp);
    let squares: f64 = left.iter().map(|value| value * value).sum();
    Scatter {
        median: median(&left).unwrap_or(0.0) * MAD_TO_DEVIATION,
        root_mean_square: (squares / left.len().max(1) as f64).sqrt(),
    }
}

/// The range from the lowest observed level to the highest.
fn reach(places: &[(Vec<f64>, f64)], noise: f64) -> (f64, f64) {
    let ends = |middles: &mut dyn Iterator<Item = f64>| {
        middles.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), middle| (low.min(middle), high.max(middle)))
    };
    let (low, high) = ends(&mut places.iter().filter(|(values, _)| values.len() > 1).map(|(_, middle)| *middle));
    if low > high {
        return ends(&mut places.iter().map(|(_, middle)| *middle));
    }
    let slack = SINGLE_NOISES_MAX * noise;
    ends(&mut places.iter().map(|(values, middle)| match values.len() {
        1 => middle.clamp(low - slack, high + slack),
        _ => *middle,
    }))
}
