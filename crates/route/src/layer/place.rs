//! The places of a route, and their order.

use crate::{HostPattern, RouteMatch, RouteSpec, UriRoute};
use std::cmp::{Ordering, Reverse};

/// A place of a route: the indices of its host and path. An expression route has one, 0 and 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaceId {
    pub(crate) host: u32,
    pub(crate) path: u32,
}

/// All places of a route.
pub(crate) fn places_of(spec: &RouteSpec) -> impl Iterator<Item = PlaceId> {
    let (hosts, paths) = match &spec.takes {
        RouteMatch::Uri(uri) => (uri.hosts.len().max(1), uri.paths.len()),
        RouteMatch::Expression(_) => (1, 1),
    };
    (0..hosts as u32).flat_map(move |host| (0..paths as u32).map(move |path| PlaceId { host, path }))
}

/// The order in which places are tried: expressions by priority and position; then hosts from the most specific, paths from
/// the most specific, and on the same host and path priority and position again. A host or path that could not be read comes before
/// all others.
pub(crate) fn order(a: (&RouteSpec, usize, PlaceId), b: (&RouteSpec, usize, PlaceId)) -> Ordering {
    let by_priority = || (Reverse(a.0.priority), a.1).cmp(&(Reverse(b.0.priority), b.1));
    match (&a.0.takes, &b.0.takes) {
        (RouteMatch::Expression(_), RouteMatch::Expression(_)) => by_priority(),
        (RouteMatch::Expression(_), RouteMatch::Uri(_)) => Ordering::Less,
        (RouteMatch::Uri(_), RouteMatch::Expression(_)) => Ordering::Greater,
        (RouteMatch::Uri(uri_a), RouteMatch::Uri(uri_b)) => host_precedence(uri_b, b.2)
            .cmp(&host_precedence(uri_a, a.2))
            .then_with(|| path_precedence(uri_a, a.2).cmp(&path_precedence(uri_b, b.2)))
            .then_with(|| b.0.priority.cmp(&a.0.priority))
            .then_with(|| tail_bytes(uri_b, b.2).cmp(&tail_bytes(uri_a, a.2)))
            .then_with(by_priority)
            .then_with(|| (a.2.path, a.2.host).cmp(&(b.2.path, b.2.host))),
    }
}

/// Greater is tried first; any host is least.
fn host_precedence(uri: &UriRoute, place: PlaceId) -> (bool, Option<(bool, usize)>) {
    (uri.unread.host, uri.hosts.get(place.host as usize).map(HostPattern::precedence))
}

/// Length of the tail: among patterns that are equal up to a star, the longer is tried first, as in APISIX.
fn tail_bytes(uri: &UriRoute, place: PlaceId) -> usize {
    uri.paths[place.path as usize].tail().len()
}

/// Less is tried first.
fn path_precedence(uri: &UriRoute, place: PlaceId) -> (bool, &[u8]) {
    (!uri.unread.path, uri.paths[place.path as usize].key())
}
