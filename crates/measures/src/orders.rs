//! The steps that follow a published Plan in the metrics: orders to the exporter, then the new nodes.
//!
//! The exporter has a low priority, so an order takes time, and there may be fifty thousand nodes; the control loop must wait for
//! neither. One batch is carried out at a time, and later orders are gathered into the next. For each label value only the latest
//! order counts, so that a removal and a restoration cannot overtake each other, and the waiting orders are proportional to the
//! difference, however often it changes.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use stillgate_config::Label;
use stillgate_exporter::{Exporter, ExpositionSite};
use stillgate_metrics::{CollectorOptions, Writer};
use stillgate_proxy::{MetricsPlan, Plan, SeriesSubject};
use tokio::sync::Notify;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::spawn_blocking;
use tracing::error;

/// Carries out batches one by one.
pub(crate) struct ExporterOrders {
    waiting: PendingOrders,
    /// Notified when a batch has ended, so that the next one can be sent.
    ended: Arc<Notify>,
    /// Records nodes; `None`: a batch is in progress, or lost the writer to a bug.
    writer: Option<Writer>,
    /// The batch in progress, which ends with the writer.
    under_way: Option<oneshot::Receiver<Option<Writer>>>,
}

/// Pending orders without duplicates.
#[derive(Default)]
struct PendingOrders {
    site: Option<ExpositionSite>,
    options: Option<CollectorOptions>,
    /// Whether they are in use.
    subjects: BTreeMap<SeriesSubject, bool>,
    nodes: Option<NewNodes>,
}

/// The nodes that one Plan has and the previous one did not. It holds both Plans, so that what left with the older one is removed
/// only after this is recorded.
struct NewNodes {
    metrics: Arc<MetricsPlan>,
    plan: Arc<Plan>,
    previous: Arc<Plan>,
    /// When the Plan was published: results of workers for a node since then are more recent.
    published_unix_ms: u64,
}

impl ExporterOrders {
    /// Makes orders with a separate writer.
    pub(crate) fn new(writer: Writer) -> ExporterOrders {
        ExporterOrders {
            waiting: PendingOrders::default(),
            ended: Arc::default(),
            writer: Some(writer),
            under_way: None,
        }
    }

    /// Notified when [`ExporterOrders::send`] may have something to do.
    pub(crate) fn ended(&self) -> Arc<Notify> {
        self.ended.clone()
    }

    /// Changes the site and the options of the exposition.
    pub(crate) fn set_up(&mut self, site: ExpositionSite, options: CollectorOptions) {
        self.waiting.site = Some(site);
        self.waiting.options = Some(options);
    }

    /// Passes the time to the writer, once a second: otherwise the series it has recorded could not expire.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if let Some(writer) = &mut self.writer {
            writer.tick(now_ms);
        }
    }

    /// Records subjects that are now in use, or no longer.
    pub(crate) fn set_in_use(&mut self, subjects: impl IntoIterator<Item = SeriesSubject>, are_in_use: bool) {
        self.waiting.subjects.extend(subjects.into_iter().map(|subject| (subject, are_in_use)));
    }

    /// Records the nodes that are new in a Plan.
    pub(crate) fn report_nodes(
        &mut self,
        metrics: Arc<MetricsPlan>,
        plan: &Arc<Plan>,
        previous: &Arc<Plan>,
        published_unix_ms: u64,
    ) {
        // If a Plan is waiting already, nodes are new compared with the Plan before it.
        let waiting = self.waiting.nodes.take().map(|nodes| nodes.previous);
        let previous = waiting.unwrap_or_else(|| previous.clone());
        self.waiting.nodes = Some(NewNodes { metrics, plan: plan.clone(), previous, published_unix_ms });
    }

    /// Starts the waiting batch unless one is in progress; call it again when that has ended.
    pub(crate) fn send(&mut self, exporter: &Exporter) {
        match self.under_way.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Err(TryRecvError::Closed)) => error!("the exporter gets no more new nodes, which is a bug"),
            Some(Ok(writer)) => self.writer = writer,
            None => {}
        }
        self.under_way = None;
        if self.waiting.is_empty() {
            return;
        }
        let PendingOrders { site, options, subjects, nodes } = std::mem::take(&mut self.waiting);
        let mut orders: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        site.into_iter().for_each(|site| orders.push(Box::pin(exporter.set_site(site))));
        options.into_iter().for_each(|options| orders.push(Box::pin(exporter.set_options(options))));
        let mut by_labels: BTreeMap<(&[Label], bool), Vec<Vec<String>>> = BTreeMap::new();
        for (subject, is_in_use) in subjects {
            by_labels.entry((subject.labels, is_in_use)).or_default().push(subject.values);
        }
        for ((labels, are_in_use), values) in by_labels {
            let labels = labels.iter().map(|label| label.name().to_owned()).collect();
            match are_in_use {
                true => orders.push(Box::pin(exporter.restore(labels, values))),
                false => orders.push(Box::pin(exporter.remove(labels, values))),
            }
        }
        let (end, ended) = oneshot::channel();
        self.under_way = Some(ended);
        let (mut writer, told) = (self.writer.take(), self.ended.clone());
        tokio::spawn(async move {
            for order in orders {
                order.await;
            }
            // If the upstream of a node was removed and has returned, no series may be made before that is recorded.
            if let Some(nodes) = nodes
                && let Some(of_nodes) = writer.take()
            {
                writer = spawn_blocking(move || nodes.told(of_nodes)).await.ok();
            }
            // Without a receiver the metrics have ended.
            let _ = end.send(writer);
            told.notify_one();
        });
    }
}

impl PendingOrders {
    fn is_empty(&self) -> bool {
        self.site.is_none() && self.options.is_none() && self.subjects.is_empty() && self.nodes.is_none()
    }
}

impl NewNodes {
    fn told(self, mut writer: Writer) -> Writer {
        writer.tick(self.published_unix_ms);
        self.metrics.report_new_nodes(&self.plan, Some(&self.previous), &mut writer);
        writer.tick(self.published_unix_ms);
        writer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_metrics::{Collector, CollectorOptions, Registry, RegistryOptions, SegmentProcess};

    fn route(id: &str) -> [SeriesSubject; 1] {
        [SeriesSubject::new(&[Label::Route], &[id])]
    }

    /// The first order is in progress when the others arrive: if they were sent at once, they could be taken before its end.
    #[tokio::test]
    async fn the_latest_news_of_a_value_counts() {
        let registry =
            Arc::new(Registry::start(RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_000, 7)).unwrap());
        let collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        let exporter = Exporter::spawn(None, collector, ExpositionSite::at("/metrics")).unwrap();
        let mut orders = ExporterOrders::new(registry.writer().unwrap());
        orders.set_in_use(route("a"), false);
        orders.send(&exporter);
        assert!(orders.waiting.is_empty() && orders.under_way.is_some());
        for are_in_use in [true, false, true] {
            orders.set_in_use(route("a"), are_in_use);
            orders.send(&exporter);
        }
        assert_eq!(orders.waiting.subjects, BTreeMap::from(route("a").map(|subject| (subject, true))));
        while orders.under_way.is_some() {
            orders.ended().notified().await;
            orders.send(&exporter);
        }
        assert!(orders.waiting.is_empty() && orders.writer.is_some());
        drop(orders);
        exporter.stop().unwrap();
    }
}
