//! The phases before the upstream is known: their order, the chain that is run in each, and the calls of its plugins.

use super::{FilterResults, Of, Snapshot, holds};
use crate::exchange::answer::LocalReply;
use crate::exchange::facts::facts_of;
use crate::exchange::{Exchange, RequestContext};
use crate::worker::Worker;
use crate::worker::plugins::{PluginPanic, PluginRefusal, call, call_each, call_timed};
use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::facts::{argument_of, cookie_of};
use stillgate_plugin_api::flow::Resume;
use stillgate_plugin_api::{AnswerBody, Chain, ChainEntry, Flow, Phase, Request};
use stillgate_route::path::target_path;
use stillgate_route::{Lookup, Variable};
use stillgate_wire::FieldName;

const COOKIE: FieldName<'_> = FieldName::constant("Cookie");

/// Arguments of plugins.
pub(super) struct PluginArguments<'a> {
    pub(super) worker: &'a Worker,
    pub(super) asked: Request<'a>,
    pub(super) global: &'a mut FilterResults,
    pub(super) route: &'a mut FilterResults,
    pub(super) is_timed: bool,
}

#[inline(always)]
pub(super) fn open<'a>(serving: &'a mut RequestContext<'_>) -> PluginArguments<'a> {
    let RequestContext { worker, client, exchange, snapshot, .. } = serving;
    let Exchange { request, from_client, known, request_edits, request_body, chains, outcome, id, .. } =
        &mut **exchange;
    let is_here = from_client.is_done() && from_client.replayable;
    // Built in place, as it is large.
    PluginArguments {
        worker,
        asked: Request {
            facts: facts_of(known, request, from_client.head(), client, &snapshot.plan, outcome.route),
            edits: request_edits,
            body: &mut request_body.changes,
            received: is_here.then(|| from_client.content()),
            settled: &mut chains.settled,
            response: &mut chains.preset,
            consumer: &mut chains.consumer,
            consumers: &snapshot.plan.consumers,
            id,
            worker: &worker.plugins.own,
            metadata: &snapshot.plan.plugin_metadata,
        },
        global: &mut chains.global,
        route: &mut chains.route,
        is_timed: chains.is_timed,
    }
}

/// Calls `then` with the value of a variable of the request as plugins have left it, including its header, cookies and arguments.
pub(in crate::exchange) fn edited_value<R>(
    serving: &mut RequestContext<'_>,
    variable: &Variable,
    buffer: &mut Vec<u8>,
    then: impl FnOnce(Option<&[u8]>) -> R,
) -> R {
    let asked = open(serving).asked;
    let target = asked.edits.target();
    let query = |target| target_path(target).1;
    match (variable, target) {
        (Variable::Arg(name), Some(target)) => then(query(target).and_then(|query| argument_of(query, name, buffer))),
        (Variable::Args, Some(target)) => then(query(target)),
        (Variable::Cookie(name), _) if asked.edits.fields.is_changed() => {
            let (fields, head) = (&asked.facts.request.fields, asked.facts.head);
            then(cookie_of(asked.edits.fields.values(fields, head, COOKIE), name))
        }
        _ => then(asked.value(variable, buffer)),
    }
}

impl PluginArguments<'_> {
    /// Whether the consumer that was found brings plugins.
    #[inline]
    pub(super) fn has_consumer_plugins(&self) -> bool {
        self.asked.consumer.is_some_and(|found| !self.asked.consumers.of(found).plugins.is_empty())
    }
}

/// A phase of one chain.
pub(super) struct PhaseRun<'a> {
    pub(super) chain: &'a Chain,
    pub(super) of: Of,
    pub(super) phase: Phase,
    /// Only what a consumer has added to the route's own chain is called.
    pub(super) joins: bool,
    pub(super) of_route: Option<&'a Chain>,
}

