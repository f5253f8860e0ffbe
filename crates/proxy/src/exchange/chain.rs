//! Runs the plugins of a request: those of the global rules, and those of its route, joined by those of its consumer.
//!
//! ```text
//!   global: rewrite, access ─▶ route: rewrite ─▶ consumer: rewrite of what it adds ─▶ access ─▶ before_proxy ─▶ node
//!   header_filter, coding of content, log: global, then route
//! ```
//!
//! A request without plugins pays one branch per phase. A plugin that panics makes its request fail with 500, and does nothing
//! else. What a plugin waits for in `rewrite` and `access` is handled by `waiting`: the phases stop there, and continue afterwards.

mod run;

use super::answer::LocalReply;
use super::facts::facts_of;
use super::receiver::Receiver;
use super::record::{ExchangeParts, Moment};
use super::target::host_of;
use super::{Exchange, RequestContext};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::telemetry::metrics::upstream;
use crate::telemetry::outcome::RequestOutcome;
use crate::worker::Worker;
use crate::worker::plugins::{PanickedAt, PluginRefusal, call_each, call_timed};
pub(super) use run::{ChainPosition, PausedChain, edited_value, resume, run_before_target, with_paused};
use run::{PhaseRun, PinnedChain, current_chain, open};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::body::Capture;
use stillgate_plugin_api::metadata::MetadataTable;
use stillgate_plugin_api::record::{NodeTries, push_recorded};
use stillgate_plugin_api::{
    BodyChanges, Chain, ChainEntry, ConsumerRef, Consumers, Facts, LogValues, Phase, Phases, RequestState, Response,
    Trace,
};
use stillgate_route::{Lookup, Variable};
use stillgate_wire::{Edits, Fields, Framing, RequestEdits};

/// Position of one request in its chains.
#[derive(Default)]
pub(crate) struct Chains {
    is_on: bool,
    is_timed: bool,
    /// Phases in which a plugin of either chain is called.
    phases: Phases,
    global: FilterResults,
    route: FilterResults,
    /// Replaces the route's chain if a consumer has plugins.
    merged: Option<Rc<Chain>>,
    /// The consumer, as a plugin has identified it.
    pub(crate) consumer: Option<ConsumerRef>,
    pub(super) settled: RequestState,
    /// A plugin has added more to the head of the response than it may, and has been counted: it will do the same to the error
    /// answer.
    is_head_refused: bool,
    /// Fields that the response will have, wherever it comes from.
    preset: Edits,
    /// The head of the node's response if the phase `log` has plugins: its original buffer is gone by then.
    response_head: Vec<u8>,
    /// The response comes from a node, not from us.
    is_of_node: bool,
    /// If plugins see the response: what plugins have changed in the request's header, without our later changes.
    request_fields: Edits,
    /// Whether they are known.
    has_request_fields: bool,
    /// The original status of the response.
    came_with: u16,
    /// Length of a local answer.
    own_length: Option<u64>,
    /// Set for tunnels: chains kept after their Plan is gone.
    kept: Option<Box<TunnelChains>>,
}

/// What a tunnel keeps for the phase `log`, since its Plan may be gone by then.
struct TunnelChains {
    global: Option<Arc<Chain>>,
    route: Option<Arc<Chain>>,
    consumers: Arc<Consumers>,
    metadata: Arc<MetadataTable>,
}

/// Results of `_meta.filter` for the entries of one chain, as bits.
#[derive(Debug, Default, Clone, Copy)]
struct FilterResults {
    known: u64,
    skipped: u64,
}

impl FilterResults {
    /// Whether an entry's filter does not hold; it is evaluated once.
    fn skips(&mut self, at: usize, entry: &ChainEntry, holds: impl FnOnce() -> bool) -> bool {
        if entry.meta.filter.is_none() {
            return false;
        }
        let bit = 1 << at;
        if self.known & bit == 0 {
            self.known |= bit;
            self.skipped |= if holds() { 0 } else { bit };
        }
        self.skipped & bit != 0
    }
}

