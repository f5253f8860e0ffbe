//! A worker's part in the metrics; their definitions are in `plan::metrics`.
//!
//! What is reported about connections and nodes is in `gauges`; the series of requests are found in `table`.

mod gauges;
mod table;

use crate::plan::Plan;
use crate::plan::metrics::{CountedFamilies, MetricsPlan, PlanFamily, RequestMetric, node_label, write_text};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::sockets::listener::{CONNECTION_EVENTS, ConnectionEvent, Listener};
use crate::telemetry::outcome::{RequestOutcome, RetainedConfig};
use crate::telemetry::session::ClientSession;
use gauges::{labelled, labelled_from_start};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_config::{EXTRA_LABELS_MAX, Label, LabelSource, Measure, NodeProtocol, Route, Upstream};
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_metrics::family::LABELS_MAX;
use stillgate_metrics::{DeclaredFamily, Handle, Writer};
use stillgate_plugin_api::record::Trace;
use stillgate_plugin_api::{ConsumerRef, Consumers};
use stillgate_route::{Lookup, Match};
use stillgate_upstream::Endpoint;
use stillgate_wire::Method;
use table::{HandleCache, Handles, SeriesKey};

// What connections of devices add. The device itself is not a label, however few there are.
//
// Series are looked up by their labels: connections come and go seldom, and messages are reported together.

/// Labels that select the devices reported on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceLabels<'a> {
    /// The id of their route.
    pub(crate) route: &'a str,
    pub(crate) protocol: DeviceProtocol,
    /// For a connection that has ended.
    pub(crate) reason: &'a str,
    /// For messages.
    pub(crate) direction: &'a str,
}

impl Recorder {
    /// Adds to a family of devices, where it is exposed.
    pub(crate) fn count_devices(
        &mut self,
        metrics: &MetricsPlan,
        measure: Measure,
        labels: DeviceLabels<'_>,
        amount: u64,
    ) {
        let Some(family) = metrics.family(measure) else { return };
        let mut values: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
        for (value, source) in values.iter_mut().zip(family.sources.iter()) {
            *value = match source {
                LabelSource::Label(Label::Route) => labels.route.as_bytes(),
                LabelSource::Label(Label::Protocol) => protocol_label(labels.protocol).as_bytes(),
                LabelSource::Label(Label::Reason) => labels.reason.as_bytes(),
                LabelSource::Label(Label::Direction) => labels.direction.as_bytes(),
                // The families have no other labels, and none from variables.
                LabelSource::Label(_) | LabelSource::Variable(_) | LabelSource::Nothing => b"",
            };
        }
        let handle = self.writer.series(&family.declared, &values[..family.sources.len()]);
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = self.writer.add(handle, amount);
    }
}

/// Name of the protocol as a label.
fn protocol_label(protocol: DeviceProtocol) -> &'static str {
    match protocol {
        DeviceProtocol::Json => "json",
        DeviceProtocol::Cbor => "cbor",
        DeviceProtocol::Raw => "raw",
    }
}

// What a worker reports about upstreams in addition to their requests: retries, what is shed or waits, new connections.
//
// All of it is rare compared with requests, or costs far more than looking at the labels; so its series are looked up each time,
// which allocates nothing for one that is known.

/// Counted events of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamEvent {
    /// A request is sent a second time, or to another node.
    Retry,
    /// A retry skipped because the retry budget is exhausted.
    RetryOverBudget,
    /// A request is refused because of `limits.requests`.
    Shed,
    /// A request has to wait because of that limit.
    Queued,
}

impl UpstreamEvent {
    pub(crate) fn measure(self) -> Measure {
        match self {
            UpstreamEvent::Retry => Measure::UpstreamRetries,
            UpstreamEvent::RetryOverBudget => Measure::RetriesOverBudget,
            UpstreamEvent::Shed => Measure::RequestsShed,
            UpstreamEvent::Queued => Measure::RequestsQueued,
        }
    }
}

