//! Selects the chain of a request that is run now.

use super::{Of, RequestContext, Snapshot};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::Chain;

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
pub(super) fn chosen<'a>(serving: &RequestContext<'a>, of: Of) -> Option<PinnedChain<'a>> {
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
