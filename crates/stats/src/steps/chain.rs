//! Forward and backward sums over the chain of levels, for one noise model.
//!
//! Only places with readings are links; a step between two of them lies at each of the places in proportion to its
//! weight. A state is a level and the number of steps so far, 0 to 2. A step's size has two-sided exponential tails, so
//! the sum over all earlier levels runs along the grid once in each direction, not once for each pair of levels.
//!
//! The levels and noise models over which a posterior is summed are a grid, laid around the readings. Its cells are a
//! quarter of the noise where enough of them fit. If levels are far apart compared with the noise, cells get coarser
//! and the noise is assumed to be at least a cell: a step of twenty times the noise is still detected.

use super::{LevelBelief, Reading};
use crate::estimate::median;

/// Numbers of steps a chain may have had: 0, 1, 2.
const COUNTS: usize = 3;

/// Share and length (in the unit of the values) of the tails of a step's size, beyond the smallest size.
pub(super) const TAILS: [(f64, f64); 2] = [(0.7, 0.03), (0.3, 0.25)];

/// The product of likelihoods is rescaled to 1 after this many factors, before it overflows.
const FACTORS: usize = 4;

/// A place with readings, and the possible steps between it and the row before.
pub(super) struct ChainRow {
    pub(super) place: usize,
    pub(super) values: Vec<f64>,
    /// Sum of the weights since the row before.
    pub(super) one: f64,
    /// Sum of the products of two different ones of these weights.
    two: f64,
}

/// The places with readings in their order.
pub(super) fn rows(readings: &[Reading], weights: &[f64]) -> Vec<ChainRow> {
    let mut sorted = readings.to_vec();
    sorted.sort_by_key(|reading| reading.place);
    let mut rows: Vec<ChainRow> = Vec::new();
    for of_place in sorted.chunk_by(|a, b| a.place == b.place) {
        let place = of_place[0].place;
        let between = &weights[rows.last().map_or(place, |row| row.place)..place];
        let one: f64 = between.iter().sum();
        let squares: f64 = between.iter().map(|weight| weight * weight).sum();
        // For a single weight it is 0, apart from rounding.
        let two = if between.len() > 1 { ((one * one - squares) / 2.0).max(0.0) } else { 0.0 };
        rows.push(ChainRow { place, values: of_place.iter().map(|reading| reading.value).collect(), one, two });
    }
    rows
}

/// The sums of one noise model up to each row: enough to judge how well it explains the readings.
pub(super) struct ForwardSums {
    noise: Noise,
    /// Logarithm of the probability of all readings, apart from a factor that all models share.
    pub(super) log_evidence: f64,
    /// Weights of chains with none, one and two steps, after the last row.
    counts: [f64; COUNTS],
    /// For each row, the probability of each level given the row's own readings.
    seen: Vec<Vec<f64>>,
    before: Vec<Sums>,
}

/// All sums of one noise model.
#[derive(Debug, Clone)]
pub(super) struct NoiseChain {
    pub(super) noise: Noise,
    /// Its share among the models.
    pub(super) share: f64,
    pub(super) none: f64,
    pub(super) several: f64,
    /// Between each row and the next: probability of one step, and of two.
    gaps: Vec<[f64; 2]>,
    /// For each row, how likely each fate is at each level.
    states: Vec<Fates>,
    /// For each gap, the sums before it and the sums after it (including the row after it): they give the size of its
    /// step.
    before: Vec<Sums>,
    behind: Vec<Sums>,
    jump: Jump,
    places: Vec<usize>,
    ends: [f64; COUNTS],
}

/// Indexed by number of steps, then by level.
type Sums = [Vec<f64>; COUNTS];

/// Indexed by fate (no step, one step before the place, one after it, two steps), then by the level of the place.
pub(super) type Fates = [Vec<f64>; 4];

impl ForwardSums {
    /// `ends` are the weights of chains with none, one, two steps.
    pub(super) fn of(rows: &[ChainRow], noise: Noise, ends: [f64; COUNTS], jump: &Jump, grid: &Grid) -> ForwardSums {
        let mut log_scale = 0.0;
        let levels: Vec<f64> = (0..grid.cells).map(|index| grid.level(index)).collect();
        let seen: Vec<Vec<f64>> = rows.iter().map(|row| likelihood(row, noise, &levels, &mut log_scale)).collect();
        let before = forward(rows, &seen, jump, &mut log_scale);
        let last = &before[rows.len() - 1];
        let counts: [f64; COUNTS] = std::array::from_fn(|count| last[count].iter().sum::<f64>() * ends[count]);
        let log_evidence = log_scale + counts.iter().sum::<f64>().ln();
        ForwardSums { noise, log_evidence, counts, seen, before }
    }
}

