//! The state of a running bisection: bars on a terminal, otherwise a line per measurement.

use super::words::probability;
use crate::display::rough;
use crate::git::short;
use crate::result::bisect::BisectResult;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

/// Number of commits with a bar.
const BARS_MAX: usize = 8;

/// Characters of a full bar.
const BAR_WIDTH: usize = 30;

/// From this many measurements on, the remaining number is shown, if it is small enough to be credible.
const MEASUREMENTS_TOLD_MIN: usize = 12;
const NEEDED_SHOWN_MAX: f64 = 2000.0;

/// How often the elapsed time is redrawn.
const TICK: Duration = Duration::from_millis(250);

/// The display of a running bisection.
pub(crate) struct Display {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
}

impl Display {
    pub(crate) fn new() -> Display {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template("{msg}\n({elapsed} elapsed)").expect("a constant template"));
            bar.enable_steady_tick(TICK);
            bar
        });
        Display { bar }
    }

    /// Shows the current activity and the current belief.
    pub(crate) fn doing(&self, what: &str, result: &BisectResult) {
        if let Some(bar) = &self.bar {
            let answer = &result.answer;
            let beliefs: Vec<f64> = answer.posterior.values().copied().chain([answer.none, answer.several]).collect();
            let seconds = result.tries.iter().map(|tried| tried.seconds).sum();
            let left = left(&beliefs, answer.measurements, seconds, result.design.confidence);
            let left = left.map(|left| format!("; {left}")).unwrap_or_default();
            bar.set_message(format!("{}{what}{left}", bars(result)));
        }
    }

    /// Prints a line that stays.
    pub(crate) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Prints a measurement if bars are not shown.
    pub(crate) fn measured(&self, text: &str) {
        if self.bar.is_none() {
            eprintln!("{text}");
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How many more measurements are needed, and how long they take, if each is as informative as those so far: from the
/// progress of the posterior's entropy between its first value and that of an answer. `None` while there is too little
/// to extrapolate.
fn left(beliefs: &[f64], measurements: usize, seconds: f64, confidence: f64) -> Option<String> {
    let entropy = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    let now: f64 = beliefs.iter().map(|p| entropy(*p)).sum();
    let first = (beliefs.len().max(2) as f64).ln();
    let (said, measured) = (first - now, measurements as f64);
    if measurements < MEASUREMENTS_TOLD_MIN || said <= 0.0 {
        return None;
    }
    let doubt = 1.0 - confidence;
    let wanted = entropy(confidence) + entropy(doubt) + doubt * first;
    let needed = ((now - wanted).max(0.0) / said * measured).ceil().max(1.0);
    if needed > NEEDED_SHOWN_MAX {
        return None;
    }
    Some(format!("about {needed} more, {}", rough(seconds / measured * needed)))
}

/// The likeliest commits in their order, and the probability of no change.
pub(super) fn bars(result: &BisectResult) -> String {
    let answer = &result.answer;
    let of = |commit: &str| answer.posterior.get(commit).copied().unwrap_or(0.0);
    let mut places: Vec<usize> = (1..result.commits.len()).collect();
    places.sort_by(|a, b| of(&result.commits[*b].commit).total_cmp(&of(&result.commits[*a].commit)));
    places.truncate(BARS_MAX);
    places.sort_unstable();
    let mut out = String::new();
    let mut line = |name: &str, p: f64, more: &str| {
        let filled = (p.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(filled), "·".repeat(BAR_WIDTH - filled));
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "{name:<12} {bar} {:>10}  {more}", probability(p));
    };
    if !answer.posterior.is_empty() {
        for record in places.iter().map(|place| &result.commits[*place]) {
            line(short(&record.commit), of(&record.commit), &record.subject);
        }
        line("no change", answer.none, "");
        line("several", answer.several, "");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_learned() {
        let check = |sure: f64, measurements: usize, expected: Option<&str>| {
            let mut beliefs = vec![(1.0 - sure) / 63.0; 63];
            beliefs.push(sure);
            let said = left(&beliefs, measurements, 2.0 * measurements as f64, 0.95);
            assert_eq!(said.as_deref(), expected, "{sure} {measurements}");
        };
        check(0.5, 6, None);
        // All are as likely as at the start.
        check(1.0 / 64.0, 20, None);
        check(0.95, 20, Some("about 1 more, 2 s"));
        // A third of the way is done: 1.4 of 4.2, and 0.4 may remain.
        check(0.5, 40, Some("about 68 more, 2 min"));
    }
}
