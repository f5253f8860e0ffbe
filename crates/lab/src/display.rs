//! Progress of long operations on standard error: live lines on a terminal, plain ones otherwise.
//!
//! Nothing here goes to standard output, which is for results. The steps of an experiment are shown as they are
//! completed, with the time left.

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_load::plan::DURATION_UNBOUNDED;
use stillgate_load::present;
use stillgate_load::{Interval, Load, Pace, Protocol, outcome};

// The display of a running load.
//
// On a terminal there are three live lines: the current activity with the time left, the last interval, and the
// totals. Otherwise one line per interval.

/// The display; the terminal is cleared when it is dropped.
#[derive(Debug)]
pub(crate) struct LoadDisplay {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
    /// Corrected latencies so far.
    total: Histogram<u64>,
    requests: u64,
    errors: u64,
    /// Set if requests are counted and not time.
    requests_max: Option<u64>,
}

const TEMPLATE_OF_STEPS: &str = "{prefix} [{bar:24}] {msg}";

impl LoadDisplay {
    pub(crate) fn new(load: &Load) -> LoadDisplay {
        let bar = std::io::stderr().is_terminal().then(|| {
            let length = load.requests.unwrap_or(milliseconds(load.duration));
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(TEMPLATE_OF_STEPS).expect("a constant template, tried by a test");
            bar.set_style(style.progress_chars("=> "));
            bar.set_prefix(present::shortened(&load.target.url).into_owned());
            bar
        });
        match &bar {
            Some(bar) => bar.set_message(beginning(load)),
            None => eprintln!("{}: {}", present::shortened(&load.target.url), beginning(load)),
        }
        LoadDisplay { bar, total: outcome::histogram(), requests: 0, errors: 0, requests_max: load.requests }
    }

    /// Shows the next interval.
    pub(crate) fn show(&mut self, interval: &Interval<'_>) {
        let end = interval.start + interval.length;
        let latencies = &interval.latencies.corrected;
        self.requests += interval.requests;
        self.errors += interval.errors;
        if self.bar.is_some() && self.total.add(latencies).is_err() {
            debug_assert!(false, "all histograms have the same bounds");
        }
        let last = figures(interval.requests, interval.errors, interval.length, latencies);
        match &self.bar {
            Some(bar) => {
                let total = figures(self.requests, self.errors, end, &self.total);
                let (done, left) = match self.requests_max {
                    Some(max) => (self.requests, format!("{} requests", max.saturating_sub(self.requests))),
                    None => {
                        let left = interval.of.saturating_sub(end);
                        (milliseconds(end), format!("{} s", left.as_secs_f64().round()))
                    }
                };
                bar.set_position(done);
                bar.set_message(format!("{left} left\n  now    {last}\n  so far {total}"));
            }
            None => eprintln!("{:>6.1} s  {last}", end.as_secs_f64()),
        }
    }
}

impl Drop for LoadDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The announcement of the run.
fn beginning(load: &Load) -> String {
    let pace = match load.pace {
        Pace::Closed => "as fast as it answers".to_owned(),
        Pace::Open(schedule) if schedule.rate == schedule.rate_end => format!("{} requests/s", schedule.rate),
        Pace::Open(schedule) => format!("{} to {} requests/s", schedule.rate, schedule.rate_end),
    };
    let warm_up = match load.warm_up.is_zero() {
        true => String::new(),
        false => format!(" after {:?} of warm-up", load.warm_up),
    };
    let length = match load.requests {
        Some(requests) => format!("{requests} requests, "),
        None => String::new(),
    };
    let time = if load.duration < DURATION_UNBOUNDED { format!(" for {:?}", load.duration) } else { String::new() };
    let streams = match load.protocol {
        Protocol::Http1 => String::new(),
        Protocol::Http2 { streams } => format!(" of HTTP/2, streams on each: {streams}"),
    };
    let Load { connections, threads, .. } = load;
    format!("{length}{pace}{time}{warm_up}, connections: {connections}{streams}, threads: {threads}")
}