impl PhaseRun<'_> {
    /// Calls its plugins from an entry on, until one answers or waits: then returns the entry, whether it has not been called yet,
    /// and what it waits for.
    #[inline(always)]
    pub(super) fn from(
        &self,
        entry: usize,
        opened: &mut PluginArguments<'_>,
    ) -> Result<Option<(usize, bool, Flow)>, LocalReply> {
        let worker = opened.worker;
        // Written from within: whatever a guard returns is copied.
        let mut ran = Ok(None);
        let guarded = call_each(worker, self.chain, self.phase, |called| ran = self.run_from(entry, opened, called));
        match guarded {
            Ok(()) => ran,
            Err(_) => Err(LocalReply::error(500, "a plugin failed")),
        }
    }

    #[inline(always)]
    fn run_from(
        &self,
        entry: usize,
        opened: &mut PluginArguments<'_>,
        called: &Cell<usize>,
    ) -> Result<Option<(usize, bool, Flow)>, LocalReply> {
        let PhaseRun { chain, of, phase, joins, of_route } = *self;
        let PluginArguments { worker, asked, global, route, is_timed } = opened;
        let judged = if of == Of::Global { global } else { route };
        let can_wait = phase != Phase::BeforeProxy;
        for (at, entry) in chain.entries_from(phase, entry) {
            if joins && is_left_out(entry, of_route) {
                continue;
            }
            called.set(at);
            asked.body.plugin = entry.name;
            if can_wait
                && let Some(flow) = entry.before_filter(asked)
                && let Some(flow) = apply_result(worker, entry, Ok(flow))?
            {
                return Ok(Some((at, true, flow)));
            }
            if judged.skips(at, entry, || holds(entry, asked.facts, asked)) {
                continue;
            }
            if can_wait
                && let Some(flow) = entry.before_call(asked)
                && let Some(flow) = apply_result(worker, entry, Ok(flow))?
            {
                return Ok(Some((at, true, flow)));
            }
            let flow = call_timed(worker, entry, phase, *is_timed, || match phase {
                Phase::Rewrite => entry.plugin.rewrite(asked),
                Phase::Access => entry.plugin.access(asked),
                _ => entry.plugin.before_proxy(asked),
            });
            match flow {
                Flow::Continue => check_heads(worker, entry, asked)?,
                flow => {
                    if let Some(flow) = apply_result(worker, entry, Ok(flow))? {
                        return Ok(Some((at, false, flow)));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Whether an entry of a chain that a consumer has joined is not called: the route had it, or the consumer is already known.
fn is_left_out(entry: &ChainEntry, of_route: Option<&Chain>) -> bool {
    entry.authenticates || of_route.is_some_and(|chain| chain.entries().iter().any(|of| of.name == entry.name))
}

/// Refuses a request if a plugin has added more to its head, or to its response's, than a head may have.
pub(super) fn check_heads(worker: &Worker, entry: &ChainEntry, asked: &mut Request<'_>) -> Result<(), LocalReply> {
    if !asked.edits.fields.is_too_large() && !asked.response.is_too_large() {
        return Ok(());
    }
    asked.response.clear();
    worker.note_refusal(entry.name, PluginRefusal::Head);
    Err(LocalReply::error(500, "a plugin has added more to a head than it may"))
}

/// What a plugin's result means for its request; `Some`: it waits.
#[cold]
pub(super) fn apply_result(
    worker: &Worker,
    entry: &ChainEntry,
    flow: Result<Flow, PluginPanic>,
) -> Result<Option<Flow>, LocalReply> {
    match flow {
        Ok(Flow::Continue) => Ok(None),
        Ok(Flow::Answer(mut answer)) => {
            if let Some(body) = entry.meta.error_response.as_ref().filter(|_| answer.status >= 400) {
                answer.body = AnswerBody::Shared(body.clone());
            }
            worker.report_plugin(|recorder, metrics| recorder.count_plugin_answer(metrics, entry.name, answer.status));
            Err(LocalReply::of_plugin(answer))
        }
        Ok(waits) => Ok(Some(waits)),
        Err(PluginPanic) => Err(LocalReply::error(500, "a plugin failed")),
    }
}

/// A chain that stays alive while the exchange is changed.
pub(super) enum PinnedChain<'a> {
    OfPlan(&'a Chain),
    Kept(Arc<Chain>),
    Merged(Rc<Chain>),
}

impl Deref for PinnedChain<'_> {
    type Target = Chain;

    fn deref(&self) -> &Chain {
        match self {
            PinnedChain::OfPlan(chain) => chain,
            PinnedChain::Kept(chain) => chain,
            PinnedChain::Merged(chain) => chain,
        }
    }
}

/// The chain that is run now.
pub(super) fn current_chain<'a>(serving: &RequestContext<'a>, of: Of) -> Option<PinnedChain<'a>> {
    let snapshot: &'a Snapshot = serving.snapshot;
    let chains = &serving.exchange.chains;
    match (of, &chains.merged, &chains.kept) {
        (Of::Route, Some(merged), _) => Some(PinnedChain::Merged(merged.clone())),
        (Of::Global, _, Some(kept)) => kept.global.clone().map(PinnedChain::Kept),
        (Of::Route, _, Some(kept)) => kept.route.clone().map(PinnedChain::Kept),
        (Of::Global, _, None) => snapshot.plan.global.as_deref().map(PinnedChain::OfPlan),
        (Of::Route, _, None) => serving.route?.chain.as_deref().map(PinnedChain::OfPlan),
    }
}

/// One of the phases before the upstream is known.
struct ChainStep {
    of: Of,
    phase: Phase,
    /// A consumer that was found brings its plugins: they join the route's, and the new ones are run.
    joins: bool,
}

/// Everything that global rules do before the consumer is known comes first.
const STEPS: [ChainStep; 5] = [
    ChainStep { of: Of::Global, phase: Phase::Rewrite, joins: false },
    ChainStep { of: Of::Global, phase: Phase::Access, joins: false },
    ChainStep { of: Of::Route, phase: Phase::Rewrite, joins: false },
    ChainStep { of: Of::Route, phase: Phase::Rewrite, joins: true },
    ChainStep { of: Of::Route, phase: Phase::Access, joins: false },
];

/// A position among the calls of the phases before the upstream is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::exchange) struct ChainPosition {
    step: usize,
    /// Index in the chain.
    entry: usize,
    /// The entry has not been called: it waits for what it, or its filter, reads of the body.
    is_before: bool,
}

impl ChainPosition {
    /// The position at the beginning of a step.
    const fn at_step(step: usize) -> ChainPosition {
        ChainPosition { step, entry: 0, is_before: false }
    }
}

/// A plugin has paused its request.
pub(in crate::exchange) struct PausedChain {
    /// The plugin that has paused.
    pub(in crate::exchange) at: ChainPosition,
    /// What it waits for.
    pub(in crate::exchange) flow: Flow,
}

/// Runs all phases before the upstream is known, until a plugin answers or waits.
#[inline]
pub(in crate::exchange) fn run_before_target(
    serving: &mut RequestContext<'_>,
) -> Result<Option<PausedChain>, LocalReply> {
    match serving.exchange.chains.is_on {
        true => go_on(serving, ChainPosition::at_step(0)),
        false => Ok(None),
    }
}

/// Runs the phases from a position on.
#[inline(never)]
fn go_on(serving: &mut RequestContext<'_>, from: ChainPosition) -> Result<Option<PausedChain>, LocalReply> {
    let mut at = from;
    while let Some(ChainStep { of, joins, .. }) = STEPS.get(at.step) {
        let is_run = match of {
            Of::Global => serving.snapshot.plan.global.is_some(),
            // Without a route only global rules are run.
            Of::Route if serving.route.is_none() => break,
            // A plugin that has paused has joined before.
            Of::Route => !joins || at == from || join_consumer(serving)?,
        };
        if !is_run {
            at = ChainPosition::at_step(at.step + 1);
            continue;
        }
        let ran = run_steps(serving, at);
        adopt_client(serving);
        let ran = ran?;
        hold_body(serving)?;
        match ran {
            Ran::Paused(paused) => return Ok(Some(paused)),
            Ran::Until(step) => at = ChainPosition::at_step(step),
        }
    }
    Ok(None)
}

/// How far steps were run.
enum Ran {
    Paused(PausedChain),
    /// Until this step, whose chain is another.
    Until(usize),
}

/// Runs the steps of one chain from a position on, until a plugin answers or waits. They end where the consumer's plugins join the
/// chain.
#[inline(never)]
fn run_steps(serving: &mut RequestContext<'_>, from: ChainPosition) -> Result<Ran, LocalReply> {
    let of = STEPS[from.step].of;
    let Some(chain) = current_chain(serving, of) else { return Ok(Ran::Until(from.step + 1)) };
    let of_route = serving.route.and_then(|route| route.chain.as_deref());
    let mut opened = open(serving);
    let mut at = from;
    while let Some(ChainStep { phase, joins, .. }) = STEPS.get(at.step).filter(|step| step.of == of) {
        if *joins && at != from && opened.has_consumer_plugins() {
            break;
        }
        if chain.has(*phase) && (!joins || at == from) {
            let run = PhaseRun { chain: &chain, of, phase: *phase, joins: *joins, of_route };
            if let Some((entry, is_before, flow)) = run.from(at.entry, &mut opened)? {
                return Ok(Ran::Paused(PausedChain { at: ChainPosition { step: at.step, entry, is_before }, flow }));
            }
        }
        at = ChainPosition::at_step(at.step + 1);
    }
    Ok(Ran::Until(at.step))
}

/// What the paused plugin waits for has arrived: it continues, and so do the phases after it.
pub(in crate::exchange) fn resume(
    serving: &mut RequestContext<'_>,
    at: ChainPosition,
    then: Resume,
) -> Result<Option<PausedChain>, LocalReply> {
    let ChainStep { of, phase, .. } = STEPS[at.step];
    let chain = current_chain(serving, of).expect("the chain that has paused");
    let entry = &chain.entries()[at.entry];
    let PluginArguments { worker, mut asked, is_timed, .. } = open(serving);
    asked.body.plugin = entry.name;
    let flow = call(worker, entry, phase, is_timed, || then(&mut asked));
    let checked = check_heads(worker, entry, &mut asked);
    let flow = apply_result(worker, entry, flow);
    adopt_client(serving);
    checked?;
    let flow = flow?;
    hold_body(serving)?;
    match flow {
        Some(flow) => Ok(Some(PausedChain { at, flow })),
        None => go_on(serving, ChainPosition { entry: at.entry + usize::from(!at.is_before), is_before: false, ..at }),
    }
}

/// Accounts for a body that plugins have put in place of the received one, as long as the request has it.
#[inline]
pub(super) fn hold_body(serving: &mut RequestContext<'_>) -> Result<(), LocalReply> {
    let RequestContext { worker, client, exchange, .. } = serving;
    let held = exchange.request_body.hold_replaced(|| worker.plugins.held.begin(client.address));
    held.map_err(|broken| {
        broken.tell(worker);
        LocalReply::error(broken.status(), broken.message())
    })
}

/// From here on the client is the one that a plugin set.
fn adopt_client(serving: &mut RequestContext<'_>) {
    let RequestContext { client, exchange, .. } = serving;
    if let Some((ip, port)) = exchange.chains.settled.client.take() {
        (client.address, client.is_named) = (ip, true);
        client.port = port.unwrap_or(client.port);
    }
}

/// The entry of the plugin that has paused.
pub(in crate::exchange) fn with_paused<R>(
    serving: &RequestContext<'_>,
    at: ChainPosition,
    then: impl FnOnce(&ChainEntry, Phase) -> R,
) -> R {
    let ChainStep { of, phase, .. } = STEPS[at.step];
    let chain = current_chain(serving, of).expect("the chain that has paused");
    then(&chain.entries()[at.entry], phase)
}

/// The plugins of a consumer that was found join the route's; false: there are none.
fn join_consumer(serving: &mut RequestContext<'_>) -> Result<bool, LocalReply> {
    let Some(attached) = serving.exchange.chains.consumer else { return Ok(false) };
    let consumer = serving.snapshot.plan.consumers.of(attached);
    if consumer.plugins.is_empty() {
        return Ok(false);
    }
    let place = serving.exchange.outcome.route.map_or(0, |found| found.route);
    let of_route = serving.route.and_then(|route| route.chain.as_ref()).map(|chain| (place, chain));
    let consumers = &serving.snapshot.plan.consumers;
    let merged = serving.worker.plugins.merged_chain(of_route, consumers, attached).map_err(|error| {
        tracing::error!(consumer = %consumer.name, "a request is refused: {error}");
        LocalReply::error(500, "the plugins of the route and the consumer are too many")
    })?;
    let chains = &mut serving.exchange.chains;
    chains.phases = chains.phases.or(merged.phases());
    chains.merged = Some(merged);
    chains.route = FilterResults::default();
    Ok(true)
}
