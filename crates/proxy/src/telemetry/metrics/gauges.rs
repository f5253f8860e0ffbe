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
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{Label, LabelSource, Measure};
use stillgate_metrics::family::LABELS_MAX;
use stillgate_metrics::{Handle, Writer};
use stillgate_plugin_api::Phase;
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
        let definition = &upstream.planned.definition;
        let Some(metrics) = metrics.filter(|metrics| metrics.health_of(definition).is_some()) else { return };
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
        metrics.report_node(&mut self.writer, &definition.key, node, is_well);
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
            if self.health_of(&upstream.definition).is_none() {
                continue;
            }
            let old = old.filter(|old| self.health_of(&old.definition).is_some());
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

// What a worker reports about plugins: how long their calls take, what they answer, and that they panic.
//
// Calls are timed for few requests, and answers and panics end one; so series are looked up each time, which allocates nothing for
// a known one.

/// Maximum length of a status as text.
const STATUS_BYTES_MAX: usize = 5;

impl Recorder {
    /// Records how long a call of a plugin took.
    pub(crate) fn observe_plugin(&mut self, metrics: &MetricsPlan, plugin: &str, phase: Phase, took: Duration) {
        let Some(family) = metrics.family(Measure::PluginDuration) else { return };
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), phase.name().as_bytes()]);
        // Refused only if there was no memory for the series, which the writer has counted; as below.
        let _ = self.writer.observe(handle, took.as_secs_f64());
    }

    /// Counts a plugin's answer to a request.
    pub(crate) fn count_plugin_answer(&mut self, metrics: &MetricsPlan, plugin: &str, status: u16) {
        let Some(family) = metrics.family(Measure::PluginAnswers) else { return };
        let mut text = [0; STATUS_BYTES_MAX];
        let mut rest = &mut text[..];
        write!(rest, "{status}").expect("every u16 fits");
        let length = STATUS_BYTES_MAX - rest.len();
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), &text[..length]]);
        let _ = self.writer.add(handle, 1);
    }

    /// Counts a plugin that has added more to a head than it may.
    pub(crate) fn count_refused_head(&mut self, metrics: &MetricsPlan, plugin: &str) {
        let Some(family) = metrics.family(Measure::PluginHeadsRefused) else { return };
        let handle = labelled(&mut self.writer, family, plugin);
        let _ = self.writer.add(handle, 1);
    }

    /// Counts a body that a plugin's filter has refused.
    pub(crate) fn count_refused_body(&mut self, metrics: &MetricsPlan, plugin: &str, reason: &str) {
        let Some(family) = metrics.family(Measure::PluginBodiesRefused) else { return };
        let handle = self.writer.series(&family.declared, &[plugin.as_bytes(), reason.as_bytes()]);
        let _ = self.writer.add(handle, 1);
    }

    /// Counts a panic of a plugin.
    pub(crate) fn count_plugin_panic(&mut self, metrics: &MetricsPlan, plugin: &str) {
        self.count_plugin(metrics, Measure::PluginPanics, plugin);
    }

    /// Counts an event whose only label is a plugin's name.
    pub(crate) fn count_plugin(&mut self, metrics: &MetricsPlan, measure: Measure, plugin: &str) {
        let Some(family) = metrics.family(measure) else { return };
        let handle = labelled(&mut self.writer, family, plugin);
        let _ = self.writer.add(handle, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stillgate_metrics::encode::Format;
    use stillgate_metrics::{Collector, CollectorOptions, Registry, RegistryOptions, SegmentProcess};

    #[test]
    fn plugins_are_reported_by_name() {
        let text = "gateway: {metrics: {address: \"127.0.0.1:1\"}}";
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let options = RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_000, 7);
        let registry = Arc::new(Registry::start(options).unwrap());
        let metrics = MetricsPlan::new(config.gateway.metrics.as_ref().unwrap(), &registry).unwrap();
        let mut recorder = Recorder::new(registry.writer().unwrap(), 0);
        recorder.count_plugin_panic(&metrics, "cors");
        recorder.count_plugin_panic(&metrics, "cors");
        recorder.count_refused_head(&metrics, "cors");
        recorder.count_refused_body(&metrics, "response-rewrite", "time");
        recorder.count_plugin_answer(&metrics, "cors", 65_535);
        recorder.count_plugin_answer(&metrics, "key-auth", 401);
        recorder.observe_plugin(&metrics, "cors", Phase::HeaderFilter, Duration::from_micros(3));
        recorder.tick(2_000, None, &[], &Default::default(), false);
        let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        let text = String::from_utf8(collector.exposition(Format::Text, 2_000).unwrap()).unwrap();
        for line in [
            "stillgate_plugin_panics_total{plugin=\"cors\"} 2",
            "stillgate_plugin_heads_refused_total{plugin=\"cors\"} 1",
            "stillgate_plugin_bodies_refused_total{plugin=\"response-rewrite\",reason=\"time\"} 1",
            "stillgate_plugin_answers_total{plugin=\"cors\",code=\"65535\"} 1",
            "stillgate_plugin_answers_total{plugin=\"key-auth\",code=\"401\"} 1",
            "stillgate_plugin_seconds_bucket{plugin=\"cors\",phase=\"header_filter\",le=\"2.5e-06\"} 0",
            "stillgate_plugin_seconds_bucket{plugin=\"cors\",phase=\"header_filter\",le=\"5e-06\"} 1",
            "stillgate_plugin_seconds_count{plugin=\"cors\",phase=\"header_filter\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
