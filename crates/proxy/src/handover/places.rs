//! Looks up where routes are in a Plan, by the ids that another process knows them by.

use crate::plan::snapshot::Snapshot;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_config::Route;

/// Places that a worker caches while connections come in, or go.
#[derive(Default)]
pub(crate) struct RoutePlaces {
    /// Places of the HTTP routes in the Plan of this version, by their ids.
    routes: RefCell<(u64, HashMap<Arc<str>, usize>)>,
}

impl RoutePlaces {
    /// Where a route is in this Plan.
    pub(crate) fn route(&self, snapshot: &Snapshot, id: &str) -> Option<usize> {
        let (version, places) = &mut *self.routes.borrow_mut();
        if *version != snapshot.version {
            *version = snapshot.version;
            let routes = snapshot.plan.routes.iter().enumerate();
            let routes = routes.filter(|(_, route)| route.route.upgrades || route.route.devices().is_some());
            *places = routes.map(|(at, route)| (route.route.spec.id.as_str().into(), at)).collect();
        }
        places.get(id).copied()
    }

    /// Whether a route is in this Plan unchanged.
    pub(crate) fn is_present(&self, snapshot: &Snapshot, route: &Route) -> bool {
        let found = self.route(snapshot, &route.spec.id);
        found.is_some_and(|at| snapshot.plan.routes[at].route.spec == route.spec)
    }
}
