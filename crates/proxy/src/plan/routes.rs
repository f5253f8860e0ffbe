//! The routes of a Plan, in pieces that it shares with the previous Plan.
//!
//! Plans may follow each other many times a second, each with one of fifty thousand routes changed, and a request keeps the Plan it
//! began with until its end. So what a Plan owns is in proportion to what changed: a list of pieces, and the pieces with changes.
//!
//! Each route has numbers for its series, from [`PlanRoute::first_series_number`] on. It keeps them from Plan to Plan while its label
//! values are the same, so that what a worker has stored under them outlives a change of other routes.

use super::PlanUpstreams;
use std::collections::{HashMap, HashSet};
use std::ops::{Index, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_config::{OnChange, Route, RouteList};
use stillgate_plugin_api::{Chain, Phase};
use stillgate_route::{HostPattern, PathPattern};

/// Routes of a piece.
const PIECE: usize = 256;
/// Numbers of series that are given before numbering restarts.
const SERIES_NUMBERS_MAX: u64 = 1 << 32;

/// All routes, in the order of the configuration, which is that of the matcher.
#[derive(Debug)]
pub(crate) struct Routes {
    pieces: Box<[Arc<[PlanRoute]>]>,
    /// Needs of the plugins, by piece.
    needs: Box<[PluginNeeds]>,
    /// The first number that was never given to a route.
    next_series_number: u64,
    /// Whether labels identify all routes by their names.
    pub(crate) named: bool,
}

/// What the plugins of some routes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PluginNeeds {
    /// Calls when a response has been sent.
    log: bool,
    /// The table of limits.
    limits: bool,
}

impl PluginNeeds {
    /// Computes the needs of pieces; those that `previous` has, too, are known.
    fn of_pieces(pieces: &[Arc<[PlanRoute]>], previous: Option<&Routes>) -> Box<[PluginNeeds]> {
        let known = |(piece, routes): (usize, &Arc<[PlanRoute]>)| {
            let previous = previous.filter(|old| old.pieces.get(piece).is_some_and(|old| Arc::ptr_eq(old, routes)));
            previous.map_or_else(|| PluginNeeds::of(routes), |previous| previous.needs[piece])
        };
        pieces.iter().enumerate().map(known).collect()
    }

    fn of(routes: &[PlanRoute]) -> PluginNeeds {
        let chains = || routes.iter().filter_map(|route| route.chain.as_ref());
        let has_limits = |chain: &Arc<Chain>| chain.entries().iter().any(|entry| entry.plugin.needs_limits());
        PluginNeeds { log: chains().any(|chain| chain.has(Phase::Log)), limits: chains().any(has_limits) }
    }
}

/// A route, and its numbers. What every request needs is stored here, so that the route itself need not be fetched.
#[derive(Debug, Clone)]
pub(crate) struct PlanRoute {
    pub(crate) route: Arc<Route>,
    /// The slot of its upstream.
    upstream: u32,
    /// Whether it has timeouts of its own.
    pub(crate) has_timeout: bool,
    /// The number of its first combination of a path and a host; no other route has one of its numbers.
    pub(crate) first_series_number: u64,
    /// Its plugins, with those of its service and plugin config; `None`: there are none.
    pub(crate) chain: Option<Arc<Chain>>,
    /// What its tunnels hold of it; `None`: they do not care what becomes of it.
    pub(crate) lease: Option<Arc<Lease>>,
}

/// Differences from the previous Plan.
#[derive(Debug, Default)]
pub(super) struct PlanDifference {
    /// Routes that are gone, or say something else in labels, and those that are new, or do. The other routes may have changed in
    /// what no label shows.
    pub(super) left: Vec<Arc<Route>>,
    pub(super) arrived: Vec<Arc<Route>>,
    /// Numbering has restarted, so numbers cannot be compared with older ones.
    pub(super) is_renumbered: bool,
    /// Leases of routes that are gone or have changed.
    pub(super) revoked: Vec<Arc<Lease>>,
}

