//! The upstreams of a Plan, each in a slot of its own.
//!
//! A slot belongs to a key as long as there is an upstream with it: adding, removing or changing another upstream does not move it.
//! So holders of a slot (routes, workers, numbers of series) need not be looked at when another upstream changes. What has not
//! changed since the previous Plan is shared with it.

use super::{Plan, TimeoutsMs};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Index;
use std::sync::Arc;
use stillgate_config::{Config, Host, Target, Upstream};
use stillgate_tls::{ClientTls, Material};
use stillgate_upstream::{Endpoint, expand, share_verdicts};

/// An upstream with the addresses that its nodes resolve to.
#[derive(Debug)]
pub(crate) struct PlanUpstream {
    pub(crate) definition: Arc<Upstream>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(super) timeouts: TimeoutsMs,
    /// How to connect to its nodes.
    pub(crate) link: LinkParameters,
}

/// Parameters of a connection to a node. A connection made with one link can be used for every equal link.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LinkParameters {
    pub(crate) http2: bool,
    pub(crate) grpc: bool,
    /// `None`: without TLS.
    pub(crate) tls: Option<SharedTls>,
}

/// Equal only if it is the same object: a reload keeps what did not change.
#[derive(Debug, Clone)]
pub(crate) struct SharedTls(pub(crate) Arc<ClientTls>);

impl PartialEq for SharedTls {
    fn eq(&self, other: &SharedTls) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The slot of a target without an upstream.
const NO_SLOT: u32 = u32::MAX;

/// All upstreams of a Plan.
#[derive(Debug, Default)]
pub(crate) struct PlanUpstreams {
    slots: Box<[Option<Arc<PlanUpstream>>]>,
    /// The slots in the order of the configuration.
    listed: Box<[u32]>,
    /// Shared with the previous Plan if no upstream was added or removed.
    by_key: Arc<HashMap<String, u32>>,
}

impl PlanUpstreams {
    /// Compiles the upstreams of a configuration with their addresses. If all are the same as before, so is the whole.
    pub(super) fn new(
        config: &Config,
        addresses: &HashMap<String, Vec<IpAddr>>,
        tls: Option<&Material>,
        previous: Option<&Arc<PlanUpstreams>>,
    ) -> Arc<PlanUpstreams> {
        let nothing = Arc::<PlanUpstreams>::default();
        let old = previous.unwrap_or(&nothing);
        let (listed, by_key) = old.allot(&config.upstreams);
        let count = listed.iter().map(|slot| *slot as usize + 1).max().unwrap_or_default();
        let mut slots = vec![None; count];
        for (slot, definition) in listed.iter().map(|slot| *slot as usize).zip(&config.upstreams) {
            let before = old.get(slot).filter(|before| before.definition.key == definition.key);
            let tls = tls.and_then(|tls| tls.clients.get(&definition.key));
            slots[slot] = Some(PlanUpstream::new(definition, addresses, tls, before));
        }
        let is_same = |(old, new): (&Option<Arc<PlanUpstream>>, &Option<Arc<PlanUpstream>>)| match (old, new) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        let is_unchanged =
            old.listed == listed && old.slots.len() == slots.len() && old.slots.iter().zip(&slots).all(is_same);
        match is_unchanged {
            true => old.clone(),
            false => Arc::new(PlanUpstreams { slots: slots.into(), listed, by_key }),
        }
    }

