//! Makes the next matcher from a matcher, with work in proportion to the change.
//!
//! Unchanged routes stay where they are compiled. All others are compiled into a new delta, together with those of the
//! last one. When a delta has become large, or much of the base dead, everything is compiled again; so a change costs a
//! small delta, and once in a while a full compilation.

use crate::chunked_list::ChunkedList;
use crate::compile::{Weight, check, faults};
use crate::layer::Layer;
use crate::matcher::{CompiledAt, DEAD, Matcher, PositionedLayer};
use crate::{CompileError, RouteSpec};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

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
