//! The compiled routes: finds the route that takes a request.
//!
//! ```text
//!  base  ── all routes as they were when it was compiled; those that changed since are dead
//!  delta ── the routes that changed since; absent where none did
//! ```
//!
//! Both layers are immutable and searched alike; the better placed of the two results takes the request. A change
//! compiles the delta again and shares the base, so that its cost depends on the size of the change (`compile`). Nothing
//! is sorted or allocated while matching, and only places whose keys the request has are evaluated (`layer`).

use crate::cache::RouteCache;
use crate::chunked_list::ChunkedList;
use crate::compile::Weight;
use crate::condition::Field;
use crate::fields::{FieldSlots, variable_of};
use crate::layer::{Context, Layer, LayerScratch, PlaceId, RouteSlot, ValueSource, order};
use crate::path::{self, PathError};
use crate::values::{MatchRequest, NONE, Values};
use crate::{FunctionMessage, RouteSpec, Variable};
use std::sync::Arc;

/// Memory that searches reuse, so that they allocate nothing once it has grown. One for each worker.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) values: Values,
    base: LayerScratch,
    delta: LayerScratch,
    /// For the other reading of paths with `%2F`.
    decoded: Vec<u8>,
    /// For [`Matcher::find_cached`].
    pub(crate) key: Vec<u8>,
}

/// The route that takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Its position in the compiled list.
    pub route: usize,
    /// The index of its path that matched, with `%2F` read as a slash; 0 for an expression.
    pub path: usize,
}

/// An immutable set of compiled routes.
#[derive(Debug, Clone)]
pub struct Matcher {
    pub(crate) specs: ChunkedList<Arc<RouteSpec>>,
    /// The weight of all routes together.
    pub(crate) weight: Weight,
    pub(crate) base: PositionedLayer,
    pub(crate) delta: Option<PositionedLayer>,
    /// The layer and slot of each route, by its position.
    pub(crate) homes: ChunkedList<CompiledAt>,
    /// The values that some route reads; each once, in a fixed order.
    pub(crate) reads: Arc<[ValueSource]>,
}

/// A layer and the present positions of its routes.
#[derive(Debug, Clone)]
pub(crate) struct PositionedLayer {
    pub(crate) layer: Arc<Layer>,
    /// By slot: the position in the list of routes, or [`DEAD`].
    pub(crate) positions: ChunkedList<u32>,
    /// Whether some are dead.
    pub(crate) has_dead: bool,
}

/// In [`PositionedLayer::positions`]: the route is gone, or in the delta.
pub(crate) const DEAD: u32 = u32::MAX;

/// The layer of a route, and its slot there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompiledAt {
    Base(RouteSlot),
    Delta(RouteSlot),
}

impl Matcher {
    /// The route that takes a request, or `None`.
    ///
    /// Fails with [`PathError::EncodedSlash`] if the path holds `%2F` and the result would differ if that were a slash:
    /// the server behind may read it either way. Fails with [`PathError::TooManyArguments`] if the query has more than
    /// [`crate::ARGUMENTS_MAX`] arguments that routes read, and with [`PathError::TooMuchWork`] if regexes take too long.
    #[inline]
    pub fn find(&self, request: &MatchRequest<'_>, scratch: &mut Scratch) -> Result<Option<Match>, PathError> {
        let found = self.find_as_read(request, scratch)?;
        let found = match request.path.ambiguous() {
            None => found,
            Some(raw) => self.check_other_reading(raw, request, found, scratch)?,
        };
        Ok(found.map(|(route, place)| Match { route, path: place.path as usize }))
    }

    /// Whether the function of the route that the last search found has failed: the request must not be served.
    #[inline]
    pub fn has_failed_function(&self, found: Match, scratch: &Scratch) -> bool {
        scratch.values.decided.has_failed(&self.specs[found.route])
    }

    /// The routes as they were handed to the compiler.
    pub fn specs(&self) -> &ChunkedList<Arc<RouteSpec>> {
        &self.specs
    }

    /// Bytes of memory that the index takes, without the routes' own texts and conditions.
    pub fn index_bytes(&self) -> usize {
        let compiled = |compiled: &PositionedLayer| compiled.layer.memory_bytes() + compiled.positions.memory_bytes();
        compiled(&self.base)
            + self.delta.as_ref().map_or(0, compiled)
            + self.homes.memory_bytes()
            + self.specs.memory_bytes()
    }

    /// The layer whose fields hold those of all others.
    pub(crate) fn newest(&self) -> &PositionedLayer {
        self.delta.as_ref().unwrap_or(&self.base)
    }