    /// Allots a slot to each upstream: the one that it had, or a free one.
    fn allot(&self, upstreams: &[Arc<Upstream>]) -> (Box<[u32]>, Arc<HashMap<String, u32>>) {
        // Most follow the same upstream as before, so that few need to be looked up.
        let mut next = 0;
        let mut known = |upstream: &Arc<Upstream>| {
            let is_here = |slot: &&u32| self[**slot as usize].definition.key == upstream.key;
            let slot = match self.listed.get(next).filter(is_here) {
                Some(slot) => Some(*slot),
                None => self.by_key.get(&upstream.key).copied(),
            };
            next += usize::from(slot.is_some());
            slot
        };
        let slots: Vec<Option<u32>> = upstreams.iter().map(&mut known).collect();
        if slots.len() == self.listed.len() && slots.iter().all(Option::is_some) {
            return (slots.into_iter().flatten().collect(), self.by_key.clone());
        }
        let mut is_taken = vec![false; self.slots.len()];
        slots.iter().flatten().for_each(|slot| is_taken[*slot as usize] = true);
        let freed = (0..self.slots.len()).filter(|slot| !is_taken[*slot]);
        let mut free = freed.chain(self.slots.len()..).map(|slot| slot as u32);
        let listed: Box<[u32]> =
            slots.into_iter().map(|slot| slot.or_else(|| free.next()).unwrap_or(NO_SLOT)).collect();
        let by_key = upstreams.iter().zip(&listed).map(|(upstream, slot)| (upstream.key.clone(), *slot)).collect();
        (listed, Arc::new(by_key))
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Arc<PlanUpstream>> {
        self.slots.get(slot)?.as_ref()
    }

    /// The slot of an upstream; `None`: the key is unknown.
    pub(crate) fn slot(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).map(|slot| *slot as usize)
    }

    /// The slot of a target; one that no Plan has if it is unavailable.
    pub(super) fn slot_of(&self, target: &Target) -> u32 {
        let slot = |key| self.by_key.get(key).copied().expect("the upstream of each route is in its configuration");
        target.key().map_or(NO_SLOT, slot)
    }

    /// All slots; some may be free.
    pub(crate) fn slots(&self) -> &[Option<Arc<PlanUpstream>>] {
        &self.slots
    }

    /// Iterates in the order of the configuration.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<PlanUpstream>> {
        self.listed.iter().filter_map(|slot| self.get(*slot as usize))
    }
}

impl Index<usize> for PlanUpstreams {
    type Output = Arc<PlanUpstream>;

    #[inline]
    fn index(&self, slot: usize) -> &Arc<PlanUpstream> {
        self.slots[slot].as_ref().expect("slots come from this Plan and are occupied")
    }
}

impl PlanUpstream {
    /// Compiles a definition: returns `before`, which has the same key, if it is the same.
    fn new(
        definition: &Arc<Upstream>,
        addresses: &HashMap<String, Vec<IpAddr>>,
        tls: Option<&Arc<ClientTls>>,
        before: Option<&Arc<PlanUpstream>>,
    ) -> Arc<PlanUpstream> {
        let link = LinkParameters { http2: definition.http2, grpc: definition.grpc, tls: tls.cloned().map(SharedTls) };
        let same = before
            .filter(|old| Arc::ptr_eq(&old.definition, definition) || old.definition == *definition)
            .filter(|old| old.link == link);
        let has_names = definition.nodes.iter().any(|node| matches!(node.host, Host::Name(_)));
        if let Some(same) = same.filter(|_| !has_names) {
            return Arc::clone(same);
        }
        let resolve = |name: &str| addresses.get(name).map_or(&[][..], Vec::as_slice);
        let mut endpoints = expand(definition, resolve);
        if has_active_checks(definition) {
            share_verdicts(&mut endpoints, before.map_or(&[][..], |before| &before.endpoints));
        }
        match same.filter(|old| old.endpoints == endpoints) {
            Some(same) => Arc::clone(same),
            None => {
                let (definition, timeouts) = (definition.clone(), definition.timeout.into());
                Arc::new(PlanUpstream { definition, endpoints, timeouts, link })
            }
        }
    }

    /// TLS for connections to its nodes; `None`: they are plain.
    pub(crate) fn tls(&self) -> Option<&Arc<ClientTls>> {
        self.link.tls.as_ref().map(|tls| &tls.0)
    }
}

/// Upstreams that have active checks; the same list as before if all are the same.
pub(super) fn actively_checked(upstreams: &Arc<PlanUpstreams>, previous: Option<&Plan>) -> Arc<[Arc<PlanUpstream>]> {
    match previous.filter(|old| Arc::ptr_eq(&old.upstreams, upstreams)) {
        Some(old) => old.checked.clone(),
        None => upstreams.iter().filter(|upstream| has_active_checks(&upstream.definition)).cloned().collect(),
    }
}

fn has_active_checks(upstream: &Upstream) -> bool {
    upstream.checks.as_ref().is_some_and(|checks| checks.active.is_some())
}
