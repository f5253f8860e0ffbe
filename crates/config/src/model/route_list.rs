//! All routes of a configuration, in chunks that successive configurations of a store share.
//!
//! Many configurations may follow each other in a second, each with one changed route of fifty thousand, while earlier ones are
//! still in use. So a configuration that differs by one route has only one chunk of its own.

use super::Route;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// The most routes of a chunk; a longer one is split.
const PIECE_MAX: usize = 512;

/// Routes in order: that of the file, or, for a store, by creation and then by id.
#[derive(Clone, Default)]
pub struct RouteList {
    /// None is empty.
    pieces: Vec<Arc<Vec<SortedRoute>>>,
    /// By chunk: the position of its first route.
    starts: Vec<usize>,
    len: usize,
}

/// A route with its sort key.
#[derive(Debug, Clone)]
struct SortedRoute {
    created: u64,
    route: Arc<Route>,
}

impl SortedRoute {
    fn cmp(&self, created: u64, id: &str) -> Ordering {
        self.created.cmp(&created).then_with(|| self.route.spec.id.as_str().cmp(id))
    }
}

impl RouteList {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Route>> {
        self.pieces.iter().flat_map(|piece| piece.iter().map(|placed| &placed.route))
    }

    /// Inserts a route of a store, or replaces the one with its id. An equal one is kept.
    pub(crate) fn put(&mut self, created: u64, route: Arc<Route>) {
        let piece = self.piece_of(created, &route.spec.id);
        let Some(routes) = self.pieces.get_mut(piece) else {
            self.pieces.push(Arc::new(vec![SortedRoute { created, route }]));
            return self.count(piece);
        };
        match routes.binary_search_by(|placed| placed.cmp(created, &route.spec.id)) {
            Ok(at) if routes[at].route == route => {}
            Ok(at) => Arc::make_mut(routes)[at].route = route,
            Err(at) => {
                Arc::make_mut(routes).insert(at, SortedRoute { created, route });
                if routes.len() > PIECE_MAX {
                    let first = Arc::make_mut(routes);
                    let second = first.split_off(PIECE_MAX / 2);
                    first.shrink_to(PIECE_MAX);
                    self.pieces.insert(piece + 1, Arc::new(second));
                }
                self.count(piece);
            }
        }
    }

    /// Removes a route of a store, if it exists.
    pub(crate) fn remove(&mut self, created: u64, id: &str) {
        let piece = self.piece_of(created, id);
        let Some(routes) = self.pieces.get_mut(piece) else { return };
        let Ok(at) = routes.binary_search_by(|placed| placed.cmp(created, id)) else { return };
        Arc::make_mut(routes).remove(at);
        if routes.is_empty() {
            self.pieces.remove(piece);
        }
        self.count(piece);
    }

    /// The chunk that contains a route, or into which it belongs.
    fn piece_of(&self, created: u64, id: &str) -> usize {
        let is_before = |piece: &Arc<Vec<SortedRoute>>| piece.last().is_some_and(|last| last.cmp(created, id).is_lt());
        // Behind all others: in the last chunk.
        self.pieces.partition_point(is_before).min(self.pieces.len().saturating_sub(1))
    }

    /// Recomputes the positions from a chunk on.
    fn count(&mut self, from: usize) {
        self.starts.truncate(from);
        self.len = match self.starts.last() {
            Some(start) => start + self.pieces[from - 1].len(),
            None => 0,
        };
        for piece in &self.pieces[from..] {
            self.starts.push(self.len);
            self.len += piece.len();
        }
    }
}

impl Index<usize> for RouteList {
    type Output = Arc<Route>;

    fn index(&self, position: usize) -> &Arc<Route> {
        let piece = self.starts.partition_point(|start| *start <= position) - 1;
        &self.pieces[piece][position - self.starts[piece]].route
    }
}

impl FromIterator<Arc<Route>> for RouteList {
    fn from_iter<I: IntoIterator<Item = Arc<Route>>>(routes: I) -> RouteList {
        let mut list = RouteList::default();
        let mut routes = (0..).zip(routes).map(|(created, route)| SortedRoute { created, route });
        loop {
            let piece: Vec<SortedRoute> = routes.by_ref().take(PIECE_MAX).collect();
            if piece.is_empty() {
                break;
            }
            list.pieces.push(Arc::new(piece));
        }
        list.count(0);
        list
    }
}

impl<'a> IntoIterator for &'a RouteList {
    type Item = &'a Arc<Route>;
    type IntoIter = Box<dyn Iterator<Item = &'a Arc<Route>> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl PartialEq for RouteList {
    fn eq(&self, other: &RouteList) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for RouteList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn route(id: u64, path: &str) -> Arc<Route> {
        let text = format!(
            "upstreams: [{{id: u, type: roundrobin, nodes: {{}}}}]\nroutes: [{{id: r{id}, uri: {path}, upstream_id: u}}]\n"
        );
        crate::load(text, &|_| None).unwrap().config.routes[0].clone()
    }

    /// Compares with a map of all routes after each change; lists that were taken before stay unchanged.
    #[test]
    fn a_list_is_ordered_whatever_changes() {
        let (mut list, mut expected) = (RouteList::default(), BTreeMap::new());
        let mut former = list.clone();
        let routes: Vec<Arc<Route>> = (0..3_000).map(|id| route(id, "/a")).collect();
        let mut state = 7u64;
        for step in 0..12_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let of = &routes[(state >> 33) as usize % routes.len()];
            // Several have the same age.
            let created = (state >> 33) % 3_000 / 10;
            let key = (created, of.spec.id.clone());
            // At first their number grows, and then it shrinks.
            if (state >> 20) % 8 < if step < 8_000 { 6 } else { 1 } {
                list.put(created, of.clone());
                expected.insert(key, of.clone());
            } else {
                list.remove(created, &of.spec.id);
                expected.remove(&key);
            }
            assert_eq!(list.len(), expected.len());
            if step % 400 == 0 {
                let is_kept = former.iter().map(|of| of.spec.id.clone()).collect::<Vec<_>>();
                assert!(list.iter().eq(expected.values()), "step {step}");
                assert!((0..list.len()).all(|at| Arc::ptr_eq(&list[at], list.iter().nth(at).unwrap())));
                assert_eq!(is_kept.len(), former.len());
                former = list.clone();
            }
        }
        for of in expected.into_keys() {
            list.remove(of.0, &of.1);
        }
        assert!(list.is_empty() && list.iter().next().is_none() && list.pieces.is_empty());
    }

    #[test]
    fn a_change_of_one_route_shares_the_other_pieces() {
        let mut list: RouteList = (0..3_000).map(|id| route(id, "/a")).collect();
        let before = list.clone();
        list.put(1_000, route(1_000, "/b"));
        list.put(2_000, route(2_000, "/a"));
        let is_shared = |(old, new): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(old, new);
        let shared: Vec<bool> = before.pieces.iter().zip(&list.pieces).map(is_shared).collect();
        assert_eq!(shared, [true, false, true, true, true, true], "an equal route does not count as a change");
        assert_eq!(before[1_000].spec, route(1_000, "/a").spec);
        assert_eq!(list[1_000].spec, route(1_000, "/b").spec);
        assert_ne!(before, list);
    }
}
