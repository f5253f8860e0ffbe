//! What a worker reports about its connections and about the nodes that it sets aside.
//!
//! Connections are counted in plain numbers of the worker's own; the metrics get them on its tick, so that a connection or a
//! request costs an addition and no series. A node is reported when it is set aside or works again, which is rare: the latest
//! report counts, whichever worker sent it.

use super::Recorder;
use crate::basics::counters::WorkerCounters;
use crate::plan::Plan;
use crate::plan::metrics::{MetricsPlan, PlanFamily, node_label, upstream_path};
use crate::plan::snapshot::WorkerUpstream;
use crate::sockets::listener::Listener;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_config::{Label, LabelSource};
use stillgate_metrics::family::LABELS_MAX;
use stillgate_metrics::{Handle, Writer};
use stillgate_upstream::Endpoint;

impl Recorder {
    /// Begins the next epoch, and reports how many connections there are: if that has changed, or if it is `due` (once a second),
    /// lest their series be taken for idle.
    pub(crate) fn tick(
        &mut self,
        now_unix_ms: u64,
        metrics: Option<&MetricsPlan>,
        listeners: &[Rc<Listener>],
        counters: &WorkerCounters,
        due: bool,
    ) {
        self.writer.tick(now_unix_ms);
        let Some(family) = metrics.and_then(MetricsPlan::connections) else {
            self.told.clear();
            return;
        };
        let by_listener = family.sources.contains(&LabelSource::Label(Label::Listener));
        let of_http: Vec<&Listener> = shown(listeners).collect();
        let numbers = match by_listener {
            true => of_http
                .iter()
                .flat_map(|listener| {
                    let active = listener.active.get();
                    [("active", active), ("idle", listener.open.get().saturating_sub(active))]
                })
                .collect::<Vec<_>>(),
            false => of_nginx(&of_http, counters).to_vec(),
        };
        let is_news = !numbers.iter().map(|(_, number)| number).eq(&self.told);
        if !is_news && !due {
            return;
        }
        self.told.clear();
        self.told.extend(numbers.iter().map(|(_, number)| number));
        for (index, (state, number)) in numbers.into_iter().enumerate() {
            let listener = if by_listener { of_http[index / 2].label.as_str() } else { "" };
            set(&mut self.writer, family, number as f64, |label| match label {
                Label::Listener => listener.to_owned(),
                _ => state.to_owned(),
            });
        }
    }

    /// Reports that a node was set aside, or works again.
    pub(crate) fn report_node(
        &mut self,
        metrics: Option<&MetricsPlan>,
        upstream: &WorkerUpstream,
        index: usize,
        now_ms: u64,
    ) {
        let Some(metrics) = metrics.filter(|metrics| metrics.health().is_some()) else { return };
        let state = upstream.state.borrow();
        let node = state.endpoint(index);
        // A name may resolve to several addresses, and is healthy while one of them is.
        let is_same = |other: &Endpoint| match metrics.node_is_ip {
            true => other.address == node.address,
            false => other.host == node.host,
        };
        let is_well = state.status(now_ms).filter(|status| status.failures == 0).any(|status| {
            let endpoints = &upstream.planned.endpoints;
            endpoints.iter().any(|e| e.address == status.address && is_same(e) && is_checked_well(e))
        });
        metrics.report_node(&mut self.writer, &upstream.planned.definition.key, node, is_well);
    }
}

impl MetricsPlan {
    /// Reports the nodes that `previous` did not have, which are healthy until they are found not to be, and begins what is counted
    /// for their upstreams.
    pub fn report_new_nodes(&self, plan: &Plan, previous: Option<&Plan>, writer: &mut Writer) {
        let declared = |plan: &MetricsPlan| plan.health().map(|family| Arc::as_ptr(&family.declared));
        let has_told = |old: &&Plan| old.metrics().is_some_and(|old| declared(old) == declared(self));
        let previous = previous.filter(has_told);
        if previous.is_some_and(|old| Arc::ptr_eq(&old.upstreams, &plan.upstreams)) {
            return;
        }
        for (slot, upstream) in plan.upstreams.slots().iter().enumerate() {
            let Some(upstream) = upstream else { continue };
            let key = upstream.definition.key.as_str();
            let old = previous.and_then(|old| old.upstreams.get(slot)).filter(|old| old.definition.key == key);
            if old.is_some_and(|old| Arc::ptr_eq(old, upstream)) {
                continue;
            }
            self.begin_counts(writer, &upstream.definition);
            for endpoint in &upstream.endpoints {
                let is_known = |old: &Endpoint| old.address == endpoint.address && old.host == endpoint.host;
                if !old.is_some_and(|old| old.endpoints.iter().any(is_known)) {
                    self.report_node(writer, key, endpoint, is_checked_well(endpoint));
                }
            }
        }
    }

