//! From a list of routes to the matcher.
//!
//! A route stands at every pair of its hosts and paths; such a pair is a place. Places are sorted once, by host, path key,
//! priority and position; equal host and path make a run; and each run is filed under its path: in the table where that
//! is exact, in its host's tree otherwise. Expressions and other kinds of route can be filed as further places.

use std::sync::Arc;
use crate::matcher::{ANY_HOST, Group, Matcher, NO_ADDRESSES, Place};
use crate::table::{Table, TextHash};
use crate::tree::Forest;
use crate::{AddressSet, RouteSpec, Variable};
use std::cmp::Reverse;
use std::fmt;

/// Most pairs of host and path of all routes together. A route with many hosts and many paths multiplies them.
pub const PLACES_MAX: usize = 1 << 23;

/// A list of routes that makes no matcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// Position of the route that is to blame.
    pub route: usize,
    /// Its id.
    pub id: String,
    /// What is wrong.
    pub kind: CompileErrorKind,
}

/// What is wrong with a route, or with all up to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileErrorKind {
    /// It has no path.
    NoPath,
    /// Its `vars` read a path parameter that none of its paths has.
    UnknownParam {
        /// The parameter's name.
        name: String,
    },
    /// With it there are more than [`PLACES_MAX`] places, or their paths take more than 4 GiB.
    TooMany,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.id;
        match &self.kind {
            CompileErrorKind::NoPath => write!(f, "route \"{id}\" has no path; write \"/*\" for any"),
            CompileErrorKind::UnknownParam { name } => write!(
                f,
                "route \"{id}\": vars read uri_param_{name}, but no path of the route has \":{name}\" or \"*{name}\""
            ),
            CompileErrorKind::TooMany => write!(
                f,
                "route \"{id}\": with it there are more than {PLACES_MAX} pairs of a host and a path; \
                 give one route fewer hosts or paths"
            ),
        }
    }
}

impl std::error::Error for CompileError {}

/// A place before it is filed. The derived order is not used: see [`sort`].
struct Draft<'a> {
    group: u32,
    key: &'a [u8],
    route: u32,
    path: u32,
}

impl Matcher {
    /// Compiles routes. Their positions are what [`crate::Match::route`] refers to.
    pub fn compile(specs: Vec<Arc<RouteSpec>>) -> Result<Matcher, Vec<CompileError>> {
        let errors = check(&specs);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut hosts = Hosts { table: Table::default(), count: 1, suffix_bytes_max: 0 };
        let mut drafts = draft(&specs, &mut hosts);
        sort(&mut drafts, &specs);
        let filed = file(&drafts, &specs, hosts.count);
        Ok(Matcher {
            places: filed.places,
            addresses: filed.addresses,
            hosts: hosts.table,
            suffix_bytes_max: hosts.suffix_bytes_max,
            groups: filed.groups,
            exact: filed.exact,
            forest: filed.forest,
            specs: specs.into(),
        })
    }
}

fn check(specs: &[Arc<RouteSpec>]) -> Vec<CompileError> {
    let mut errors = Vec::new();
    let (mut places, mut key_bytes) = (0usize, 0usize);
    for (route, spec) in specs.iter().enumerate() {
        let mut fail = |kind| errors.push(CompileError { route, id: spec.id.clone(), kind });
        if spec.uri().is_some_and(|uri| uri.paths.is_empty()) {
            fail(CompileErrorKind::NoPath);
        }
        if let Some(vars) = &spec.uri_parts().vars {
            vars.each_variable(&mut |variable| {
                if let Variable::PathParam(name) = variable
                    && !spec.uri_parts().paths.iter().any(|path| path.names().contains(name))
                {
                    fail(CompileErrorKind::UnknownParam { name: name.to_string() });
                }
            });
        }
        let hosts = spec.uri_parts().hosts.len().max(1);
        let was_within = places <= PLACES_MAX && key_bytes < u32::MAX as usize;
        places = places.saturating_add(hosts.saturating_mul(spec.uri_parts().paths.len()));
        let bytes: usize = spec.uri_parts().paths.iter().map(|path| path.key().len()).sum();
        key_bytes = key_bytes.saturating_add(hosts.saturating_mul(bytes));
        if was_within && (places > PLACES_MAX || key_bytes >= u32::MAX as usize) {
            fail(CompileErrorKind::TooMany);
        }
    }
    errors
}

/// Host patterns and the groups they stand for.
struct Hosts {
    table: Table,
    count: u32,
    suffix_bytes_max: usize,
}