impl MetricsPlan {
    /// Starts the counters of possible events at 0, so that an alert on a rate sees the first event. With `metrics.expire` it does
    /// so only until the idle series expires.
    fn begin_counts(&self, writer: &mut Writer, upstream: &Upstream) {
        let of_budget = upstream.options.retry_budget.is_some().then_some(Measure::RetriesOverBudget);
        let of_limits = [Measure::RequestsShed, Measure::RequestsQueued];
        let of_limits = of_limits.into_iter().filter(|_| upstream.limits.requests.is_some());
        for measure in [Measure::UpstreamRetries].into_iter().chain(of_budget).chain(of_limits) {
            if let Some(family) = self.family(measure) {
                let handle = labelled(writer, family, &upstream.key);
                // Refused only if there was no memory for the series, which the writer has counted.
                let _ = writer.add(handle, 0);
            }
        }
    }
}

impl Recorder {
    /// Reports something about an upstream, if that is wanted.
    pub(crate) fn report_upstream(
        &mut self,
        metrics: Option<&MetricsPlan>,
        measure: Measure,
        upstream: &WorkerUpstream,
        tell: impl FnOnce(&mut Writer, Handle) -> bool,
    ) {
        let Some(family) = metrics.and_then(|metrics| metrics.family(measure)) else { return };
        let key = &upstream.planned.definition.key;
        let handle = labelled(&mut self.writer, family, key);
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = tell(&mut self.writer, handle);
    }
}

// A worker's recording of finished requests.
//
// In the steady state a request costs one table lookup, by a number made of its route, its node, its consumer and its status, and
// a few additions through the handles found there. Only what the table does not contain, or cannot keep, is looked up by its
// labels: series seen for the first time, those whose label has collapsed (each such request is counted as collapsed), and
// families with labels from variables of the request.

/// Bits of [`SeriesKey::request`]: the status, the node's slot plus one, the method, and the number of the route, with one bit above all.
const STATUS_BITS: u32 = 10;
const NODE_BITS: u32 = 20;
const METHOD_BITS: u32 = 4;
const ROUTE_BITS: u32 = 29;
const _: () = assert!(STATUS_BITS + NODE_BITS + METHOD_BITS + ROUTE_BITS == u64::BITS - 1);
const _: () = assert!(Method::NAMED.len() + 1 < 1 << METHOD_BITS);

/// A request that has ended.
pub(crate) trait FinishedRequest {
    /// Its outcome.
    fn outcome(&self) -> &RequestOutcome;
    /// Bytes from the client.
    fn bytes_received(&self) -> u64;
    /// Bytes to the client.
    fn bytes_sent(&self) -> u64;
    /// `None`: there was no request, as none could be read.
    fn method(&self) -> Option<Method>;
    /// The consumer, as a plugin has identified it.
    fn consumer(&self) -> Option<ConsumerRef>;
    /// Set for tunnels: the consumers among which the request's was found, retained after their Plan is gone.
    fn kept_consumers(&self) -> Option<Arc<Consumers>>;
    /// The host of the request, canonical.
    fn host(&mut self) -> &[u8];
    /// The trace that it is part of, if that is recorded.
    fn sampled(&self) -> Option<Trace>;
    /// Calls `then` with its variables.
    fn with_vars<R>(&mut self, plan: &Plan, then: impl FnOnce(&dyn Lookup) -> R) -> R;
}

/// A worker's end of the metrics.
pub(crate) struct Recorder {
    writer: Writer,
    table: HandleCache,
    /// What the table's keys are valid for: the numbering of the Plan and the generation of the handles.
    numbering: u64,
    generation: u32,
    texts: TextRoom,
    /// Buffers for values of variables that have to be built.
    buffers: Vec<Vec<u8>>,
    /// The last numbers of connections reported.
    told: Vec<u64>,
    itself: Itself,
}

/// What a finished request adds.
///
/// ```text
///  first byte read   node chosen        node's last byte read   last byte written to the client
///        ├── own ─────────┼── node ───────────────┼── own ──────────────────┤   request: all of it
/// ```
///
/// The node's part lasts from the choice for the first try to the end of the last try, however it ended. So a client that sends its
/// body slowly counts as the node's part, as the node waits, too; a client that reads its response slowly counts as that while more
/// of the response is to come, and as the gateway's own part once only its end is left to be written.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    received: u64,
    sent: u64,
    /// In the unit of the families; `None`: not measured.
    request: Option<f64>,
    /// `None`: no node was tried.
    node: Option<f64>,
    own: Option<f64>,
    /// Same as `request`, in seconds.
    live: Option<f64>,
}

