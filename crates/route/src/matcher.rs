//! The compiled routes: which one takes a request.
//!
//! Candidates come best first. Hosts: exact, then suffixes from the longest, then routes for any host; all of them from
//! one table. Within a host: the exact path from another table, then the radix tree. Places with the same host and path
//! stand side by side, by priority and position. The first whose conditions hold is the answer; nothing is sorted or
//! allocated, and what is looked at are only routes whose host and path match.

use std::sync::Arc;
use crate::path::{self, NormalPath, PathError};
use crate::table::{Table, TextHash};
use crate::tree::{Captures, Forest, Root};
use crate::variable::{Lookup, Variable};
use crate::{AddressSet, Method, MethodSet, PathPattern, RouteSpec};
use std::net::IpAddr;

/// What of a request is matched.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Its method.
    pub method: Method,
    /// In the form of [`crate::canonical_host`]; empty where it has none.
    pub host: &'a [u8],
    /// Of [`path::normalise`].
    pub path: NormalPath<'a>,
    /// The client, after trusted proxies were believed.
    pub client: IpAddr,
    /// Everything else.
    pub vars: &'a dyn Lookup,
}

/// Memory that searches reuse, so that they allocate nothing once it has grown. One for each worker.
#[derive(Debug)]
pub struct Scratch {
    captures: Captures,
    /// For values that lookups have to put together.
    value: Vec<u8>,
    /// For the other reading of paths with `%2F`.
    decoded: Vec<u8>,
    decoded_normal: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        const VALUE_BYTES: usize = 512;
        Scratch {
            captures: Captures::new(),
            value: Vec::with_capacity(VALUE_BYTES),
            decoded: Vec::new(),
            decoded_normal: Vec::new(),
        }
    }
}

/// The route that takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Its position in the list that was compiled.
    pub route: usize,
    /// Which of its paths matched.
    pub path: usize,
}

/// An immutable set of compiled routes.
#[derive(Debug)]
pub struct Matcher {
    pub(crate) specs: Box<[Arc<RouteSpec>]>,
    /// Runs of equal host and path, in the order they are tried.
    pub(crate) places: Vec<Place>,
    pub(crate) addresses: Vec<AddressSet>,
    /// Names and suffixes (with their dot) to positions in `groups`.
    pub(crate) hosts: Table,
    /// Of the longest suffix in `hosts`; zero where there is none. At most [`crate::HOST_BYTES_MAX`], so that a client's
    /// host of any length costs a bounded number of look-ups.
    pub(crate) suffix_bytes_max: usize,
    /// The first is for any host.
    pub(crate) groups: Vec<Group>,
    /// Exact paths, in the space of their group, to the first of their run in `places`.
    pub(crate) exact: Table,
    /// All other paths, to the first of their run in `places`.
    pub(crate) forest: Forest,
}

/// The routes of one host pattern.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) has_exact: bool,
    pub(crate) tree: Option<Root>,
}

/// Position in [`Matcher::groups`] of the routes for any host.
pub(crate) const ANY_HOST: u32 = 0;

/// A route at one of its hosts and paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) route: u32,
    /// Position in the route's paths.
    pub(crate) path: u32,
    /// Position in [`Matcher::addresses`], or [`NO_ADDRESSES`].
    pub(crate) addresses: u32,
    pub(crate) methods: MethodSet,
    pub(crate) has_vars: bool,
    /// Whether the run of equal host and path ends here.
    pub(crate) is_last: bool,
}

pub(crate) const NO_ADDRESSES: u32 = u32::MAX;

impl Matcher {
    /// The route that takes a request, or `None`. Afterwards `scratch` holds what its path captured.
    ///
    /// Fails with [`PathError::EncodedSlash`] where the path holds `%2F` and another route, or none, would be found if it
    /// held a slash there: whoever serves the request may read it either way.
    pub fn find(&self, request: &Request<'_>, scratch: &mut Scratch) -> Result<Option<Match>, PathError> {
        let found = self.find_as_read(request, &mut scratch.captures, &mut scratch.value);
        if request.path.has_encoded_slash() {
            self.check_other_reading(request, found, scratch)?;
        }
        Ok(found)
    }

