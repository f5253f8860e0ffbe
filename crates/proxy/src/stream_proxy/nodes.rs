//! Which node a session goes to: chosen by the balancer, then the next one if that fails, as long as the rules allow.

use super::STATUS_UNAVAILABLE;
use crate::node::health;
use crate::plan::snapshot::WorkerUpstream;
use crate::telemetry::metrics::UpstreamEvent;
use crate::telemetry::session::{ClientSession, Ends, StreamVars};
use crate::worker::Worker;
use stillgate_config::{Balance, NodeProtocol};
use stillgate_route::{Lookup, Variable};
use stillgate_upstream::{Attempt, Decision, Failure, TriedEndpoints, TryReport, decide};

/// The tries of one session.
pub(super) struct SessionTries<'a> {
    worker: &'a Worker,
    upstream: &'a WorkerUpstream,
    /// The text for the consistent hash.
    key: Option<Vec<u8>>,
    tried: TriedEndpoints,
    retries_used: u32,
    began_ms: u64,
    /// The status if no node is left.
    status: u16,
}

impl<'a> SessionTries<'a> {
    /// Err: the status if the upstream accepts no more sessions.
    pub(super) fn new(
        worker: &'a Worker,
        upstream: &'a WorkerUpstream,
        session: &ClientSession,
        ends: Ends<'_>,
    ) -> Result<SessionTries<'a>, u16> {
        let definition = &upstream.planned.definition;
        if !upstream.state.borrow().has_place() {
            // With UDP, each datagram is counted as dropped.
            if session.protocol != NodeProtocol::Udp {
                worker.note_upstream(UpstreamEvent::Shed, upstream);
            }
            return Err(STATUS_UNAVAILABLE);
        }
        let key = match &definition.balance {
            Balance::ConsistentHash(hashed) => {
                let (vars, mut key, mut buffer) = (StreamVars { session, ends }, Vec::new(), Vec::new());
                if hashed.write(&vars, &mut key, &mut buffer) == 0 {
                    key = vars.value(&Variable::RemoteAddr, &mut buffer).unwrap_or_default().to_vec();
                }
                Some(key)
            }
            Balance::RoundRobin | Balance::LeastConn | Balance::Ewma => None,
        };
        let (began_ms, status) = (worker.clock.now_ms(), STATUS_UNAVAILABLE);
        Ok(SessionTries { worker, upstream, key, tried: TriedEndpoints::default(), retries_used: 0, began_ms, status })
    }

    /// Returns the next node to try, or the status.
    pub(super) fn pick(&mut self, session: &mut ClientSession) -> Result<NodeTryGuard<'a>, u16> {
        let SessionTries { worker, upstream, .. } = *self;
        let now_ms = worker.clock.now_ms();
        let picked = upstream.state.borrow_mut().pick(self.key.as_deref(), now_ms, worker.random(), &self.tried);
        let Some(slot) = picked else {
            let why =
                if self.tried.is_empty() { "the upstream has no node" } else { "every node of the upstream failed" };
            self.note(session, why);
            return Err(self.status);
        };
        if !self.tried.is_empty() {
            worker.note_upstream(UpstreamEvent::Retry, upstream);
        }
        self.tried.insert(slot);
        let node = upstream.state.borrow().endpoint(slot).clone();
        session.tries.begin(node.address);
        session.node = Some(node);
        Ok(NodeTryGuard::new(worker, upstream, slot, self.retries_used > 0))
    }

    /// The node could not be reached. Ok: another one may be tried.
    pub(super) fn on_failed(
        &mut self,
        session: &mut ClientSession,
        slot: usize,
        failure: Failure,
        is_local: bool,
        why: &str,
    ) -> Result<(), u16> {
        let SessionTries { worker, upstream, .. } = *self;
        let definition = &upstream.planned.definition;
        session.tries.on_answered(failure.status());
        if !is_local {
            health::report(worker, upstream, slot, TryReport::Failed(failure), || why.to_owned());
        }
        let decision = decide(&Attempt {
            failure,
            reused: false,
            request_sent: false,
            closed_before: false,
            refused_before: false,
            response_started: false,
            idempotent: true,
            body_replayable: true,
            retries_used: self.retries_used,
            retries: definition.options.retries,
            choices: upstream.state.borrow().choices(),
            elapsed_ms: worker.clock.now_ms() - self.began_ms,
            in_budget: definition
                .options
                .retry_budget
                .as_ref()
                .is_none_or(|budget| upstream.state.borrow().has_budget(budget)),
            retry_timeout_ms: u64::try_from(definition.options.retry_timeout.as_millis()).unwrap_or(u64::MAX),
        });
        match decision {
            Decision::RetrySame | Decision::RetryNext(_) => {
                self.retries_used += 1;
                if let Decision::RetryNext(status) = decision {
                    self.status = status;
                }
                Ok(())
            }
            Decision::OverBudget(status) | Decision::Fail(status) => {
                if matches!(decision, Decision::OverBudget(_)) {
                    worker.note_upstream(UpstreamEvent::RetryOverBudget, upstream);
                }
                self.note(session, why);
                Err(status)
            }
        }
    }

    fn note(&self, session: &ClientSession, why: &str) {
        self.worker.troubles.note_stream(&self.upstream.planned.definition.key, why, &session.tries);
    }
}

/// A try at one node; its end is counted even if the task is dropped.
pub(super) struct NodeTryGuard<'a> {
    worker: &'a Worker,
    upstream: &'a WorkerUpstream,
    pub(super) slot: usize,
    is_retry: bool,
    pub(super) connect_us: Option<u32>,
}

impl<'a> NodeTryGuard<'a> {
    fn new(worker: &'a Worker, upstream: &'a WorkerUpstream, slot: usize, is_retry: bool) -> NodeTryGuard<'a> {
        let mut state = upstream.state.borrow_mut();
        state.on_start(slot);
        if is_retry {
            state.on_retry();
        }
        drop(state);
        NodeTryGuard { worker, upstream, slot, is_retry, connect_us: None }
    }
}

impl Drop for NodeTryGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.upstream.state.borrow_mut();
        state.on_finish(self.slot, self.connect_us, self.worker.clock.now_ms());
        if self.is_retry {
            state.on_retry_end();
        }
    }
}