impl Recorder {
    /// Makes the recorder of the worker with this number.
    pub(crate) fn new(writer: Writer, number: usize) -> Recorder {
        let generation = writer.generation();
        Recorder {
            writer,
            table: HandleCache::default(),
            numbering: 0,
            generation,
            texts: TextRoom::default(),
            buffers: vec![Vec::new(); EXTRA_LABELS_MAX],
            told: Vec::new(),
            itself: Itself::new(number),
        }
    }

    /// From here on this numbering is valid: slots of nodes may have changed hands. Requests that began under an older one are
    /// counted without the table.
    pub(crate) fn renumber(&mut self, numbering: u64) {
        self.adopt_numbering(numbering);
    }

    /// Counts a request that has ended; `ended` where it is timed.
    pub(crate) fn record(&mut self, finished: &mut impl FinishedRequest, snapshot: &Snapshot, ended: Option<Instant>) {
        let Some(metrics) = snapshot.plan.metrics() else { return };
        let added = if finished.outcome().kept.is_some() { &metrics.tunnels } else { &metrics.requests };
        if added.wanted == 0 {
            return;
        }
        let amounts = Amounts::of(finished, metrics, ended);
        let host = if metrics.tells_match { matched_host(finished, snapshot) } else { None };
        let is_present = self.adopt_numbering(snapshot.plan.numbering);
        let key = key(finished, snapshot, metrics, host).filter(|_| is_present);
        let mut unknown = added.wanted;
        let known = key.and_then(|key| self.table.get(key));
        let is_known = known.is_some();
        if let Some(handles) = known {
            unknown &= !handles.kept;
            for metric in RequestMetric::ALL {
                if handles.kept & metric.bit() != 0 {
                    // It has this generation, or it would not be in the table.
                    amounts.add(&mut self.writer, metric, handles.of[metric as usize]);
                }
            }
            if metrics.exemplars
                && let Some(trace) = finished.sampled()
            {
                amounts.exemplify(&mut self.writer, handles, handles.kept, trace);
            }
        }
        if unknown != 0 {
            let handles = self.look_up(unknown, added, finished, snapshot, metrics, host, &amounts);
            if let Some(key) = key.filter(|_| !is_known) {
                self.table.insert(key, handles);
            }
        }
    }

    /// Whether the table has this numbering, which it adopts if that is the newest. Requests that began under an older one are
    /// counted without the table.
    fn adopt_numbering(&mut self, numbering: u64) -> bool {
        let generation = self.writer.generation();
        if numbering > self.numbering || generation != self.generation {
            self.table.clear();
            self.numbering = numbering.max(self.numbering);
            self.generation = generation;
        }
        numbering == self.numbering
    }

