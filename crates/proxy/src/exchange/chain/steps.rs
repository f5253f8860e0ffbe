//! The phases before the upstream is known, in steps, and the position of a request among them.

use super::run::{PhaseRun, PluginArguments, check_heads, chosen, open, settle};
use super::{FilterResults, Of};
use crate::exchange::RequestContext;
use crate::exchange::answer::LocalReply;
use crate::worker::plugins::call;
use stillgate_plugin_api::flow::Resume;
use stillgate_plugin_api::{ChainEntry, Flow, Phase};

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
pub(in crate::exchange) fn before_target(serving: &mut RequestContext<'_>) -> Result<Option<PausedChain>, LocalReply> {
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
    let Some(chain) = chosen(serving, of) else { return Ok(Ran::Until(from.step + 1)) };
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
    let chain = chosen(serving, of).expect("the chain that has paused");
    let entry = &chain.entries()[at.entry];
    let PluginArguments { worker, mut asked, is_timed, .. } = open(serving);
    asked.body.plugin = entry.name;
    let flow = call(worker, entry, phase, is_timed, || then(&mut asked));
    let checked = check_heads(worker, entry, &mut asked);
    let flow = settle(worker, entry, flow);
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
    let chain = chosen(serving, of).expect("the chain that has paused");
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
    let merged = serving.worker.plugins.merged(of_route, consumers, attached).map_err(|error| {
        tracing::error!(consumer = %consumer.name, "a request is refused: {error}");
        LocalReply::error(500, "the plugins of the route and the consumer are too many")
    })?;
    let chains = &mut serving.exchange.chains;
    chains.phases = chains.phases.or(merged.phases());
    chains.merged = Some(merged);
    chains.route = FilterResults::default();
    Ok(true)
}