/// `  19998/s  p50 1.20 ms  p99 3.40 ms  max 8.10 ms  0 errors`
fn figures(requests: u64, errors: u64, time: Duration, latencies: &Histogram<u64>) -> String {
    let rate = requests as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
    let quantile = |share| present::latency(latencies.value_at_quantile(share));
    format!(
        "{rate:>9.0}/s  p50 {:>8}  p99 {:>8}  max {:>8}  {errors} errors",
        quantile(0.5),
        quantile(0.99),
        present::latency(latencies.max())
    )
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const TEMPLATE: &str = "{prefix} [{bar:24}] {pos}/{len} {msg} ({elapsed} gone, {eta} left)";

/// For steps too different for an estimate; their texts contain the time left.
const TEMPLATE_UNEVEN: &str = "{prefix} [{bar:24}] {pos}/{len} {msg} ({elapsed} gone)";

/// Work that is mostly shorter than this, and is done many times, is shown only after this time.
const QUIET: Duration = Duration::from_secs(2);

/// Rougher above this, because the end of long work is not known to the second.
const SECONDS_SHOWN_MAX: f64 = 90.0;

/// How often the elapsed time is redrawn between steps.
const TICK: Duration = Duration::from_millis(250);

/// How often a running step is printed again without a terminal: a build may take a quarter of an hour.
const REMINDER: Duration = Duration::from_secs(60);

/// Steps queued for the thread that prints reminders.
const REMINDED_MAX: usize = 16;

/// An experiment with a known number of steps, which may grow.
///
/// On a terminal one line at the bottom, with notes scrolling above it; otherwise one line per step and per note, and a
/// reminder each minute.
#[derive(Debug)]
pub(crate) struct Progress {
    label: String,
    steps: u64,
    done: u64,
    begun: Instant,
    display: Display,
}

#[derive(Debug)]
enum Display {
    /// On a terminal.
    Bar(ProgressBar),
    /// Lines, with the channel to the thread that prints reminders, and whether the quiet time is over.
    Lines(SyncSender<String>, Arc<AtomicBool>),
}

impl Progress {
    /// Shown at once. `label` names the work, `steps` is its number of steps.
    pub(crate) fn new(label: &str, steps: u64) -> Progress {
        let begun = Instant::now();
        let display = match std::io::stderr().is_terminal() {
            true => Display::Bar(bar(steps, label, TEMPLATE, ProgressDrawTarget::stderr())),
            false => {
                let is_shown = Arc::new(AtomicBool::new(true));
                Display::Lines(reminded(label.to_owned(), begun, None, is_shown.clone()), is_shown)
            }
        };
        Progress { label: label.to_owned(), steps, done: 0, begun, display }
    }

    /// Shown only after two seconds, unless it is done by then. Its steps may have any length and contain the time
    /// left.
    pub(crate) fn late(label: &str, steps: u64) -> Progress {
        let begun = Instant::now();
        let display = match std::io::stderr().is_terminal() {
            true => {
                let bar = bar(steps, label, TEMPLATE_UNEVEN, ProgressDrawTarget::hidden());
                show_later(&bar);
                Display::Bar(bar)
            }
            false => {
                let is_shown = Arc::new(AtomicBool::new(false));
                Display::Lines(reminded(label.to_owned(), begun, Some(begun + QUIET), is_shown.clone()), is_shown)
            }
        };
        Progress { label: label.to_owned(), steps, done: 0, begun, display }
    }

    /// Begins the next step, with its description.
    pub(crate) fn step(&mut self, text: &str) {
        let before = self.done.min(self.steps);
        self.done += 1;
        match &self.display {
            Display::Bar(bar) => {
                bar.set_position(before);
                bar.set_message(text.to_owned());
            }
            Display::Lines(reminded, is_shown) => {
                let step = format!("{}/{} {text}", self.done.min(self.steps), self.steps);
                if is_shown.load(Ordering::Relaxed) {
                    show(&self.label, &step, self.begun);
                }
                // The thread runs until this sender is dropped. If it lags behind, further steps are skipped.
                let _ = reminded.try_send(step);
            }
        }
    }

    /// Adds a step to those that were announced.
    pub(crate) fn add_step(&mut self) {
        self.steps += 1;
        if let Display::Bar(bar) = &self.display {
            bar.set_length(self.steps);
        }
    }

    /// Prints a line that stays, for example a result that is already known.
    pub(crate) fn note(&self, text: &str) {
        match &self.display {
            Display::Bar(bar) => bar.println(text),
            Display::Lines(..) => eprintln!("{text}"),
        }
    }

    /// Ends the display: the line at the bottom disappears.
    pub(crate) fn finish(self) {
        // Dropping does the rest.
        drop(self);
    }
}

impl Drop for Progress {
    /// Also if an error ends the work: its message must not follow half a line.
    fn drop(&mut self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }
}

/// `12 s`, `5 min`.
pub(crate) fn rough(seconds: f64) -> String {
    if seconds < SECONDS_SHOWN_MAX { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

fn show(label: &str, step: &str, begun: Instant) {
    eprintln!("{label}: {step} ({} s gone)", begun.elapsed().as_secs());
}

fn bar(steps: u64, label: &str, template: &str, target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), target);
    let style = ProgressStyle::with_template(template).expect("a constant template, tried by a test");
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}

/// Shows the bar after the quiet time, if it still exists.
fn show_later(bar: &ProgressBar) {
    let bar = bar.downgrade();
    thread::spawn(move || {
        thread::sleep(QUIET);
        if let Some(bar) = bar.upgrade() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    });
}

/// Starts the thread that prints reminders, and that shows the current step when the quiet time is over. It ends when
/// the sender is dropped.
fn reminded(
    label: String,
    begun: Instant,
    quiet_until: Option<Instant>,
    is_shown: Arc<AtomicBool>,
) -> SyncSender<String> {
    let (sender, steps) = sync_channel(REMINDED_MAX);
    thread::spawn(move || {
        if let Some(until) = quiet_until {
            let Some(latest) = quiet(until, &steps) else { return };
            is_shown.store(true, Ordering::Relaxed);
            latest.iter().for_each(|step| show(&label, step, begun));
        }
        remind(REMINDER, &steps, |text| {
            eprintln!("{label}: still at {text} ({} s gone)", begun.elapsed().as_secs());
        });
    });
    sender
}

/// The current step at the end of the quiet time, if one was begun. `None` if everything is done before.
fn quiet(until: Instant, steps: &Receiver<String>) -> Option<Option<String>> {
    let mut latest = None;
    loop {
        match steps.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(step) => latest = Some(step),
            Err(RecvTimeoutError::Timeout) => return Some(latest),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Repeats the latest step whenever no new one has come for this long. Returns when the sender is dropped.
fn remind(every: Duration, steps: &Receiver<String>, mut say: impl FnMut(&str)) {
    let mut latest = None;
    loop {
        match steps.recv_timeout(every) {
            Ok(step) => latest = Some(step),
            Err(RecvTimeoutError::Timeout) => latest.as_deref().into_iter().for_each(&mut say),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_of_steps_is_one() {
        assert!(ProgressStyle::with_template(TEMPLATE_OF_STEPS).is_ok());
    }

    #[test]
    fn the_template_is_one() {
        assert!([TEMPLATE, TEMPLATE_UNEVEN].iter().all(|template| ProgressStyle::with_template(template).is_ok()));
    }

    #[test]
    fn a_quiet_time_ends_with_the_latest_step_or_the_work() {
        let (sender, steps) = sync_channel(REMINDED_MAX);
        let now = Instant::now();
        assert_eq!(quiet(now, &steps), Some(None));
        sender.send("a".to_owned()).unwrap();
        sender.send("b".to_owned()).unwrap();
        assert_eq!(quiet(now + Duration::from_millis(20), &steps), Some(Some("b".to_owned())));
        drop(sender);
        assert_eq!(quiet(now + Duration::from_secs(600), &steps), None);
    }

    #[test]
    fn a_step_that_goes_on_is_named_again() {
        let (sender, steps) = sync_channel(REMINDED_MAX);
        for step in ["build a", "build b"] {
            sender.send(step.to_owned()).unwrap();
        }
        let mut sender = Some(sender);
        let mut said = Vec::new();
        remind(Duration::from_millis(1), &steps, |text| {
            said.push(text.to_owned());
            if said.len() == 2 {
                sender = None;
            }
        });
        assert!(said.len() >= 2 && said.iter().all(|text| text == "build b"), "{said:?}");
    }

    #[test]
    fn more_steps_than_announced_do_no_harm() {
        let mut progress = Progress::new("test", 1);
        progress.step("one");
        progress.step("two");
        progress.add_step();
        assert_eq!(progress.steps, 2);
        progress.note("noted");
        progress.finish();
    }
}
