//! One worker's view of a Plan: the Plan, and the worker's own mutable state of each of its upstreams.

use super::{Plan, PlanUpstream, Positions};
use crate::connection::stream::Stream;
use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::ops::Index;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_tls::rustls::ClientConfig;
use stillgate_upstream::UpstreamState;

/// What a worker serves from until the next Plan. An exchange holds the one it began with.
pub(crate) struct Snapshot {
    /// The [`crate::PlanCell`] version it was taken at.
    pub(crate) version: u64,
    pub(crate) plan: Arc<Plan>,
    /// In the order of the Plan's upstreams.
    pub(crate) upstreams: Upstreams,
    /// The states of upstreams that stream routes lead to, put together for the first who asks.
    of_streams: OnceCell<HashSet<*const RefCell<UpstreamState<Stream>>>>,
}

/// A worker's upstreams, in pieces that Snapshots share: there may be fifty thousand, and a change of one comes in the midst of
/// requests.
#[derive(Clone, Default)]
pub(crate) struct Upstreams {
    pieces: Rc<[Rc<[Rc<WorkerUpstream>]>]>,
}

/// Upstreams of a piece.
const PIECE: usize = 256;

/// One upstream in one worker.
pub(crate) struct WorkerUpstream {
    pub(crate) planned: Arc<PlanUpstream>,
    pub(crate) state: Rc<RefCell<UpstreamState<Stream>>>,
    /// The worker's own, with the sessions it may resume.
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

impl Snapshot {
    /// The view of a new Plan. An upstream that did not change keeps everything; one that did keeps what belongs to
    /// nodes that stay.
    pub(crate) fn next(previous: Option<&Snapshot>, plan: Arc<Plan>, version: u64) -> Snapshot {
        if let Some(previous) = previous.filter(|previous| Arc::ptr_eq(&previous.plan.upstreams, &plan.upstreams)) {
            return Snapshot { version, plan, upstreams: previous.upstreams.clone(), of_streams: OnceCell::new() };
        }
        let before = previous.map_or(&[][..], |previous| &previous.plan.upstreams);
        let nothing = Upstreams::default();
        let old = previous.map_or(&nothing, |previous| &previous.upstreams);
        let mut positions = Positions::new(before);
        let mut of = |at: usize, planned: &Arc<PlanUpstream>| {
            let found = positions.find(at, &planned.definition.key).and_then(|at| old.get(at));
            match found {
                Some(same) if Arc::ptr_eq(&same.planned, planned) => Rc::clone(same),
                Some(changed) => {
                    let mut state = changed.state.borrow_mut();
                    state.migrate(&planned.definition, &planned.endpoints);
                    if !changed.planned.speaks_as(planned) {
                        state.renew_connections();
                    }
                    drop(state);
                    let tls = changed.tls_of(planned);
                    Rc::new(WorkerUpstream { planned: planned.clone(), state: changed.state.clone(), tls })
                }
                None => Rc::new(WorkerUpstream {
                    planned: planned.clone(),
                    state: Rc::new(RefCell::new(UpstreamState::new(&planned.definition, &planned.endpoints))),
                    tls: planned.tls.as_ref().map(|tls| tls.for_worker()),
                }),
            }
        };
        let piece = |(piece, planned): (usize, &[Arc<PlanUpstream>])| {
            let start = piece * PIECE;
            // Only pointers are compared: what they point to is looked at where they differ.
            let is_same = |old: &Rc<[Rc<WorkerUpstream>]>| {
                let before = before.get(start..start + old.len()).unwrap_or_default();
                before.len() == planned.len() && before.iter().zip(planned).all(|(a, b)| Arc::ptr_eq(a, b))
            };
            match old.pieces.get(piece).filter(|old| is_same(old)) {
                Some(same) => Rc::clone(same),
                None => (start..).zip(planned).map(|(at, planned)| of(at, planned)).collect(),
            }
        };
        let upstreams = Upstreams { pieces: plan.upstreams.chunks(PIECE).enumerate().map(piece).collect() };
        Snapshot { version, plan, upstreams, of_streams: OnceCell::new() }
    }

