//! The compiled routes: finds the route that takes a request.
//!
//! ```text
//!  base  ── all routes as they were when it was compiled; those that changed since are dead
//!  delta ── the routes that changed since; absent where none did
//! ```
//!
//! Both layers are immutable and searched alike; the better placed of the two results takes the request. A change
//! compiles the delta again and shares the base, so that its cost depends on the size of the change (`update`). Nothing
//! is sorted or allocated while matching, and only places whose keys the request has are evaluated (`layer`).

use crate::compile::Weight;
use crate::fields::FieldSlots;
use crate::layer::{Context, Layer, LayerScratch, PlaceId, RouteSlot, ValueSource, order};
use crate::match_request::MatchRequest;
use crate::path::{self, PathError};
use crate::pieces::Pieces;
use crate::values::Values;
use crate::{FunctionMessage, RouteSpec};
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
    /// The index of its path that matched; 0 for an expression.
    pub path: usize,
}

/// An immutable set of compiled routes.
#[derive(Debug, Clone)]
pub struct Matcher {
    pub(crate) specs: Pieces<Arc<RouteSpec>>,
    /// The weight of all routes together.
    pub(crate) weight: Weight,
    pub(crate) base: PositionedLayer,
    pub(crate) delta: Option<PositionedLayer>,
    /// The layer and slot of each route, by its position.
    pub(crate) homes: Pieces<CompiledAt>,
    /// The values that some route reads; each once, in a fixed order.
    pub(crate) reads: Arc<[ValueSource]>,
}

/// A layer and the present positions of its routes.
#[derive(Debug, Clone)]
pub(crate) struct PositionedLayer {
    pub(crate) layer: Arc<Layer>,
    /// By slot: the position in the list of routes, or [`DEAD`].
    pub(crate) positions: Pieces<u32>,
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
    /// [`crate::ARGUMENTS_MAX`] arguments that routes read.
    pub fn find(&self, request: &MatchRequest<'_>, scratch: &mut Scratch) -> Result<Option<Match>, PathError> {
        let found = self.find_as_read(request, scratch)?;
        if let Some(raw) = request.path.ambiguous() {
            self.check_other_reading(raw, request, found, scratch)?;
        }
        Ok(found.map(|(route, place)| Match { route, path: place.path as usize }))
    }

    /// Whether the function of the route that the last search found has failed: the request must not be served.
    #[inline]
    pub fn has_failed_function(&self, found: Match, scratch: &Scratch) -> bool {
        scratch.values.decided.has_failed(&self.specs[found.route])
    }

    /// The routes as they were handed to the compiler.
    pub fn specs(&self) -> &Pieces<Arc<RouteSpec>> {
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
        Ok(self.search(request, scratch))
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

    #[cold]
    fn check_other_reading(
        &self,
        raw: &[u8],
        request: &MatchRequest<'_>,
        found: Option<(usize, PlaceId)>,
        scratch: &mut Scratch,
    ) -> Result<(), PathError> {
        let mut decoded = std::mem::take(&mut scratch.decoded);
        let other = path::decode_slashes(raw, &mut decoded)
            .and_then(|path| self.find_as_read(&MatchRequest { path, ..*request }, scratch));
        scratch.decoded = decoded;
        if other?.map(|(route, _)| route) == found.map(|(route, _)| route) {
            Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;
    use crate::variable::Lookup;
    use crate::{Expression, RouteMatch, Variable};
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