impl Chains {
    /// Forgets the plugins of a request, keeping some memory. Resets each part in place: moving all of it costs more.
    pub(super) fn forget(&mut self) {
        let Chains {
            is_on,
            is_timed,
            phases,
            global,
            route,
            merged,
            consumer,
            settled,
            is_head_refused,
            preset,
            response_head,
            is_of_node,
            request_fields,
            has_request_fields,
            came_with,
            own_length,
            kept,
        } = self;
        (*is_on, *is_timed, *is_head_refused) = (false, false, false);
        (*is_of_node, *has_request_fields) = (false, false);
        (*phases, *global, *route) = (Phases::NONE, FilterResults::default(), FilterResults::default());
        (*merged, *consumer, *kept) = (None, None, None);
        (*came_with, *own_length) = (0, None);
        request_fields.clear();
        settled.clear();
        preset.clear();
        response_head.clear();
    }

    /// For tunnels: the consumers that include `consumer`, kept after their Plan is gone.
    #[inline]
    pub(crate) fn kept_consumers(&self) -> Option<&Arc<Consumers>> {
        self.kept.as_ref().map(|kept| &kept.consumers)
    }

    /// The request is about to be sent: later, plugins see what they have changed in its header up to now.
    #[inline]
    pub(super) fn note_request(&mut self, edits: &Edits) {
        if self.phases.and(OF_RESPONSES) != Phases::NONE {
            self.request_fields.copy_from(edits);
            self.has_request_fields = true;
        }
    }

    /// The key of the upstream that a plugin has chosen.
    #[inline]
    pub(super) fn upstream(&self) -> Option<&str> {
        self.settled.upstream()
    }

    /// The trace that the request is a part of.
    pub(crate) fn trace(&self) -> Option<Trace> {
        self.settled.trace
    }

    /// Whether none of it is needed once the head of the response has been sent.
    fn is_done(&self) -> bool {
        !self.phases.contains(Phase::Log) && self.consumer.is_none() && self.settled.is_nothing()
    }

    /// Whether a plugin sees the request before its node does, and may check or change its head.
    #[inline]
    pub(crate) fn guards_request(&self) -> bool {
        self.phases.and(BEFORE_NODES) != Phases::NONE
    }

    /// Whether there is a plugin.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }
}

/// Source of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseSource {
    /// The node, whose head is in `from_node`.
    Node,
    /// A node answered with a 101, which has no body.
    Switching,
    /// We have answered, with this status and so many bytes.
    Us(u16, usize),
}

/// A plugin failed while processing a response: it panicked, or added more to the head than it may. It has been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PluginFailed;

/// The owner of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Global,
    Route,
}

/// The route is known, or that there is none: this decides whether plugins are run.
#[inline]
pub(crate) fn begin(serving: &mut RequestContext<'_>) {
    if serving.snapshot.plan.global.is_some() || serving.route.is_some_and(|route| route.chain.is_some()) {
        start(serving);
    }
}

#[inline(never)]
fn start(serving: &mut RequestContext<'_>) {
    let plugins = &serving.worker.plugins;
    plugins.own.set_now_ms(serving.worker.clock.now_unix_ms());
    let of_route = serving.route.and_then(|route| route.chain.as_ref());
    let global = serving.snapshot.plan.global.as_ref();
    let chains = &mut serving.exchange.chains;
    chains.is_on = true;
    chains.is_timed = plugins.is_timed();
    chains.phases = global.into_iter().chain(of_route).fold(Phases::NONE, |all, chain| all.or(chain.phases()));
}

