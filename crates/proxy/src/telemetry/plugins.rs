//! What plugins cost a worker, and how often they failed.
//!
//! Counted by a plugin's place in the table of plugins. Nothing shows it yet: it is kept here for the metrics to read.

use std::cell::RefCell;
use std::time::Duration;
use stillgate_plugin::Phase;

/// The counts of one worker.
#[derive(Default)]
pub(crate) struct PluginTally(RefCell<Vec<OfPlugin>>);

/// The counts of one plugin.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct OfPlugin {
    /// Calls that panicked.
    pub(crate) panics: u64,
    /// By phase: calls that were timed, and how long they took.
    pub(crate) timed: [(u64, Duration); Phase::ALL.len()],
}

impl PluginTally {
    /// A call was timed.
    pub(crate) fn timed(&self, plugin: u16, phase: Phase, time: Duration) {
        self.with(plugin, |of| {
            let (calls, all) = &mut of.timed[phase as usize];
            *calls += 1;
            *all += time;
        });
    }

    /// A call has panicked.
    pub(crate) fn panicked(&self, plugin: u16) {
        self.with(plugin, |of| of.panics += 1);
    }

    fn with(&self, plugin: u16, then: impl FnOnce(&mut OfPlugin)) {
        let mut counts = self.0.borrow_mut();
        let at = usize::from(plugin);
        if counts.len() <= at {
            counts.resize(at + 1, OfPlugin::default());
        }
        then(&mut counts[at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_plugins_and_phases() {
        let tally = PluginTally::default();
        tally.panicked(2);
        tally.timed(2, Phase::Log, Duration::from_micros(3));
        tally.timed(2, Phase::Log, Duration::from_micros(4));
        let counts = tally.0.borrow();
        assert_eq!((counts.len(), counts[2].panics, counts[1].panics), (3, 1, 0));
        assert_eq!(counts[2].timed[Phase::Log as usize], (2, Duration::from_micros(7)));
    }
}