    /// Reports what active checks have found about a node, which is one of `endpoints`.
    pub fn report_checked(&self, writer: &mut Writer, upstream: &str, node: &Endpoint, endpoints: &[Endpoint]) {
        let is_same = |other: &Endpoint| match self.node_is_ip {
            true => other.address == node.address,
            false => other.host == node.host,
        };
        let is_well = endpoints.iter().any(|endpoint| is_same(endpoint) && is_checked_well(endpoint));
        self.report_node(writer, upstream, node, is_well);
    }

    fn report_node(&self, writer: &mut Writer, upstream: &str, endpoint: &Endpoint, is_well: bool) {
        let Some(family) = self.health() else { return };
        set(writer, family, f64::from(u8::from(is_well)), |label| match label {
            Label::Upstream => upstream.to_owned(),
            Label::Name => upstream_path(upstream),
            Label::Ip => endpoint.address.ip().to_string(),
            Label::Port => endpoint.address.port().to_string(),
            _ => node_label(endpoint, self.node_is_ip, &mut String::new()).to_owned(),
        });
    }
}

/// Whether active checks, if there are any, consider it healthy.
fn is_checked_well(endpoint: &Endpoint) -> bool {
    endpoint.verdict.as_ref().is_none_or(|verdict| verdict.is_healthy())
}

/// HTTP listeners, including former ones that still have HTTP connections.
fn shown(listeners: &[Rc<Listener>]) -> impl Iterator<Item = &Listener> {
    let is_shown = |of: &&Listener| of.takes_connections() && (of.is_http() || of.open.get() > 0);
    listeners.iter().map(|listener| &**listener).filter(is_shown)
}

/// Connection states as nginx counts them (`ngx_http_stub_status_module`).
fn of_nginx(listeners: &[&Listener], counters: &WorkerCounters) -> [(&'static str, u64); 6] {
    let open = counters.connections_open.get();
    let writing = counters.requests_in_flight.get();
    let busy: u64 = listeners.iter().map(|listener| listener.busy.get()).sum();
    let active: u64 = listeners.iter().map(|listener| listener.active.get()).sum();
    let accepted = counters.connections_total.get();
    [
        ("active", open),
        ("reading", busy.saturating_sub(active)),
        ("writing", writing),
        ("waiting", open.saturating_sub(busy)),
        ("accepted", accepted),
        ("handled", accepted.saturating_sub(counters.connections_refused.get())),
    ]
}

/// The series of a family that has one label.
pub(super) fn labelled(writer: &mut Writer, family: &PlanFamily, value: &str) -> Handle {
    writer.series(&family.declared, &[value.as_bytes()])
}

/// Like `labelled`, for something that was counted since the gateway started, and is reported now and then.
pub(super) fn labelled_from_start(writer: &mut Writer, family: &PlanFamily, value: &str) -> Handle {
    writer.series_since(&family.declared, &[value.as_bytes()], writer.started_ms())
}

/// Sets a gauge whose labels are all its family's own.
fn set(writer: &mut Writer, family: &PlanFamily, number: f64, value: impl Fn(Label) -> String) {
    let values: Vec<String> = family
        .sources
        .iter()
        .map(|source| match source {
            LabelSource::Label(label) => value(*label),
            // Families of the process have none.
            LabelSource::Variable(_) | LabelSource::Nothing => String::new(),
        })
        .collect();
    let mut bytes: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
    bytes.iter_mut().zip(&values).for_each(|(bytes, value)| *bytes = value.as_bytes());
    let handle = writer.series(&family.declared, &bytes[..values.len()]);
    // Refused only if there was no memory for the series, which the writer has counted.
    let _ = writer.set(handle, number);
}
