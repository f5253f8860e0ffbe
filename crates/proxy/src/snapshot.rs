//! One worker's view of a Plan: the Plan, and the worker's own mutable state of each of its upstreams.

use crate::plan::{Plan, PlanUpstream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_upstream::UpstreamState;
use tokio::net::TcpStream;

/// What a worker serves from until the next Plan. An exchange holds the one it began with.
pub(crate) struct Snapshot {
    /// The [`crate::PlanCell`] version it was taken at.
    pub(crate) version: u64,
    pub(crate) plan: Arc<Plan>,
    /// In the order of the Plan's upstreams.
    pub(crate) upstreams: Rc<[Rc<WorkerUpstream>]>,
}

/// One upstream in one worker.
pub(crate) struct WorkerUpstream {
    pub(crate) definition: Arc<PlanUpstream>,
    pub(crate) state: Rc<RefCell<UpstreamState<TcpStream>>>,
}

impl Snapshot {
    /// The view of a new Plan. An upstream that did not change keeps everything; one that did keeps what belongs to
    /// nodes that stay.
    pub(crate) fn next(previous: Option<&Snapshot>, plan: Arc<Plan>, version: u64) -> Snapshot {
        if let Some(previous) = previous.filter(|previous| Arc::ptr_eq(&previous.plan.upstreams, &plan.upstreams)) {
            return Snapshot { version, plan, upstreams: previous.upstreams.clone() };
        }
        let old = previous.map_or(&[][..], |previous| &previous.upstreams);
        // Most are where they were; the map is for the others.
        let mut by_key: Option<HashMap<&str, &Rc<WorkerUpstream>>> = None;
        let mut before = |at: usize, key: &str| match old.get(at).filter(|old| old.definition.definition.key == key) {
            Some(old) => Some(old),
            None => {
                let map = || old.iter().map(|old| (old.definition.definition.key.as_str(), old)).collect();
                by_key.get_or_insert_with(map).get(key).copied()
            }
        };
        let upstreams = plan
            .upstreams
            .iter()
            .enumerate()
            .map(|(at, definition)| match before(at, &definition.definition.key) {
                Some(same) if Arc::ptr_eq(&same.definition, definition) => Rc::clone(same),
                Some(changed) => {
                    changed.state.borrow_mut().migrate(&definition.definition, &definition.endpoints);
                    Rc::new(WorkerUpstream { definition: definition.clone(), state: changed.state.clone() })
                }
                None => Rc::new(WorkerUpstream {
                    definition: definition.clone(),
                    state: Rc::new(RefCell::new(UpstreamState::new(&definition.definition, &definition.endpoints))),
                }),
            })
            .collect();
        Snapshot { version, plan, upstreams }
    }
}