impl Routes {
    /// Shares unchanged routes with `previous`. `upstreams` are those of the same Plan.
    pub(super) fn new(
        routes: &RouteList,
        named: bool,
        upstreams: &PlanUpstreams,
        previous: Option<&Routes>,
    ) -> (Routes, PlanDifference) {
        let routes: Vec<&Arc<Route>> = routes.iter().collect();
        let old = previous.map_or(&[][..], |previous| &previous.pieces);
        let is_shared = |piece: usize, routes: &[&Arc<Route>]| {
            old.get(piece).is_some_and(|old| {
                old.len() == routes.len() && old.iter().zip(routes).all(|(old, new)| Arc::ptr_eq(&old.route, new))
            })
        };
        let mut shared: Vec<bool> =
            routes.chunks(PIECE).enumerate().map(|(piece, routes)| is_shared(piece, routes)).collect();
        let mut next_series_number = previous.map_or(0, |previous| previous.next_series_number);
        let is_renumbered = next_series_number >= SERIES_NUMBERS_MAX;
        if is_renumbered {
            next_series_number = 0;
        }
        let was_named = previous.is_some_and(|previous| previous.named);
        if is_renumbered || was_named != named {
            shared.fill(false);
        }
        let is_other = |piece: usize| !shared.get(piece).copied().unwrap_or(false);
        // Known routes by id, which is unique.
        let mut known: HashMap<&str, &PlanRoute> = (0..)
            .zip(old)
            .filter(|(piece, _)| is_other(*piece))
            .flat_map(|(_, routes)| routes.iter())
            .map(|known| (known.route.spec.id.as_str(), known))
            .collect();
        let mut difference = PlanDifference { is_renumbered, ..PlanDifference::default() };
        let mut pieces: Vec<Arc<[PlanRoute]>> = Vec::with_capacity(shared.len());
        for (piece, routes) in routes.chunks(PIECE).enumerate() {
            if shared[piece] {
                pieces.push(old[piece].clone());
                continue;
            }
            let numbered = routes.iter().map(|route| {
                let before = known.get(route.spec.id.as_str()).copied();
                let is_same = || before.is_some_and(|before| before.route.is_same_itself(route));
                let lease = Lease::of(route.on_change, before.and_then(|before| before.lease.as_ref()), is_same);
                let before = before
                    .filter(|before| RouteSeriesKey::of(&before.route, was_named) == RouteSeriesKey::of(route, named));
                let before = before.map(|before| before.first_series_number);
                match before {
                    Some(_) => drop(known.remove(route.spec.id.as_str())),
                    None => difference.arrived.push(Arc::clone(route)),
                }
                let first_series_number = before.filter(|_| !is_renumbered).unwrap_or_else(|| {
                    let first = next_series_number;
                    next_series_number += combinations(route);
                    first
                });
                let upstream = upstreams.slot_of(&route.target);
                PlanRoute {
                    route: Arc::clone(route),
                    upstream,
                    has_timeout: route.timeout.is_some(),
                    first_series_number,
                    chain: route.chain.clone().filter(|chain| !chain.is_empty()),
                    lease,
                }
            });
            pieces.push(numbered.collect());
        }
        let differing =
            |pieces: &'_ [Arc<[PlanRoute]>]| (0..pieces.len()).filter(|piece| is_other(*piece)).collect::<Vec<_>>();
        let (gone, come) = (differing(old), differing(&pieces));
        difference.revoked = Lease::revoked_leases(
            gone.iter().flat_map(|at| old[*at].iter()),
            come.iter().flat_map(|at| pieces[*at].iter()),
        );
        difference.left = known.into_values().map(|left| left.route.clone()).collect();
        let needs = PluginNeeds::of_pieces(&pieces, previous);
        (Routes { pieces: pieces.into(), needs, next_series_number, named }, difference)
    }

