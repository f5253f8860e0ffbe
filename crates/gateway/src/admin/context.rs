//! What the gateway's own pages are made of: questions to the control loop, which owns the state, and parts that they share, such as
//! the form of their answers.

use super::cardinality::Cardinality;
use super::resources::FileDocuments;
use super::route_list::RouteList;
use super::status::StatusPage;
use super::upstreams::UpstreamsSnapshot;
use crate::configuration::kept::OpenStore;
use crate::configuration::reload::ServedPlan;
use crate::configuration::source::ConfigSource;
use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stillgate_config::LoadedConfig;
use stillgate_datastore::Documents;
use stillgate_door::CONNECTIONS_MAX;
use stillgate_exporter::ScrapeForwarder;
use stillgate_live::Live;
use stillgate_measures::access_log_writer::RecentLines;
use stillgate_measures::metrics::MetricsRuntime;
use stillgate_proxy::UpstreamOverview;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::sleep;

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
    /// What the configuration is read from.
    pub(super) source: ConfigSource,
    /// Documents of the file, where resources come from it.
    pub(super) of_file: Arc<FileDocuments>,
    /// The datastore; `None`: resources come from the file.
    pub(crate) kept: Option<OpenStore>,
    pub(super) live: Arc<Live>,
    /// Recent lines of the access log; `None`: without an access log, or where resources come from the file.
    pub(super) recent: Option<Arc<RecentLines>>,
    /// Passes scrapes to the exporter; `None`: nothing is measured.
    pub(super) exposition: Option<ScrapeForwarder>,
    /// Returns free memory of the calling thread to the system.
    pub(super) give_back: fn(),
}

impl PageContext {
    pub(crate) fn new(
        questions: mpsc::Sender<Question>,
        source: &ConfigSource,
        kept: Option<OpenStore>,
        live: Arc<Live>,
        recent: Option<Arc<RecentLines>>,
        metering: Option<&MetricsRuntime>,
        give_back: fn(),
    ) -> PageContext {
        let exposition = metering.map(MetricsRuntime::admin_scrapes);
        let explaining = Arc::new(Semaphore::new(EXPLAINED_MAX));
        PageContext {
            questions,
            explaining,
            lists: Arc::default(),
            source: source.clone(),
            of_file: Arc::default(),
            kept,
            live,
            recent,
            exposition,
            give_back,
        }
    }

    /// Sends a question to the control loop; `None`: the gateway is shutting down.
    pub(super) async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.questions.send(question(answer)).await.ok()?;
        answered.await.ok()
    }
}

// The list of routes that was searched last, kept while pages use it.

/// A list that is not used for this time is dropped: it takes some two hundred bytes a route.
const IDLE: Duration = Duration::from_secs(60);

/// The list of the configuration that was searched last.
#[derive(Default)]
pub(super) struct RouteListCache(Mutex<CachedRouteList>);

#[derive(Default)]
struct CachedRouteList {
    list: Option<Arc<RouteList>>,
    /// Whether it has been used since the last check.
    is_used: bool,
    /// Whether a task checks that.
    is_watched: bool,
}

impl RouteListCache {
    /// The list of this configuration. Only one is made at a time: its maker holds the place.
    pub(super) fn list(
        &self,
        generation: u64,
        loaded: &LoadedConfig,
        documents: Option<&dyn Documents>,
    ) -> Arc<RouteList> {
        let former = self.lock().list.clone();
        let list = match former {
            Some(list) if list.is_of(generation, loaded) => list,
            former => Arc::new(RouteList::new(generation, loaded, documents, former.as_deref())),
        };
        let mut cached = self.lock();
        cached.list = Some(list.clone());
        cached.is_used = true;
        list
    }

    fn lock(&self) -> MutexGuard<'_, CachedRouteList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the list when it is not used any more.
    pub(super) fn watch(self: &Arc<Self>) {
        if std::mem::replace(&mut self.lock().is_watched, true) {
            return;
        }
        let lists = self.clone();
        tokio::spawn(async move {
            loop {
                sleep(IDLE).await;
                let mut kept = lists.lock();
                if !std::mem::take(&mut kept.is_used) {
                    *kept = CachedRouteList::default();
                    return;
                }
            }
        });
    }
}

/// Why a page cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PageRefusal {
    NoMetrics,
    MetricsBusy,
    Ending,
    Failed,
}

#[derive(Serialize)]
struct ErrorBody {
    error_msg: Cow<'static, str>,
}

pub(super) fn refuse(refusal: &PageRefusal) -> Response {
    let (status, error_msg) = match refusal {
        PageRefusal::NoMetrics => {
            (StatusCode::NOT_FOUND, "404 Not Found: metrics are off; set gateway.metrics.enabled to true and restart")
        }
        PageRefusal::MetricsBusy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the metrics cannot be had now: too many scrapes are being answered here, or another process takes over",
        ),
        PageRefusal::Ending => (StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down"),
        PageRefusal::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log"),
    };
    error(status, error_msg.into())
}

pub(super) fn error(status: StatusCode, error_msg: Cow<'static, str>) -> Response {
    json(status, &ErrorBody { error_msg })
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut bytes = serde_json::to_vec(body).expect("these shapes have string keys only");
    bytes.push(b'\n');
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
