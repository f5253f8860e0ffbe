//! What the access log and the metrics record of a request, gathered while it is served.

use crate::plan::Plan;
use crate::plan::snapshot::WorkerUpstream;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::Route;
use stillgate_route::Match;

/// Which times are needed; the others are not taken.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Timing {
    /// How long the request takes.
    pub(crate) request: bool,
    /// How long the node takes to its response head.
    pub(crate) head: bool,
    /// How long the node takes to the end of its response.
    pub(crate) node: bool,
    /// The request has waited for a place at its upstream: for how long is in its exchange. The flag is here so that resetting it
    /// costs nothing.
    pub(crate) has_queued: bool,
}

/// What the access log and the metrics record.
#[derive(Default)]
pub(crate) struct RequestOutcome {
    pub(crate) timing: Timing,
    /// When its first bytes were read.
    pub(crate) started: Option<Instant>,
    /// When the first node was chosen, and when the last one was done.
    pub(crate) node_since: Option<Instant>,
    pub(crate) node_until: Option<Instant>,
    /// The slot and address of the node that was tried last.
    pub(crate) asked: Option<(usize, SocketAddr)>,
    /// The try at that node failed for what the client sent or asked for.
    pub(crate) is_of_client: bool,
    pub(crate) status: u16,
    pub(crate) head_bytes: u64,
    pub(crate) upstream_us: Option<u64>,
    pub(crate) route: Option<Match>,
    /// The slot of the upstream that a plugin has chosen; `None`: it is the route's own.
    pub(crate) upstream: Option<usize>,
    /// Set for a tunnel, which may outlive its Plan.
    pub(crate) kept: Option<Rc<RetainedConfig>>,
}

/// The part of its original configuration that a tunnel keeps.
pub(crate) struct RetainedConfig {
    pub(crate) route: Arc<Route>,
    /// Which of its paths matched.
    pub(crate) path: usize,
    /// `None`: it has none, as for the connection of a device.
    pub(crate) upstream: Option<Rc<WorkerUpstream>>,
}

impl RequestOutcome {
    /// A tunnel has ended under this Plan: the position of its route no longer counts if another route is there.
    pub(crate) fn forget_moved_route(&mut self, plan: &Plan) {
        let Some(kept) = &self.kept else { return };
        let specs = plan.matcher().specs();
        self.route = self.route.filter(|found| found.route < specs.len() && specs[found.route] == kept.route.spec);
    }

    /// Bytes of the request have arrived.
    #[inline]
    pub(crate) fn note_arrival(&mut self) {
        if self.timing.request && self.started.is_none() {
            self.started = Some(Instant::now());
        }
    }

    /// The node that was tried last is done.
    #[inline]
    pub(crate) fn node_ended(&mut self) {
        if self.timing.node {
            self.node_until = Some(Instant::now());
        }
    }
}
