//! What a worker reports about upstreams in addition to their requests: retries, what is shed or waits, new connections.
//!
//! All of it is rare compared with requests, or costs far more than looking at the labels; so its series are looked up each time,
//! which allocates nothing for one that is known.

use super::Recorder;
use super::gauges::labelled;
use crate::plan::metrics::MetricsPlan;
use crate::plan::snapshot::WorkerUpstream;
use stillgate_config::{Measure, Upstream};
use stillgate_metrics::{Handle, Writer};

/// Counted events of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamEvent {
    /// A request is sent a second time, or to another node.
    Retry,
    /// A retry skipped because the retry budget is exhausted.
    RetryOverBudget,
    /// A request is refused because of `limits.requests`.
    Shed,
    /// A request has to wait because of that limit.
    Queued,
}

impl UpstreamEvent {
    pub(crate) fn measure(self) -> Measure {
        match self {
            UpstreamEvent::Retry => Measure::UpstreamRetries,
            UpstreamEvent::RetryOverBudget => Measure::RetriesOverBudget,
            UpstreamEvent::Shed => Measure::RequestsShed,
            UpstreamEvent::Queued => Measure::RequestsQueued,
        }
    }
}

impl MetricsPlan {
    /// Starts the counters of possible events at 0, so that an alert on a rate sees the first event. With `metrics.expire` it does
    /// so only until the idle series expires.
    pub(super) fn begin_counts(&self, writer: &mut Writer, upstream: &Upstream) {
        let of_budget = upstream.options.retry_budget.is_some().then_some(Measure::RetriesOverBudget);
        let of_limits = [Measure::RequestsShed, Measure::RequestsQueued];
        let of_limits = of_limits.into_iter().filter(|_| upstream.limits.requests.is_some());
        for measure in [Measure::UpstreamRetries].into_iter().chain(of_budget).chain(of_limits) {
            if let Some(family) = self.family(measure) {
                let handle = labelled(writer, family, &upstream.key);
                // Refused only if there was no memory for the series, which the writer has counted.
                let _ = writer.add(handle, 0);
            }
        }
    }
}

impl Recorder {
    /// Reports something about an upstream, if that is wanted.
    pub(crate) fn report_upstream(
        &mut self,
        metrics: Option<&MetricsPlan>,
        measure: Measure,
        upstream: &WorkerUpstream,
        tell: impl FnOnce(&mut Writer, Handle) -> bool,
    ) {
        let Some(family) = metrics.and_then(|metrics| metrics.family(measure)) else { return };
        let key = &upstream.planned.definition.key;
        let handle = labelled(&mut self.writer, family, key);
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = tell(&mut self.writer, handle);
    }
}