    /// Adds to the series of these request metrics, found by their labels.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "all that is known of the request, and it is called in one place")]
    fn look_up(
        &mut self,
        metric_bits: u8,
        added: &CountedFamilies,
        finished: &mut impl FinishedRequest,
        snapshot: &Snapshot,
        metrics: &MetricsPlan,
        host: Option<usize>,
        amounts: &Amounts,
    ) -> Handles {
        let Recorder { writer, texts, buffers, .. } = self;
        let (found, kept) = (finished.outcome().route, finished.outcome().kept.clone());
        let upstream = upstream(found, finished.outcome().upstream, kept.as_deref(), snapshot);
        let state = upstream.map(|upstream| upstream.state.borrow());
        let endpoint = finished.outcome().asked.and_then(|(slot, address)| {
            let present = state.as_ref()?.endpoint(slot);
            if present.address == address {
                return Some(present);
            }
            // The slot belongs to another node by now, as this request ended its try under an older configuration.
            upstream?.planned.endpoints.iter().find(|endpoint| endpoint.address == address)
        });
        let route = route(found, kept.as_deref(), &snapshot.plan);
        let kept_consumers = finished.kept_consumers();
        let consumers = kept_consumers.as_ref().unwrap_or(&snapshot.plan.consumers);
        let asked = LabelInputs {
            node: endpoint,
            status: finished.outcome().status,
            method: finished.method(),
            consumer: finished.consumer().map_or("", |found| &consumers.of(found).name),
            named: snapshot.plan.routes.named,
        };
        let values = Values::new(metrics, route, host, &asked, texts);
        let trace = finished.sampled().filter(|_| metrics.exemplars);
        let mut look = |vars: Option<&dyn Lookup>| {
            let mut handles = Handles::NONE;
            for metric in RequestMetric::ALL {
                let Some(family) = added.family(metric).filter(|_| metric_bits & metric.bit() != 0) else { continue };
                if metric == RequestMetric::UpstreamTime && endpoint.is_none() {
                    // The next request with this key will not have any, either.
                    handles.kept |= metric.bit();
                    continue;
                }
                let handle =
                    values.with(family, metric, vars, buffers, |values| writer.series(&family.declared, values));
                amounts.add(writer, metric, handle);
                handles.of[metric as usize] = handle;
                let is_variable = added.variable & metric.bit() != 0;
                // If the dashboard's family has collapsed, it is not counted, and the table entry may be used.
                let is_given_up = || metric == RequestMetric::DashboardTime && family.declared.collapsed() != 0;
                let is_plain = handle != Handle::NONE && (!writer.is_collapsed(handle) || is_given_up());
                if !is_variable && is_plain {
                    handles.kept |= metric.bit();
                }
            }
            if let Some(trace) = trace {
                amounts.exemplify(writer, &handles, metric_bits, trace);
            }
            handles
        };
        if metric_bits & added.variable == 0 {
            return look(None);
        }
        finished.with_vars(&snapshot.plan, |vars| look(Some(vars)))
    }
}

impl Amounts {
    fn of(finished: &impl FinishedRequest, metrics: &MetricsPlan, ended: Option<Instant>) -> Amounts {
        let unit = |time: Duration| (time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())) as f64;
        let request =
            finished.outcome().started.zip(ended).map(|(started, ended)| ended.saturating_duration_since(started));
        let node = finished.outcome().node_since.map(|since| {
            let until = finished.outcome().node_until.or(ended).unwrap_or(since);
            until.saturating_duration_since(since)
        });
        let own = request.map(|request| request.saturating_sub(node.unwrap_or_default()));
        let live = request.map(|request| unit(request) * 1e-9);
        let [request, node, own] = [request, node, own].map(|time| time.map(|time| unit(time) * metrics.nanosecond));
        Amounts { received: finished.bytes_received(), sent: finished.bytes_sent(), request, node, own, live }
    }

    /// Adds to the series of one request metric.
    #[inline]
    fn add(&self, writer: &mut Writer, metric: RequestMetric, handle: Handle) {
        let mut observe = |time: Option<f64>| time.is_none_or(|time| writer.observe(handle, time));
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = match metric {
            RequestMetric::RequestTime => observe(self.request),
            RequestMetric::UpstreamTime => observe(self.node),
            RequestMetric::GatewayTime => observe(self.own),
            RequestMetric::DashboardTime => observe(self.live),
            RequestMetric::Count => writer.add(handle, 1),
            RequestMetric::Received => writer.add(handle, self.received),
            RequestMetric::Sent => writer.add(handle, self.sent),
        };
    }

    /// Attaches the request's trace to what was observed of these request metrics.
    #[cold]
    fn exemplify(&self, writer: &mut Writer, handles: &Handles, metric_bits: u8, trace: Trace) {
        let (trace_id, span_id) = (hex::<32>(trace.trace_id), hex::<16>(trace.span_id.into()));
        let labels: [(&str, &[u8]); 2] = [("trace_id", &trace_id), ("span_id", &span_id)];
        let times = [
            (RequestMetric::RequestTime, self.request),
            (RequestMetric::UpstreamTime, self.node),
            (RequestMetric::GatewayTime, self.own),
        ];
        for (metric, time) in times {
            let Some(time) = time.filter(|_| metric_bits & metric.bit() != 0) else { continue };
            // Refused if the series has no memory, as in `add`.
            let _ = writer.exemplar(handles.of[metric as usize], time, &labels);
        }
    }
}

/// The last digits of a number.
fn hex<const DIGITS: usize>(number: u128) -> [u8; DIGITS] {
    std::array::from_fn(|at| b"0123456789abcdef"[(number >> (4 * (DIGITS - 1 - at)) & 15) as usize])
}

