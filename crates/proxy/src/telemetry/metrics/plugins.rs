//! What a worker reports about plugins: how long their calls take, what they answer, and that they panic.
//!
//! Calls are timed for few requests, and answers and panics end one; so series are looked up each time, which allocates nothing for
//! a known one.

use super::Recorder;
use super::gauges::labelled;
use crate::plan::metrics::MetricsPlan;
use std::io::Write;
use std::time::Duration;
use stillgate_config::Measure;
use stillgate_plugin::Phase;

/// Maximum length of a status as text.
const STATUS_BYTES_MAX: usize = 5;

impl Recorder {
    /// Records how long a call of a plugin took.
    pub(crate) fn observe_plugin(&mut self, metrics: &MetricsPlan, plugin: &str, phase: Phase, took: Duration) {
        let Some(family) = metrics.family(Measure::PluginDuration) else { return };
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), phase.name().as_bytes()]);
        // Refused only if there was no memory for the series, which the writer has counted; as below.
        let _ = self.writer.observe(handle, took.as_secs_f64());
    }

    /// Counts a plugin's answer to a request.
    pub(crate) fn count_plugin_answer(&mut self, metrics: &MetricsPlan, plugin: &str, status: u16) {
        let Some(family) = metrics.family(Measure::PluginAnswers) else { return };
        let mut text = [0; STATUS_BYTES_MAX];
        let mut rest = &mut text[..];
        write!(rest, "{status}").expect("every u16 fits");
        let length = STATUS_BYTES_MAX - rest.len();
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), &text[..length]]);
        let _ = self.writer.add(handle, 1);
    }

    /// Counts a plugin that has added more to a head than it may.
    pub(crate) fn count_refused_head(&mut self, metrics: &MetricsPlan, plugin: &str) {
        let Some(family) = metrics.family(Measure::PluginHeadsRefused) else { return };
        let handle = labelled(&mut self.writer, family, plugin);
        let _ = self.writer.add(handle, 1);
    }

    /// Counts a body that a plugin's filter has refused.
    pub(crate) fn count_refused_body(&mut self, metrics: &MetricsPlan, plugin: &str, reason: &str) {
        let Some(family) = metrics.family(Measure::PluginBodiesRefused) else { return };
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), reason.as_bytes()]);
        let _ = self.writer.add(handle, 1);
    }

    /// Counts a panic of a plugin.
    pub(crate) fn count_plugin_panic(&mut self, metrics: &MetricsPlan, plugin: &str) {
        self.count_plugin(metrics, Measure::PluginPanics, plugin);
    }

    /// Counts an event whose only label is a plugin's name.
    pub(crate) fn count_plugin(&mut self, metrics: &MetricsPlan, measure: Measure, plugin: &str) {
        let Some(family) = metrics.family(measure) else { return };
        let handle = labelled(&mut self.writer, family, plugin);
        let _ = self.writer.add(handle, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stillgate_metrics::encode::Format;
    use stillgate_metrics::{Collector, CollectorOptions, Registry, RegistryOptions, SegmentProcess};

    #[test]
    fn plugins_are_reported_by_name() {
        let text = "gateway: {metrics: {address: \"127.0.0.1:1\"}}";
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let options = RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_000, 7);
        let registry = Arc::new(Registry::start(options).unwrap());
        let metrics = MetricsPlan::new(config.gateway.metrics.as_ref().unwrap(), &registry).unwrap();
        let mut recorder = Recorder::new(registry.writer().unwrap(), 0);
        recorder.count_plugin_panic(&metrics, "cors");
        recorder.count_plugin_panic(&metrics, "cors");
        recorder.count_refused_head(&metrics, "cors");
        recorder.count_refused_body(&metrics, "response-rewrite", "time");
        recorder.count_plugin_answer(&metrics, "cors", 65_535);
        recorder.count_plugin_answer(&metrics, "key-auth", 401);
        recorder.observe_plugin(&metrics, "cors", Phase::HeaderFilter, Duration::from_micros(3));
        recorder.tick(2_000, None, &[], &Default::default(), false);
        let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        collector.refresh(2_000).unwrap();
        let mut cursor = collector.cursor(Format::Text, false, None);
        let mut text = Vec::new();
        while let Some(piece) = collector.next(&mut cursor) {
            text.extend_from_slice(piece.as_ref());
        }
        let text = String::from_utf8(text).unwrap();
        for line in [
            "stillgate_plugin_panics_total{plugin=\"cors\"} 2",
            "stillgate_plugin_heads_refused_total{plugin=\"cors\"} 1",
            "stillgate_plugin_bodies_refused_total{plugin=\"response-rewrite\",reason=\"time\"} 1",
            "stillgate_plugin_answers_total{plugin=\"cors\",code=\"65535\"} 1",
            "stillgate_plugin_answers_total{plugin=\"key-auth\",code=\"401\"} 1",
            "stillgate_plugin_seconds_bucket{plugin=\"cors\",phase=\"header_filter\",le=\"2.5e-06\"} 0",
            "stillgate_plugin_seconds_bucket{plugin=\"cors\",phase=\"header_filter\",le=\"5e-06\"} 1",
            "stillgate_plugin_seconds_count{plugin=\"cors\",phase=\"header_filter\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
