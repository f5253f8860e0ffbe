//! How many measurements a bisection takes, and how often its answer is right: ours compared with Pinpoint's method and
//! plain binary search, on the same planted commits; then whether stated probabilities hold.
//!
//! `cargo bench -p stillgate-stats --bench bisections`; further arguments are the runs of a row (200), the runs of the
//! calibration (1,000), and a filter on the names of rows, for example `Compilers`. `FIRST..LAST` instead of the runs
//! of the calibration selects a range of its seeds, so that it can be computed in pieces. The number of a run is its
//! seed, so equal arguments print equal figures. A bisection takes a tenth of a second.

#[path = "../tests/all/simulated/mod.rs"]
mod simulated;

use simulated::{
    NOISE, OF_STATES, Outcome, PlantedHistory, SCATTERS, Scatter, Tally, calibration, of_states, ours, pinpoint, plain,
};
use std::ops::Range;
use std::thread;

const CONFIDENCE: f64 = 0.95;

fn main() {
    let counts: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let runs = counts.first().copied().unwrap_or(200);
    let piece = std::env::args().skip(1).find_map(|word| range(&word));
    let calibrated = piece.clone().unwrap_or(0..counts.get(1).copied().unwrap_or(1000));
    let is_name = |word: &String| !word.starts_with('-') && word.parse::<u64>().is_err() && range(word).is_none();
    let wanted = std::env::args().skip(1).rfind(is_name).unwrap_or_default();
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
    if calibrated.is_empty() {
        return;
    }
    heading("sizes and places drawn");
    for (scatter, confidence) in [
        (Scatter::Normal, 0.95),
        (Scatter::Normal, 0.8),
        (Scatter::Heavy, 0.95),
        (Scatter::Drifting, 0.95),
        (Scatter::Bimodal, 0.95),
        (Scatter::Quiet, 0.95),
        (Scatter::Compilers, 0.95),
        (Scatter::Periodic(3), 0.95),
    ] {
        let name = format!("{scatter:?}, {confidence}");
        if name.contains(&wanted) {
            show(&name, &halves(calibrated.clone(), |seeds| calibration(scatter, confidence, seeds)));
        }
    }
    heading("states far apart");
    for scatter in OF_STATES {
        for (name, readings) in [(format!("{scatter:?}"), None), (format!("{scatter:?}, up to 400"), Some(400))] {
            // The longer ones run only where the filter selects them.
            let is_wanted = if readings.is_none() { name.contains(&wanted) } else { name == wanted };
            if is_wanted {
                show(&name, &halves(calibrated.clone(), |seeds| of_states(scatter, readings, seeds)));
            }
        }
    }
}

/// Parses a range, for example `250..500`.
fn range(word: &str) -> Option<Range<u64>> {
    let (first, last) = word.split_once("..")?;
    Some(first.parse().ok()?..last.parse().ok()?)
}

fn heading(name: &str) {
    println!(
        "\n{name:<28} {:>6} {:>6} {:>6} {:>7} {:>16} {:>9} {:>7} {:>7} {:>12}",
        "runs", "right", "wrong", "missed", "named of none", "undecided", "stated", "right", "sizes held"
    );
}

fn show(name: &str, tally: &Tally) {
    let Tally { runs, right, wrong, missed, invented, unchanged, sized, held: sizes, .. } = *tally;
    let [stated, held] = tally.of_decided();
    let undecided = tally.undecided();
    let (invented, sizes) = (format!("{invented} of {unchanged}"), format!("{sizes} of {sized}"));
    println!(
        "{name:<28} {runs:>6} {right:>6} {wrong:>6} {missed:>7} {invented:>16} {undecided:>9} {stated:>7.3} {held:>7.3} {sizes:>12}"
    );
}

/// Splits the work over two threads.
fn halves(seeds: Range<u64>, of: impl Fn(Range<u64>) -> Tally + Sync) -> Tally {
    let middle = seeds.start.midpoint(seeds.end);
    thread::scope(|scope| {
        let first = scope.spawn(|| of(seeds.start..middle));
        of(middle..seeds.end).plus(first.join().expect("it does not panic"))
    })
}

/// Prints nothing without runs.
fn row(
    name: &str,
    runs: u64,
    commits: usize,
    scatter: Scatter,
    bisect: impl Fn(&mut PlantedHistory) -> Outcome + Sync,
) {
    if runs == 0 {
        return;
    }
    let all = |seeds: std::ops::Range<u64>| -> Vec<(bool, bool, usize)> {
        seeds
            .map(|seed| {
                // Planted steps are spread evenly, and every other one goes down.
                let before = (seed as usize * 53) % commits;
                let size = if seed % 2 == 0 { NOISE } else { -NOISE };
                let mut planted = PlantedHistory::new(commits, Some((before, size)), scatter, seed);
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