    /// Forgets the previous request. Refuses a request with too many arguments, whether the search would read them or
    /// not, so that the result does not depend on the order of the search.
    #[inline]
    pub(crate) fn begin(&self, request: &MatchRequest<'_>, scratch: &mut Scratch) -> Result<(), PathError> {
        let fields = &self.newest().layer.fields;
        scratch.values.begin(fields);
        if fields.has_arguments() && scratch.values.has_too_many_arguments(fields, request) {
            return Err(PathError::TooManyArguments);
        }
        Ok(())
    }

    /// Like [`Matcher::find`], after [`Matcher::begin`] and for a path without `%2F`.
    pub(crate) fn find_as_begun(&self, request: &MatchRequest<'_>, scratch: &mut Scratch) -> Option<Match> {
        let found = self.search(request, scratch);
        found.map(|(route, place)| Match { route, path: place.path as usize })
    }

    #[inline]
    fn find_as_read(
        &self,
        request: &MatchRequest<'_>,
        scratch: &mut Scratch,
    ) -> Result<Option<(usize, PlaceId)>, PathError> {
        self.begin(request, scratch)?;
        let found = self.search(request, scratch);
        scratch.values.check_work()?;
        Ok(found)
    }

    /// The position and place of the route.
    #[inline]
    fn search(&self, request: &MatchRequest<'_>, scratch: &mut Scratch) -> Option<(usize, PlaceId)> {
        let Scratch { values, base, delta, .. } = scratch;
        let client = request.client.to_canonical();
        let mut context = Context { request, client, values, fields: &self.newest().layer.fields };
        let of_base = self.base.search(&mut context, base);
        let Some(changed) = &self.delta else { return of_base };
        match (of_base, changed.search(&mut context, delta)) {
            (Some(a), Some(b)) => {
                let key = |(route, place): (usize, PlaceId)| (&*self.specs[route], route, place);
                Some(if order(key(a), key(b)).is_lt() { a } else { b })
            }
            (a, b) => a.or(b),
        }
    }

    /// What takes the request in the reading in which `%2F` is a slash: the same route, maybe by another of its paths.
    #[cold]
    fn check_other_reading(
        &self,
        raw: &[u8],
        request: &MatchRequest<'_>,
        found: Option<(usize, PlaceId)>,
        scratch: &mut Scratch,
    ) -> Result<Option<(usize, PlaceId)>, PathError> {
        let mut decoded = std::mem::take(&mut scratch.decoded);
        let other = path::decode_slashes(raw, &mut decoded)
            .and_then(|path| self.find_as_read(&MatchRequest { path, ..*request }, scratch));
        scratch.decoded = decoded;
        let other = other?;
        if other.map(|(route, _)| route) == found.map(|(route, _)| route) {
            Ok(other)
        } else {
            Err(PathError::EncodedSlash)
        }
    }
}

impl Scratch {
    /// Whether functions of routes have written messages.
    #[inline]
    pub fn has_messages(&self) -> bool {
        !self.values.decided.messages.is_empty()
    }

    /// Takes the messages written since the last call.
    pub fn take_messages(&mut self) -> Vec<FunctionMessage> {
        std::mem::take(&mut self.values.decided.messages)
    }

    pub(crate) fn context<'c, 'r>(
        &'c mut self,
        request: &'c MatchRequest<'r>,
        fields: &'c FieldSlots,
    ) -> Context<'c, 'r> {
        Context { request, client: request.client.to_canonical(), values: &mut self.values, fields }
    }
}

impl PositionedLayer {
    #[inline]
    fn search(&self, context: &mut Context<'_, '_>, scratch: &mut LayerScratch) -> Option<(usize, PlaceId)> {
        let positions = self.has_dead.then_some(&self.positions);
        let (slot, place) = self.layer.search(context, scratch, positions)?;
        Some((self.positions[slot as usize] as usize, place))
    }
}

// Matching with a route cache: the key of a request, and the result kept under it.
//
// A key is made of exactly those fields that some route reads: for each the number of its values, and each value with
// its length before it. So values cannot run into one another, and absent, empty and repeated values differ. Requests
// of equal keys are taken by the same route, whatever else they hold, unless a function is called: then nothing is
// kept.

impl Matcher {
    /// Like [`Matcher::find`], but looks into the cache first and stores the result there. The cache must not have been
    /// used with another matcher since it was cleared.
    ///
    /// A path with `%2F` bypasses it.
    pub fn find_cached(
        &self,
        request: &MatchRequest<'_>,
        scratch: &mut Scratch,
        cache: &mut RouteCache,
    ) -> Result<Option<Match>, PathError> {
        if request.path.ambiguous().is_some() {
            return self.find(request, scratch);
        }
        self.begin(request, scratch)?;
        let mut key = std::mem::take(&mut scratch.key);
        let newest = self.newest();
        self.write_key(&mut scratch.context(request, &newest.layer.fields), &mut key);
        let found = cache.get(&key).unwrap_or_else(|| {
            // The fields of the key have been read already.
            let found = self.find_as_begun(request, scratch);
            // The decision of a function may depend on values outside of the key.
            if scratch.values.decided.is_empty() && !scratch.values.work.is_exhausted() {
                cache.put(&key, found);
            }
            found
        });
        scratch.key = key;
        scratch.values.check_work()?;
        Ok(found)
    }

