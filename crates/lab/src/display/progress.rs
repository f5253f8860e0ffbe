//! The steps of an experiment as they are done, with the time that is left.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

const TEMPLATE: &str = "{prefix} [{bar:24}] {pos}/{len} {msg} ({elapsed} gone, {eta} left)";

/// Where steps are too different for a guess, and say themselves what time is left.
const TEMPLATE_UNEVEN: &str = "{prefix} [{bar:24}] {pos}/{len} {msg} ({elapsed} gone)";

/// Work that is mostly shorter than this, and is done many times over, is only shown from then on.
const QUIET: Duration = Duration::from_secs(2);

/// Rougher above, for the end of long work is not known to the second.
const SECONDS_SHOWN_MAX: f64 = 90.0;

/// How often the time is drawn anew between steps.
const TICK: Duration = Duration::from_millis(250);

/// How often a step that is still running is named again where there is no terminal: a build may take a quarter of an hour.
const REMINDER: Duration = Duration::from_secs(60);

/// Steps that wait for the thread that prints reminders.
const REMINDED_MAX: usize = 16;

/// An experiment of a number of steps that is known, but may grow.
///
/// On a terminal one line at the bottom, with notes scrolling above it; otherwise one line a step and a note, and a
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
    /// Lines, with the way to the thread that prints reminders, and whether the quiet time is over.
    Lines(SyncSender<String>, Arc<AtomicBool>),
}

impl Progress {
    /// Shown at once. `label` says what is done, `steps` how many there will be.
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

    /// Shown only after two seconds, if it is not done by then. Its steps are of any length and say what time is left.
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

    /// Begins the next step: what is being done now.
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

    /// A step comes on top of those that were announced.
    pub(crate) fn add_step(&mut self) {
        self.steps += 1;
        if let Display::Bar(bar) = &self.display {
            bar.set_length(self.steps);
        }
    }

    /// A line that stays, such as a result that is already known.
    pub(crate) fn note(&self, text: &str) {
        match &self.display {
            Display::Bar(bar) => bar.println(text),
            Display::Lines(..) => eprintln!("{text}"),
        }
    }

    /// All done: the line at the bottom goes.
    pub(crate) fn finish(self) {
        // Dropping does the rest.
        drop(self);
    }
}

impl Drop for Progress {
    /// Also where an error ends the work: its message must not stand behind half a line.
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

/// After the quiet time, if the bar is still there.
fn show_later(bar: &ProgressBar) {
    let bar = bar.downgrade();
    thread::spawn(move || {
        thread::sleep(QUIET);
        if let Some(bar) = bar.upgrade() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    });
}

/// Starts the thread that prints reminders, and before that what is done when a quiet time is over. It ends when the sender is
/// dropped.
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

/// The step that is under way when a quiet time is over, if one was begun. None where all is done before.
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

/// Names the latest step whenever no new one has come for so long. Returns when the sender is dropped.
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
