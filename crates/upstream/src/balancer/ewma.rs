//! Peak-EWMA with the power of two choices, as in Finagle and Linkerd.
//!
//! Two members are drawn in proportion to their weights, and the one that is expected to answer sooner is chosen: by
//! its latency times the requests it would then have, divided by its weight. Two choices rather than the best of all, so
//! that workers, which cannot see each other, do not all choose the same node.

use crate::balancer::TriedEndpoints;
use crate::slot::{Slot, usable};

pub(super) fn pick(slots: &[Slot], members: &[u32], now_ms: u64, random: u64, tried: &TriedEndpoints) -> Option<u32> {
    let weight = |index: u32| slots[index as usize].weight();
    let choices = || members.iter().copied().filter(|&index| usable(slots, index, now_ms, tried));
    let total: u64 = choices().map(weight).sum();
    let first = draw(choices(), weight, scale(random >> 32, total))?;
    let rest = total - weight(first);
    let others = choices().filter(|&index| index != first);
    let Some(second) = draw(others, weight, scale(random & u64::from(u32::MAX), rest)) else {
        return Some(first);
    };
    let cost = |index: u32| {
        let slot = &slots[index as usize];
        slot.latency.cost(slot.active, now_ms) / weight(index) as f32
    };
    Some(if cost(second) < cost(first) { second } else { first })
}

/// The member whose share of the weights contains `at`.
fn draw(mut members: impl Iterator<Item = u32>, weight: impl Fn(u32) -> u64, mut at: u64) -> Option<u32> {
    members.find(|&index| match at.checked_sub(weight(index)) {
        Some(left) => {
            at = left;
            false
        }
        None => true,
    })
}

/// Maps 32 random bits evenly to 0..below.
fn scale(random: u64, below: u64) -> u64 {
    ((u128::from(random) * u128::from(below)) >> 32) as u64
}
