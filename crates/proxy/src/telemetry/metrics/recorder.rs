//! A worker's recording of finished requests.
//!
//! In the steady state a request costs one table lookup, by a number made of its route, its node, its consumer and its status, and
//! a few additions through the handles found there. Only what the table does not contain, or cannot keep, is looked up by its
//! labels: series seen for the first time, those whose label has collapsed (each such request is counted as collapsed), and
//! families with labels from variables of the request.

use super::table::{Handles, SeriesKey, SeriesTable};
use super::values::{LabelInputs, TextRoom, Values};
use super::workers::Itself;
use crate::plan::Plan;
use crate::plan::metrics::{Aspect, CountedFamilies, MetricsPlan};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::telemetry::outcome::{RequestOutcome, RetainedConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_config::{EXTRA_LABELS_MAX, Route};
use stillgate_metrics::{Handle, Writer};
use stillgate_plugin::record::Trace;
use stillgate_plugin::{AttachedConsumer, Consumers};
use stillgate_route::{Lookup, Match};
use stillgate_wire::Method;

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
    fn consumer(&self) -> Option<AttachedConsumer>;
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
    pub(super) writer: Writer,
    table: SeriesTable,
    /// What the table's keys are valid for: the numbering of the Plan and the generation of the handles.
    numbering: u64,
    generation: u32,
    texts: TextRoom,
    /// Buffers for values of variables that have to be built.
    buffers: Vec<Vec<u8>>,
    /// The last numbers of connections reported.
    pub(super) told: Vec<u64>,
    pub(super) itself: Itself,
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
            table: SeriesTable::default(),
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
        self.is_present(numbering);
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
        let is_present = self.is_present(snapshot.plan.numbering);
        let key = key(finished, snapshot, metrics, host).filter(|_| is_present);
        let mut unknown = added.wanted;
        let known = key.and_then(|key| self.table.get(key));
        let is_known = known.is_some();
        if let Some(handles) = known {
            unknown &= !handles.kept;
            for aspect in Aspect::ALL {
                if handles.kept & aspect.bit() != 0 {
                    // It has this generation, or it would not be in the table.
                    amounts.add(&mut self.writer, aspect, handles.of[aspect as usize]);
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
    fn is_present(&mut self, numbering: u64) -> bool {
        let generation = self.writer.generation();
        if numbering > self.numbering || generation != self.generation {
            self.table.clear();
            self.numbering = numbering.max(self.numbering);
            self.generation = generation;
        }
        numbering == self.numbering
    }

    /// Adds to the series of these aspects, found by their labels.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "all that is known of the request, and it is called in one place")]
    fn look_up(
        &mut self,
        aspects: u8,
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
            for aspect in Aspect::ALL {
                let Some(family) = added.aspect(aspect).filter(|_| aspects & aspect.bit() != 0) else { continue };
                if aspect == Aspect::NodeTime && endpoint.is_none() {
                    // The next request with this key will not have any, either.
                    handles.kept |= aspect.bit();
                    continue;
                }
                let handle =
                    values.with(family, aspect, vars, buffers, |values| writer.series(&family.declared, values));
                amounts.add(writer, aspect, handle);
                handles.of[aspect as usize] = handle;
                let is_variable = added.variable & aspect.bit() != 0;
                // If the dashboard's family has collapsed, it is not counted, and the table entry may be used.
                let is_given_up = || aspect == Aspect::LiveTime && family.declared.collapsed() != 0;
                let is_plain = handle != Handle::NONE && (!writer.is_collapsed(handle) || is_given_up());
                if !is_variable && is_plain {
                    handles.kept |= aspect.bit();
                }
            }
            if let Some(trace) = trace {
                amounts.exemplify(writer, &handles, aspects, trace);
            }
            handles
        };
        if aspects & added.variable == 0 {
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

    /// Adds to the series of one aspect.
    #[inline]
    fn add(&self, writer: &mut Writer, aspect: Aspect, handle: Handle) {
        let mut observe = |time: Option<f64>| time.is_none_or(|time| writer.observe(handle, time));
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = match aspect {
            Aspect::RequestTime => observe(self.request),
            Aspect::NodeTime => observe(self.node),
            Aspect::OwnTime => observe(self.own),
            Aspect::LiveTime => observe(self.live),
            Aspect::Count => writer.add(handle, 1),
            Aspect::Received => writer.add(handle, self.received),
            Aspect::Sent => writer.add(handle, self.sent),
        };
    }

    /// Attaches the request's trace to what was observed of these aspects.
    #[cold]
    fn exemplify(&self, writer: &mut Writer, handles: &Handles, aspects: u8, trace: Trace) {
        let (trace_id, span_id) = (hex::<32>(trace.trace_id), hex::<16>(trace.span_id.into()));
        let labels: [(&str, &[u8]); 2] = [("trace_id", &trace_id), ("span_id", &span_id)];
        let times = [(Aspect::RequestTime, self.request), (Aspect::NodeTime, self.node), (Aspect::OwnTime, self.own)];
        for (aspect, time) in times {
            let Some(time) = time.filter(|_| aspects & aspect.bit() != 0) else { continue };
            // Refused if the series has no memory, as in `add`.
            let _ = writer.exemplar(handles.of[aspect as usize], time, &labels);
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
            false => 1 + route.first_match,
            true => 1 + route.number(found.path, host),
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