/// A request's upstream.
pub(crate) fn upstream<'a>(
    found: Option<Match>,
    chosen: Option<usize>,
    kept: Option<&'a RetainedConfig>,
    snapshot: &'a Snapshot,
) -> Option<&'a WorkerUpstream> {
    match kept {
        Some(kept) => kept.upstream.as_deref(),
        None => {
            let of_route = || Some(snapshot.plan.routes[found?.route].upstream());
            snapshot.upstreams.get(chosen.or_else(of_route)?).map(|upstream| &**upstream)
        }
    }
}

/// A request's route, and which of its paths matched.
fn route<'a>(found: Option<Match>, kept: Option<&'a RetainedConfig>, plan: &'a Plan) -> Option<(&'a Route, usize)> {
    match (kept, found) {
        (Some(kept), _) => Some((&kept.route, kept.path)),
        (None, found) => found.map(|found| (&*plan.routes[found.route].route, found.path)),
    }
}

/// The number of a request's series under this numbering; `None`: it has none, as there are too many.
#[inline]
fn key(
    finished: &impl FinishedRequest,
    snapshot: &Snapshot,
    metrics: &MetricsPlan,
    host: Option<usize>,
) -> Option<SeriesKey> {
    // A tunnel's route, and its number, may be gone. And nodes are numbered within the route's own upstream.
    if finished.outcome().kept.is_some() || finished.outcome().upstream.is_some() {
        return None;
    }
    let route = finished.outcome().route.map_or(0, |found| {
        let route = &snapshot.plan.routes[found.route];
        match metrics.tells_match {
            false => 1 + route.first_series_number,
            true => 1 + route.series_number(found.path, host),
        }
    });
    let node = finished.outcome().asked.map_or(0, |(slot, _)| slot as u64 + 1);
    let status = u64::from(finished.outcome().status);
    // Zero if no label contains it, so that requests share what they have in common.
    let method = if metrics.tells_method { finished.method().map_or(0, |method| method as u64 + 1) } else { 0 };
    // Places are counted from zero, but here zero means none.
    let consumer = finished.consumer().filter(|_| metrics.tells_consumer).map_or(0, |found| found.consumer + 1);
    let fits = route < 1 << ROUTE_BITS && node < 1 << NODE_BITS && status < 1 << STATUS_BITS;
    let place = (route << METHOD_BITS | method) << NODE_BITS | node;
    fits.then_some(SeriesKey { request: 1 << 63 | place << STATUS_BITS | status, consumer })
}

/// The route's host that matches the request's: the exact one, or otherwise the longest suffix, as in the matcher.
fn matched_host(finished: &mut impl FinishedRequest, snapshot: &Snapshot) -> Option<usize> {
    let kept = finished.outcome().kept.clone();
    let spec = route(finished.outcome().route, kept.as_deref(), &snapshot.plan)?.0.spec.uri()?;
    if spec.hosts.len() <= 1 {
        return (!spec.hosts.is_empty()).then_some(0);
    }
    let host = finished.host();
    let matching = spec.hosts.iter().enumerate().filter(|(_, pattern)| pattern.matches(host));
    matching.max_by_key(|(_, pattern)| pattern.precedence()).map(|(index, _)| index)
}

// The values of labels, from what a worker knows of a request.
//
// Needed if a series is not known by its number yet, and for families with labels from variables of the request. Texts that have
// to be built are written into reused memory.

/// Every status as text.
const CODES: [[u8; 3]; 1000] = codes();

const fn codes() -> [[u8; 3]; 1000] {
    let mut codes = [[b'0'; 3]; 1000];
    let mut code = 0;
    while code < 1000 {
        codes[code] = [b'0' + (code / 100) as u8, b'0' + (code / 10 % 10) as u8, b'0' + (code % 10) as u8];
        code += 1;
    }
    codes
}

/// Label of methods that are not registered: a client may make up any number of them.
const OTHER: &str = "__other__";

/// Room for texts that are not stored anywhere.
#[derive(Debug, Default)]
pub(crate) struct TextRoom {
    node: String,
    uri: String,
    host: String,
}