/// `before_proxy`: the request is about to be sent to the node.
#[inline]
pub(crate) fn before_proxy(serving: &mut RequestContext<'_>) -> Result<(), LocalReply> {
    if !serving.exchange.chains.phases.contains(Phase::BeforeProxy) {
        return Ok(());
    }
    for of in [Of::Global, Of::Route] {
        let Some(chain) = current_chain(serving, of) else { continue };
        let run = PhaseRun { chain: &chain, of, phase: Phase::BeforeProxy, joins: false, of_route: None };
        if let Some((entry, ..)) = run.from(0, &mut open(serving))? {
            // The upstream has a place for the request now, and not later.
            tracing::error!(plugin = chain.entries()[entry].name, "a plugin cannot wait in before_proxy");
            return Err(LocalReply::error(500, "a plugin failed"));
        }
    }
    run::hold_body(serving)
}

/// A request has become a tunnel: keeps what its plugins will need at its end. Often that is nothing, and tunnels are many.
pub(super) fn keep_for_tunnel(serving: &mut RequestContext<'_>) -> Option<Box<Chains>> {
    let plan = &serving.snapshot.plan;
    let chains = &serving.exchange.chains;
    (chains.is_on && !chains.is_done()).then(|| {
        let kept = TunnelChains {
            global: plan.global.clone(),
            route: serving.route.and_then(|route| route.chain.clone()),
            consumers: plan.consumers.clone(),
            metadata: plan.plugin_metadata.clone(),
        };
        Box::new(Chains { kept: Some(Box::new(kept)), ..std::mem::take(&mut serving.exchange.chains) })
    })
}

/// The phases that come before a node gets the request.
const BEFORE_NODES: Phases = Phases::of(&[Phase::Rewrite, Phase::Access, Phase::BeforeProxy]);

/// The phases that look at a response.
const OF_RESPONSES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]);

/// `header_filter`: the head of the response has arrived, and gets what plugins have set before and set now.
pub(crate) fn header_filter(serving: &mut RequestContext<'_>, answered: ResponseSource) -> Result<(), PluginFailed> {
    let Exchange { chains, response, from_node, response_edits, .. } = &mut *serving.exchange;
    if chains.phases.and(OF_RESPONSES) == Phases::NONE && !chains.preset.is_changed() {
        return Ok(());
    }
    chains.response_head.clear();
    chains.is_of_node = !matches!(answered, ResponseSource::Us(..));
    match answered {
        ResponseSource::Node | ResponseSource::Switching => {
            let head = head_of(from_node, answered);
            chains.came_with = response.status;
            response_edits.fields.overlay(&response.fields, head, &chains.preset);
            if chains.phases.contains(Phase::Log) {
                chains.response_head.extend_from_slice(&head[..response.len]);
            }
        }
        ResponseSource::Us(status, length) => {
            chains.came_with = status;
            chains.own_length = Some(length as u64);
            response_edits.fields.overlay(&Fields::default(), &[], &chains.preset);
        }
    }
    let has_filters = chains.phases.contains(Phase::BodyFilter);
    response_phase(serving, Of::Global, Phase::HeaderFilter, CallMoment::At(answered))?;
    response_phase(serving, Of::Route, Phase::HeaderFilter, CallMoment::At(answered))?;
    if has_filters {
        // Contents are encoded after all filters, wherever in the chain the encoding plugin is.
        response_phase(serving, Of::Global, Phase::BodyFilter, CallMoment::At(answered))?;
        response_phase(serving, Of::Route, Phase::BodyFilter, CallMoment::At(answered))?;
    }
    Ok(())
}

/// Head of a node's response before it is passed on.
fn head_of(from_node: &Receiver, answered: ResponseSource) -> &[u8] {
    match answered {
        ResponseSource::Node => from_node.head(),
        ResponseSource::Switching => from_node.unparsed(),
        ResponseSource::Us(..) => &[],
    }
}

/// Body length that a node has announced.
fn length_of(framing: Framing) -> Option<u64> {
    match framing {
        Framing::None => Some(0),
        Framing::Length(length) => Some(length),
        Framing::Chunked | Framing::UntilClose => None,
    }
}

