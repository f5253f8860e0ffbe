//! Selects the chain of a request that is run now.

use super::{Of, Serving, Snapshot};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin::Chain;

/// A chain that stays alive while the exchange is changed.
pub(super) enum Chosen<'a> {
    OfPlan(&'a Chain),
    Kept(Arc<Chain>),
    Merged(Rc<Chain>),
}

impl Deref for Chosen<'_> {
    type Target = Chain;

    fn deref(&self) -> &Chain {
        match self {
            Chosen::OfPlan(chain) => chain,
            Chosen::Kept(chain) => chain,
            Chosen::Merged(chain) => chain,
        }
    }
}

/// The chain that is run now.
pub(super) fn chosen<'a>(serving: &Serving<'a>, of: Of) -> Option<Chosen<'a>> {
    let snapshot: &'a Snapshot = serving.snapshot;
    let chains = &serving.exchange.chains;
    match (of, &chains.merged, &chains.kept) {
        (Of::Route, Some(merged), _) => Some(Chosen::Merged(merged.clone())),
        (Of::Global, _, Some(kept)) => kept.global.clone().map(Chosen::Kept),
        (Of::Route, _, Some(kept)) => kept.route.clone().map(Chosen::Kept),
        (Of::Global, _, None) => snapshot.plan.global.as_deref().map(Chosen::OfPlan),
        (Of::Route, _, None) => serving.route?.chain.as_deref().map(Chosen::OfPlan),
    }
}