    /// Where a configuration has other routes: their range, and its replacement. Only pointers are compared.
    pub(super) fn differing_ranges(&self, new: &RouteList) -> (Range<usize>, Range<usize>) {
        let is_same = |(old, new): &(&PlanRoute, &Arc<Route>)| Arc::ptr_eq(&old.route, new);
        let len = self.iter().count();
        let start = self.iter().zip(new.iter()).take_while(is_same).count();
        let longest_end = len.min(new.len()) - start;
        let end = self.iter().rev().zip(new.iter().rev()).take(longest_end).take_while(is_same).count();
        (start..len - end, start..new.len() - end)
    }

    /// Whether some route's plugin is called when a response has been sent.
    pub(super) fn are_logged(&self) -> bool {
        self.needs.iter().any(|needs| needs.log)
    }

    /// Whether some route's plugin counts in the table of limits.
    pub(super) fn need_limits(&self) -> bool {
        self.needs.iter().any(|needs| needs.limits)
    }

    /// Sets the plugins of a route in a Plan that is built by hand.
    #[cfg(test)]
    pub(crate) fn set_chain(&mut self, route: usize, chain: Option<Arc<Chain>>) {
        let piece = Arc::get_mut(&mut self.pieces[route / PIECE]).expect("nobody shares it yet");
        piece[route % PIECE].chain = chain;
    }

    /// The route at a position, if there is one.
    pub(crate) fn get(&self, route: usize) -> Option<&PlanRoute> {
        self.pieces.get(route / PIECE)?.get(route % PIECE)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &PlanRoute> {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }
}

impl Index<usize> for Routes {
    type Output = PlanRoute;

    #[inline]
    fn index(&self, route: usize) -> &PlanRoute {
        &self.pieces[route / PIECE][route % PIECE]
    }
}

impl PlanRoute {
    /// The slot of its upstream; if the route is unavailable, a slot that no Plan has.
    #[inline]
    pub(crate) fn upstream(&self) -> usize {
        self.upstream as usize
    }

    /// The number of a combination of one of its paths and, if it has hosts, one of them.
    #[inline]
    pub(crate) fn series_number(&self, path: usize, host: Option<usize>) -> u64 {
        let hosts = self.route.spec.uri().map_or(1, |uri| uri.hosts.len().max(1));
        self.first_series_number + (path * hosts + host.unwrap_or_default()) as u64
    }
}

/// How many numbers a route takes.
fn combinations(route: &Route) -> u64 {
    route.spec.uri().map_or(1, |uri| uri.paths.len() * uri.hosts.len().max(1)) as u64
}

/// What labels show of a route, and what its numbers mean.
#[derive(PartialEq)]
struct RouteSeriesKey<'a> {
    /// Another upstream has other nodes in its slots.
    upstream: Option<&'a str>,
    /// Names of the route and its service.
    labels: (&'a str, Option<&'a str>),
    /// Set for a route without an expression.
    places: Option<(&'a [PathPattern], &'a [HostPattern])>,
}

impl<'a> RouteSeriesKey<'a> {
    fn of(route: &'a Route, named: bool) -> RouteSeriesKey<'a> {
        RouteSeriesKey {
            upstream: route.target.key(),
            labels: route.labels(named),
            places: route.spec.uri().map(|uri| (&*uri.paths, &*uri.hosts)),
        }
    }
}

// What a tunnel holds of its route, so that it is notified when the route changes.
//
// A tunnel may live for days and must not keep a whole Plan alive, nor can a worker look up the routes of thousands of tunnels in
// each new Plan. So the control thread does it: building a Plan, it looks at the routes that differ anyway, and as it publishes
// the Plan it revokes the leases of those that were changed or removed.

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
    pub(super) fn revoked_leases<'a>(
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
    use super::*;
    use stillgate_config::Config;

    /// Routes `r0`, `r1`, … at these paths.
    fn routes(paths: &[&str]) -> Vec<Arc<Route>> {
        let route = |(index, path): (usize, &&str)| format!("{{id: r{index}, uri: {path}, upstream_id: u}}");
        let routes: Vec<String> = paths.iter().enumerate().map(route).collect();
        let text = format!("upstreams: [{{id: u, type: roundrobin, nodes: {{}}}}]\nroutes: [{}]\n", routes.join(", "));
        let config: Config = stillgate_config::load(text, &|_| None).unwrap().config;
        config.routes.iter().cloned().collect()
    }