impl NoiseChain {
    /// `share` is that of its noise among the models, `ends` are the weights of chains with none, one, two steps.
    pub(super) fn of(
        explained: ForwardSums,
        rows: &[ChainRow],
        share: f64,
        ends: [f64; COUNTS],
        jump: &Jump,
    ) -> NoiseChain {
        let ForwardSums { noise, counts, seen, before, .. } = explained;
        let behind = backward(rows, &seen, jump);
        let total: f64 = counts.iter().sum();
        let mut chain = NoiseChain {
            noise,
            share,
            none: counts[0] / total,
            several: counts[2] / total,
            gaps: Vec::new(),
            states: Vec::new(),
            before,
            behind: Vec::new(),
            jump: jump.clone(),
            places: rows.iter().map(|row| row.place).collect(),
            ends,
        };
        chain.states = chain.before.iter().zip(&behind).map(|(before, behind)| chain.fates(before, behind)).collect();
        // From here on the readings of the row itself are included.
        chain.behind = behind;
        for (sums, seen) in chain.behind.iter_mut().zip(&seen) {
            for counted in sums {
                multiply(counted, seen);
            }
        }
        chain.gaps = (1..rows.len()).map(|next| chain.gap(&rows[next], next)).collect();
        chain
    }

    fn gap(&self, row: &ChainRow, next: usize) -> [f64; 2] {
        let (before, behind) = (&self.before[next - 1], &self.behind[next]);
        let sum = |of: &[Vec<f64>], here: usize| -> f64 {
            // Adds up all ways to reach a number of steps with `here` of them in this gap.
            (0..COUNTS - here)
                .flat_map(|before| (0..COUNTS - here - before).map(move |behind| (before, behind)))
                .map(|(a, b)| self.ends[a + b + here] * dot(&of[a], &behind[b]))
                .sum()
        };
        let once = [self.jump.after_step(&before[0]), self.jump.after_step(&before[1])];
        let stays = sum(before, 0);
        let steps = row.one * sum(&once, 1);
        let twice = if row.two > 0.0 { row.two * sum(&[self.jump.after_step(&once[0])], 2) } else { 0.0 };
        let total = stays + steps + twice;
        if total > 0.0 { [steps / total, twice / total] } else { [0.0; 2] }
    }

    /// How likely each fate of a row is at each level.
    fn fates(&self, before: &Sums, behind: &Sums) -> Fates {
        let joint = |ways: &[(usize, usize)]| -> Vec<f64> {
            let of =
                |index: usize| ways.iter().map(|&(a, b)| self.ends[a + b] * before[a][index] * behind[b][index]).sum();
            (0..before[0].len()).map(of).collect()
        };
        let mut fates = [joint(&[(0, 0)]), joint(&[(1, 0)]), joint(&[(0, 1)]), joint(&[(0, 2), (1, 1), (2, 0)])];
        let total: f64 = fates.iter().flatten().sum();
        fates.iter_mut().flatten().for_each(|mass| *mass /= total);
        fates
    }
}

/// Probability of each level given the row's readings, apart from a factor whose logarithm is added to `log_scale`.
fn likelihood(row: &ChainRow, noise: Noise, levels: &[f64], log_scale: &mut f64) -> Vec<f64> {
    let Noise { scale, degrees } = noise;
    let (inverse, power) = (1.0 / (scale * scale * degrees), ((degrees + 1.0) / 2.0) as i32);
    // The product of the densities' denominators; the smallest is 1, and those of distant levels may become infinite.
    let (mut products, mut log) = (vec![1.0; levels.len()], 0.0);
    for values in row.values.chunks(FACTORS) {
        for value in values {
            for (product, level) in products.iter_mut().zip(levels) {
                let off = value - level;
                *product *= 1.0 + off * off * inverse;
            }
        }
        let least = products.iter().copied().fold(f64::INFINITY, f64::min);
        products.iter_mut().for_each(|product| *product /= least);
        log += f64::ln(least);
    }
    let front = libm::lgamma((degrees + 1.0) / 2.0)
        - libm::lgamma(degrees / 2.0)
        - (degrees * std::f64::consts::PI).ln() / 2.0
        - scale.ln();
    *log_scale += front * row.values.len() as f64 - f64::from(power) * log;
    products.into_iter().map(|product| product.recip().powi(power)).collect()
}