    /// Whether a stream route leads to this upstream, which may be of an earlier Plan.
    pub(crate) fn has_streams_to(&self, upstream: &WorkerUpstream) -> bool {
        let of_streams = self.of_streams.get_or_init(|| {
            let routes = self.plan.stream_routes.iter();
            routes.map(|of| Rc::as_ptr(&self.upstreams[of.route.upstream].state)).collect()
        });
        of_streams.contains(&Rc::as_ptr(&upstream.state))
    }
}

impl WorkerUpstream {
    /// That of an upstream planned anew: the same where the files and settings are.
    fn tls_of(&self, planned: &PlanUpstream) -> Option<Arc<ClientConfig>> {
        let new = planned.tls.as_ref()?;
        let is_same = self.planned.tls.as_ref().is_some_and(|old| Arc::ptr_eq(old, new));
        self.tls.clone().filter(|_| is_same).or_else(|| Some(new.for_worker()))
    }
}

impl Upstreams {
    pub(crate) fn get(&self, at: usize) -> Option<&Rc<WorkerUpstream>> {
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<WorkerUpstream>> {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }
}

impl Index<usize> for Upstreams {
    type Output = WorkerUpstream;

    #[inline]
    fn index(&self, at: usize) -> &WorkerUpstream {
        &self.pieces[at / PIECE][at % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use stillgate_config::{Config, Upstream};

    #[test]
    fn an_upstream_keeps_its_state_and_only_what_changed_is_made_anew() {
        let text = "upstreams: [{id: u, type: roundrobin, nodes: {\"10.0.0.1:81\": 1}}]\nroutes: []\n";
        let mut config = stillgate_config::load(text, &|_| None).unwrap().config;
        let named = |config: &Config, key: String| Arc::new(Upstream { key, ..(*config.upstreams[0]).clone() });
        config.upstreams = (0..3 * PIECE).map(|at| named(&config, at.to_string())).collect();
        let next = |previous: Option<&Snapshot>, config: &Config, version| {
            let plan =
                Plan::build(version, config, &HashMap::new(), previous.map(|old| &*old.plan), None, None).unwrap();
            Snapshot::next(previous, Arc::new(plan), version)
        };
        let state = |snapshot: &Snapshot, at: usize| Rc::as_ptr(&snapshot.upstreams[at].state);
        let shared = |a: &Snapshot, b: &Snapshot| {
            a.upstreams.pieces.iter().zip(b.upstreams.pieces.iter()).filter(|(a, b)| Rc::ptr_eq(a, b)).count()
        };
        let first = next(None, &config, 1);
        // One that changes keeps what is known of its nodes.
        config.upstreams[PIECE] = Arc::new(Upstream { retries: Some(7), ..(*config.upstreams[PIECE]).clone() });
        let second = next(Some(&first), &config, 2);
        assert_eq!(shared(&first, &second), 2);
        assert_eq!(state(&first, PIECE), state(&second, PIECE));
        assert!(!std::ptr::eq(&first.upstreams[PIECE], &second.upstreams[PIECE]));
        // And so do those that move.
        config.upstreams.remove(PIECE + 1);
        config.upstreams.push(named(&config, "new".to_owned()));
        let third = next(Some(&second), &config, 3);
        assert_eq!(shared(&second, &third), 1);
        let moved = (0..3 * PIECE - 1).all(|at| state(&third, at) == state(&second, at + usize::from(at > PIECE)));
        assert!(moved && third.upstreams.iter().count() == 3 * PIECE);
        // All but the last piece, which had become shorter.
        config.upstreams.truncate(3 * PIECE - 1);
        assert_eq!(shared(&third, &next(Some(&third), &config, 4)), 2);
    }
}
