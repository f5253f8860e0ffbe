//! What a worker reports to the metrics and the access log about itself, its upstreams and its sessions.

use super::Worker;
use crate::plan::Plan;
use crate::plan::metrics::MetricsPlan;
use crate::plan::snapshot::WorkerUpstream;
use crate::sockets::listener::{ConnectionEvent, Listener};
use crate::telemetry::access_log::LogLine;
use crate::telemetry::metrics::{Recorder, UpstreamEvent};
use crate::telemetry::session::{ClientSession, Ends, StreamVars};
use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_config::Measure;
use stillgate_metrics::{Handle, Writer};
use stillgate_plugin_api::record::RequestId;

/// What is reported in addition to the metrics' counts, according to the Plan and the worker's start: determined once for each
/// Plan, so that a request and a turn look at one flag.
#[derive(Debug, Default)]
pub(crate) struct ReportSettings {
    /// The end of a request: for the access log, or because it was slow.
    pub(crate) requests: Cell<bool>,
    /// The duration of turns.
    pub(crate) turns: Cell<bool>,
    /// Which requests were slow, and why.
    pub(crate) slow: Cell<bool>,
}

impl ReportSettings {
    pub(crate) fn new(plan: &Plan, is_logging: bool, has_recorder: bool) -> ReportSettings {
        let telling = ReportSettings::default();
        telling.renew(plan, is_logging, has_recorder);
        telling
    }

    /// Applies a new Plan.
    pub(crate) fn renew(&self, plan: &Plan, is_logging: bool, has_recorder: bool) {
        let slow = plan.settings.slow;
        self.requests.set(is_logging || slow);
        self.turns.set(slow || (has_recorder && plan.metrics().is_some_and(|metrics| metrics.turns.is_some())));
        self.slow.set(slow);
    }
}

impl Worker {
    /// Counts an event of a connection.
    pub(crate) fn note_connection_event(&self, event: ConnectionEvent, listener: &Listener) {
        let count = match event {
            ConnectionEvent::Accepted => &self.counters.connections_total,
            ConnectionEvent::Refused => &self.counters.connections_refused,
            ConnectionEvent::NoProxyHeader => &self.counters.proxy_protocol_errors,
        };
        count.add(1);
        listener.note(event);
    }

    /// Reports how long the turn took that ends now.
    pub(crate) fn report_turn(&self) {
        if !self.telling.turns.get() {
            return;
        }
        let took = self.clock.turn();
        if self.telling.slow.get() {
            self.slowest.note_turn(Instant::now(), took);
        }
        let Some(recorder) = &self.recorder else { return };
        let snapshot = self.snapshot.borrow();
        let Some(family) = snapshot.plan.metrics().and_then(|metrics| metrics.turns.as_ref()) else { return };
        recorder.borrow_mut().observe_turn(family, took.as_secs_f64());
    }

    /// Reports the rest: what has changed, or all of it if it is `due` (once a second), lest its series be taken for idle.
    pub(crate) fn report_itself(&self, due: bool) {
        let Some(recorder) = &self.recorder else { return };
        let snapshot = self.snapshot.borrow();
        let Some(metrics) = snapshot.plan.metrics() else { return };
        let open = self.counters.connections_open.get();
        recorder.borrow_mut().report_itself(metrics, &self.listeners.all(), open, due);
    }

    pub(crate) fn tick_metrics(&self, due: bool) {
        if let Some(recorder) = &self.recorder {
            let snapshot = self.snapshot.borrow();
            let now_unix_ms = self.clock.now_unix_ms();
            let listeners = self.listeners.all();
            recorder.borrow_mut().tick(now_unix_ms, snapshot.plan.metrics(), &listeners, &self.counters, due);
        }
        self.report_itself(due);
        if due {
            self.listeners.forget_ended();
        }
    }

    /// Reports to the metrics that a node was set aside, or works again.
    pub(crate) fn report_node(&self, upstream: &WorkerUpstream, index: usize) {
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            let snapshot = self.snapshot.borrow();
            recorder.borrow_mut().report_node(snapshot.plan.metrics(), upstream, index, self.clock.now_ms());
        }
    }

    /// Counts an event at an upstream.
    pub(crate) fn note_upstream(&self, event: UpstreamEvent, upstream: &WorkerUpstream) {
        let counters = &self.counters;
        let count = match event {
            UpstreamEvent::Retry => &counters.upstream_retries,
            UpstreamEvent::RetryOverBudget => &counters.retries_over_budget,
            UpstreamEvent::Shed => &counters.requests_shed,
            UpstreamEvent::Queued => &counters.requests_queued,
        };
        count.add(1);
        self.report_upstream(event.measure(), upstream, |writer, handle| writer.add(handle, 1));
    }

    /// Reports how many requests wait for the upstream in this worker.
    pub(crate) fn note_waiting(&self, upstream: &WorkerUpstream) {
        let waiting = upstream.state.borrow().waiting_count() as f64;
        self.report_upstream(Measure::RequestsWaiting, upstream, |writer, handle| writer.set(handle, waiting));
    }

    /// Reports how long a new connection to one of its nodes took.
    pub(crate) fn note_connect(&self, upstream: &WorkerUpstream, took: Duration) {
        let seconds = took.as_secs_f64();
        self.report_upstream(Measure::UpstreamConnectDuration, upstream, |writer, handle| {
            writer.observe(handle, seconds)
        });
    }

    fn report_upstream(
        &self,
        measure: Measure,
        upstream: &WorkerUpstream,
        tell: impl FnOnce(&mut Writer, Handle) -> bool,
    ) {
        let Some(recorder) = &self.recorder else { return };
        self.turns.note_news();
        let snapshot = self.snapshot.borrow();
        recorder.borrow_mut().report_upstream(snapshot.plan.metrics(), measure, upstream, tell);
    }

    /// Reports something about a plugin.
    pub(crate) fn report_plugin(&self, tell: impl FnOnce(&mut Recorder, &MetricsPlan)) {
        let Some(recorder) = &self.recorder else { return };
        self.turns.note_news();
        if let Some(metrics) = self.snapshot.borrow().plan.metrics() {
            tell(&mut recorder.borrow_mut(), metrics);
        }
    }

    /// Counts a session of `stream_proxy` that has ended, and writes its line in the access log. Bytes are those from the client,
    /// and to it.
    pub(crate) fn record_session(&self, session: &ClientSession, ends: Ends<'_>, received: u64, sent: u64) {
        self.counters.stream_sessions_total.add(1);
        let vars = StreamVars { session, ends };
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().record_session(self.snapshot.borrow().plan.metrics(), session, received, sent);
        }
        if let Some(sink) = &mut *self.sink.borrow_mut() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let about = (&RequestId::new(), &**self.plugins.own.process());
            sink.record(&LogLine { record: vars.record(now.as_millis() as u64, received, sent, about), fields: None });
        }
    }
}
