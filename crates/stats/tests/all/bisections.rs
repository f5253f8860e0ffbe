//! Planted bisections, a few of those that `cargo bench -p stillgate-stats --bench bisections` runs.

use crate::simulated::{NOISE, OF_STATES, Planted, Scatter, calibration, of_states, ours, search};
use stillgate_stats::Conclusion;

#[test]
fn a_step_as_large_as_the_noise_is_found_among_128_commits() {
    let runs = 24;
    let (mut right, mut readings) = (0, 0);
    for seed in 0..runs {
        let mut planted = Planted::new(128, Some((seed as usize * 5 + 2, NOISE)), Scatter::Normal, 1000 + seed);
        let outcome = ours(&mut planted, 0.95);
        right += u64::from(outcome.is_right(&planted));
        readings += outcome.readings;
    }
    // 96% of 24 are 23; fewer than 20 would come up once in a thousand times.
    assert!(right >= 20, "{right} of {runs} right");
    assert!(readings / (runs as usize) < 200, "{readings} readings in all");
}

/// A state that lasts for some runs, or comes by chance, is neither a step nor an outlier that could be left out: what is said of it is
/// right, or nothing is said.
#[test]
fn states_far_apart_are_not_taken_for_steps() {
    let runs = 15;
    for scatter in OF_STATES {
        let [wrong, _] = of_states(scatter, 0..runs);
        // Of 15 with an error of 5%; more than three have a probability of 0.6%.
        assert!(wrong * runs as f64 <= 3.0, "{scatter:?}: {wrong}");
    }
}

#[test]
fn a_state_that_most_runs_have_from_one_commit_on_is_found() {
    let runs = 12;
    let mut right = 0;
    for seed in 0..runs {
        let before = (seed as usize * 7 + 3) % 32;
        let mut planted = Planted::new(32, Some((before, 0.0)), Scatter::MoreOften, 5000 + seed);
        right += u64::from(ours(&mut planted, 0.95).is_right(&planted));
    }
    assert!(right >= 8, "{right} of {runs} right");
}

#[test]
fn two_steps_are_both_named() {
    let runs = 12;
    let tables = [
        ([(4, NOISE), (20, NOISE)], None),
        ([(9, NOISE), (20, -1.5 * NOISE)], None),
        // Where a commit cannot be built, the step next to it may be on either side of it.
        ([(9, NOISE), (20, NOISE)], Some(21)),
        ([(9, NOISE), (20, -1.5 * NOISE)], Some(9)),
    ];
    let (mut both, mut named, mut right) = (0, 0, 0);
    for (planted_steps, unbuildable) in tables {
        let range = |before: usize| match unbuildable {
            Some(missing) if missing == before => (before - 1, before + 1),
            Some(missing) if missing == before + 1 => (before, before + 2),
            _ => (before, before + 1),
        };
        for seed in 0..runs {
            let mut planted = Planted::new(32, planted_steps, Scatter::Normal, 3000 + seed);
            planted.unbuildable = unbuildable.into_iter().collect();
            let (known, said, _) = search(&mut planted, 0.95);
            let Conclusion::Found(found) = said else { panic!("{planted_steps:?}, {seed}: {said:?}") };
            // Where it is, and whether it goes up.
            let is_right = |found: &(usize, usize)| {
                let size = known.size(found.0, 0.95).unwrap().value;
                planted_steps.iter().any(|(before, planted)| *found == range(*before) && size * planted > 0.0)
            };
            let count = found.iter().filter(|range| is_right(range)).count();
            (named, right, both) = (named + found.len(), right + count, both + usize::from(count == 2));
        }
    }
    // Named with 95%, of which 90 or so are named: fewer would come up once in forty times.
    assert!(right * 10 >= named * 9, "{right} of {named} are steps");
    // Of 48. The prior holds two for unlikely, and sometimes the second hides for long.
    assert!(both >= 32, "both named in {both} runs");
}

#[test]
fn stated_probabilities_hold() {
    for scatter in [Scatter::Normal, Scatter::Compilers] {
        let [stated, right, undecided] = calibration(scatter, 0.8, 0..60);
        // Three and a half standard deviations of 60 draws.
        assert!((stated - right).abs() < 0.16 && undecided < 0.05, "{scatter:?}: {stated} {right} {undecided}");
    }
}
