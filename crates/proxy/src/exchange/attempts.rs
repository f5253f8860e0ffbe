//! The attempts of a request: one node after the other, until one answers or the rules end it.
//!
//! `attempt` handles what happens at one node.

use super::answer::LocalReply;
use super::attempt::{self, AttemptOutcome, FailedAttempt};
use super::target::ExchangeTarget;
use super::upgraded_exchange::{Switch, UpgradedExchange};
use super::{ConnectionNext, Exchange, RequestContext};
use crate::node::health;
use crate::telemetry::metrics::UpstreamEvent;
use std::borrow::Cow;
use std::cell::Cell;
use stillgate_upstream::{Attempt, Decision, Failure, TryReport, decide};
use stillgate_wire::ResponseError;

/// State of one request's attempts.
pub(super) struct Attempts<'a> {
    pub(super) target: &'a ExchangeTarget<'a>,
    began_ms: u64,
    pub(super) retries_used: u32,
    /// The next try must not use the pool.
    pub(super) is_fresh: bool,
    /// The node that closed a new connection on the request without an answer. It counts against the node unless a second
    /// one does the same.
    pub(super) closed: Option<usize>,
    /// The node that has refused the request's server name, which no node is known to accept. The next node that is connected
    /// to shows whether the name or the first node is at fault, and takes this out.
    pub(super) refused: Cell<Option<usize>>,
    /// Status of the answer if no other node is left.
    status: u16,
}

/// Tries one node after the other, and returns what becomes of the connection.
pub(super) async fn run(
    serving: &mut RequestContext<'_>,
    target: &ExchangeTarget<'_>,
) -> Result<ConnectionNext, LocalReply> {
    let began_ms = serving.worker.clock.now_ms();
    let mut attempts = Attempts {
        target,
        began_ms,
        retries_used: 0,
        is_fresh: false,
        closed: None,
        refused: Cell::default(),
        status: 503,
    };
    serving.exchange.tried.clear();
    let mut same = None;
    loop {
        let Some(index) = same.take().or_else(|| attempts.pick(serving)) else { return Err(attempts.no_node(serving)) };
        if !serving.exchange.tried.is_empty() {
            serving.worker.note_upstream(UpstreamEvent::Retry, target.upstream);
        }
        serving.exchange.tried.insert(index);
        match attempt::run(serving, &attempts, index).await {
            AttemptOutcome::Done(after) => {
                attempts.spare_closed(serving);
                return Ok(after);
            }
            AttemptOutcome::Switched(node) => {
                serving.exchange.upgraded = Some(Switch::Tunnel(Box::new(UpgradedExchange::new(serving, index, node))));
                return Ok(ConnectionNext::Tunnel);
            }
            AttemptOutcome::Refused(own) => {
                attempts.spare_closed(serving);
                return Err(own);
            }
            AttemptOutcome::Failed(failed) => same = attempts.next(serving, index, failed)?.then_some(index),
        }
    }
}

