//! What a worker tells of upstreams beside their requests: retries, what is shed or waits, new connections.
//!
//! All of it is rare beside requests, or costs far more than a look at the labels; so its series are looked up each time, which
//! allocates nothing for one that is known.

use super::gauges::labelled;
use super::{MetricsPlan, Recorder};
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use std::time::Duration;
use stillgate_config::{Measure, Upstream};
use stillgate_metrics::{Handle, Writer};

/// What is counted of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamEvent {
    /// A request is sent a second time, or to another node.
    Retry,
    /// That is not done, as the budget is spent.
    RetryOverBudget,
    /// It is refused because of `limits.requests`.
    Shed,
    /// It has to wait because of it.
    Queued,
}

impl UpstreamEvent {
    fn measure(self) -> Measure {
        match self {
            UpstreamEvent::Retry => Measure::UpstreamRetries,
            UpstreamEvent::RetryOverBudget => Measure::RetriesOverBudget,
            UpstreamEvent::Shed => Measure::RequestsShed,
            UpstreamEvent::Queued => Measure::RequestsQueued,
        }
    }
}

impl MetricsPlan {
    /// Begins the counts of what can happen at an upstream at 0, so that an alert on a rate sees the first of them. With
    /// `metrics.expire` it sees it only until the idle series expires.
    pub(super) fn begin_counts(&self, writer: &mut Writer, upstream: &Upstream) {
        let of_budget = upstream.retry_budget.is_some().then_some(Measure::RetriesOverBudget);
        let of_limits = [Measure::RequestsShed, Measure::RequestsQueued];
        let of_limits = of_limits.into_iter().filter(|_| upstream.limits.requests.is_some());
        for measure in [Measure::UpstreamRetries].into_iter().chain(of_budget).chain(of_limits) {
            if let Some(family) = self.family(measure) {
                let handle = labelled(writer, family, &upstream.key);
                // Refused only where there was no memory for the series, and that the writer has counted.
                let _ = writer.add(handle, 0);
            }
        }
    }
}

impl Worker {
    /// Counts something that has happened at an upstream.
    pub(crate) fn note_upstream(&self, event: UpstreamEvent, upstream: &WorkerUpstream) {
        let counters = &self.counters;
        let count = match event {
            UpstreamEvent::Retry => &counters.upstream_retries,
            UpstreamEvent::RetryOverBudget => &counters.retries_over_budget,
            UpstreamEvent::Shed => &counters.requests_shed,
            UpstreamEvent::Queued => &counters.requests_queued,
        };
        count.add(1);
        self.tell_upstream(event.measure(), upstream, |writer, handle| writer.add(handle, 1));
    }

    /// Tells how many requests wait for the upstream in this worker.
    pub(crate) fn note_waiting(&self, upstream: &WorkerUpstream) {
        let waiting = upstream.state.borrow().waiting() as f64;
        self.tell_upstream(Measure::RequestsWaiting, upstream, |writer, handle| writer.set(handle, waiting));
    }

    /// Tells how long a new connection to one of its nodes took.
    pub(crate) fn note_connect(&self, upstream: &WorkerUpstream, took: Duration) {
        let seconds = took.as_secs_f64();
        self.tell_upstream(Measure::UpstreamConnectDuration, upstream, |writer, handle| {
            writer.observe(handle, seconds)
        });
    }

    fn tell_upstream(
        &self,
        measure: Measure,
        upstream: &WorkerUpstream,
        tell: impl FnOnce(&mut Writer, Handle) -> bool,
    ) {
        let Some(recorder) = &self.recorder else { return };
        self.turns.note_news();
        let snapshot = self.snapshot.borrow();
        recorder.borrow_mut().tell_upstream(snapshot.plan.metrics(), measure, upstream, tell);
    }
}

impl Recorder {
    fn tell_upstream(
        &mut self,
        metrics: Option<&MetricsPlan>,
        measure: Measure,
        upstream: &WorkerUpstream,
        tell: impl FnOnce(&mut Writer, Handle) -> bool,
    ) {
        let Some(family) = metrics.and_then(|metrics| metrics.family(measure)) else { return };
        let key = &upstream.planned.definition.key;
        let handle = labelled(&mut self.writer, family, key);
        // Refused only where there was no memory for the series, and that the writer has counted.
        let _ = tell(&mut self.writer, handle);
    }
}