/// Whether a plugin of the request may change the head of the response.
pub(super) fn filters_heads(exchange: &Exchange) -> bool {
    exchange.chains.phases.contains(Phase::HeaderFilter)
}

/// Whether a plugin of the request may read or change the body of the response.
#[inline]
pub(super) fn filters_responses(serving: &mut RequestContext<'_>) -> bool {
    serving.exchange.chains.phases.contains(Phase::BodyFilter)
        && [Of::Global, Of::Route].into_iter().any(|of| {
            let Some(chain) = current_chain(serving, of) else { return false };
            chain.filters_responses(|entry| {
                let asked = open(serving).asked;
                holds(entry, asked.facts, &asked)
            })
        })
}

/// `log`: the response has been sent.
#[inline]
pub(crate) fn log(serving: &mut RequestContext<'_>, ended: Moment) {
    if !serving.exchange.chains.is_on {
        return;
    }
    if serving.exchange.chains.phases.contains(Phase::Log) {
        // A plugin that panics has been counted; the others are still called.
        let _ = response_phase(serving, Of::Global, Phase::Log, CallMoment::Behind(ended));
        let _ = response_phase(serving, Of::Route, Phase::Log, CallMoment::Behind(ended));
        // In this phase they have no effect.
        serving.exchange.response_body.clear();
    }
    serving.exchange.chains.settled.held.clear();
}

/// Runs a phase of one chain.
#[inline]
fn response_phase(
    serving: &mut RequestContext<'_>,
    of: Of,
    phase: Phase,
    called: CallMoment,
) -> Result<(), PluginFailed> {
    let is_called = |chain: &PinnedChain<'_>| match phase {
        Phase::BodyFilter => chain.codes_content(),
        phase => chain.has(phase),
    };
    match current_chain(serving, of).filter(is_called) {
        Some(chain) => {
            let given_id = std::mem::take(&mut serving.exchange.chains.settled.request_id);
            let outcome = run_response_phase(serving, &chain, of, phase, called, &given_id);
            serving.exchange.chains.settled.request_id = given_id;
            outcome
        }
        None => Ok(()),
    }
}

#[inline(never)]
fn run_response_phase(
    serving: &mut RequestContext<'_>,
    chain: &Chain,
    of: Of,
    phase: Phase,
    called: CallMoment,
    given_id: &[u8],
) -> Result<(), PluginFailed> {
    let RequestContext { worker, client, exchange, snapshot, .. } = serving;
    let sizes = exchange.sizes();
    let Exchange {
        request,
        from_client,
        from_node,
        known,
        response,
        request_edits,
        request_body,
        response_edits,
        response_body,
        chains,
        outcome,
        tries,
        id,
        ..
    } = &mut **exchange;
    let facts = facts_of(known, request, from_client.head(), client, &snapshot.plan, outcome.route);
    let told = ExchangeParts { outcome, tries, id, given_id, sizes, trace: chains.settled.trace };
    let captured = called.lend(&mut response_body.changes);
    let moment = called.moment();
    let pending = PendingRecord { told: &told, facts: &facts, edits: request_edits, snapshot, worker, ended: moment };
    let ended = moment.map(|ended| LogValues {
        record: told.record(ended, &facts, &snapshot.plan, worker),
        request_body: request_body.changes.captured().bytes(),
        request_is_whole: request_body.changes.captured().is_whole(),
        response_body: captured.bytes(),
    });
    let (none, is_of_node) = (Fields::default(), chains.is_of_node);
    let kept = chains.kept.as_deref();
    let mut answer = Response {
        facts,
        request_edits: if chains.has_request_fields { &chains.request_fields } else { &request_edits.fields },
        came_with: if chains.came_with == 0 { outcome.status } else { chains.came_with },
        is_of_node,
        node_status: node_status(outcome, tries),
        fields: if is_of_node { &response.fields } else { &none },
        head: called.head(from_node, &chains.response_head),
        length: if is_of_node { length_of(response.framing) } else { chains.own_length },
        edits: response_edits,
        body: &mut response_body.changes,
        consumer: chains.consumer,
        consumers: kept.map_or(&snapshot.plan.consumers, |kept| &kept.consumers),
        settled: &mut chains.settled,
        ended: ended.as_ref(),
        recorded: &pending,
        worker: &worker.plugins.own,
        metadata: kept.map_or(&snapshot.plan.plugin_metadata, |kept| &kept.metadata),
    };
    let judged = if of == Of::Global { &mut chains.global } else { &mut chains.route };
    let calls =
        Calls { worker, phase, is_timed: chains.is_timed, judged, is_head_refused: &mut chains.is_head_refused };
    calls.run(chain, &mut answer)?;
    if phase == Phase::Log {
        *response_body.changes.captured_mut() = captured;
    }
    Ok(())
}

