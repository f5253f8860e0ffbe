//! Simulated nights of 20 series, of which the first may change.
//!
//! Shared by the test, which runs a few, and by the bench, which states rates.

use stillgate_stats::*;

const SERIES: usize = 20;

/// Measurements of a look, as `stillgate-lab nightly` takes them.
const FIRST: usize = 10;
const SECOND: usize = 25;
const THIRD: usize = 100;

/// A difference counts as changed if the nightly run calls it changed with at most this error.
const ERROR: f64 = 0.01;

/// How measurements scatter about their true value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Noise {
    /// Normal with this standard deviation; one in ten has four times as much.
    Outliers(f64),
    /// Each has the higher of two states, half as high again, with this probability, and scatters by 1%.
    States(f64),
    /// The machine stays in a state for 12 measurements on average.
    LastingStates,
}

/// Distance of the states, as a logarithm.
const STATES_APART: f64 = 0.405;
const STATE_SCATTER: f64 = 0.01;
const LASTING: u64 = 12;

/// A simulated machine for measurements.
struct Machine<'a> {
    random: &'a mut Random,
    noise: Noise,
    is_high: bool,
}

impl Machine<'_> {
    fn measure(&mut self) -> f64 {
        match self.noise {
            Noise::Outliers(scatter) => {
                return scatter * if self.random.below(10) == 0 { 4.0 } else { 1.0 } * self.random.normal();
            }
            Noise::States(share) => self.is_high = self.random.uniform() < share,
            Noise::LastingStates => self.is_high ^= self.random.below(LASTING) == 0,
        }
        STATE_SCATTER * self.random.normal() + if self.is_high { STATES_APART } else { 0.0 }
    }
}

/// One night in which the first series differs from two other commits by these amounts (logarithms): returns whether it
/// is called changed, and whether any other is.
pub(crate) fn night(random: &mut Random, noise: Noise, effects: [f64; 2]) -> [bool; 2] {
    let machine = &mut Machine { random, noise, is_high: false };
    let mut looks: Vec<[Option<Vec<f64>>; 2]> = Vec::new();
    for series in 0..SERIES {
        let effects = if series == 0 { effects } else { [0.0; 2] };
        let first = look(machine, FIRST, effects);
        // A look measures all commits at once, and counts for each series that requested it.
        let asked = first.each_ref().map(|diffs| is_suspicious(diffs));
        let second = if asked.contains(&true) { look(machine, SECOND, effects) } else { Default::default() };
        let again = [0, 1].map(|side| asked[side] && is_undecided(&second[side], 2 * SERIES, ERROR));
        let third = if again.contains(&true) { look(machine, THIRD, effects) } else { Default::default() };
        for (side, (second, third)) in second.into_iter().zip(third).enumerate() {
            looks.push([asked[side].then_some(second), again[side].then_some(third)]);
        }
    }
    let all = looks.iter().map(|[second, third]| Looks { second: second.as_deref(), third: third.as_deref() });
    let all: Vec<Looks<'_>> = all.collect();
    let called: Vec<bool> = screened(&all).iter().map(|p| *p <= ERROR).collect();
    [called[..2].contains(&true), called[2..].contains(&true)]
}

/// Differences from both other commits: today's measurement, with its noise, is in both. Each round measures the three
/// in its own order.
fn look(machine: &mut Machine<'_>, count: usize, effects: [f64; 2]) -> [Vec<f64>; 2] {
    let mut diffs = [Vec::new(), Vec::new()];
    for _ in 0..count {
        let (mut order, mut measured) = ([0, 1, 2], [0.0; 3]);
        machine.random.shuffle(&mut order);
        order.iter().for_each(|side| measured[*side] = machine.measure());
        let [today, others @ ..] = measured;
        for ((diffs, effect), other) in diffs.iter_mut().zip(effects).zip(others) {
            diffs.push(effect + today - other);
        }
    }
    diffs
}
