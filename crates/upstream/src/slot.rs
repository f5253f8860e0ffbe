//! Slots: the places of endpoints and their state.
//!
//! A peer keeps its slot, and so its index, for as long as it is part of the upstream, however often the upstream is
//! redefined: a request that began before a reload ends with the index it was given. A removed peer leaves a retired
//! slot, which is reused when no request uses it any more.

use crate::endpoint::Endpoint;
use crate::health::Health;
use crate::latency::Latency;
use crate::tried_endpoints::TriedEndpoints;
use crate::unanswered_requests::UnansweredRequests;
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
    pub(crate) fn recovered(&mut self, now_ms: u64) {
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
                    self.recovered(now_ms);
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
pub(crate) fn settle(slots: &mut Vec<Slot>, endpoints: &[Endpoint]) -> Vec<u32> {
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