/// What the last attempt says about its node.
fn node_status(outcome: &RequestOutcome, tries: &NodeTries) -> Option<u16> {
    let last = tries.last().filter(|_| outcome.asked.is_some() && !outcome.is_of_client)?;
    (last.status != 0).then_some(last.status)
}

fn holds(entry: &ChainEntry, facts: Facts<'_>, vars: &dyn Lookup) -> bool {
    entry.meta.filter.as_ref().is_none_or(|filter| filter.holds(&facts, vars))
}

// The calls of plugins with a response.

/// When a phase of a response is called.
#[derive(Debug, Clone, Copy)]
enum CallMoment {
    /// The response has just arrived, and its buffer is still here.
    At(ResponseSource),
    /// The response has been sent.
    Behind(Moment),
}

impl CallMoment {
    /// Head of the node's response; `kept`: once its buffer is gone.
    fn head<'a>(self, from_node: &'a Receiver, kept: &'a [u8]) -> &'a [u8] {
        match self {
            CallMoment::At(answered) => head_of(from_node, answered),
            CallMoment::Behind(_) => kept,
        }
    }

    /// When the response was sent; `None`: it has not been.
    fn moment(self) -> Option<Moment> {
        match self {
            CallMoment::At(_) => None,
            CallMoment::Behind(moment) => Some(moment),
        }
    }

    /// Lends out what was kept of the body, together with its changes, until it is put back.
    fn lend(self, changes: &mut BodyChanges) -> Capture {
        match self {
            CallMoment::Behind(_) => std::mem::take(changes.captured_mut()),
            CallMoment::At(_) => Capture::default(),
        }
    }
}

/// Arguments of the plugins of a chain in one phase.
struct Calls<'a> {
    worker: &'a Worker,
    phase: Phase,
    is_timed: bool,
    judged: &'a mut FilterResults,
    is_head_refused: &'a mut bool,
}

impl Calls<'_> {
    /// Calls each plugin. In the phase `log` a plugin that panics has been counted, and the others are still called.
    fn run(self, chain: &Chain, answer: &mut Response<'_>) -> Result<(), PluginFailed> {
        let (worker, phase, mut from) = (self.worker, self.phase, 0);
        let mut this = self;
        loop {
            match call_each(worker, chain, phase, |called| this.run_from(from, chain, answer, called)) {
                Ok(done) => return done,
                Err(PanickedAt(place)) if phase == Phase::Log => from = place + 1,
                Err(_) => return Err(PluginFailed),
            }
        }
    }

    #[inline(always)]
    fn run_from(
        &mut self,
        from: usize,
        chain: &Chain,
        answer: &mut Response<'_>,
        called: &Cell<usize>,
    ) -> Result<(), PluginFailed> {
        let Calls { worker, phase, is_timed, judged, is_head_refused } = self;
        for (at, entry) in chain.entries_from(*phase, from) {
            if *phase == Phase::BodyFilter && !entry.plugin.codes_content() {
                continue;
            }
            called.set(at);
            if judged.skips(at, entry, || holds(entry, answer.facts, answer)) {
                continue;
            }
            answer.body.plugin = entry.name;
            call_timed(worker, entry, *phase, *is_timed, || match phase {
                Phase::Log => entry.plugin.log(answer),
                Phase::BodyFilter => entry.plugin.code_content(answer),
                _ => entry.plugin.header_filter(answer),
            });
            if *phase != Phase::Log && answer.edits.fields.is_too_large() {
                if !std::mem::replace(*is_head_refused, true) {
                    worker.note_refusal(entry.name, PluginRefusal::Head);
                }
                return Err(PluginFailed);
            }
        }
        Ok(())
    }
}

