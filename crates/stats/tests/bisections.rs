//! Planted bisections, a few of those that `cargo bench -p stillgate-stats --bench bisections` runs.

#![allow(clippy::unwrap_used)]

mod simulated;

use simulated::{NOISE, Planted, Scatter, calibration, ours};

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

#[test]
fn stated_probabilities_hold() {
    for scatter in [Scatter::Normal, Scatter::Compilers] {
        let [stated, right, undecided] = calibration(scatter, 0.8, 0..60);
        // Three and a half standard deviations of 60 draws.
        assert!((stated - right).abs() < 0.16 && undecided < 0.05, "{scatter:?}: {stated} {right} {undecided}");
    }
}