/// The outcome of a request, apart from its route.
pub(crate) struct LabelInputs<'a> {
    /// The node that was tried last.
    pub(crate) node: Option<&'a Endpoint>,
    pub(crate) status: u16,
    /// `None`: no request could be read.
    pub(crate) method: Option<Method>,
    /// The consumer; empty if no plugin has identified one.
    pub(crate) consumer: &'a str,
    /// Whether all routes are identified by their names.
    pub(crate) named: bool,
}

/// The label values of one request.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    route: &'a str,
    service: &'a str,
    node: &'a str,
    consumer: &'a str,
    uri: &'a str,
    host: &'a str,
    code: &'static [u8],
    method: &'static str,
}

impl<'a> Values<'a> {
    /// Label values of a request that a route matched by one of its paths, maybe with one of its hosts.
    pub(crate) fn new(
        metrics: &MetricsPlan,
        route: Option<(&'a Route, usize)>,
        host_index: Option<usize>,
        asked: &LabelInputs<'a>,
        texts: &'a mut TextRoom,
    ) -> Values<'a> {
        let TextRoom { node, uri, host } = texts;
        uri.clear();
        host.clear();
        if metrics.tells_match
            && let Some((route, path)) = route
            && let Some(spec) = route.spec.uri()
        {
            write_text(uri, &spec.paths[path]);
            if let Some(index) = host_index {
                write_text(host, &spec.hosts[index]);
            }
        }
        let (route, service) = route.map_or(("", None), |(route, _)| route.labels(asked.named));
        Values {
            route,
            service: service.unwrap_or_default(),
            node: asked.node.map_or("", |endpoint| node_label(endpoint, metrics.node_is_ip, node)),
            consumer: asked.consumer,
            uri,
            host,
            code: &CODES[usize::from(asked.status) % CODES.len()],
            method: asked.method.map_or("", |method| method.name().unwrap_or(OTHER)),
        }
    }

    fn of(&self, label: Label, metric: RequestMetric) -> &[u8] {
        match label {
            Label::Code => self.code,
            Label::Method => self.method.as_bytes(),
            Label::Route => self.route.as_bytes(),
            Label::Service => self.service.as_bytes(),
            Label::Node => self.node.as_bytes(),
            Label::MatchedUri => self.uri.as_bytes(),
            Label::MatchedHost => self.host.as_bytes(),
            Label::Type | Label::Direction => metric.label_value().as_bytes(),
            Label::Consumer => self.consumer.as_bytes(),
            // Requests do not have the other labels.
            _ => b"",
        }
    }

    /// Calls `then` with the family's label values. `buffers` has one for each variable, at least.
    pub(crate) fn with<R>(
        &self,
        family: &PlanFamily,
        metric: RequestMetric,
        vars: Option<&dyn Lookup>,
        buffers: &mut [Vec<u8>],
        then: impl FnOnce(&[&[u8]]) -> R,
    ) -> R {
        let mut values: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
        let mut buffers = buffers.iter_mut();
        for (value, source) in values.iter_mut().zip(family.sources.iter()) {
            *value = match (source, vars) {
                (LabelSource::Label(label), _) => self.of(*label, metric),
                (LabelSource::Variable(variable), Some(vars)) => {
                    buffers.next().and_then(|buffer| vars.value(variable, buffer)).unwrap_or_default()
                }
                (LabelSource::Variable(_), None) | (LabelSource::Nothing, _) => b"",
            };
        }
        then(&values[..family.sources.len()])
    }
}

// What a worker reports about itself: its CPU time, its connections, the turns of its event loop, and what its listeners accepted.
//
// A worker that is busy, or blocked by something that it should not do, looks like any latency from outside; a label for the
// worker shows it. A turn is timed by reading the clock at its end, as it is read at its beginning anyway; all else is reported on
// ticks.

/// The families of the events of connections.
const EVENT_MEASURES: [(ConnectionEvent, Measure); CONNECTION_EVENTS] = [
    (ConnectionEvent::Accepted, Measure::ConnectionsAccepted),
    (ConnectionEvent::Refused, Measure::ConnectionsRefused),
    (ConnectionEvent::NoProxyHeader, Measure::ProxyProtocolErrors),
];

/// What the metrics have been given about a worker.
#[derive(Debug)]
struct Itself {
    /// Its number, as a label.
    number: String,
    cpu_s: f64,
    /// Connections.
    open: u64,
    /// The series of its turns, and its family.
    turns: Option<(Arc<DeclaredFamily>, Handle)>,
}