impl Attempts<'_> {
    fn pick(&self, serving: &RequestContext<'_>) -> Option<usize> {
        let Exchange { has_key, key, tried, .. } = &*serving.exchange;
        let (key, now_ms) = (has_key.then_some(key.as_slice()), serving.worker.clock.now_ms());
        let (mut state, random) = (self.target.upstream.state.borrow_mut(), serving.worker.random());
        match self.refused.get() {
            None => state.pick(key, now_ms, random, tried),
            Some(_) => state.pick_undoubted(key, now_ms, random, tried),
        }
    }

    #[cold]
    fn no_node(&self, serving: &RequestContext<'_>) -> LocalReply {
        self.blame_closed(serving);
        let why = match self.status {
            503 => "the upstream has no node",
            _ => "every node of the upstream failed",
        };
        serving.worker.troubles.note_request(
            &self.target.upstream.planned.definition.key,
            why,
            &serving.exchange.tries,
        );
        LocalReply::error(self.status, why)
    }

    /// Whether to try the same node again after a try that failed; otherwise the next one is tried.
    #[cold]
    fn next(
        &mut self,
        serving: &mut RequestContext<'_>,
        index: usize,
        failed: FailedAttempt,
    ) -> Result<bool, LocalReply> {
        let attempt = self.judge(serving, index, &failed);
        if failed.is_closed() {
            let before = self.closed.replace(index);
            if attempt.is_closed_again() {
                self.closed = None;
                serving.exchange.outcome.is_of_client = true;
                self.acquit([before, Some(index)], serving);
            }
        } else if failed.response_started {
            self.closed = None;
        }
        if failed.failure == Failure::Name {
            self.refused.set(Some(index));
        }
        if serving.worker.clock.now_ms() >= self.target.bounds.deadline_ms {
            if failed.failure == Failure::ConnectTimeout {
                // The client gave the call less time than we give the node.
                serving.exchange.outcome.is_of_client = true;
            }
            self.spare_closed(serving);
            return Err(LocalReply::deadline());
        }
        match decide(&attempt) {
            Decision::RetrySame => {
                self.is_fresh = true;
                Ok(true)
            }
            Decision::RetryNext(status) => {
                (self.is_fresh, self.status) = (false, status);
                self.retries_used += 1;
                Ok(false)
            }
            Decision::Fail(status) => Err(self.fail(serving, failed, status)),
            Decision::OverBudget(status) => {
                serving.worker.note_upstream(UpstreamEvent::RetryOverBudget, self.target.upstream);
                Err(self.fail(serving, failed, status))
            }
        }
    }

    /// The request is to blame, and not the nodes that closed their connections on it.
    #[cold]
    fn acquit(&self, closed: [Option<usize>; 2], serving: &RequestContext<'_>) {
        for index in closed.into_iter().flatten() {
            health::report(serving.worker, self.target.upstream, index, TryReport::Inconclusive, String::new);
        }
    }

    /// No other node shows whether the one that closed its connection is to blame: it counts against that node.
    #[cold]
    fn blame_closed(&self, serving: &RequestContext<'_>) {
        if let Some(closed) = self.closed {
            health::report_failure(serving.worker, self.target.upstream, closed, Failure::Reset, false);
        }
    }

    /// The request may end before another node shows whether the one that closed its connection is at fault. As the client may have
    /// ended it, that does not count; closing on request after request does. If the node was already blamed, this changes nothing.
    #[inline]
    fn spare_closed(&self, serving: &RequestContext<'_>) {
        if self.closed.is_some() {
            self.acquit([self.closed, None], serving);
        }
    }

    fn fail(&self, serving: &mut RequestContext<'_>, failed: FailedAttempt, status: u16) -> LocalReply {
        self.blame_closed(serving);
        let exchange = &mut *serving.exchange;
        let message = describe(failed.failure, exchange.bad_response.take());
        let hint = exchange.mistaken.map(|mistaken| mistaken.hint().to_owned()).or(failed.reason);
        let hint = hint.map(|hint| format!("{message}; {hint}"));
        let why = hint.as_deref().unwrap_or(&message);
        serving.worker.troubles.note_request(&self.target.upstream.planned.definition.key, why, &exchange.tries);
        LocalReply::error(status, message)
    }

    fn judge(&self, serving: &RequestContext<'_>, index: usize, failed: &FailedAttempt) -> Attempt {
        let upstream = self.target.upstream;
        let definition = &upstream.planned.definition;
        let state = upstream.state.borrow();
        Attempt {
            failure: failed.failure,
            reused: failed.reused,
            request_sent: failed.request_sent,
            closed_before: self.closed.is_some_and(|closed| closed != index) && failed.is_closed(),
            refused_before: self.refused.get().is_some(),
            response_started: failed.response_started,
            // The method of the request that the node gets, whatever the client's was.
            idempotent: serving.exchange.method_sent.is_idempotent(),
            body_replayable: serving.exchange.is_replayable(),
            retries_used: self.retries_used,
            retries: definition.options.retries,
            choices: state.choices(),
            elapsed_ms: serving.worker.clock.now_ms() - self.began_ms,
            in_budget: definition.options.retry_budget.as_ref().is_none_or(|budget| state.has_budget(budget)),
            retry_timeout_ms: u64::try_from(definition.options.retry_timeout.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

fn describe(failure: Failure, bad_response: Option<ResponseError>) -> Cow<'static, str> {
    match (failure, bad_response) {
        (Failure::BadResponse, Some(error)) => format!("the node's response is invalid: {error}").into(),
        _ => health::describe_failure(failure).into(),
    }
}
