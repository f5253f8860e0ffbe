//! The steps of an experiment as they are done, with the time that is left.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

const TEMPLATE: &str = "{prefix} [{bar:24}] {pos}/{len} {msg} ({elapsed} gone, {eta} left)";

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
    /// Lines, with the way to the thread that prints reminders.
    Lines(SyncSender<String>),
}

impl Progress {
    /// Shown at once. `label` says what is done, `steps` how many there will be.
    pub(crate) fn new(label: &str, steps: u64) -> Progress {
        let begun = Instant::now();
        let display = match std::io::stderr().is_terminal() {
            true => Display::Bar(bar(label, steps)),
            false => Display::Lines(reminded(label.to_owned(), begun)),
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
            Display::Lines(reminded) => {
                let gone_s = self.begun.elapsed().as_secs();
                eprintln!("{}: {}/{} {text} ({gone_s} s gone)", self.label, self.done.min(self.steps), self.steps);
                // The thread runs until this sender is dropped. If it lags behind, further steps are skipped.
                let _ = reminded.try_send(text.to_owned());
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
            Display::Lines(_) => eprintln!("{text}"),
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

fn bar(label: &str, steps: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(TEMPLATE).expect("a constant template, tried by a test");
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}

/// Starts the thread that prints reminders. It ends when the sender is dropped.
fn reminded(label: String, begun: Instant) -> SyncSender<String> {
    let (sender, steps) = sync_channel(REMINDED_MAX);
    thread::spawn(move || {
        remind(REMINDER, &steps, |text| {
            eprintln!("{label}: still at {text} ({} s gone)", begun.elapsed().as_secs());
        });
    });
    sender
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
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
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