    /// What the path of the last found route captured: names and values, in order. `path` is the request's.
    pub fn params<'a>(
        &'a self,
        found: Match,
        scratch: &'a Scratch,
        path: NormalPath<'a>,
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        named(self.pattern(found.route, found.path), &scratch.captures, path)
    }

    /// The routes as they were handed to the compiler.
    pub fn specs(&self) -> &[Arc<RouteSpec>] {
        &self.specs
    }

    /// Bytes of memory that the index takes, without the routes' own texts and conditions.
    pub fn index_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
            + self.groups.capacity() * size_of::<Group>()
            + self.hosts.memory_bytes()
            + self.exact.memory_bytes()
            + self.forest.memory_bytes()
    }

    fn find_as_read(&self, request: &Request<'_>, captures: &mut Captures, value: &mut Vec<u8>) -> Option<Match> {
        self.candidates(request.host, request.path, captures, |_, place, captures| {
            self.admits(place, request, captures, value)
                .then_some(Match { route: place.route as usize, path: place.path as usize })
        })
    }

    #[cold]
    fn check_other_reading(
        &self,
        request: &Request<'_>,
        found: Option<Match>,
        scratch: &mut Scratch,
    ) -> Result<(), PathError> {
        let path = path::decode_slashes(request.path, &mut scratch.decoded, &mut scratch.decoded_normal)?;
        let other = self.find_as_read(&Request { path, ..*request }, &mut Captures::new(), &mut scratch.value);
        if other.map(|found| found.route) == found.map(|found| found.route) {
            Ok(())
        } else {
            Err(PathError::EncodedSlash)
        }
    }

    /// Calls `visit` with every place whose host and path match and the position of its host's group, best first, until
    /// it returns something.
    #[inline]
    pub(crate) fn candidates<B>(
        &self,
        host: &[u8],
        path: NormalPath<'_>,
        captures: &mut Captures,
        mut visit: impl FnMut(u32, &Place, &Captures) -> Option<B>,
    ) -> Option<B> {
        let path = path.bytes();
        let hash = TextHash::new(path);
        let mut in_group = |group: u32, captures: &mut Captures| {
            let Group { has_exact, tree } = self.groups[group as usize];
            if has_exact && let Some(first) = self.exact.get(group, path, hash) {
                captures.clear();
                if let Some(found) = self.run(first, |place| visit(group, place, captures)) {
                    return Some(found);
                }
            }
            self.forest
                .search(tree?, path, captures, |first, captures| self.run(first, |place| visit(group, place, captures)))
        };
        if !self.hosts.is_empty() {
            if let Some(group) = self.hosts.get(0, host, TextHash::new(host))
                && !host.starts_with(b".")
                && let Some(found) = in_group(group, captures)
            {
                return Some(found);
            }
            // From the left, so that longer suffixes come first; where none can be long enough nothing is looked up.
            let start = host.len().saturating_sub(self.suffix_bytes_max).max(1);
            for dot in memchr::memchr_iter(b'.', host.get(start..).unwrap_or_default()) {
                let suffix = &host[start + dot..];
                if let Some(group) = self.hosts.get(0, suffix, TextHash::new(suffix))
                    && let Some(found) = in_group(group, captures)
                {
                    return Some(found);
                }
            }
        }
        in_group(ANY_HOST, captures)
    }

    /// Calls `visit` with the places of one run, until it returns something.
    #[inline]
    fn run<B>(&self, first: u32, mut visit: impl FnMut(&Place) -> Option<B>) -> Option<B> {
        for place in &self.places[first as usize..] {
            if let Some(found) = visit(place) {
                return Some(found);
            }
            if place.is_last {
                break;
            }
        }
        None
    }

    /// Whether the conditions besides host and path hold.
    #[inline]
    fn admits(&self, place: &Place, request: &Request<'_>, captures: &Captures, value: &mut Vec<u8>) -> bool {
        place.methods.admits(request.method)
            && (place.addresses == NO_ADDRESSES || self.addresses[place.addresses as usize].contains(request.client))
            && (!place.has_vars || self.vars_hold(place, request, captures, value))
    }

    fn vars_hold(&self, place: &Place, request: &Request<'_>, captures: &Captures, value: &mut Vec<u8>) -> bool {
        let vars = &self.specs[place.route as usize].uri_parts().vars;
        vars.as_ref().is_none_or(|vars| vars.holds(&self.with_params(place, request, captures), value))
    }

    /// The request's variables with those that depend on the place.
    pub(crate) fn with_params<'a>(
        &'a self,
        place: &Place,
        request: &'a Request<'_>,
        captures: &'a Captures,
    ) -> WithParams<'a> {
        let pattern = self.pattern(place.route as usize, place.path as usize);
        WithParams { request: request.vars, pattern, captures, path: request.path }
    }

    pub(crate) fn pattern(&self, route: usize, path: usize) -> &PathPattern {
        &self.specs[route].uri_parts().paths[path]
    }
}

pub(crate) struct WithParams<'a> {
    request: &'a dyn Lookup,
    pattern: &'a PathPattern,
    captures: &'a Captures,
    path: NormalPath<'a>,
}

impl Lookup for WithParams<'_> {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let Variable::PathParam(name) = variable else {
            return self.request.value(variable, buffer);
        };
        let mut params = named(self.pattern, self.captures, self.path);
        params.find(|(param, _)| *param == &**name).map(|(_, value)| value)
    }
}

pub(crate) fn named<'a>(
    pattern: &'a PathPattern,
    captures: &'a Captures,
    path: NormalPath<'a>,
) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let values = captures.iter().map(move |range| &path.bytes()[range]);
    pattern.names().iter().map(|name| &**name).zip(values)
}
