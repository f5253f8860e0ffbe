//! The table that all parts print to, and the clock that they read.

use crate::library::NAMES;
use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `work` and returns the CPU time that it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let start = cpu_ns();
    let result = work();
    (cpu_ns() - start, result)
}

pub fn head() {
    row_of("", &NAMES.map(str::to_owned), "target", "Stillgate to the best peer");
    rule();
}

/// Begins a group of rows.
pub fn title(text: &str) {
    row_of(&format!("**{text}**"), &[const { String::new() }; 4], "", "");
}

/// A row of measurements: for each library, in the order of [`NAMES`], the samples of all rounds.
pub fn row(what: &str, samples: &[Vec<f64>; 4], target: Option<f64>) {
    let cells = [0, 1, 2, 3].map(|library| match &samples[library][..] {
        [] => "-".to_owned(),
        [one] => figure(*one),
        all => format!("{} ({})", figure(median(all)), figure(least(all))),
    });
    let best = samples[1..].iter().filter(|rounds| !rounds.is_empty()).map(|rounds| median(rounds));
    let best = best.fold(f64::INFINITY, f64::min);
    let ours = median(&samples[0]);
    let ratio =
        if best.is_finite() && ours > 0.0 { format!("{} times less", figure(best / ours)) } else { String::new() };
    let target = target.map_or_else(String::new, |target| match least(&samples[0]) <= target {
        true => format!("<= {}", figure(target)),
        false => format!("<= {} MISSED", figure(target)),
    });
    row_of(what, &cells, &target, &ratio);
}

/// A remark below the rows.
pub fn note(text: &str) {
    println!("<!-- {text} -->");
}

pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

pub fn least(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Prints about three significant digits.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.3}M", v / 1e6),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn row_of(what: &str, cells: &[String; 4], target: &str, ratio: &str) {
    print!("| {what:58} |");
    for cell in cells {
        print!(" {cell:>18} |");
    }
    println!(" {target:14} | {ratio:26} |");
}

fn rule() {
    println!("|{}|{}{}|{}|", "-".repeat(60), format!("{}:|", "-".repeat(19)).repeat(4), "-".repeat(16), "-".repeat(28));
}
