//! Slots: the places of endpoints and their state.
//!
//! A peer keeps its slot, and so its index, for as long as it is part of the upstream, however often the upstream is
//! redefined: a request that began before a reload ends with the index it was given. A removed peer leaves a retired
//! slot, which is reused when no request uses it any more.

use crate::balancer::TriedEndpoints;
use crate::endpoint::Endpoint;
use crate::health::{Health, TryReport};
use std::collections::HashMap;

/// One endpoint and its changing state.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) endpoint: Endpoint,
    /// Whether it is part of the present definition of the upstream. Retired slots are in no tier.
    pub(crate) live: bool,
    /// Counts the peers this slot has held, so that a connection of an earlier one is never mistaken for the present
    /// one's.
    pub(crate) generation: u32,
    /// Requests under way.
    pub(crate) active: u32,
    /// nginx's `current_weight`; within ± the sum of its tier's weights.
    pub(crate) current: i64,
    pub(crate) latency: Latency,
    pub(crate) health: Health,
    pub(crate) unanswered: UnansweredRequests,
    pub(crate) figures: NodeFigures,
    /// Share of its weight in hundredths; less than the whole only while it grows after a recovery.
    share: u64,
    growing_since_ms: Option<u64>,
    /// When it was last chosen although no endpoint was usable, by a count of these choices.
    pub(crate) resorted: u64,
    /// The number of changes of the active checks' verdict when it was last read; kept only if weights grow.
    seen_changes: u64,
}

/// The whole of a weight.
const SHARE_WHOLE: u64 = 100;
/// The share with which a recovered endpoint begins.
const SHARE_FIRST: u64 = 10;

impl Slot {
    pub(crate) fn new(endpoint: Endpoint, generation: u32) -> Self {
        let seen_changes = endpoint.verdict.as_ref().map_or(0, |verdict| verdict.changes());
        Self {
            endpoint,
            live: true,
            generation,
            active: 0,
            current: 0,
            latency: Latency::default(),
            health: Health::default(),
            unanswered: UnansweredRequests::default(),
            figures: NodeFigures::default(),
            share: SHARE_WHOLE,
            growing_since_ms: None,
            resorted: 0,
            seen_changes,
        }
    }

    /// Its present weight, in an arbitrary unit that is common to all.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        u64::from(self.endpoint.weight) * self.share
    }

    /// Begins to let the weight grow after a recovery.
    pub(crate) fn begin_slow_start(&mut self, now_ms: u64) {
        self.growing_since_ms = Some(now_ms);
        self.share = SHARE_FIRST;
    }

    /// Lets the weight grow for `slow_start_ms` after a recovery. Recoveries found by active checks are detected here.
    pub(crate) fn grow(&mut self, now_ms: u64, slow_start_ms: u64) {
        if let Some(verdict) = &self.endpoint.verdict {
            let changes = verdict.changes();
            if changes != self.seen_changes {
                self.seen_changes = changes;
                if verdict.is_healthy() {
                    self.begin_slow_start(now_ms);
                }
            }
        }
        let Some(since_ms) = self.growing_since_ms else { return };
        let elapsed_ms = now_ms.saturating_sub(since_ms);
        if elapsed_ms < slow_start_ms {
            self.share = SHARE_FIRST + (SHARE_WHOLE - SHARE_FIRST) * elapsed_ms / slow_start_ms;
        } else {
            self.share = SHARE_WHOLE;
            self.growing_since_ms = None;
        }
    }
}

/// Makes the slots hold exactly `endpoints` as live ones and returns their indices in that order. A peer that comes
/// back gets its retired slot if that was not reused. Duplicate peers get one slot, with the last one's weight and
/// tier.
pub(crate) fn update_slots(slots: &mut Vec<Slot>, endpoints: &[Endpoint]) -> Vec<u32> {
    let mut places: HashMap<_, _> = slots
        .iter()
        .enumerate()
        .map(|(index, slot)| ((slot.endpoint.address, slot.endpoint.host.clone()), index))
        .collect();
    slots.iter_mut().for_each(|slot| slot.live = false);
    for endpoint in endpoints {
        if let Some(&index) = places.get(&(endpoint.address, endpoint.host.clone())) {
            let slot = &mut slots[index];
            slot.live = true;
            if slot.endpoint.weight != endpoint.weight || slot.endpoint.priority != endpoint.priority {
                slot.current = 0;
            }
            slot.endpoint = endpoint.clone();
        }
    }
    let mut free = 0;
    let mut order = Vec::with_capacity(endpoints.len());
    let mut listed = vec![false; slots.len() + endpoints.len()];
    for endpoint in endpoints {
        let peer = (endpoint.address, endpoint.host.clone());
        let index = *places.entry(peer).or_insert_with(|| occupy(slots, &mut free, endpoint));
        if !std::mem::replace(&mut listed[index], true) {
            order.push(index as u32);
        }
    }
    order
}