impl Itself {
    fn new(number: usize) -> Itself {
        Itself { number: number.to_string(), cpu_s: 0.0, open: 0, turns: None }
    }
}

impl Recorder {
    /// Records how long a turn of the event loop took.
    pub(crate) fn observe_turn(&mut self, family: &PlanFamily, seconds: f64) {
        let Recorder { writer, itself, .. } = self;
        if let Some((of, handle)) = &itself.turns
            && Arc::ptr_eq(of, &family.declared)
            && writer.observe(*handle, seconds)
        {
            return;
        }
        let handle = labelled(writer, family, &itself.number);
        itself.turns = Some((family.declared.clone(), handle));
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = writer.observe(handle, seconds);
    }

    /// Reports what has changed, or everything if it is `due`.
    pub(crate) fn report_itself(&mut self, metrics: &MetricsPlan, listeners: &[Rc<Listener>], open: u64, due: bool) {
        let Recorder { writer, itself, .. } = self;
        for (event, measure) in EVENT_MEASURES {
            let Some(family) = metrics.family(measure) else { continue };
            for listener in listeners.iter().filter(|listener| listener.takes_connections()) {
                let Some(count) = listener.news(event, due) else { continue };
                let handle = labelled_from_start(writer, family, &listener.label);
                // Refused only if there was no memory for the series, which the writer has counted.
                let _ = writer.add(handle, count);
            }
        }
        if let Some(family) = metrics.family(Measure::WorkerConnections).filter(|_| due || open != itself.open) {
            itself.open = open;
            let handle = labelled(writer, family, &itself.number);
            let _ = writer.set(handle, open as f64);
        }
        if let Some(family) = metrics.family(Measure::WorkerCpu).filter(|_| due) {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let cpu_s = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
            let handle = labelled_from_start(writer, family, &itself.number);
            let _ = writer.add_float(handle, cpu_s - std::mem::replace(&mut itself.cpu_s, cpu_s));
        }
    }
}

impl Recorder {
    /// Counts a session that has ended. Bytes are those from the client, and to it.
    pub(crate) fn record_session(
        &mut self,
        metrics: Option<&MetricsPlan>,
        session: &ClientSession,
        received: u64,
        sent: u64,
    ) {
        let Some(metrics) = metrics else { return };
        if let Some(family) = metrics.family(Measure::StreamSessions) {
            self.add_to_session(metrics, family, session, "", 1);
        }
        if let Some(family) = metrics.family(Measure::StreamBytes) {
            self.add_to_session(metrics, family, session, "ingress", received);
            self.add_to_session(metrics, family, session, "egress", sent);
        }
    }

    fn add_to_session(
        &mut self,
        metrics: &MetricsPlan,
        family: &PlanFamily,
        session: &ClientSession,
        direction: &str,
        amount: u64,
    ) {
        let (mut node, mut code) = (String::new(), String::new());
        let node = session.node.as_ref().map_or("", |of| node_label(of, metrics.node_is_ip, &mut node));
        write!(code, "{}", session.status).expect("writing to a String does not fail");
        let mut values: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
        for (value, source) in values.iter_mut().zip(family.sources.iter()) {
            *value = match source {
                LabelSource::Label(Label::StreamRoute) => {
                    session.route.as_ref().map_or("", |route| &route.id).as_bytes()
                }
                LabelSource::Label(Label::Node) => node.as_bytes(),
                LabelSource::Label(Label::Code) => code.as_bytes(),
                LabelSource::Label(Label::Direction) => direction.as_bytes(),
                LabelSource::Label(Label::Protocol) if session.protocol == NodeProtocol::Udp => b"udp",
                LabelSource::Label(Label::Protocol) => b"tcp",
                // The families have no other labels, and none from variables.
                LabelSource::Label(_) | LabelSource::Variable(_) | LabelSource::Nothing => b"",
            };
        }
        let handle = self.writer.series(&family.declared, &values[..family.sources.len()]);
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = self.writer.add(handle, amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_three_digits() {
        assert_eq!((&CODES[7], &CODES[200], &CODES[499]), (b"007", b"200", b"499"));
    }
}
