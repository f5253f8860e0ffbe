//! One worker's view of a Plan: the Plan, and the worker's own mutable state of each of its upstreams.

use super::{Plan, PlanUpstream};
use crate::connection::stream::Stream;
use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::ops::Index;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_tls::rustls::ClientConfig;
use stillgate_upstream::UpstreamState;

/// What a worker serves from until the next Plan. An exchange holds the one that it began with.
pub(crate) struct Snapshot {
    /// The [`crate::PlanCell`] version at which it was taken.
    pub(crate) version: u64,
    pub(crate) plan: Arc<Plan>,
    /// States in the slots of the Plan's upstreams.
    pub(crate) upstreams: Upstreams,
    /// The states of upstreams that stream routes lead to, collected at first use.
    of_streams: OnceCell<HashSet<*const RefCell<UpstreamState<Stream>>>>,
}

/// A worker's upstreams, in pieces that Snapshots share: there may be fifty thousand, and a change of one arrives while requests
/// are served.
#[derive(Clone, Default)]
pub(crate) struct Upstreams {
    pieces: Rc<[Piece]>,
}

/// Some slots, and their contents.
type Piece = Rc<[Option<Rc<WorkerUpstream>>]>;

/// Slots of a piece.
const PIECE: usize = 256;

/// One upstream in one worker.
pub(crate) struct WorkerUpstream {
    pub(crate) planned: Arc<PlanUpstream>,
    pub(crate) state: Rc<RefCell<UpstreamState<Stream>>>,
    /// The worker's own configuration, with the sessions that it may resume.
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

impl Snapshot {
    /// The view of a new Plan. An unchanged upstream keeps everything; a changed one keeps what belongs to nodes that remain.
    pub(crate) fn next(previous: Option<&Snapshot>, plan: Arc<Plan>, version: u64) -> Snapshot {
        if let Some(previous) = previous.filter(|previous| Arc::ptr_eq(&previous.plan.upstreams, &plan.upstreams)) {
            return Snapshot { version, plan, upstreams: previous.upstreams.clone(), of_streams: OnceCell::new() };
        }
        let before = previous.map_or(&[][..], |previous| previous.plan.upstreams.slots());
        let nothing = Upstreams::default();
        let old = previous.map_or(&nothing, |previous| &previous.upstreams);
        let piece = |(piece, slots): (usize, &[Option<Arc<PlanUpstream>>])| {
            let start = piece * PIECE;
            // Only pointers are compared: their targets are looked at only if they differ.
            let is_same = |old: &Piece| {
                let before = before.get(start..start + old.len()).unwrap_or_default();
                before.len() == slots.len() && before.iter().map(as_ptr).eq(slots.iter().map(as_ptr))
            };
            match old.pieces.get(piece).filter(|old| is_same(old)) {
                Some(same) => Rc::clone(same),
                None => {
                    let next = |(slot, planned): (usize, &Option<Arc<PlanUpstream>>)| {
                        planned.as_ref().map(|planned| WorkerUpstream::next(planned, old.get(slot)))
                    };
                    (start..).zip(slots).map(next).collect()
                }
            }
        };
        let pieces = plan.upstreams.slots().chunks(PIECE).enumerate().map(piece).collect();
        let upstreams = Upstreams { pieces };
        Snapshot { version, plan, upstreams, of_streams: OnceCell::new() }
    }

    /// Whether a stream route leads to this upstream, which may be of an earlier Plan.
    pub(crate) fn has_streams_to(&self, upstream: &WorkerUpstream) -> bool {
        let of_streams = self.of_streams.get_or_init(|| {
            let routes = self.plan.stream_routes.iter();
            routes.filter_map(|of| self.upstreams.get(of.upstream())).map(|of| Rc::as_ptr(&of.state)).collect()
        });
        of_streams.contains(&Rc::as_ptr(&upstream.state))
    }
}

impl WorkerUpstream {
    /// The upstream that replaces the one in its slot, which is a different upstream if the keys differ.
    fn next(planned: &Arc<PlanUpstream>, before: Option<&Rc<WorkerUpstream>>) -> Rc<WorkerUpstream> {
        let Some(before) = before.filter(|before| before.planned.definition.key == planned.definition.key) else {
            return Rc::new(WorkerUpstream {
                planned: planned.clone(),
                state: Rc::new(RefCell::new(UpstreamState::new(&planned.definition, &planned.endpoints))),
                tls: planned.tls().map(|tls| tls.for_worker()),
            });
        };
        if Arc::ptr_eq(&before.planned, planned) {
            return Rc::clone(before);
        }
        let mut state = before.state.borrow_mut();
        state.migrate(&planned.definition, &planned.endpoints);
        if before.planned.link != planned.link {
            state.renew_connections();
        }
        drop(state);
        let tls = match before.planned.link.tls == planned.link.tls {
            true => before.tls.clone(),
            false => planned.tls().map(|tls| tls.for_worker()),
        };
        Rc::new(WorkerUpstream { planned: planned.clone(), state: before.state.clone(), tls })
    }
}

/// Pointer for comparison.
fn as_ptr(slot: &Option<Arc<PlanUpstream>>) -> Option<*const PlanUpstream> {
    slot.as_ref().map(Arc::as_ptr)
}

impl Upstreams {
    pub(crate) fn get(&self, slot: usize) -> Option<&Rc<WorkerUpstream>> {
        self.pieces.get(slot / PIECE)?.get(slot % PIECE)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<WorkerUpstream>> {
        self.pieces.iter().flat_map(|piece| piece.iter().flatten())
    }
}

impl Index<usize> for Upstreams {
    type Output = WorkerUpstream;

    #[inline]
    fn index(&self, slot: usize) -> &WorkerUpstream {
        self.pieces[slot / PIECE][slot % PIECE].as_ref().expect("who has a slot has it from the same Plan")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use stillgate_config::{Config, Upstream};

    #[test]
    fn an_upstream_keeps_its_state_and_only_what_changed_is_made_again() {
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
        // An upstream that changes keeps what is known of its nodes.
        config.upstreams[PIECE] = Arc::new(Upstream { http2: true, ..(*config.upstreams[PIECE]).clone() });
        let second = next(Some(&first), &config, 2);
        assert_eq!(shared(&first, &second), 2);
        assert_eq!(state(&first, PIECE), state(&second, PIECE));
        assert!(!std::ptr::eq(&first.upstreams[PIECE], &second.upstreams[PIECE]));
        // A new upstream takes the slot of a removed one, and no other moves.
        config.upstreams.remove(PIECE + 1);
        config.upstreams.insert(0, named(&config, "new".to_owned()));
        let third = next(Some(&second), &config, 3);
        assert_eq!(shared(&second, &third), 2);
        let stays = (0..3 * PIECE).all(|at| (state(&third, at) == state(&second, at)) == (at != PIECE + 1));
        assert!(stays && third.upstreams.iter().count() == 3 * PIECE);
        // All but the last piece, which has become shorter.
        config.upstreams.truncate(3 * PIECE - 1);
        let fourth = next(Some(&third), &config, 4);
        assert_eq!(shared(&third, &fourth), 2);
        assert_eq!(fourth.upstreams.iter().count(), 3 * PIECE - 1);
        // A free slot in between remains free until an upstream is added.
        let first = config.upstreams.remove(5);
        let fifth = next(Some(&fourth), &config, 5);
        assert!((shared(&fourth, &fifth), fifth.upstreams.get(4).is_none()) == (2, true));
        config.upstreams.push(first);
        assert!(next(Some(&fifth), &config, 6).upstreams.get(4).is_some());
    }
}
