//! One worker's view of a Plan: the Plan, and the worker's own mutable state of each of its upstreams.

use crate::plan::{Plan, PlanUpstream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_config::Balance;
use stillgate_upstream::UpstreamState;
use tokio::net::TcpStream;

/// What a worker serves from until the next Plan. An exchange holds the one it began with.
pub(crate) struct Snapshot {
    /// The [`crate::PlanCell`] version it was taken at.
    pub(crate) version: u64,
    pub(crate) plan: Arc<Plan>,
    /// In the order of the Plan's upstreams.
    pub(crate) upstreams: Rc<[Rc<WorkerUpstream>]>,
    /// Whether some upstream chooses nodes by their latency.
    pub(crate) uses_latency: bool,
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
        let uses_latency = plan.upstreams.iter().any(|upstream| upstream.definition.balance == Balance::Ewma);
        if let Some(previous) = previous.filter(|previous| Arc::ptr_eq(&previous.plan.upstreams, &plan.upstreams)) {
            return Snapshot { version, plan, upstreams: previous.upstreams.clone(), uses_latency };
        }
        let mut old: HashMap<&str, &Rc<WorkerUpstream>> = HashMap::new();
        for upstream in previous.iter().flat_map(|snapshot| snapshot.upstreams.iter()) {
            old.insert(&upstream.definition.definition.key, upstream);
        }
        let upstreams = plan
            .upstreams
            .iter()
            .map(|definition| match old.get(definition.definition.key.as_str()) {
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
        Snapshot { version, plan, upstreams, uses_latency }
    }
}