/// Puts a new peer into the first free slot from `free` on, or into one more.
fn occupy(slots: &mut Vec<Slot>, free: &mut usize, endpoint: &Endpoint) -> usize {
    while *free < slots.len() && (slots[*free].live || slots[*free].active > 0) {
        *free += 1;
    }
    match slots.get_mut(*free) {
        Some(slot) => *slot = Slot::new(endpoint.clone(), slot.generation.wrapping_add(1)),
        None => slots.push(Slot::new(endpoint.clone(), 0)),
    }
    *free
}

/// Whether a request that has tried `tried` may be sent to the endpoint now.
#[inline]
pub(crate) fn usable(slots: &[Slot], index: u32, now_ms: u64, tried: &TriedEndpoints) -> bool {
    let slot = &slots[index as usize];
    let is_checked_well = slot.endpoint.verdict.as_ref().is_none_or(|verdict| verdict.is_healthy());
    is_checked_well && slot.health.usable(now_ms) && !tried.contains(index as usize)
}

// The estimate of an endpoint's latency: a moving average that forgets over ten seconds, but jumps up to any answer that took
// longer. A node that turns slow is avoided at once, and trusted again only slowly.

/// Time in which an observation's influence falls to 1/e.
const DECAY_MS: f32 = 10_000.0;
/// Assumed for a member that has not answered yet but has requests under way: with none it counts as the best, with
/// some it must not attract all traffic before its first answer. Linkerd's default.
const LATENCY_DEFAULT_US: f32 = 30_000.0;

/// What an endpoint has done since its slot was made, for the status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Tries that ended with a response or a failure of the endpoint.
    pub requests: u64,
    /// Responses with a status of 5xx, and failures.
    pub errors: u64,
    /// The sum of the times to a response's head, in microseconds.
    pub answered_us: u64,
    /// The last error.
    pub last_error: Option<TryReport>,
}

impl NodeFigures {
    #[inline]
    pub(crate) fn add(&mut self, report: TryReport) {
        let is_error = match report {
            TryReport::Status(status) => status >= 500,
            TryReport::Failed(_) => true,
            TryReport::Opened => false,
            TryReport::Connected | TryReport::Inconclusive => return,
        };
        self.requests += 1;
        if is_error {
            self.errors += 1;
            self.last_error = Some(report);
        }
    }
}

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
    pub(crate) fn cost(&self, active: u32, now_ms: u64) -> f32 {
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
}

// Counts consecutive requests that an endpoint has ended without an answer.
//
// A single one may be the request's fault: a request that makes every node close its connection. A node that ends all
// requests, for long enough, is at fault itself. Any answer in between restarts the count, so that a client cannot
// make a node that answers others seem faulty.

/// Number of consecutive requests. Envoy ejects a host after as many failures in a row.
pub const UNANSWERED_REQUESTS: u8 = 5;
/// Time since the first of them, so that a client which sends many at once needs more than a moment without another's
/// answer.
pub const UNANSWERED_MS: u64 = 1_000;

/// The current count of one endpoint in one worker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnansweredRequests {
    requests: u8,
    since_ms: u64,
}

impl UnansweredRequests {
    /// Counts one more; returns whether the endpoint is at fault.
    pub(crate) fn note(&mut self, now_ms: u64) -> bool {
        if self.requests == 0 {
            self.since_ms = now_ms;
        }
        self.requests = self.requests.saturating_add(1);
        self.requests >= UNANSWERED_REQUESTS && now_ms.saturating_sub(self.since_ms) >= UNANSWERED_MS
    }

    /// Handles an answer of the endpoint.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.requests = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_over_a_while_are_the_endpoints_fault() {
        let mut run = UnansweredRequests::default();
        assert!((1..UNANSWERED_REQUESTS).all(|_| !run.note(50)), "too few");
        assert!(!run.note(50 + UNANSWERED_MS - 1), "within a moment");
        assert!(run.note(50 + UNANSWERED_MS) && run.note(50 + 9 * UNANSWERED_MS));
        run.end();
        assert!(!run.note(50 + 9 * UNANSWERED_MS), "it has answered since");
        for _ in 0..1_000 {
            assert!(!run.note(50 + 9 * UNANSWERED_MS));
        }
        assert!(run.note(50 + 10 * UNANSWERED_MS));
    }
}
