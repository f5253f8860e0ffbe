//! What a tunnel holds of its route, so that it is notified when the route changes.
//!
//! A tunnel may live for days and must not keep a whole Plan alive, nor can a worker look up the routes of thousands of tunnels in
//! each new Plan. So the control thread does it: building a Plan, it looks at the routes that differ anyway, and as it publishes
//! the Plan it revokes the leases of those that were changed or removed.

use super::routes::PlanRoute;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_config::OnChange;

/// Valid until its route is changed or removed. Routes with `on_change: keep` have none.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) policy: OnChange,
    is_revoked: AtomicBool,
}

impl Lease {
    pub(crate) fn new(policy: OnChange) -> Lease {
        Lease { policy, is_revoked: AtomicBool::new(false) }
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Relaxed)
    }

    pub(crate) fn revoke(&self) {
        self.is_revoked.store(true, Ordering::Relaxed);
    }

    /// The lease of a route: that of `before`, which has the same id, if the route is unchanged.
    pub(super) fn of(
        policy: OnChange,
        before: Option<&Arc<Lease>>,
        is_same: impl FnOnce() -> bool,
    ) -> Option<Arc<Lease>> {
        if policy == OnChange::Keep {
            return None;
        }
        let same = before.filter(|_| is_same()).cloned();
        Some(same.unwrap_or_else(|| Arc::new(Lease::new(policy))))
    }

    /// The leases that `old` has and `new` has not.
    pub(super) fn revoked<'a>(
        old: impl Iterator<Item = &'a PlanRoute>,
        new: impl Iterator<Item = &'a PlanRoute>,
    ) -> Vec<Arc<Lease>> {
        let mut old = old.filter_map(|route| route.lease.as_ref()).peekable();
        if old.peek().is_none() {
            return Vec::new();
        }
        let kept: HashSet<*const Lease> = new.filter_map(|route| route.lease.as_ref()).map(Arc::as_ptr).collect();
        old.filter(|lease| !kept.contains(&Arc::as_ptr(lease))).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Plan, PlanCell};
    use std::collections::HashMap;
    use std::sync::Arc;

    fn plan(text: &str, previous: Option<&Plan>) -> Plan {
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        Plan::build(1, &config, &HashMap::new(), previous, None, None).unwrap()
    }

    /// The route of interest, and its surroundings.
    fn text(before: &str, route: &str, upstreams: &str) -> String {
        format!("upstreams: [{upstreams}]\nservices: [{{id: s, upstream_id: u}}]\nroutes: [{before} {route}]\n")
    }

    #[test]
    fn a_lease_is_revoked_by_a_change_of_its_route_alone() {
        const U: &str = "{id: u, nodes: {\"10.0.0.1:81\": 1}}";
        const V: &str = "{id: v, nodes: {\"10.0.0.1:82\": 1}}";
        const R: &str = "{id: r, uri: /r, upstream_id: u, on_change: close}";
        const OWN: &str = "{id: r, uri: /r, on_change: drain, upstream: {nodes: {\"10.0.0.1:81\": 1}}}";
        const OTHER: &str = "{id: o, uri: /o, upstream_id: u},";
        let check = |old: [&str; 3], new: [&str; 3], expected: bool| {
            let [a, b] = [old, new].map(|[before, route, upstreams]| text(before, route, upstreams));
            let first = plan(&a, None);
            let leases: Vec<_> = first.routes.iter().filter_map(|route| route.lease.clone()).collect();
            assert_eq!(leases.len(), 1, "{a}");
            let next = plan(&b, Some(&first));
            assert_eq!(next.revocations, u64::from(expected), "{a}\n{b}");
            assert!(!leases[0].is_revoked(), "before the Plan is published");
            PlanCell::new(Arc::new(first)).publish(Arc::new(next));
            assert_eq!(leases[0].is_revoked(), expected, "{a}\n{b}");
        };
        check(["", R, U], ["", R, U], false);
        // Its surroundings are added, removed, changed and moved.
        check(["", R, U], [OTHER, R, U], false);
        check([OTHER, R, U], ["", R, U], false);
        check(["", R, U], ["", R, &format!("{V}, {U}")], false);
        check(["", R, U], ["", R, &U.replace("81", "83")], false);
        // The route itself changes.
        check(["", R, U], ["", "", U], true);
        check(["", R, U], ["", &R.replace("/r", "/q"), U], true);
        check(["", R, U], ["", &R.replace("close", "drain"), U], true);
        check(["", R, U], ["", &R.replace("close", "keep"), U], true);
        check(["", R, U], ["", &R.replace("on_change", "timeout: {read: 7}, on_change"), U], true);
        check(["", R, U], ["", &R.replace("on_change", "enable_websocket: true, on_change"), U], true);
        check(["", R, U], ["", &R.replace("upstream_id: u", "service_id: s"), U], true);
        check(["", R, U], ["", &R.replace("id: u", "id: v"), &format!("{U}, {V}")], true);
        check(["", R, U], ["", &R.replace("id: r", "id: q"), U], true);
        // The route has its own upstream.
        check(["", OWN, U], [OTHER, OWN, &format!("{V}, {U}")], false);
        check(["", OWN, U], ["", &OWN.replace("81", "83"), U], true);
        check(["", OWN, U], ["", R, U], true);
    }

    #[test]
    fn leases_live_on_through_plans_that_leave_them_alone() {
        let upstream = "{id: u, nodes: {}}";
        let route = "{id: r, uri: /r, upstream_id: u, on_change: close}";
        let mut last = plan(&text("", route, upstream), None);
        let lease = last.routes[0].lease.clone().unwrap();
        for turn in 0..3 {
            let other = format!("{{id: o, uri: /o{turn}, upstream_id: u}},");
            last = plan(&text(&other, route, upstream), Some(&last));
            assert!(Arc::ptr_eq(last.routes[1].lease.as_ref().unwrap(), &lease));
        }
        assert_eq!(last.revocations, 0);
        last = plan(&text("", "", upstream), Some(&last));
        assert_eq!(last.revocations, 1);
        last = plan(&text("", route, upstream), Some(&last));
        assert_eq!(last.revocations, 1, "one that comes back is a new one");
    }
}
