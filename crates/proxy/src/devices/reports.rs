//! What the metrics and the access log get about a device's connection.

use super::connection::DeviceConnection;
use crate::exchange::{self, Exchange, UpgradedRequest};
use crate::telemetry::metrics::DeviceLabels;
use stillgate_config::Measure;
use stillgate_wire::{HEAD_BYTES_MAX, HEADERS_MAX, HeadLimits, Progress};

/// Minimum time between two reports of a device's messages.
const TELL_EVERY_MS: u64 = 1_000;
/// The head was within the limits when it arrived.
const HEAD_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: HEAD_BYTES_MAX, target_bytes_max: HEAD_BYTES_MAX, headers_max: HEADERS_MAX };

impl DeviceConnection {
    pub(super) fn labels<'a>(&'a self, reason: &'a str, direction: &'a str) -> DeviceLabels<'a> {
        let route = self.route().map_or("", |route| route.spec.id.as_str());
        DeviceLabels { route, protocol: self.protocol, reason, direction }
    }

    /// Reports messages to the metrics, not too often.
    pub(super) fn report_messages(&mut self, now_ms: u64, is_last: bool) {
        if !is_last && now_ms < self.more.told_ms + TELL_EVERY_MS {
            return;
        }
        let (received, sent) = (std::mem::take(&mut self.more.untold), std::mem::take(&mut self.output.messages));
        self.more.told_ms = now_ms;
        let worker = &self.open.worker;
        worker.report_devices(Measure::DeviceMessages, self.labels("", "ingress"), received);
        worker.report_devices(Measure::DeviceMessages, self.labels("", "egress"), sent);
    }

    /// Writes the line in the access log and the observation in the metrics.
    pub(super) fn record(&mut self) {
        let worker = self.open.worker.clone();
        let UpgradedRequest { head, outcome, tries, fields, chains } = &mut *self.more.request;
        let snapshot = worker.snapshot();
        let mut exchange = Exchange::take();
        exchange.begin(outcome.timing);
        exchange.outcome = std::mem::take(outcome);
        exchange.tries.clone_from(tries);
        exchange.fields.clone_from(fields);
        exchange.outcome.forget_moved_route(&snapshot.plan);
        exchange.from_client.recall(head, self.more.received, &worker.buffers);
        exchange.to_client.total = self.more.sent_before + self.output.total;
        if let Ok(Progress::Complete(_)) = exchange.request.advance(head, &HEAD_LIMITS) {
            // The request was routed by its path.
            let _ = exchange.known.make(&exchange.request, head);
            exchange::end_upgraded(&worker, &mut self.client, &mut exchange, &snapshot, chains.take());
        } else {
            unreachable!("the head was parsed before");
        }
        exchange.give(&worker);
    }
}
