//! Smooth weighted round robin, as nginx does it.
//!
//! Each choice adds every usable member's weight to its current weight, takes the member with the most and subtracts
//! the sum from it: weights 5, 1, 1 give a a b a c a a and never a run longer than needed. Members that are not usable
//! stand still meanwhile. nginx's lowering of a failing member's weight is not done; setting it aside is.

use crate::slot::Slot;

/// Chooses among the members for which `usable` holds; the first of equals.
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

/// Brings the current weights of a tier whose members changed back to where its own choices could have led. Without it
/// the debt from times with a heavy member would starve a light one for as many choices once the heavy one is gone.
pub(super) fn clamp(slots: &mut [Slot], members: &[u32]) {
    let weight = |slots: &[Slot], index: u32| slots[index as usize].weight() as i64;
    let total: i64 = members.iter().map(|&index| weight(slots, index)).sum();
    for &index in members {
        let slot = &mut slots[index as usize];
        slot.current = slot.current.clamp(-total, total);
    }
}
