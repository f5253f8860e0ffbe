//! What follows a published Plan in the metrics: what the exporter is told, and then which nodes are new.
//!
//! The exporter has a low priority, so whoever orders waits, and there may be fifty thousand nodes; the control loop does
//! neither. One batch is carried out at a time, and what comes in meanwhile is gathered into the next: of a value of a label
//! the latest news counts, so that a removal and a restoring of it cannot overtake each other, and what waits is in
//! proportion to what differs, however often it changes.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use stillgate_config::Label;
use stillgate_exporter::{Exporter, Site};
use stillgate_metrics::{CollectorOptions, Writer};
use stillgate_proxy::{MetricsPlan, Plan, Subject};
use tokio::sync::Notify;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::spawn_blocking;
use tracing::error;

/// Carries out one batch after the other.
pub(crate) struct Orders {
    waiting: Batch,
    /// A batch has ended, so that the next one can be sent.
    ended: Arc<Notify>,
    /// Tells of nodes; `None`: a batch is under way, or lost it to a bug.
    writer: Option<Writer>,
    /// The batch that is, which ends with the writer.
    under_way: Option<oneshot::Receiver<Option<Writer>>>,
}

/// What is to be done; nothing of it twice.
#[derive(Default)]
struct Batch {
    site: Option<Site>,
    options: Option<CollectorOptions>,
    /// Whether they are in use.
    subjects: BTreeMap<Subject, bool>,
    nodes: Option<Nodes>,
}

/// The nodes that one Plan has and another one had not. It holds both, so that what left with the older one goes only when this
/// has been told.
struct Nodes {
    metrics: Arc<MetricsPlan>,
    plan: Arc<Plan>,
    previous: Arc<Plan>,
    /// When the Plan was published: what a worker has found out of a node since is later news.
    published_unix_ms: u64,
}

impl Orders {
    /// With a writer of its own.
    pub(crate) fn new(writer: Writer) -> Orders {
        Orders { waiting: Batch::default(), ended: Arc::default(), writer: Some(writer), under_way: None }
    }

    /// Tells when [`Orders::send`] may have something to do.
    pub(crate) fn ended(&self) -> Arc<Notify> {
        self.ended.clone()
    }

    /// Has it exposed elsewhere, with other options.
    pub(crate) fn set_up(&mut self, site: Site, options: CollectorOptions) {
        self.waiting.site = Some(site);
        self.waiting.options = Some(options);
    }

    /// Gives the writer the time, once a second: without it, series that it has told of could not end.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if let Some(writer) = &mut self.writer {
            writer.tick(now_ms);
        }
    }

    /// What has come into use, or is used by nothing any more.
    pub(crate) fn set_in_use(&mut self, subjects: impl IntoIterator<Item = Subject>, are_in_use: bool) {
        self.waiting.subjects.extend(subjects.into_iter().map(|subject| (subject, are_in_use)));
    }

    /// Has the nodes told of that came with a Plan.
    pub(crate) fn tell_nodes(
        &mut self,
        metrics: Arc<MetricsPlan>,
        plan: &Arc<Plan>,
        previous: &Arc<Plan>,
        published_unix_ms: u64,
    ) {
        // Where another one waits, what is new against the Plan before that one is new.
        let waiting = self.waiting.nodes.take().map(|nodes| nodes.previous);
        let previous = waiting.unwrap_or_else(|| previous.clone());
        self.waiting.nodes = Some(Nodes { metrics, plan: plan.clone(), previous, published_unix_ms });
    }

    /// Begins what waits, unless something is under way; to be called when that has ended, too.
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
        let Batch { site, options, subjects, nodes } = std::mem::take(&mut self.waiting);
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
            // Of a node whose upstream was removed and has come back, no series must be made before that is known.
            if let Some(nodes) = nodes
                && let Some(of_nodes) = writer.take()
            {
                writer = spawn_blocking(move || nodes.told(of_nodes)).await.ok();
            }
            // Where nobody waits for it the metrics have ended.
            let _ = end.send(writer);
            told.notify_one();
        });
    }
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.site.is_none() && self.options.is_none() && self.subjects.is_empty() && self.nodes.is_none()
    }
}

impl Nodes {
    fn told(self, mut writer: Writer) -> Writer {
        writer.tick(self.published_unix_ms);
        self.metrics.tell_new_nodes(&self.plan, Some(&self.previous), &mut writer);
        writer.tick(self.published_unix_ms);
        writer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_metrics::{Collector, CollectorOptions, Options, Process, Registry};

    fn route(id: &str) -> [Subject; 1] {
        [Subject::new(&[Label::Route], &[id])]
    }

    /// The first order is under way when the others come: were they sent at once, they could be taken before its end.
    #[tokio::test]
    async fn the_latest_news_of_a_value_counts() {
        let registry = Arc::new(Registry::start(Options::new(Process { pid: 1, start: 1 }, 1_000, 7)).unwrap());
        let collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        let exporter = Exporter::spawn(None, collector, Site::at("/metrics")).unwrap();
        let mut orders = Orders::new(registry.writer().unwrap());
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
