//! How many measurements a bisection takes, and how often its answer is right: ours beside Pinpoint's method and plain
//! binary search, on the same planted commits; then whether stated probabilities hold.
//!
//! `cargo bench -p stillgate-stats --bench bisections`; more words are the runs of a row (200), those of the calibration
//! (1,000; a quarter for all rows but the first), and what the name of a row must have in it, such as `Compilers`. Seeds are the
//! numbers of the runs, so the same words print the same figures. A bisection takes a third of a second.

#[path = "../tests/all/simulated/mod.rs"]
mod simulated;

use simulated::{NOISE, OF_STATES, Outcome, Planted, SCATTERS, Scatter, calibration, of_states, ours, pinpoint, plain};
use std::thread;

const CONFIDENCE: f64 = 0.95;

fn main() {
    let counts: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let runs = counts.first().copied().unwrap_or(200);
    let calibrated = counts.get(1).copied().unwrap_or(1000);
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-') && word.parse::<u64>().is_err());
    let wanted = words.next_back().unwrap_or_default();
    println!("{:<28} {:>6} {:>9} {:>8} {:>6}", "128 commits, a step of 3%", "right", "undecided", "median", "p90");
    let runs_of = |name: &str| if name.contains(&wanted) { runs } else { 0 };
    for scatter in SCATTERS {
        let runs = runs_of(&format!("{scatter:?}"));
        row(&format!("ours, {scatter:?}"), runs, 128, scatter, |planted| ours(planted, CONFIDENCE));
        row(&format!("Pinpoint, {scatter:?}"), runs, 128, scatter, pinpoint);
        row(&format!("plain search, {scatter:?}"), runs, 128, scatter, plain);
    }
    let name = "ours, 64 commits, Normal";
    row(name, runs_of(name), 64, Scatter::Normal, |planted| ours(planted, CONFIDENCE));
    let name = "ours, 64, 5 do not build";
    row(name, runs_of(name), 64, Scatter::Normal, |planted| {
        planted.surround();
        ours(planted, CONFIDENCE)
    });
    println!("\n{:<28} {:>6} {:>6} {:>9}", "sizes and places drawn", "stated", "right", "undecided");
    for (scatter, confidence, share) in [
        (Scatter::Normal, 0.95, 1),
        (Scatter::Normal, 0.8, 4),
        (Scatter::Heavy, 0.95, 4),
        (Scatter::Drifting, 0.95, 4),
        (Scatter::Bimodal, 0.95, 4),
        (Scatter::Quiet, 0.95, 4),
        (Scatter::Compilers, 0.95, 4),
    ] {
        let name = format!("{scatter:?}, {confidence}");
        if calibrated == 0 || !name.contains(&wanted) {
            continue;
        }
        let [stated, right, undecided] = halves(calibrated / share, |seeds| calibration(scatter, confidence, seeds));
        println!("{name:<28} {stated:>6.3} {right:>6.3} {undecided:>9.3}");
    }
    println!("\n{:<28} {:>6} {:>9}", "states far apart", "wrong", "undecided");
    for scatter in OF_STATES {
        let name = format!("{scatter:?}, 0.95");
        if calibrated > 0 && name.contains(&wanted) {
            let [wrong, undecided, _] = halves(calibrated / 4, |seeds| {
                let [wrong, undecided] = of_states(scatter, seeds);
                [wrong, undecided, 0.0]
            });
            println!("{name:<28} {wrong:>6.3} {undecided:>9.3}");
        }
    }
}

/// On two threads; the mean of both.
fn halves(runs: u64, of: impl Fn(std::ops::Range<u64>) -> [f64; 3] + Sync) -> [f64; 3] {
    let (a, b) = thread::scope(|scope| {
        let first = scope.spawn(|| of(0..runs / 2));
        let second = of(runs / 2..runs);
        (first.join().expect("it does not panic"), second)
    });
    [0, 1, 2].map(|index| f64::midpoint(a[index], b[index]))
}

/// Nothing where there are to be no runs.
fn row(name: &str, runs: u64, commits: usize, scatter: Scatter, bisect: impl Fn(&mut Planted) -> Outcome + Sync) {
    if runs == 0 {
        return;
    }
    let all = |seeds: std::ops::Range<u64>| -> Vec<(bool, bool, usize)> {
        seeds
            .map(|seed| {
                // Places spread evenly, and every other step goes down.
                let before = (seed as usize * 53) % commits;
                let size = if seed % 2 == 0 { NOISE } else { -NOISE };
                let mut planted = Planted::new(commits, Some((before, size)), scatter, seed);
                let outcome = bisect(&mut planted);
                (outcome.is_right(&planted), outcome.said.is_none(), outcome.readings)
            })
            .collect()
    };
    let mut outcomes = thread::scope(|scope| {
        let first = scope.spawn(|| all(0..runs / 2));
        let mut second = all(runs / 2..runs);
        second.extend(first.join().expect("it does not panic"));
        second
    });
    outcomes.sort_unstable_by_key(|(.., readings)| *readings);
    let share = |count: usize| count as f64 / outcomes.len() as f64;
    let right = share(outcomes.iter().filter(|outcome| outcome.0).count());
    let undecided = share(outcomes.iter().filter(|outcome| outcome.1).count());
    let (median, most) = (outcomes[outcomes.len() / 2].2, outcomes[outcomes.len() * 9 / 10].2);
    println!("{name:<28} {right:>6.3} {undecided:>9.3} {median:>8} {most:>6}");
}