// The state of a request for plugins that see its response: nodes, times and sizes so far, and what the node got.
//
// It is computed only where a plugin reads one of these variables; until then it is a few references.

/// Provides [`Variable::Recorded`] from the head of the response on.
pub(super) struct PendingRecord<'a> {
    pub(super) told: &'a ExchangeParts<'a>,
    pub(super) facts: &'a Facts<'a>,
    pub(super) edits: &'a RequestEdits,
    pub(super) snapshot: &'a Snapshot,
    pub(super) worker: &'a Worker,
    /// `None`: the response has not been sent yet, and times end now.
    pub(super) ended: Option<Moment>,
}

impl PendingRecord<'_> {
    fn upstream(&self) -> Option<&WorkerUpstream> {
        let outcome = self.told.outcome;
        upstream(outcome.route, outcome.upstream, outcome.kept.as_deref(), self.snapshot)
    }

    /// Calls `then` with the host of the node that was tried last, as it is configured.
    fn with_node<R>(&self, then: impl FnOnce(&str) -> R) -> Option<R> {
        let (slot, address) = self.told.outcome.asked?;
        let state = self.upstream()?.state.borrow();
        let node = state.endpoint(slot);
        // The slot may belong to another node by now.
        (node.address == address).then(|| then(&node.host))
    }

    fn push(&self, name: &str, out: &mut Vec<u8>) -> Option<()> {
        match name {
            "upstream_unresolved_host" => self.with_node(|host| out.extend_from_slice(without_port(host).as_bytes())),
            "upstream_host" => {
                let pass_host = &self.upstream()?.planned.definition.pass_host;
                let authority = self.facts.request.authority.of(self.facts.head);
                let host_for = |node: &str| host_of(self.edits.host(), authority, pass_host, node).to_vec();
                out.extend_from_slice(&self.with_node(host_for)?);
                Some(())
            }
            "upstream_scheme" => {
                let definition = &self.upstream()?.planned.definition;
                out.extend_from_slice(if definition.grpc { b"grpc" } else { b"http" });
                out.extend_from_slice(if definition.tls.is_some() { b"s" } else { b"" });
                Some(())
            }
            "upstream_uri" => {
                self.told.outcome.asked?;
                out.extend_from_slice(self.edits.target().unwrap_or_else(|| self.facts.path_and_query()));
                Some(())
            }
            _ => {
                let worker = self.worker;
                let ended = self.ended.unwrap_or_else(|| Moment::now(self.told.outcome));
                let record = self.told.record(ended, self.facts, &self.snapshot.plan, worker);
                let seed = [worker.plugins.own.random(), worker.plugins.own.random()];
                push_recorded(name, &record, seed, out).then_some(())
            }
        }
    }
}

impl Lookup for PendingRecord<'_> {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let Variable::Recorded(name) = variable else { return None };
        buffer.clear();
        self.push(name, buffer)?;
        Some(buffer)
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

/// A host as a `Host` field has it, without the port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // What follows the last colon of an IPv6 address is not a port.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_their_ports() {
        let check = |host: &str, expected: &str| assert_eq!(without_port(host), expected);
        check("shop.internal:81", "shop.internal");
        check("shop.internal", "shop.internal");
        check("[::1]:81", "[::1]");
        check("[::1]", "[::1]");
    }
}
