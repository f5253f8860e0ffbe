//! What is known so far, while a bisection goes on: bars on a terminal, otherwise a line a measurement.

use super::words::probability;
use crate::git::short;
use crate::result::bisect::BisectResult;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

/// Commits with a bar.
const BARS_MAX: usize = 8;

/// Characters of a full bar.
const BAR_WIDTH: usize = 30;

/// How often the time is drawn anew.
const TICK: Duration = Duration::from_millis(250);

/// A bisection under way.
pub(crate) struct Display {
    /// None where standard error is no terminal.
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

    /// What is done now, with what is known.
    pub(crate) fn doing(&self, what: &str, result: &BisectResult) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}{what}", bars(result)));
        }
    }

    /// A line that stays.
    pub(crate) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// A measurement, where there are no bars.
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

/// The likeliest commits in their order, and what speaks against any.
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
