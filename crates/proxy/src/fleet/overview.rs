//! A worker's answer to a query for what it knows of the nodes.

use crate::telemetry::overview::{Question, UpstreamOverview};
use crate::worker::Worker;
use std::rc::Rc;
use stillgate_upstream::EndpointStatus;
use tokio::task::yield_now;

/// Upstreams that are visited before requests have their turn again.
const UPSTREAMS_AT_ONCE: usize = 256;
/// Answers one query.
pub(crate) async fn answer(worker: Rc<Worker>, question: Question) {
    let snapshot = worker.snapshot();
    let mut overview = Vec::new();
    for (at, upstream) in snapshot.upstreams.iter().enumerate() {
        if at % UPSTREAMS_AT_ONCE == UPSTREAMS_AT_ONCE - 1 {
            yield_now().await;
        }
        let has_news = |node: &EndpointStatus| node.failures > 0 || node.active > 0 || node.idle > 0;
        let state = upstream.state.borrow();
        let nodes: Vec<_> = state.status(worker.clock.now_ms()).filter(has_news).collect();
        let waiting = state.waiting();
        if !nodes.is_empty() || waiting > 0 {
            overview.push(UpstreamOverview { upstream: upstream.planned.definition.key.clone(), waiting, nodes });
        }
    }
    // The caller may have given up.
    let _ = question.send(overview);
}
