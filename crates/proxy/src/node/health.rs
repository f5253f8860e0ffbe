//! Reports the result of a try to the balancer, and to the log and the metrics if it is news.

use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use stillgate_upstream::{Failure, News, TryReport};

/// Reports the result of a try; `why` is called only if the node is set aside.
#[inline]
pub(crate) fn report(
    worker: &Worker,
    upstream: &WorkerUpstream,
    index: usize,
    report: TryReport,
    why: impl FnOnce() -> String,
) {
    let news = upstream.state.borrow_mut().report(index, report, worker.clock.now_ms());
    if let Some(news) = news {
        log_news(worker, upstream, index, news, why);
    }
}

/// [`report`] of a try that failed after it had a connection. A reused connection that was closed shows nothing about the node.
pub(crate) fn report_failure(worker: &Worker, upstream: &WorkerUpstream, index: usize, failure: Failure, reused: bool) {
    if !(reused && failure == Failure::Reset) {
        report(worker, upstream, index, TryReport::Failed(failure), || describe_failure(failure).to_owned());
    }
}

#[cold]
fn log_news(worker: &Worker, upstream: &WorkerUpstream, index: usize, news: News, why: impl FnOnce() -> String) {
    let key = &upstream.planned.definition.key;
    let node = upstream.state.borrow().endpoint(index).address;
    match news {
        // Once per period, which grows: this does not flood the log.
        News::SetAside { period_ms } => {
            tracing::warn!(upstream = %key, %node, reason = why(), period_ms, "a node fails: it is set aside");
        }
        News::Recovered => tracing::info!(upstream = %key, %node, "a node that was set aside works again"),
    }
    worker.report_node(upstream, index);
}

/// Description for the log, and for the client if it gets no other answer.
pub fn describe_failure(failure: Failure) -> &'static str {
    match failure {
        Failure::Connect => "the node could not be connected to",
        Failure::ConnectTimeout => "connecting to the node took too long",
        Failure::Reset => "the node closed the connection",
        Failure::SendTimeout => "the node did not take the request in time",
        Failure::ReadTimeout => "the node did not answer in time",
        Failure::TryTimeout => "the node did not answer within timeout.per_try",
        Failure::BadResponse => "the node's response is invalid",
        Failure::Name => "TLS with the nodes failed for the requested server name",
        Failure::Refused => "the node refuses the request",
    }
}
