//! What each worker knows of the nodes, for queries: which are set aside, how many requests and connections there are.
//!
//! The data is the worker's own, so the worker is queried for it. The answer is put together a few upstreams at a time, in between
//! requests, and has only nodes with something to report: there may be fifty thousand upstreams.

use std::sync::Arc;
use std::time::Duration;
use stillgate_upstream::EndpointStatus;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Queries that may wait for a worker; it does not answer further ones.
const QUESTIONS_MAX: usize = 4;
/// How long the workers have to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The nodes of one upstream, as one worker knows them.
#[derive(Debug)]
pub struct UpstreamOverview {
    /// The upstream's key.
    pub upstream: String,
    /// Requests that wait for a place at it.
    pub waiting: usize,
    /// Nodes with something to report.
    pub nodes: Vec<EndpointStatus>,
}

/// Where a worker's answer is sent.
pub(crate) type Question = oneshot::Sender<Vec<UpstreamOverview>>;

/// Queries all workers, also after the [`crate::Fleet`] has been handed over to be joined.
#[derive(Debug, Clone)]
pub struct Inquiry(Arc<[mpsc::Sender<Question>]>);

impl Inquiry {
    /// Makes an inquiry, and the receivers for `workers` workers.
    pub(crate) fn new(workers: usize) -> (Inquiry, Vec<mpsc::Receiver<Question>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(QUESTIONS_MAX)).unzip();
        (Inquiry(senders.into()), receivers)
    }

    /// What each worker knows; `None`: it did not answer in time, or has ended.
    pub async fn ask(&self) -> Vec<Option<Vec<UpstreamOverview>>> {
        let answers: Vec<_> = self
            .0
            .iter()
            .map(|worker| {
                let (question, answer) = oneshot::channel();
                // If the queue is full, the answer's end is dropped with the question, and the missing answer shows that.
                let _ = worker.try_send(question);
                answer
            })
            .collect();
        let mut known = Vec::with_capacity(answers.len());
        for answer in answers {
            known.push(timeout(ANSWER_TIMEOUT, answer).await.ok().and_then(Result::ok));
        }
        known
    }
}
