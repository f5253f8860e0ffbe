//! What is recorded of a request at its end: its line in the access log, what it adds to the metrics, and where its time went if it
//! was slow.

use super::Exchange;
use crate::basics::slow_request::{PATH_BYTES_MAX, SlowRequest, Times};
use crate::connection::client::ClientConnection;
use crate::plan::Plan;
use crate::plan::snapshot::Snapshot;
use crate::telemetry::access_log::LogLine;
use crate::telemetry::metrics::FinishedRequest;
use crate::telemetry::outcome::RequestOutcome;
use crate::worker::Worker;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stillgate_plugin_api::record::{NodeTries, Record, RequestId, Trace};
use stillgate_plugin_api::{Consumer, ConsumerRef, Consumers, Facts};
use stillgate_route::path::{decode, target_path};
use stillgate_route::{Lookup, Variable};
use stillgate_wire::Method;

/// An exchange that has ended, and its client.
struct FinishedExchange<'a> {
    client: &'a ClientConnection,
    exchange: &'a mut Exchange,
}

impl FinishedRequest for FinishedExchange<'_> {
    #[inline]
    fn outcome(&self) -> &RequestOutcome {
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
    fn consumer(&self) -> Option<ConsumerRef> {
        self.exchange.chains.consumer
    }

    fn kept_consumers(&self) -> Option<Arc<Consumers>> {
        self.exchange.chains.kept_consumers().cloned()
    }

    #[inline]
    fn sampled(&self) -> Option<Trace> {
        self.exchange.chains.trace().filter(|trace| trace.is_sampled)
    }

    fn host(&mut self) -> &[u8] {
        self.exchange.known.host(self.exchange.from_client.head())
    }

    fn with_vars<R>(&mut self, plan: &Plan, then: impl FnOnce(&dyn Lookup) -> R) -> R {
        then(&recorded(self.exchange, self.client, plan))
    }
}

/// The variables of a request that has ended: what is known about it and about its client.
struct RecordedVariables<'a> {
    facts: Facts<'a>,
    consumer: Option<&'a Consumer>,
    /// The target that a plugin has set, for `uri` as nginx logs it: after rewriting.
    target: Option<&'a [u8]>,
}

fn recorded<'a>(exchange: &'a Exchange, client: &'a ClientConnection, plan: &'a Plan) -> RecordedVariables<'a> {
    let consumers = exchange.chains.kept_consumers().unwrap_or(&plan.consumers);
    let consumer = exchange.chains.consumer.map(|found| consumers.of(found));
    RecordedVariables { facts: exchange.facts(client, plan), consumer, target: None }
}

impl Lookup for RecordedVariables<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        match variable {
            Variable::ConsumerName => self.consumer.map(|consumer| consumer.name.as_bytes()),
            Variable::ConsumerGroupId => self.consumer?.group.as_deref().map(str::as_bytes),
            Variable::Uri if self.target.is_some() => Some(decode(target_path(self.target?).0, buffer)),
            _ => self.facts.value(variable, buffer),
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.facts.each_header(visit);
    }
}

impl Worker {
    /// Counts a finished request, and writes its line of the access log.
    pub(crate) fn record(
        &self,
        client: &ClientConnection,
        exchange: &mut Exchange,
        snapshot: &Snapshot,
        ended: Moment,
    ) {
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().record(&mut FinishedExchange { client, exchange }, snapshot, ended.0);
        }
        if self.telling.requests.get() {
            self.report_request(client, exchange, snapshot, ended);
        }
    }

    /// Reports to everything but the metrics that wants it.
    fn report_request(&self, client: &ClientConnection, exchange: &Exchange, snapshot: &Snapshot, ended: Moment) {
        if self.is_logging {
            self.log(client, exchange, snapshot, ended);
        }
        if snapshot.plan.settings.slow {
            report_slow(self, exchange, &snapshot.plan, ended.0);
        }
    }

    fn log(&self, client: &ClientConnection, exchange: &Exchange, snapshot: &Snapshot, ended: Moment) {
        let mut sink = self.sink.borrow_mut();
        let Some(sink) = &mut *sink else { return };
        let vars =
            RecordedVariables { target: exchange.request_edits.target(), ..recorded(exchange, client, &snapshot.plan) };
        let told = ExchangeParts {
            outcome: &exchange.outcome,
            tries: &exchange.tries,
            id: &exchange.id,
            given_id: &exchange.chains.settled.request_id,
            sizes: exchange.sizes(),
            trace: exchange.chains.trace(),
        };
        let record = Record { vars: &vars, ..told.record(ended, &vars.facts, &snapshot.plan, self) };
        sink.record(&LogLine { record, fields: Some(&exchange.fields) });
    }
}

/// When the response was sent; `None`: its duration is not needed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment(Option<Instant>);

