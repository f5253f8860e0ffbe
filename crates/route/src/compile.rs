//! Compiles a list of routes into a matcher, and makes the next matcher from a matcher.
//!
//! A list is checked, and all of it put into a first layer. The next matcher costs work in proportion to the change:
//! unchanged routes stay where they are compiled, and all others are compiled into a new delta, together with those of the
//! last one. When a delta has become large, or much of the base dead, everything is compiled again; so a change costs a
//! small delta, and once in a while a full compilation.

use crate::chunked_list::ChunkedList;
use crate::condition::Field;
use crate::fields::FieldSlots;
use crate::layer::Layer;
use crate::matcher::{CompiledAt, DEAD, Matcher, PositionedLayer};
use crate::{RouteSpec, Variable};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
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

    fn plus(self, other: Weight) -> Weight {
        Weight {
            places: self.places.saturating_add(other.places),
            key_bytes: self.key_bytes.saturating_add(other.key_bytes),
        }
    }

    fn minus(self, other: Weight) -> Weight {
        Weight {
            places: self.places.saturating_sub(other.places),
            key_bytes: self.key_bytes.saturating_sub(other.key_bytes),
        }
    }

    fn is_too_much(self) -> bool {
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
    fn compile_all(specs: &[Arc<RouteSpec>], weight: Weight, previous: Option<&Matcher>) -> Matcher {
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
fn faults(spec: &RouteSpec) -> Vec<CompileErrorKind> {
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

/// Most routes in a delta; also at most one in [`DELTA_SHARE`] of all.
const DELTA_ROUTES_MAX: usize = 512;
const DELTA_SHARE: usize = 16;
/// The base is compiled again if more than one in this many of its routes is dead.
const DEAD_SHARE: usize = 4;

/// Up to this many routes that differ at the same position are considered changed, without checking whether they only
/// moved.
const IN_PLACE_MAX: usize = 64;

impl Matcher {
    /// The matcher of a changed list of routes. Routes that are equal to before, and in the same order, are shared.
    pub fn update(&self, specs: Vec<Arc<RouteSpec>>) -> Result<Matcher, Vec<CompileError>> {
        let same = |(a, b): &(&Arc<RouteSpec>, &Arc<RouteSpec>)| is_same(a, b);
        let start = self.specs.iter().zip(&specs).take_while(same).count();
        let longest_end = self.specs.len().min(specs.len()) - start;
        let end = self.specs.iter().rev().zip(specs.iter().rev()).take(longest_end).take_while(same).count();
        self.splice(start..self.specs.len() - end, &specs[start..specs.len() - end])
    }

    /// The matcher of the list with other routes in place of a range. The rest is not examined.
    pub fn splice(&self, range: Range<usize>, new: &[Arc<RouteSpec>]) -> Result<Matcher, Vec<CompileError>> {
        let specs = self.specs.splice(range.clone(), new);
        let gone = range.clone().map(|index| Weight::of(&self.specs[index])).fold(Weight::default(), Weight::plus);
        let weight = new.iter().map(|spec| Weight::of(spec)).fold(self.weight.minus(gone), Weight::plus);
        if weight.is_too_much() || new.iter().any(|spec| !faults(spec).is_empty()) {
            // Only a check of the whole list shows which routes are wrong.
            check(specs.iter())?;
        }
        let homes = self.homes_of(range.clone(), new);
        let at = |index: usize| Some(self.homes[index]);
        let homes: Vec<Option<CompiledAt>> =
            (0..range.start).map(at).chain(homes).chain((range.end..self.homes.len()).map(at)).collect();
        let changed = homes.iter().filter(|home| !matches!(home, Some(CompiledAt::Base(_)))).count();
        let dead = self.base.positions.len() - (specs.len() - changed);
        let is_large = changed > DELTA_ROUTES_MAX.min(specs.len() / DELTA_SHARE);
        if is_large || dead > self.base.positions.len() / DEAD_SHARE {
            let specs: Vec<Arc<RouteSpec>> = specs.iter().cloned().collect();
            return Ok(Matcher::compile_all(&specs, weight, Some(self)));
        }
        let mut positions = vec![DEAD; self.base.positions.len()];
        let (mut routes, mut of_delta) = (Vec::new(), Vec::new());
        let mut settled = Vec::with_capacity(specs.len());
        for (position, home) in (0u32..).zip(&homes) {
            settled.push(match home {
                Some(CompiledAt::Base(slot)) => {
                    positions[*slot as usize] = position;
                    CompiledAt::Base(*slot)
                }
                Some(CompiledAt::Delta(_)) | None => {
                    routes.push(specs[position as usize].clone());
                    of_delta.push(position);
                    CompiledAt::Delta(of_delta.len() as u32 - 1)
                }
            });
        }
        let positions = ChunkedList::new(&positions, Some(&self.base.positions), |a, b| a == b);
        let base = PositionedLayer { layer: self.base.layer.clone(), positions, has_dead: dead > 0 };
        let delta = (!routes.is_empty()).then(|| {
            let layer = Arc::new(Layer::compile(&routes, &base.layer.fields, &self.layers()));
            PositionedLayer { layer, positions: ChunkedList::new(&of_delta, None, |a, b| a == b), has_dead: false }
        });
        let reads = match &delta {
            None => base.layer.reads.clone(),
            Some(delta) => {
                let added = delta.layer.reads.iter().filter(|read| !base.layer.reads.contains(read));
                base.layer.reads.iter().chain(added).copied().collect()
            }
        };
        let homes = ChunkedList::new(&settled, Some(&self.homes), |a, b| a == b);
        Ok(Matcher { specs, weight, base, delta, homes, reads })
    }

    pub(crate) fn layers(&self) -> Vec<&Layer> {
        std::iter::once(&self.base).chain(&self.delta).map(|compiled| &*compiled.layer).collect()
    }

    /// For each of the routes that replace a range: where the same one is compiled; `None` if it is new, changed or has
    /// moved.
    fn homes_of(&self, range: Range<usize>, new: &[Arc<RouteSpec>]) -> Vec<Option<CompiledAt>> {
        let old = &self.specs;
        if range.len() == new.len() {
            // Changes in place, which is the common case. Different routes are not searched for elsewhere, unless there
            // are many.
            let pairs = range.clone().zip(new);
            let homes: Vec<Option<CompiledAt>> =
                pairs.map(|(index, new)| is_same(&old[index], new).then(|| self.homes[index])).collect();
            if homes.iter().filter(|home| home.is_none()).count() <= IN_PLACE_MAX {
                return homes;
            }
        }
        let by_id: HashMap<&str, usize> = range.map(|index| (old[index].id.as_str(), index)).collect();
        let find = |(index, new): (usize, &Arc<RouteSpec>)| {
            let was = *by_id.get(new.id.as_str())?;
            is_same(&old[was], new).then_some((index, was))
        };
        let kept: Vec<(usize, usize)> = new.iter().enumerate().filter_map(find).collect();
        let mut homes = vec![None; new.len()];
        // Ranks in the base hold only among routes that are still in the same order.
        for index in longest_rising(&kept) {
            let (new, was) = kept[index];
            homes[new] = Some(self.homes[was]);
        }
        homes
    }
}

fn is_same(a: &Arc<RouteSpec>, b: &Arc<RouteSpec>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Indices of a longest rising subsequence of the second members (by patience sorting).
fn longest_rising(pairs: &[(usize, usize)]) -> Vec<usize> {
    // The index that ends the best subsequence of each length, and each index's predecessor.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, &(_, value)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|&end| pairs[end].1 < value);
        before.push(length.checked_sub(1).map(|previous| ends[previous]));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut rising: Vec<usize> = std::iter::successors(ends.last().copied(), |&index| before[index]).collect();
    rising.reverse();
    rising
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longest_rising_subsequence_is_found() {
        let check = |values: &[usize], expected: &[usize]| {
            let pairs: Vec<(usize, usize)> = values.iter().map(|value| (0, *value)).collect();
            let found: Vec<usize> = longest_rising(&pairs).into_iter().map(|index| values[index]).collect();
            assert_eq!(found, expected, "{values:?}");
        };
        check(&[], &[]);
        check(&[1, 2, 3], &[1, 2, 3]);
        check(&[9, 1, 2, 3], &[1, 2, 3]);
        check(&[1, 2, 9, 3, 4], &[1, 2, 3, 4]);
        check(&[3, 2, 1], &[1]);
    }
}
