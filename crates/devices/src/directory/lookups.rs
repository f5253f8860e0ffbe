//! A node's cache of look-ups: the places of devices, or that they are not connected.
//!
//! A place is kept for long: if it is wrong, its node says so. The absence of a device is forgotten soon, as no node would
//! contradict it. Bounded in bytes; at the bound, entries that were not used since the last turn are evicted (the clock
//! algorithm).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Milliseconds that a place is remembered.
pub const PLACE_KEPT_MS: u64 = 600_000;

/// Milliseconds that an absence is remembered.
pub const ABSENCE_KEPT_MS: u64 = 1_000;

/// Bytes that an entry counts besides its device's id.
const ENTRY_BYTES: usize = 160;

/// A cached result for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedLookup {
    /// The device is connected to that node.
    At(Arc<str>),
    /// It is not connected.
    Offline {
        /// Since when, in milliseconds since the epoch, if its node could say.
        last_seen_ms: Option<u64>,
    },
    /// It never was, within [`super::OFFLINE_RETENTION_MS`].
    NeverSeen,
}

#[derive(Debug)]
struct LookupSlot {
    /// `None` after the result was wrong; the slot keeps its position in the order.
    known: Option<CachedLookup>,
    until_ms: u64,
    is_used: bool,
}

/// The cache of one node.
#[derive(Debug)]
pub struct Lookups {
    bytes_max: usize,
    bytes: usize,
    slots: HashMap<Arc<str>, LookupSlot>,
    /// Each key of `slots` once.
    order: VecDeque<Arc<str>>,
}

impl Lookups {
    /// An empty cache.
    pub fn new(bytes_max: usize) -> Lookups {
        Lookups { bytes_max, bytes: 0, slots: HashMap::new(), order: VecDeque::new() }
    }

    /// The cached result for a device.
    pub fn get(&mut self, device: &str, now_ms: u64) -> Option<CachedLookup> {
        let slot = self.slots.get_mut(device).filter(|slot| now_ms < slot.until_ms)?;
        slot.is_used = true;
        slot.known.clone()
    }

    /// Stores the result of a look-up.
    pub fn insert(&mut self, device: &str, known: CachedLookup, now_ms: u64) {
        let kept_ms = if matches!(known, CachedLookup::At(_)) { PLACE_KEPT_MS } else { ABSENCE_KEPT_MS };
        let slot = LookupSlot { known: Some(known), until_ms: now_ms.saturating_add(kept_ms), is_used: false };
        if let Some(before) = self.slots.get_mut(device) {
            *before = slot;
            return;
        }
        let bytes = ENTRY_BYTES + device.len();
        while self.bytes + bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else { return };
            let Some(slot) = self.slots.get_mut(&oldest) else { continue };
            if std::mem::take(&mut slot.is_used) && now_ms < slot.until_ms {
                self.order.push_back(oldest);
                continue;
            }
            self.bytes -= ENTRY_BYTES + oldest.len();
            self.slots.remove(&oldest);
        }
        let device: Arc<str> = device.into();
        self.bytes += bytes;
        self.slots.insert(device.clone(), slot);
        self.order.push_back(device);
    }

    /// Removes a result that was wrong.
    pub fn forget(&mut self, device: &str) {
        if let Some(slot) = self.slots.get_mut(device) {
            slot.known = None;
            slot.is_used = false;
        }
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(node: &str) -> CachedLookup {
        CachedLookup::At(node.into())
    }

    #[test]
    fn an_absence_is_forgotten_sooner_than_a_place() {
        let mut lookups = Lookups::new(1_000);
        lookups.insert("a", at("n"), 0);
        lookups.insert("b", CachedLookup::NeverSeen, 0);
        assert_eq!(lookups.get("b", ABSENCE_KEPT_MS - 1), Some(CachedLookup::NeverSeen));
        assert_eq!(lookups.get("b", ABSENCE_KEPT_MS), None);
        assert_eq!(lookups.get("a", PLACE_KEPT_MS - 1), Some(at("n")));
        assert_eq!(lookups.get("a", PLACE_KEPT_MS), None);
    }

    #[test]
    fn what_is_used_stays() {
        let mut lookups = Lookups::new(3 * (ENTRY_BYTES + 1));
        for device in ["a", "b", "c"] {
            lookups.insert(device, at("n"), 0);
        }
        lookups.get("a", 1);
        lookups.insert("d", at("n"), 1);
        assert_eq!(lookups.get("b", 2), None);
        assert!(["a", "c", "d"].iter().all(|device| lookups.get(device, 2).is_some()));
        assert_eq!(lookups.bytes(), 3 * (ENTRY_BYTES + 1));
    }

    #[test]
    fn the_bound_holds_whatever_is_forgotten() {
        let mut lookups = Lookups::new(10 * (ENTRY_BYTES + 4));
        for number in 0..10_000 {
            let device = format!("{:04}", number % 37);
            match number % 3 {
                0 => lookups.forget(&device),
                1 => assert!(lookups.get(&device, 0).is_none_or(|known| known == at("n"))),
                _ => lookups.insert(&device, at("n"), 0),
            }
            assert!(lookups.bytes() <= 10 * (ENTRY_BYTES + 4));
            assert_eq!(lookups.order.len(), lookups.slots.len());
        }
        lookups.insert(&"x".repeat(5_000), at("n"), 0);
        assert_eq!(lookups.bytes(), 0, "one that never fits takes the place of all, and of none");
    }
}
