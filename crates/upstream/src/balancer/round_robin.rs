//! Smooth weighted round robin, as in nginx.
//!
//! Each choice adds every usable member's weight to its current weight, takes the member with the most and subtracts
//! the sum from it: weights 5, 1, 1 give a a b a c a a and never a run longer than needed. The current weights of
//! unusable members do not change meanwhile. Unlike nginx, the weight of a failing member is not lowered; it is set
//! aside instead.

use crate::slot::Slot;

/// Chooses among the members for which `usable` holds; the first of equal ones.
pub(super) fn pick(slots: &mut [Slot], members: &[u32], usable: impl Fn(&[Slot], u32) -> bool) -> Option<u32> {
    let mut total = 0;
    let mut best: Option<(u32, i64)> = None;
    for &index in members {
        if !usable(slots, index) {
            continue;
        }
        let slot = &mut slots[index as usize];
        let weight = slot.weight() as i64;
        slot.current += weight;
        total += weight;
        if best.is_none_or(|(_, current)| slot.current > current) {
            best = Some((index, slot.current));
        }
    }
    let (index, _) = best?;
    slots[index as usize].current -= total;
    Some(index)
}

/// Limits the current weights of a tier whose members changed to values that its own choices could have reached.
/// Otherwise the debt from times with a heavy member would starve a light one for as many choices once the heavy one
/// is gone.
pub(super) fn clamp(slots: &mut [Slot], members: &[u32]) {
    let weight = |slots: &[Slot], index: u32| slots[index as usize].weight() as i64;
    let total: i64 = members.iter().map(|&index| weight(slots, index)).sum();
    for &index in members {
        let slot = &mut slots[index as usize];
        slot.current = slot.current.clamp(-total, total);
    }
}