impl Moment {
    /// Now.
    #[inline]
    pub(crate) fn now(outcome: &RequestOutcome) -> Moment {
        Moment(outcome.started.map(|_| Instant::now()))
    }
}

/// Bytes in both directions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    received: u64,
    sent: u64,
}

impl Exchange {
    /// Bytes in both directions.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes { received: self.bytes_received(), sent: self.bytes_sent() }
    }
}

fn micros(until: Instant, since: Instant) -> u64 {
    until.saturating_duration_since(since).as_micros() as u64
}

/// The parts of an exchange that are recorded at its end.
pub(crate) struct ExchangeParts<'a> {
    pub(crate) outcome: &'a RequestOutcome,
    pub(crate) tries: &'a NodeTries,
    pub(crate) id: &'a RequestId,
    pub(crate) given_id: &'a [u8],
    pub(crate) sizes: Sizes,
    pub(crate) trace: Option<Trace>,
}

impl<'a> ExchangeParts<'a> {
    /// Everything that can be recorded.
    pub(crate) fn record(&self, ended: Moment, facts: &'a Facts<'a>, plan: &'a Plan, worker: &'a Worker) -> Record<'a> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let outcome = self.outcome;
        let request_time =
            outcome.started.zip(ended.0).map(|(started, ended)| ended.saturating_duration_since(started));
        let route = match (&outcome.kept, outcome.route) {
            (Some(kept), _) => Some(&*kept.route),
            (None, found) => found.map(|found| &*plan.routes[found.route].route),
        };
        Record {
            end_unix_ms: now.as_millis() as u64,
            status: outcome.status,
            bytes_sent: self.sizes.sent,
            body_bytes_sent: self.sizes.sent.saturating_sub(outcome.head_bytes),
            bytes_received: self.sizes.received,
            request_time_us: request_time.map_or(0, |time| time.as_micros() as u64),
            upstream_time_us: outcome.upstream_us,
            asked_us: outcome.node_since.zip(outcome.started).map(|(since, started)| micros(since, started)),
            node_time_us: outcome.node_since.map(|since| {
                let until = outcome.node_until.or(ended.0).unwrap_or(since);
                micros(until, since)
            }),
            tries: self.tries,
            route_id: route.map(|route| route.spec.id.as_str()),
            service_id: route.and_then(|route| route.service_id.as_deref()),
            method: facts.request.method_bytes(facts.head),
            target: facts.request.target.of(facts.head),
            version: facts.protocol,
            client: facts.client,
            vars: facts,
            trace: self.trace,
            id: self.id,
            given_id: self.given_id,
            process: worker.plugins.own.process(),
        }
    }
}

/// Reports the request if it is one of the slowest of this minute. Tunnels do not count: they last as long as their ends want.
fn report_slow(worker: &Worker, exchange: &Exchange, plan: &Plan, ended: Option<Instant>) {
    let outcome = &exchange.outcome;
    // A request that began before slow requests were reported has no times.
    let Some((started, ended)) = outcome.started.zip(ended).filter(|_| outcome.kept.is_none()) else { return };
    let (took, now_unix_ms) = (ended.saturating_duration_since(started), worker.clock.now_unix_ms());
    let Some(keeper) = worker.plans.slow.get().filter(|_| worker.slowest.is_slow(took, now_unix_ms)) else { return };
    let head = exchange.from_client.head();
    let path = exchange.request.target.of(head).split(|byte| *byte == b'?').next().unwrap_or_default();
    let path = &path[..path.len().min(PATH_BYTES_MAX)];
    let told = SlowRequest {
        worker: worker.slowest.worker,
        // The worker's clock does not advance within a turn, which may have been long.
        ended_unix_ms: unix_ms(),
        times: times(worker, exchange, outcome, started, ended),
        status: outcome.status,
        route: outcome.route.map(|found| plan.routes[found.route].route.spec.id.as_str().to_owned()),
        method: String::from_utf8_lossy(exchange.request.method_bytes(head)).into_owned(),
        path: String::from_utf8_lossy(path).into_owned(),
        node: outcome.asked.map(|(_, address)| address),
    };
    if keeper.try_send(told).is_err() {
        worker.counters.slow_requests_lost.add(1);
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn times(worker: &Worker, exchange: &Exchange, outcome: &RequestOutcome, started: Instant, ended: Instant) -> Times {
    let node_since = outcome.node_since.unwrap_or(ended);
    let node_until = outcome.node_until.unwrap_or(ended).max(node_since);
    Times {
        took: ended.saturating_duration_since(started),
        before: node_since.saturating_duration_since(started),
        queued: if outcome.timing.has_queued { exchange.queued } else { Default::default() },
        node: node_until.saturating_duration_since(node_since),
        after: ended.saturating_duration_since(node_until),
        longest_turn: worker.slowest.longest_turn(started, worker.clock.turn()),
        cpu_wait: worker.slowest.cpu_wait(started),
    }
}

#[cfg(test)]
mod tests;