/// Sums up to and including each row.
fn forward(rows: &[ChainRow], seen: &[Vec<f64>], jump: &Jump, log_scale: &mut f64) -> Vec<Sums> {
    let cells = seen[0].len();
    let first = seen[0].iter().map(|seen| seen / cells as f64).collect();
    let mut all: Vec<Sums> = vec![[first, vec![0.0; cells], vec![0.0; cells]]];
    for (row, seen) in rows.iter().zip(seen).skip(1) {
        let mut next = moved(all[all.len() - 1].clone(), row, jump);
        for counted in &mut next {
            multiply(counted, seen);
        }
        *log_scale += rescale(&mut next);
        all.push(next);
    }
    all
}

/// Sums after each row, excluding it; the index is the number of steps still to come.
fn backward(rows: &[ChainRow], seen: &[Vec<f64>], jump: &Jump) -> Vec<Sums> {
    let cells = seen[0].len();
    let mut all: Vec<Sums> = vec![[vec![1.0; cells], vec![0.0; cells], vec![0.0; cells]]];
    for (row, seen) in rows.iter().zip(seen).skip(1).rev() {
        let mut sums = all[all.len() - 1].clone();
        for counted in &mut sums {
            multiply(counted, seen);
        }
        let mut next = moved(sums, row, jump);
        rescale(&mut next);
        all.push(next);
    }
    all.reverse();
    all
}

/// Moves sums over the gap before a row, in either direction.
fn moved(mut sums: Sums, row: &ChainRow, jump: &Jump) -> Sums {
    let once = jump.after_step(&sums[0]);
    let second = jump.after_step(&sums[1]);
    add_scaled(&mut sums[1], &once, row.one);
    add_scaled(&mut sums[2], &second, row.one);
    if row.two > 0.0 {
        add_scaled(&mut sums[2], &jump.after_step(&once), row.two);
    }
    sums
}

/// Scales the largest value to 1 and returns the logarithm of its old value.
fn rescale(sums: &mut Sums) -> f64 {
    let most = sums.iter().flatten().copied().fold(0.0, f64::max);
    if most > 0.0 {
        sums.iter_mut().flatten().for_each(|value| *value /= most);
    }
    most.ln()
}

/// Probability of a step between each place and the next, over all models.
pub(super) fn steps(chains: &[NoiseChain], rows: &[ChainRow], weights: &[f64]) -> Vec<f64> {
    let mut steps = vec![0.0; weights.len()];
    for (index, row) in rows.iter().enumerate().skip(1) {
        let [one, two] =
            [0, 1].map(|count| chains.iter().map(|chain| chain.share * chain.gaps[index - 1][count]).sum::<f64>());
        let from = rows[index - 1].place;
        for (step, weight) in steps[from..].iter_mut().zip(&weights[from..row.place]) {
            if row.one > 0.0 {
                *step += one * weight / row.one;
            }
            if row.two > 0.0 {
                *step += two * weight * (row.one - weight) / row.two;
            }
        }
    }
    steps
}

/// How likely each fate is at each level, for every place. A place between two rows has the level of the one or of the
/// other, by the share of the weights on either side.
pub(super) fn fates(chains: &[NoiseChain], rows: &[ChainRow], weights: &[f64]) -> Vec<Fates> {
    let mixed = |index: usize| {
        let mut fates: Fates = std::array::from_fn(|fate| vec![0.0; chains[0].states[index][fate].len()]);
        for chain in chains {
            for (fate, of_chain) in fates.iter_mut().zip(&chain.states[index]) {
                add_scaled(fate, of_chain, chain.share);
            }
        }
        fates
    };
    let mut all = vec![mixed(0)];
    for (index, row) in rows.iter().enumerate().skip(1) {
        let (left, right) = (all[all.len() - 1].clone(), mixed(index));
        let mut passed = 0.0;
        for (place, weight) in (rows[index - 1].place..row.place).zip(&weights[rows[index - 1].place..]) {
            passed += weight;
            let share = if place + 1 == row.place || row.one <= 0.0 { 1.0 } else { passed / row.one };
            all.push(std::array::from_fn(|fate| {
                let pairs = left[fate].iter().zip(&right[fate]);
                pairs.map(|(left, right)| left + share * (right - left)).collect()
            }));
        }
    }
    all
}

