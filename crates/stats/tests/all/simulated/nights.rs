//! Simulated nights of 20 series, of which the first may change.
//!
//! Shared by the test, which runs a few, and by the bench, which states rates.

use stillgate_stats::*;

const SERIES: usize = 20;

/// Measurements of a look, as `stillgate-lab nightly` takes them.
const FIRST: usize = 10;
const SECOND: usize = 25;
const THIRD: usize = 100;

/// What a night calls changed with at most this error is changed.
const ERROR: f64 = 0.01;

/// One night in which the first series differs from two other commits by these amounts (logarithms): whether it is called
/// changed, and whether any other is.
pub(crate) fn night(random: &mut Random, scatter: f64, effects: [f64; 2]) -> [bool; 2] {
    let mut looks: Vec<[Option<Vec<f64>>; 2]> = Vec::new();
    for series in 0..SERIES {
        let effects = if series == 0 { effects } else { [0.0; 2] };
        let first = look(random, FIRST, scatter, effects);
        // A look is taken of all commits at once, and counts where it was asked for.
        let asked = first.each_ref().map(|diffs| is_suspicious(diffs));
        let second = if asked.contains(&true) { look(random, SECOND, scatter, effects) } else { Default::default() };
        let again = [0, 1].map(|side| asked[side] && is_undecided(&second[side], 2 * SERIES, ERROR));
        let third = if again.contains(&true) { look(random, THIRD, scatter, effects) } else { Default::default() };
        for (side, (second, third)) in second.into_iter().zip(third).enumerate() {
            looks.push([asked[side].then_some(second), again[side].then_some(third)]);
        }
    }
    let all = looks.iter().map(|[second, third]| Looks { second: second.as_deref(), third: third.as_deref() });
    let all: Vec<Looks<'_>> = all.collect();
    let called: Vec<bool> = screened(&all).iter().map(|p| *p <= ERROR).collect();
    [called[..2].contains(&true), called[2..].contains(&true)]
}

/// Differences to both other commits: today's measurement, and so its noise, is in both. One in ten is an outlier.
fn look(random: &mut Random, count: usize, scatter: f64, effects: [f64; 2]) -> [Vec<f64>; 2] {
    let mut draw = || scatter * if random.below(10) == 0 { 4.0 } else { 1.0 } * random.normal();
    let mut diffs = [Vec::new(), Vec::new()];
    for _ in 0..count {
        let today = draw();
        for (diffs, effect) in diffs.iter_mut().zip(effects) {
            diffs.push(effect + today - draw());
        }
    }
    diffs
}
