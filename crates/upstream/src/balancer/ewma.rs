//! Peak-EWMA with the power of two choices, as in Finagle and Linkerd.
//!
//! Two members are drawn in proportion to their weights, and the one that is expected to answer sooner is chosen: by
//! its latency times the requests it would then have, divided by its weight. The latency is a moving average that
//! forgets over ten seconds, but jumps up to any answer that took longer: a node that turns slow is avoided at once and
//! trusted again only slowly. Two choices rather than the best of all, so that workers, which cannot see each other, do
//! not all choose the same node.

use crate::slot::{Slot, usable};
use crate::tried_endpoints::TriedEndpoints;

/// Time in which an observation's influence falls to 1/e.
const DECAY_MS: f32 = 10_000.0;
/// Assumed for a member that has not answered yet but has requests under way: with none it counts as the best, with
/// some it must not attract all traffic before its first answer. Linkerd's default.
const LATENCY_DEFAULT_US: f32 = 30_000.0;

/// One endpoint's latency estimate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Latency {
    /// The value at `seen_ms`; zero until the first observation.
    average_us: f32,
    seen_ms: u64,
}

impl Latency {
    /// Adds the time to one response head.
    pub(crate) fn observe(&mut self, latency_us: u32, now_ms: u64) {
        // Zero means "never observed".
        let latency_us = (latency_us as f32).max(1.0);
        self.average_us = if latency_us >= self.average_us {
            latency_us
        } else {
            let keep = self.keep(now_ms);
            self.average_us * keep + latency_us * (1.0 - keep)
        };
        self.seen_ms = now_ms;
    }

    /// The expected cost of a further request, with `active` under way already.
    fn cost(&self, active: u32, now_ms: u64) -> f32 {
        let latency_us = if self.average_us > 0.0 {
            // An estimate without new observations fades, so that a once slow member is tried again.
            self.average_us * self.keep(now_ms)
        } else if active > 0 {
            LATENCY_DEFAULT_US
        } else {
            0.0
        };
        latency_us * (active as f32 + 1.0)
    }

    fn keep(&self, now_ms: u64) -> f32 {
        (-(now_ms.saturating_sub(self.seen_ms) as f32) / DECAY_MS).exp()
    }

    /// The estimate in microseconds, for the status.
    pub(crate) fn average_us(&self) -> u32 {
        self.average_us as u32
    }
}

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
