//! What a worker tells of plugins: how long their calls take, what they answer, and that they panic.
//!
//! Calls are timed in few requests, and answers and panics end one; so series are looked up each time, which allocates nothing
//! for one that is known.

use super::Recorder;
use super::gauges::labelled;
use crate::plan::metrics::MetricsPlan;
use std::io::Write;
use std::time::Duration;
use stillgate_config::Measure;
use stillgate_plugin::Phase;

/// The most that a status takes to write.
const STATUS_BYTES_MAX: usize = 5;

impl Recorder {
    /// A call of a plugin took so long.
    pub(crate) fn observe_plugin(&mut self, metrics: &MetricsPlan, plugin: &str, phase: Phase, took: Duration) {
        let Some(family) = metrics.family(Measure::PluginDuration) else { return };
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), phase.name().as_bytes()]);
        // Refused only where there was no memory for the series, and that the writer has counted; as below.
        let _ = self.writer.observe(handle, took.as_secs_f64());
    }

    /// A plugin has answered a request.
    pub(crate) fn count_plugin_answer(&mut self, metrics: &MetricsPlan, plugin: &str, status: u16) {
        let Some(family) = metrics.family(Measure::PluginAnswers) else { return };
        let mut text = [0; STATUS_BYTES_MAX];
        let mut rest = &mut text[..];
        write!(rest, "{status}").expect("every u16 fits");
        let length = STATUS_BYTES_MAX - rest.len();
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), &text[..length]]);
        let _ = self.writer.add(handle, 1);
    }

    /// A call of a plugin has panicked.
    pub(crate) fn count_plugin_panic(&mut self, metrics: &MetricsPlan, plugin: &str) {
        let Some(family) = metrics.family(Measure::PluginPanics) else { return };
        let handle = labelled(&mut self.writer, family, plugin);
        let _ = self.writer.add(handle, 1);
    }
}
