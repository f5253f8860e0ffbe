//! The upstreams of a Plan, shared with the Plan before where they are the same, and found in it again.

use super::{Plan, TimeoutsMs};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use stillgate_config::{Config, Host, Upstream};
use stillgate_tls::{ClientTls, Material};
use stillgate_upstream::{Endpoint, expand, share_verdicts};

/// An upstream with the addresses its nodes stand for.
#[derive(Debug)]
pub(crate) struct PlanUpstream {
    pub(crate) definition: Arc<Upstream>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(super) timeouts: TimeoutsMs,
    /// For connections to its nodes; `None`: they are plain ones.
    pub(crate) tls: Option<Arc<ClientTls>>,
}

impl PlanUpstream {
    /// Whether a connection made for one is good for the other: the same protocol, the same demands on the node.
    pub(crate) fn speaks_as(&self, other: &PlanUpstream) -> bool {
        let (old, new) = (&self.definition, &other.definition);
        (old.http2, old.grpc) == (new.http2, new.grpc) && is_same_tls(self.tls.as_ref(), other.tls.as_ref())
    }
}

/// Where the upstreams of a Plan stand, by their keys. Most are asked for where they are; only for the others there is a map.
pub(crate) struct Positions<'a> {
    upstreams: &'a [Arc<PlanUpstream>],
    by_key: Option<HashMap<&'a str, usize>>,
}

impl<'a> Positions<'a> {
    pub(crate) fn new(upstreams: &'a [Arc<PlanUpstream>]) -> Positions<'a> {
        Positions { upstreams, by_key: None }
    }

    /// Where the upstream of a key is; it is looked for at `at` first.
    pub(crate) fn find(&mut self, at: usize, key: &str) -> Option<usize> {
        let upstreams = self.upstreams;
        if upstreams.get(at).is_some_and(|upstream| upstream.definition.key == key) {
            return Some(at);
        }
        let map =
            || upstreams.iter().enumerate().map(|(at, upstream)| (upstream.definition.key.as_str(), at)).collect();
        self.by_key.get_or_insert_with(map).get(key).copied()
    }
}

fn is_same_tls(old: Option<&Arc<ClientTls>>, new: Option<&Arc<ClientTls>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => Arc::ptr_eq(old, new),
        (old, new) => old.is_none() && new.is_none(),
    }
}

/// The upstreams with their addresses; what is the same as before is shared, and where all is, the list.
pub(super) fn upstreams(
    config: &Config,
    addresses: &HashMap<String, Vec<IpAddr>>,
    tls: Option<&Material>,
    previous: Option<&Plan>,
) -> Arc<[Arc<PlanUpstream>]> {
    let resolve = |name: &str| addresses.get(name).map_or(&[][..], Vec::as_slice);
    let old = previous.map_or(&[][..], |plan| &plan.upstreams);
    let mut positions = Positions::new(old);
    let upstream = |(at, definition): (usize, &Arc<Upstream>)| {
        let tls = tls.and_then(|tls| tls.clients.get(&definition.key));
        let before = positions.find(at, &definition.key).map(|before| &old[before]);
        let same = before
            .filter(|old| Arc::ptr_eq(&old.definition, definition) || old.definition == *definition)
            .filter(|old| is_same_tls(old.tls.as_ref(), tls));
        let has_names = definition.nodes.iter().any(|node| matches!(node.host, Host::Name(_)));
        if let Some(same) = same.filter(|_| !has_names) {
            return Arc::clone(same);
        }
        let mut endpoints = expand(definition, resolve);
        if has_active_checks(definition) {
            share_verdicts(&mut endpoints, before.map_or(&[][..], |before| &before.endpoints));
        }
        match same.filter(|old| old.endpoints == endpoints) {
            Some(same) => Arc::clone(same),
            None => {
                let (definition, timeouts) = (definition.clone(), definition.timeout.into());
                Arc::new(PlanUpstream { definition, endpoints, timeouts, tls: tls.cloned() })
            }
        }
    };
    let new: Vec<Arc<PlanUpstream>> = config.upstreams.iter().enumerate().map(upstream).collect();
    let is_same = |old: &&Plan| {
        old.upstreams.len() == new.len() && old.upstreams.iter().zip(&new).all(|(old, new)| Arc::ptr_eq(old, new))
    };
    match previous.filter(is_same) {
        Some(old) => old.upstreams.clone(),
        None => new.into(),
    }
}

/// Those that have active checks; the same list as before where all are the same.
pub(super) fn checked(upstreams: &Arc<[Arc<PlanUpstream>]>, previous: Option<&Plan>) -> Arc<[Arc<PlanUpstream>]> {
    match previous.filter(|old| Arc::ptr_eq(&old.upstreams, upstreams)) {
        Some(old) => old.checked.clone(),
        None => upstreams.iter().filter(|upstream| has_active_checks(&upstream.definition)).cloned().collect(),
    }
}

fn has_active_checks(upstream: &Upstream) -> bool {
    upstream.checks.as_ref().is_some_and(|checks| checks.active.is_some())
}
