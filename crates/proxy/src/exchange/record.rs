//! What is told of a request at its end: its line of the access log, and what it adds to the metrics.

use super::Exchange;
use crate::connection::client::Client;
use crate::plan::Plan;
use crate::plan::snapshot::Snapshot;
use crate::telemetry::access_log::Record;
use crate::telemetry::metrics::Finished;
use crate::telemetry::outcome::Outcome;
use crate::worker::Worker;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stillgate_plugin::{Attached, Consumer, Consumers, Facts};
use stillgate_route::{Lookup, Variable};
use stillgate_wire::Method;

/// An exchange that has ended, and whose it was.
struct Ended<'a> {
    client: &'a Client,
    exchange: &'a mut Exchange,
}

impl Finished for Ended<'_> {
    #[inline]
    fn outcome(&self) -> &Outcome {
        &self.exchange.outcome
    }

    #[inline]
    fn bytes_received(&self) -> u64 {
        self.exchange.bytes_received()
    }

    #[inline]
    fn bytes_sent(&self) -> u64 {
        self.exchange.bytes_sent()
    }

    #[inline]
    fn method(&self) -> Option<Method> {
        let request = &self.exchange.request;
        (!request.method_bytes(self.exchange.from_client.head()).is_empty()).then_some(request.method)
    }

    #[inline]
    fn consumer(&self) -> Option<Attached> {
        self.exchange.chains.consumer
    }

    fn kept_consumers(&self) -> Option<Arc<Consumers>> {
        self.exchange.chains.kept_consumers().cloned()
    }

    fn host(&mut self) -> &[u8] {
        self.exchange.known.host(self.exchange.from_client.head())
    }

    fn with_vars<R>(&mut self, plan: &Plan, then: impl FnOnce(&dyn Lookup) -> R) -> R {
        then(&recorded(self.exchange, self.client, plan))
    }
}

/// The variables of a request that has ended: what is known of it, and who asked.
struct Recorded<'a> {
    facts: Facts<'a>,
    consumer: Option<&'a Consumer>,
}

fn recorded<'a>(exchange: &'a Exchange, client: &'a Client, plan: &'a Plan) -> Recorded<'a> {
    let consumers = exchange.chains.kept_consumers().unwrap_or(&plan.consumers);
    let consumer = exchange.chains.consumer.map(|found| consumers.of(found));
    Recorded { facts: exchange.facts(client, plan), consumer }
}

impl Lookup for Recorded<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        match variable {
            Variable::ConsumerName => self.consumer.map(|consumer| consumer.name.as_bytes()),
            Variable::ConsumerGroupId => self.consumer?.group.as_deref().map(str::as_bytes),
            _ => self.facts.value(variable, buffer),
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.facts.each_header(visit);
    }
}

impl Worker {
    /// Counts a finished request, and writes its line of the access log.
    pub(crate) fn record(&self, client: &Client, exchange: &mut Exchange, snapshot: &Snapshot) {
        let ended = exchange.outcome.started.map(|_| Instant::now());
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().record(&mut Ended { client, exchange }, snapshot, ended);
        }
        if self.is_logging {
            self.log(client, exchange, snapshot, ended);
        }
    }

    fn log(&self, client: &Client, exchange: &Exchange, snapshot: &Snapshot, ended: Option<Instant>) {
        let mut sink = self.sink.borrow_mut();
        let Some(sink) = &mut *sink else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (status, upstream_time_us) = (exchange.outcome.status, exchange.outcome.upstream_us);
        let bytes_received = exchange.bytes_received();
        let bytes_sent = exchange.bytes_sent();
        let body_bytes_sent = bytes_sent.saturating_sub(exchange.outcome.head_bytes);
        let request_time =
            exchange.outcome.started.zip(ended).map(|(started, ended)| ended.saturating_duration_since(started));
        let request_time_us = request_time.map_or(0, |time| time.as_micros() as u64);
        let kept = exchange.outcome.kept.clone();
        let route = match (&kept, exchange.outcome.route) {
            (Some(kept), _) => Some(&kept.route),
            (None, found) => found.map(|found| &snapshot.plan.routes[found.route].route),
        };
        let vars = recorded(exchange, client, &snapshot.plan);
        let facts = &vars.facts;
        sink.record(&Record {
            end_unix_ms: now.as_millis() as u64,
            status,
            bytes_sent,
            body_bytes_sent,
            bytes_received,
            request_time_us,
            upstream_time_us,
            tries: &exchange.tries,
            fields: Some(&exchange.fields),
            route_id: route.map(|route| route.spec.id.as_str()),
            service_id: route.and_then(|route| route.service_id.as_deref()),
            method: facts.request.method_bytes(facts.head),
            target: facts.request.target.of(facts.head),
            version: facts.protocol,
            client: client.address,
            vars: &vars,
        });
    }
}

#[cfg(test)]
mod tests;
