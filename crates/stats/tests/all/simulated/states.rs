//! Measurements with states: levels far apart, one of which each reading has by chance.

use super::Scatter;
use stillgate_stats::Random;

/// Distance of two states, as a logarithm: 100 and 150.
const APART: f64 = 0.405;

/// The scatter of one state.
const NOISE: f64 = 0.01;

/// Readings for which a lasting state lasts on average.
const LASTING: u64 = 12;

/// A step of the probability of a drifting state, in log odds: one or two over a bisection.
const CHANCE_WALK: f64 = 0.15;

/// The states of a machine, and the current one.
pub(crate) struct States {
    /// Level of each, as a logarithm, and its probability; the sum of these is 1.
    states: Vec<(f64, f64)>,
    /// Probability of the second state after a step, if that is the only change.
    behind: Option<f64>,
    /// Standard deviation of a state's readings.
    noise: f64,
    /// Readings for which a state lasts on average; with 1, each reading draws a new one.
    lasting: u64,
    /// Whether the probability of the second state drifts.
    drifts: bool,
    current: usize,
}

impl States {
    /// `None` for a scatter without states.
    pub(crate) fn of(scatter: Scatter, random: &mut Random) -> Option<States> {
        let equal = |count: usize, apart: f64| (0..count).map(|n| (apart * n as f64, 1.0 / count as f64)).collect();
        let two = |share: f64| vec![(0.0, 1.0 - share), (APART, share)];
        let still = |states| States { states, behind: None, noise: NOISE, lasting: 1, drifts: false, current: 0 };
        let [before, behind] = scatter.shares().unwrap_or_default();
        Some(match scatter {
            Scatter::TwoStates | Scatter::WalkingStates => still(two(0.5)),
            Scatter::TwoValues => States { noise: 0.0, ..still(two(0.5)) },
            Scatter::ThreeStates => still(equal(3, 0.2)),
            Scatter::RareState => still(two(1.0 / 7.0)),
            Scatter::Sticky => States { lasting: LASTING, ..still(two(0.5)) },
            Scatter::DriftingChance => States { drifts: true, ..still(two(random.uniform())) },
            Scatter::DrawnStates => States::drawn(random),
            Scatter::MoreOften | Scatter::SomewhatMoreOften | Scatter::Appearing => {
                States { behind: Some(behind), ..still(two(before)) }
            }
            _ => return None,
        })
    }

    /// Two or three, from 3% to a factor of 3 apart, with a scatter from 0.2% to 3%.
    fn drawn(random: &mut Random) -> States {
        let mut between = |low: f64, high: f64| (low.ln() + random.uniform() * (high / low).ln()).exp();
        let (apart, again) = (between(0.03, 1.1), between(0.03, 1.1));
        let noise = between(0.002, 0.03);
        let mut weights = vec![random.uniform(), random.uniform()];
        let mut levels = vec![0.0, apart];
        if random.below(2) == 0 {
            weights.push(random.uniform());
            levels.push(apart + again);
        }
        let all: f64 = weights.iter().sum();
        let states = levels.into_iter().zip(weights.iter().map(|weight| weight / all)).collect();
        States { states, behind: None, noise, lasting: 1, drifts: false, current: 0 }
    }

    /// One reading, before or after the step.
    pub(crate) fn read(&mut self, is_behind: bool, random: &mut Random) -> f64 {
        if self.lasting == 1 || random.below(self.lasting) == 0 {
            self.current = self.next(is_behind, random);
        }
        self.states[self.current].0 + self.noise * random.normal()
    }

    fn next(&mut self, is_behind: bool, random: &mut Random) -> usize {
        if self.lasting > 1 {
            return (self.current + 1) % self.states.len();
        }
        if self.drifts {
            let chance = self.states[1].1.clamp(1e-3, 1.0 - 1e-3);
            let odds = chance / (1.0 - chance) * (CHANCE_WALK * random.normal()).exp();
            self.states = vec![(0.0, 1.0 / (1.0 + odds)), (APART, odds / (1.0 + odds))];
        }
        if let (Some(chance), true) = (self.behind, is_behind) {
            return usize::from(random.uniform() < chance);
        }
        let drawn = random.uniform();
        let mut below = 0.0;
        let found = self.states.iter().position(|(_, chance)| {
            below += chance;
            drawn < below
        });
        found.unwrap_or(self.states.len() - 1)
    }
}