/// Mean and variance of a place's level.
pub(super) fn level(fates: &Fates, grid: &Grid) -> LevelBelief {
    let (mut mass, mut first, mut second) = (0.0, 0.0, 0.0);
    for index in 0..grid.cells {
        let here: f64 = fates.iter().map(|fate| fate[index]).sum();
        // Measured from the lowest level, so that large values with a small scatter lose no digits.
        let offset = grid.cell * index as f64;
        mass += here;
        first += here * offset;
        second += here * offset * offset;
    }
    let offset = first / mass;
    LevelBelief { mean: grid.low + offset, variance: (second / mass - offset * offset).max(0.0) }
}

/// How likely each size of the step between `place` and the next is, as far as it is a single step: in cells, from the
/// largest fall to the largest rise, with nothing in the middle.
pub(super) fn sizes(chains: &[NoiseChain], place: usize, grid: &Grid) -> Vec<f64> {
    let cells = grid.cells;
    let mut sizes = vec![0.0; 2 * cells - 1];
    for chain in chains {
        let Some(gap) = chain.places.windows(2).position(|pair| pair[0] <= place && place < pair[1]) else {
            return sizes;
        };
        let (before, behind) = (&chain.before[gap], &chain.behind[gap + 1]);
        let mut own = vec![0.0; sizes.len()];
        for from in 0..cells {
            for to in 0..cells {
                let joint = chain.ends[1] * before[0][from] * behind[0][to]
                    + chain.ends[2] * (before[0][from] * behind[1][to] + before[1][from] * behind[0][to]);
                own[cells - 1 + to - from] += joint * chain.jump.weight(to.abs_diff(from));
            }
        }
        let total: f64 = own.iter().sum();
        let factor = if total > 0.0 { chain.share * chain.gaps[gap][0] / total } else { 0.0 };
        add_scaled(&mut sizes, &own, factor);
    }
    sizes
}

/// The distribution of a step's size.
#[derive(Debug, Clone)]
pub(super) struct Jump {
    /// The smallest size, in cells.
    least: usize,
    /// For each tail, its weight at the smallest size, and the factor that one more cell leaves of it.
    tails: [(f64, f64); TAILS.len()],
}

impl Jump {
    pub(super) fn new(step_min: f64, grid: &Grid) -> Jump {
        let least = ((step_min / grid.cell).round() as usize).clamp(1, grid.cells);
        let tails = TAILS.map(|(share, length)| {
            let kept = (-grid.cell / length).exp();
            (share * (1.0 - kept) / 2.0, kept)
        });
        Jump { least, tails }
    }

    /// The weight of a step over `cells` cells, up or down.
    fn weight(&self, cells: usize) -> f64 {
        match cells.checked_sub(self.least) {
            Some(more) => self.tails.iter().map(|(weight, kept)| weight * kept.powi(more as i32)).sum(),
            None => 0.0,
        }
    }

    /// The weights after a step from these levels.
    fn after_step(&self, from: &[f64]) -> Vec<f64> {
        let mut to = vec![0.0; from.len()];
        let weights = self.tails.map(|(weight, _)| weight);
        let kept = self.tails.map(|(_, kept)| kept);
        let (mut rising, mut falling) = ([0.0; TAILS.len()], [0.0; TAILS.len()]);
        let last = from.len() - 1;
        for (more, value) in from.iter().enumerate().take(from.len() - self.least.min(from.len())) {
            let mirrored = last - more;
            let (mut up, mut down) = (0.0, 0.0);
            for tail in 0..TAILS.len() {
                rising[tail] = rising[tail] * kept[tail] + value;
                falling[tail] = falling[tail] * kept[tail] + from[mirrored];
                up += weights[tail] * rising[tail];
                down += weights[tail] * falling[tail];
            }
            to[more + self.least] += up;
            to[mirrored - self.least] += down;
        }
        to
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn multiply(values: &mut [f64], factors: &[f64]) {
    for (value, factor) in values.iter_mut().zip(factors) {
        *value *= factor;
    }
}

fn add_scaled(values: &mut [f64], others: &[f64], factor: f64) {
    for (value, other) in values.iter_mut().zip(others) {
        *value += other * factor;
    }
}

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
const DEGREES_OF_FREEDOM: [f64; 2] = [3.0, 11.0];

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
        let (low, high) = level_range(&places, guess);
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
        let noises = scales
            .iter()
            .flat_map(|&scale| DEGREES_OF_FREEDOM.iter().map(move |&degrees| Noise { scale, degrees }))
            .collect();
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
fn level_range(places: &[(Vec<f64>, f64)], noise: f64) -> (f64, f64) {
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