    /// Whether some route reads a value that nearly every request has another of, so that a cache could not pay.
    pub fn reads_unique_values(&self) -> bool {
        self.reads.iter().any(|read| match read {
            ValueSource::Int(slot) | ValueSource::Text(slot) => {
                self.newest().layer.fields.get(*slot).field.is_nearly_unique()
            }
            _ => false,
        })
    }

    /// Whether the route of a request may depend on a field of its header.
    pub fn reads_headers(&self) -> bool {
        let reads_header = |read: &ValueSource| match read {
            ValueSource::Text(slot) | ValueSource::Int(slot) | ValueSource::Ip(slot) => {
                let field = &self.newest().layer.fields.get(*slot).field;
                let of_header = matches!(
                    variable_of(field),
                    Some(Variable::Header(_) | Variable::Cookie(_) | Variable::RemoteUser)
                );
                of_header || matches!(field, Field::Header(_))
            }
            _ => false,
        };
        let layers = [Some(&self.base), self.delta.as_ref()].into_iter().flatten();
        self.reads.iter().any(reads_header) || layers.into_iter().any(|of| of.layer.has_functions)
    }

    fn write_key(&self, context: &mut Context<'_, '_>, key: &mut Vec<u8>) {
        key.clear();
        let request = context.request;
        for read in self.reads.iter() {
            match *read {
                ValueSource::Path => push(key, request.path.bytes()),
                ValueSource::Host => push(key, request.host),
                ValueSource::SourceIp => match context.client {
                    std::net::IpAddr::V4(address) => push(key, &address.octets()),
                    std::net::IpAddr::V6(address) => push(key, &address.octets()),
                },
                ValueSource::Method(_) if let Some(name) = request.method.name() => push(key, name.as_bytes()),
                ValueSource::Method(slot)
                | ValueSource::Text(slot)
                | ValueSource::Int(slot)
                | ValueSource::Ip(slot) => {
                    let mut entry = context.values.first(slot, context.fields, request);
                    // The count becomes known at the end.
                    let at = key.len();
                    key.extend_from_slice(&[0; 4]);
                    let mut count = 0u32;
                    while entry != NONE {
                        push(key, context.values.text(entry));
                        count += 1;
                        entry = context.values.next(entry);
                    }
                    key[at..at + 4].copy_from_slice(&count.to_le_bytes());
                }
                // Both are parts of the path, and are only read together with it.
                ValueSource::SegmentCount | ValueSource::Param => {}
            }
        }
    }
}

/// Appends a value with its length before it.
fn push(key: &mut Vec<u8>, value: &[u8]) {
    key.extend_from_slice(&(value.len() as u32).to_le_bytes());
    key.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variable::Lookup;
    use crate::{Expression, Method, RouteMatch, Variable};
    use std::net::IpAddr;

    struct Header(&'static str);

    impl Lookup for Header {
        fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            None
        }

        fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
            visit(b"x", self.0.as_bytes());
        }
    }

    /// Results for a request are forgotten with it, also when the counter of requests wraps around.
    #[test]
    fn nothing_is_kept_from_one_request_to_the_next() {
        let route = |id: usize, text: &str| {
            let takes = RouteMatch::Expression(Expression::parse(text).unwrap());
            Arc::new(RouteSpec { id: id.to_string(), priority: 0, takes })
        };
        let texts = ["a", "b"].map(|value| {
            format!(r#"http.headers.x contains "{value}" && (http.headers.x ~ "{value}$" || http.path == "/{value}")"#)
        });
        let routes: Vec<_> = texts.iter().chain(&texts).enumerate().map(|(id, text)| route(id, text)).collect();
        let matcher = Matcher::compile(routes).unwrap();
        let mut scratch = Scratch::default();
        let mut buffer = Vec::new();
        for round in 0..6 {
            if round == 3 {
                scratch.values.wear_out();
                scratch.base.wear_out();
            }
            for (value, expected) in [("a", Some(0)), ("b", Some(1)), ("c", None)] {
                let path = path::normalise(b"/", &mut buffer).unwrap();
                let client = IpAddr::from([127, 0, 0, 1]);
                let request = MatchRequest { method: Method::Get, host: b"", path, client, vars: &Header(value) };
                let found = matcher.find(&request, &mut scratch).unwrap();
                assert_eq!(found.map(|found| found.route), expected, "round {round}, {value}");
            }
        }
    }
}
