//! What the gateway's own pages are made of: questions to the control loop, which owns the state, and parts that they share.

use super::cardinality::Cardinality;
use super::route_list_cache::RouteListCache;
use super::status::StatusPage;
use super::upstreams::UpstreamsSnapshot;
use crate::configuration::kept::OpenStore;
use crate::configuration::reload::ServedPlan;
use std::sync::Arc;
use stillgate_door::CONNECTIONS_MAX;
use stillgate_exporter::SideDoor;
use stillgate_live::Live;
use stillgate_measures::metrics::MetricsRuntime;
use stillgate_measures::recent_lines::RecentLines;
use stillgate_proxy::UpstreamOverview;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Maximum number of questions that wait for the control loop; there are never more connections than this.
pub(crate) const QUESTIONS_MAX: usize = CONNECTIONS_MAX;

/// Maximum number of explained requests, and of accounts of all upstreams, at once; more wait. One takes up to a second where there
/// are very many routes.
pub(crate) const EXPLAINED_MAX: usize = 1;

/// A question to the control loop.
pub(crate) enum Question {
    /// The status.
    Status(oneshot::Sender<StatusPage>),
    /// The number of series of each family; `None`: nothing is measured.
    Cardinality(oneshot::Sender<Option<Cardinality>>),
    /// The state of the nodes: the snapshot, and each worker's answer.
    Upstreams(oneshot::Sender<(UpstreamsSnapshot, Vec<Option<Vec<UpstreamOverview>>>)>),
    /// The configuration that is served.
    Served(oneshot::Sender<ServedPlan>),
}

/// The parts that all pages need.
#[derive(Clone)]
pub(crate) struct PageContext {
    questions: mpsc::Sender<Question>,
    /// [`EXPLAINED_MAX`] places.
    pub(super) explaining: Arc<Semaphore>,
    pub(super) lists: Arc<RouteListCache>,
    /// The datastore; `None`: resources come from the file.
    pub(crate) kept: Option<OpenStore>,
    pub(super) live: Arc<Live>,
    /// Recent lines of the access log; `None`: without an access log, or where resources come from the file.
    pub(super) recent: Option<Arc<RecentLines>>,
    /// The door to the exporter; `None`: nothing is measured.
    pub(super) exposition: Option<SideDoor>,
    /// Returns free memory of the calling thread to the system.
    pub(super) give_back: fn(),
}

impl PageContext {
    pub(crate) fn new(
        questions: mpsc::Sender<Question>,
        kept: Option<OpenStore>,
        live: Arc<Live>,
        recent: Option<Arc<RecentLines>>,
        metering: Option<&MetricsRuntime>,
        give_back: fn(),
    ) -> PageContext {
        let exposition = metering.map(MetricsRuntime::admin_door);
        let explaining = Arc::new(Semaphore::new(EXPLAINED_MAX));
        PageContext { questions, explaining, lists: Arc::default(), kept, live, recent, exposition, give_back }
    }

    /// Sends a question to the control loop; `None`: the gateway is shutting down.
    pub(super) async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.questions.send(question(answer)).await.ok()?;
        answered.await.ok()
    }
}