impl Hosts {
    fn group(&mut self, pattern: &crate::HostPattern) -> u32 {
        let key = pattern.key();
        if let Some(group) = self.table.get(0, key, TextHash::new(key)) {
            return group;
        }
        let group = self.count;
        self.count += 1;
        self.table.insert(0, key, group);
        if pattern.is_suffix() {
            self.suffix_bytes_max = self.suffix_bytes_max.max(key.len());
        }
        group
    }
}

fn draft<'a>(specs: &'a [Arc<RouteSpec>], hosts: &mut Hosts) -> Vec<Draft<'a>> {
    let mut drafts = Vec::with_capacity(specs.len());
    let mut groups = Vec::new();
    for (route, spec) in (0u32..).zip(specs) {
        groups.clear();
        groups.extend(spec.uri_parts().hosts.iter().map(|pattern| hosts.group(pattern)));
        if groups.is_empty() {
            groups.push(ANY_HOST);
        }
        groups.sort_unstable();
        groups.dedup();
        for &group in &groups {
            for (path, pattern) in (0u32..).zip(&spec.uri_parts().paths) {
                drafts.push(Draft { group, key: pattern.key(), route, path });
            }
        }
    }
    drafts
}

fn sort(drafts: &mut [Draft<'_>], specs: &[Arc<RouteSpec>]) {
    let priority = |draft: &Draft<'_>| Reverse(specs[draft.route as usize].priority);
    drafts.sort_unstable_by(|a, b| {
        (a.group, a.key)
            .cmp(&(b.group, b.key))
            .then_with(|| (priority(a), a.route, a.path).cmp(&(priority(b), b.route, b.path)))
    });
}

struct Filed {
    places: Vec<Place>,
    addresses: Vec<AddressSet>,
    groups: Vec<Group>,
    exact: Table,
    forest: Forest,
}

fn file(drafts: &[Draft<'_>], specs: &[Arc<RouteSpec>], group_count: u32) -> Filed {
    let is_exact = |draft: &Draft<'_>| specs[draft.route as usize].uri_parts().paths[draft.path as usize].is_exact();
    let (mut runs, mut text_bytes) = (0, 0);
    for run in drafts.chunk_by(same_run).filter(|run| is_exact(&run[0])) {
        runs += 1;
        text_bytes += run[0].key.len();
    }
    let (addresses, address_of) = address_sets(specs);
    let mut filed = Filed {
        places: Vec::with_capacity(drafts.len()),
        addresses,
        groups: vec![Group { has_exact: false, tree: None }; group_count as usize],
        exact: Table::with_capacity(runs, text_bytes),
        forest: Forest::default(),
    };
    let mut patterns: Vec<(&[u8], u32)> = Vec::new();
    for drafts in drafts.chunk_by(|a, b| a.group == b.group) {
        let group = drafts[0].group;
        patterns.clear();
        for run in drafts.chunk_by(same_run) {
            let first = filed.places.len() as u32;
            filed.places.extend(run.iter().map(|draft| place(draft, specs, &address_of)));
            if let Some(last) = filed.places.last_mut() {
                last.is_last = true;
            }
            if is_exact(&run[0]) {
                filed.exact.insert(group, run[0].key, first);
                filed.groups[group as usize].has_exact = true;
            } else {
                patterns.push((run[0].key, first));
            }
        }
        if !patterns.is_empty() {
            filed.groups[group as usize].tree = Some(filed.forest.plant(&patterns));
        }
    }
    filed.forest.shrink_to_fit();
    filed
}

fn same_run(a: &Draft<'_>, b: &Draft<'_>) -> bool {
    a.group == b.group && a.key == b.key
}

/// The address sets, and which one each route has.
fn address_sets(specs: &[Arc<RouteSpec>]) -> (Vec<AddressSet>, Vec<u32>) {
    let mut sets = Vec::new();
    let index = |spec: &Arc<RouteSpec>| {
        if spec.uri_parts().remote_addrs.is_empty() {
            return NO_ADDRESSES;
        }
        sets.push(AddressSet::new(&spec.uri_parts().remote_addrs));
        sets.len() as u32 - 1
    };
    let of_route = specs.iter().map(index).collect();
    (sets, of_route)
}

fn place(draft: &Draft<'_>, specs: &[Arc<RouteSpec>], address_of: &[u32]) -> Place {
    let spec = &specs[draft.route as usize];
    Place {
        route: draft.route,
        path: draft.path,
        addresses: address_of[draft.route as usize],
        methods: spec.uri_parts().methods,
        has_vars: spec.uri_parts().vars.is_some(),
        is_last: false,
    }
}
