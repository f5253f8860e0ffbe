//! Consistent hashing on a ring of points.
//!
//! The ring is that of nginx's `hash … consistent` and of APISIX's `chash`: 160 points per unit of weight, each the
//! CRC-32 of the peer's name and the point before, and a key belongs to the first point at or after its own CRC-32. If
//! a member is removed, only its keys move, each to the next point's member; a member that is temporarily unusable is
//! skipped the same way and gets its keys back.

use crate::slot::Slot;

/// Points per unit of weight.
const POINTS_PER_WEIGHT: u64 = 160;
/// The most points of one ring, 8 MiB of memory. If the weights require more, all are halved until they fit, so that
/// the distribution stays as configured and two similar definitions are halved alike.
const RING_POINTS_MAX: u64 = 1 << 20;

/// The points of one tier, by hash.
#[derive(Debug, Clone, Default)]
pub(super) struct Ring {
    /// Strictly ascending hashes, each with the index of its member's slot.
    points: Vec<(u32, u32)>,
}

impl Ring {
    pub(super) fn new(slots: &[Slot], members: &[u32]) -> Self {
        let points_of = |index: u32, halvings: u32| {
            let weight = u64::from(slots[index as usize].endpoint.weight);
            ((POINTS_PER_WEIGHT * weight) >> halvings).max(1)
        };
        let sum = |halvings| -> u64 { members.iter().map(|&m| points_of(m, halvings)).sum() };
        let halvings = (0..u64::BITS).find(|&halvings| sum(halvings) <= RING_POINTS_MAX).unwrap_or(u64::BITS - 1);

        let mut points = Vec::with_capacity(sum(halvings) as usize);
        for &index in members {
            let base = crc32fast::hash(slots[index as usize].endpoint.ring_id().as_bytes());
            let mut hash = 0u32;
            for _ in 0..points_of(index, halvings) {
                let mut hasher = crc32fast::Hasher::new_with_initial(base);
                hasher.update(&hash.to_le_bytes());
                hash = hasher.finalize();
                points.push((hash, index));
            }
        }
        // If two members' points collide, the winner must not depend on the order of the configuration.
        points.sort_unstable_by(|a, b| {
            let peer = |index: u32| &slots[index as usize].endpoint;
            let (left, right) = (peer(a.1), peer(b.1));
            a.0.cmp(&b.0).then_with(|| left.address.cmp(&right.address)).then_with(|| left.host.cmp(&right.host))
        });
        points.dedup_by_key(|point| point.0);
        Self { points }
    }

    /// The member of the first usable point from the key's place on.
    pub(super) fn pick(&self, members: &[u32], key: &[u8], usable: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = crc32fast::hash(key);
        let start = self.points.partition_point(|point| point.0 < hash);
        let (before, after) = self.points.split_at(start);
        let mut walk = after.iter().chain(before).map(|point| point.1);
        let first = walk.next()?;
        if usable(first) {
            return Some(first);
        }
        // This check prevents a walk around the whole ring of a dead tier.
        if !members.iter().any(|&index| usable(index)) {
            return None;
        }
        walk.find(|&index| usable(index))
    }
}
