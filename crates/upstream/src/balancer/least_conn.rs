//! Fewest requests under way by weight, like nginx's `least_conn`.
//!
//! Members with equal ratios of requests to weight take turns by the weighted round robin, so that an idle upstream
//! does not send everything to its first node.

use super::round_robin;
use crate::balancer::TriedEndpoints;
use crate::slot::{Slot, usable};
use std::cmp::Ordering;

pub(super) fn pick(slots: &mut [Slot], members: &[u32], now_ms: u64, tried: &TriedEndpoints) -> Option<u32> {
    let mut best: Option<u32> = None;
    let mut many = false;
    for &index in members {
        if !usable(slots, index, now_ms, tried) {
            continue;
        }
        match best.map_or(Ordering::Less, |best| load_cmp(slots, index, best)) {
            Ordering::Less => {
                best = Some(index);
                many = false;
            }
            Ordering::Equal => many = true,
            Ordering::Greater => {}
        }
    }
    let best = best?;
    if !many {
        return Some(best);
    }
    round_robin::pick(slots, members, |slots, index| {
        usable(slots, index, now_ms, tried) && load_cmp(slots, index, best).is_eq()
    })
}

/// Compares requests per weight without a division.
fn load_cmp(slots: &[Slot], a: u32, b: u32) -> Ordering {
    let (a, b) = (&slots[a as usize], &slots[b as usize]);
    let left = u64::from(a.active) * b.weight();
    let right = u64::from(b.active) * a.weight();
    left.cmp(&right)
}