    fn new(routes: &[Arc<Route>], previous: Option<&Routes>) -> (Routes, PlanDifference) {
        let upstreams = "upstreams: [{id: u, type: roundrobin, nodes: {}}]\nroutes: []\n";
        let config = stillgate_config::load(upstreams, &|_| None).unwrap().config;
        let routes = routes.iter().cloned().collect();
        Routes::new(&routes, false, &PlanUpstreams::new(&config, &HashMap::new(), None, None), previous)
    }

    fn ids(routes: &[Arc<Route>]) -> Vec<&str> {
        let mut ids: Vec<&str> = routes.iter().map(|route| route.spec.id.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    fn numbers(routes: &Routes) -> HashMap<String, u64> {
        routes.iter().map(|route| (route.route.spec.id.clone(), route.first_series_number)).collect()
    }

    fn many() -> Vec<Arc<Route>> {
        routes(&vec!["/a"; PIECE * 4 + 10])
    }

    #[test]
    fn what_did_not_change_is_shared() {
        let mut list = many();
        let (first, difference) = new(&list, None);
        assert_eq!((difference.arrived.len(), difference.left.len()), (list.len(), 0));
        list[PIECE + 3] = routes(&vec!["/b"; PIECE * 2])[PIECE + 3].clone();
        let (second, difference) = new(&list, Some(&first));
        assert_eq!((ids(&difference.arrived), ids(&difference.left)), (vec!["r259"], vec!["r259"]));
        let same: Vec<bool> = first.pieces.iter().zip(&second.pieces).map(|(old, new)| Arc::ptr_eq(old, new)).collect();
        assert_eq!(same, [true, false, true, true, true]);
        let (old, new) = (numbers(&first), numbers(&second));
        assert!(old.iter().all(|(id, number)| (new[id] == *number) == (id != "r259")));
        assert_eq!(second[PIECE + 3].first_series_number, list.len() as u64, "a number is given once");
    }

    #[test]
    fn numbers_stay_where_routes_move() {
        let mut list = many();
        let (first, _) = new(&list, None);
        list.remove(PIECE - 1);
        list.swap(0, 7);
        let (second, difference) = new(&list, Some(&first));
        assert_eq!((ids(&difference.arrived), ids(&difference.left)), (vec![], vec!["r255"]));
        assert_eq!(second.iter().count(), list.len());
        for (index, route) in list.iter().enumerate() {
            assert!(Arc::ptr_eq(&second[index].route, route));
            assert_eq!(numbers(&first)[&route.spec.id], second[index].first_series_number);
        }
        let (third, difference) = new(&[], Some(&second));
        assert_eq!((difference.left.len(), third.iter().count()), (list.len(), 0));
    }

    #[test]
    fn numbers_begin_again_before_they_run_out() {
        let list = routes(&["/a", "/b"]);
        let (mut first, _) = new(&list, None);
        first.next_series_number = SERIES_NUMBERS_MAX;
        let (second, difference) = new(&list, Some(&first));
        assert!(difference.is_renumbered && difference.arrived.is_empty() && difference.left.is_empty());
        assert_eq!(
            (second[0].first_series_number, second[1].first_series_number, second.next_series_number),
            (0, 1, 2)
        );
    }

    #[test]
    fn what_reads_alike_keeps_its_numbers() {
        let list = routes(&["/a", "/b"]);
        let (first, _) = new(&list, None);
        // Parsed again from the text, so that no memory is shared.
        let (second, difference) = new(&routes(&["/a", "/c"]), Some(&first));
        assert_eq!((ids(&difference.arrived), ids(&difference.left)), (vec!["r1"], vec!["r1"]));
        assert_eq!((second[0].first_series_number, second[1].first_series_number), (0, 2));
    }
}

#[cfg(test)]
mod lease_tests {
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
