//! Compiles a list of routes into a matcher: checks the list, and puts all of it into a first layer.

use crate::chunked_list::ChunkedList;
use crate::condition::Field;
use crate::fields::FieldSlots;
use crate::layer::Layer;
use crate::matcher::{CompiledAt, Matcher, PositionedLayer};
use crate::{RouteSpec, Variable};
use std::fmt;
use std::sync::Arc;

/// Most pairs of host and path of all routes together. A route with many hosts and many paths multiplies them.
pub const PLACES_MAX: usize = 1 << 22;

/// The most pairs of a host and a path that one route may have: each is compiled, so a short text could take all memory.
pub const ROUTE_PLACES_MAX: usize = 1 << 16;

/// Whether routes have no more pairs of a host and a path than one matcher can have.
pub fn fits<'a>(specs: impl IntoIterator<Item = &'a RouteSpec>) -> bool {
    let sum = specs.into_iter().fold(Weight::default(), |sum, spec| sum.plus(Weight::of(spec)));
    !sum.is_too_much()
}

/// A route that keeps a list from becoming a matcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// Position of the invalid route.
    pub route: usize,
    /// Its id.
    pub id: String,
    /// The error.
    pub kind: CompileErrorKind,
}

/// An error of a route by itself, or of it together with all before it.
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

/// A share of the places and key bytes that a matcher may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    /// Pairs of a host and a path.
    places: usize,
    /// Bytes of the keys of their paths.
    key_bytes: usize,
}

impl Weight {
    pub(crate) fn of(spec: &RouteSpec) -> Weight {
        let Some(uri) = spec.uri() else { return Weight::default() };
        let hosts = uri.hosts.len().max(1);
        let bytes: usize = uri.paths.iter().map(|path| path.key().len()).sum();
        Weight { places: uri.places(), key_bytes: hosts.saturating_mul(bytes) }
    }

    pub(crate) fn plus(self, other: Weight) -> Weight {
        Weight {
            places: self.places.saturating_add(other.places),
            key_bytes: self.key_bytes.saturating_add(other.key_bytes),
        }
    }

    pub(crate) fn minus(self, other: Weight) -> Weight {
        Weight {
            places: self.places.saturating_sub(other.places),
            key_bytes: self.key_bytes.saturating_sub(other.key_bytes),
        }
    }

    pub(crate) fn is_too_much(self) -> bool {
        self.places > PLACES_MAX || self.key_bytes >= u32::MAX as usize
    }
}

impl Matcher {
    /// Compiles routes. Their positions are what [`crate::Match::route`] refers to.
    pub fn compile(specs: Vec<Arc<RouteSpec>>) -> Result<Matcher, Vec<CompileError>> {
        let weight = check(specs.iter())?;
        Ok(Matcher::compile_all(&specs, weight, None))
    }

    /// Compiles everything into one layer; `specs` are checked. Equal parts that a previous matcher has compiled are
    /// taken over.
    pub(crate) fn compile_all(specs: &[Arc<RouteSpec>], weight: Weight, previous: Option<&Matcher>) -> Matcher {
        let known = previous.map_or_else(Vec::new, Matcher::layers);
        let layer = Arc::new(Layer::compile(specs, &Arc::new(FieldSlots::default()), &known));
        let all: Vec<u32> = (0..specs.len() as u32).collect();
        let homes: Vec<CompiledAt> = all.iter().copied().map(CompiledAt::Base).collect();
        let reads = layer.reads.clone();
        let base = PositionedLayer { layer, positions: ChunkedList::new(&all, None, |a, b| a == b), has_dead: false };
        Matcher {
            specs: ChunkedList::new(specs, previous.map(|previous| &previous.specs), Arc::ptr_eq),
            weight,
            base,
            delta: None,
            homes: ChunkedList::new(&homes, None, |a, b| a == b),
            reads,
        }
    }
}

/// Checks a list of routes: its errors, or else its weight.
pub(crate) fn check<'a>(specs: impl Iterator<Item = &'a Arc<RouteSpec>>) -> Result<Weight, Vec<CompileError>> {
    let mut errors = Vec::new();
    let mut weight = Weight::default();
    for (route, spec) in specs.enumerate() {
        let mut kinds = faults(spec);
        let was_within = !weight.is_too_much();
        weight = weight.plus(Weight::of(spec));
        if was_within && weight.is_too_much() {
            kinds.push(CompileErrorKind::TooMany);
        }
        errors.extend(kinds.into_iter().map(|kind| CompileError { route, id: spec.id.clone(), kind }));
    }
    if errors.is_empty() { Ok(weight) } else { Err(errors) }
}

/// The errors of a route by itself.
pub(crate) fn faults(spec: &RouteSpec) -> Vec<CompileErrorKind> {
    let mut faults = Vec::new();
    let Some(uri) = spec.uri() else { return faults };
    if uri.paths.is_empty() {
        faults.push(CompileErrorKind::NoPath);
    }
    if let Some(vars) = &uri.vars {
        vars.condition().each_predicate(&mut |predicate| {
            if let Field::Variable(Variable::PathParam(name)) = &predicate.field
                && !uri.paths.iter().any(|path| path.names().contains(name))
            {
                faults.push(CompileErrorKind::UnknownParam { name: name.to_string() });
            }
        });
    }
    faults
}
