//! Allocated and freed memory of each stack, since sampling was first switched on.
//!
//! A place of the table is claimed by its stack's hash and never released. Two stacks with an equal 64-bit hash would
//! be counted as one.

use super::Frames;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Most distinct stacks; allocations of others are counted together.
pub(super) const PLACES: usize = 8192;

/// Most frames of a stack; in a deeper one the outermost are missing.
pub(super) const STACK_FRAMES_MAX: usize = 64;

/// Places that may hold a stack.
const TRIED: usize = 32;

/// The number for all stacks without a place.
const OTHERS: usize = PLACES;

pub(super) static STACKS: Stacks = Stacks { places: [const { StackSlot::new() }; PLACES + 1] };

pub(super) struct Stacks {
    places: [StackSlot; PLACES + 1],
}

pub(super) struct StackSlot {
    /// Zero if it is free.
    hash: AtomicU64,
    /// Whether the addresses are complete.
    is_ready: AtomicBool,
    length: AtomicUsize,
    addresses: [AtomicU64; STACK_FRAMES_MAX],
    allocated: StackCount,
    freed: StackCount,
}

struct StackCount {
    /// Objects in 256ths.
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// Allocated and freed memory of a stack, scaled up from the samples.
pub(super) struct StackTotals {
    pub(super) addresses: Vec<u64>,
    pub(super) allocated: (i64, i64),
    pub(super) freed: (i64, i64),
}

impl StackSlot {
    const fn new() -> StackSlot {
        StackSlot {
            hash: AtomicU64::new(0),
            is_ready: AtomicBool::new(false),
            length: AtomicUsize::new(0),
            addresses: [const { AtomicU64::new(0) }; STACK_FRAMES_MAX],
            allocated: StackCount { objects: AtomicU64::new(0), bytes: AtomicU64::new(0) },
            freed: StackCount { objects: AtomicU64::new(0), bytes: AtomicU64::new(0) },
        }
    }
}

impl StackCount {
    fn add(&self, size: usize, weight: u64) {
        self.objects.fetch_add(weight, Ordering::Relaxed);
        self.bytes.fetch_add((size as u64).saturating_mul(weight) / 256, Ordering::Relaxed);
    }

    fn read(&self) -> (i64, i64) {
        let (objects, bytes) = (self.objects.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        (objects.div_ceil(256) as i64, bytes as i64)
    }
}

impl Stacks {
    /// The number of a stack.
    pub(super) fn intern(&self, frames: &Frames) -> usize {
        let addresses = frames.addresses.get(..frames.length).unwrap_or_default();
        let hash = addresses.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, address| {
            (hash ^ address).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        }) | 1;
        for tried in 0..TRIED {
            let number = (hash as usize >> 1).wrapping_add(tried) % PLACES;
            let Some(place) = self.places.get(number) else { break };
            match place.hash.compare_exchange(0, hash, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    for (to, address) in place.addresses.iter().zip(addresses) {
                        to.store(*address, Ordering::Relaxed);
                    }
                    place.length.store(addresses.len(), Ordering::Relaxed);
                    place.is_ready.store(true, Ordering::Release);
                    return number;
                }
                Err(known) if known == hash => return number,
                Err(_) => {}
            }
        }
        OTHERS
    }

    pub(super) fn record_allocation(&self, stack: usize, size: usize, weight: u64) {
        if let Some(place) = self.places.get(stack) {
            place.allocated.add(size, weight);
        }
    }

    pub(super) fn record_free(&self, stack: usize, size: usize, weight: u64) {
        if let Some(place) = self.places.get(stack) {
            place.freed.add(size, weight);
        }
    }

    /// All stacks. Those without a place have no addresses.
    pub(super) fn read(&self) -> impl Iterator<Item = StackTotals> {
        let known = self.places.iter().enumerate();
        let known = known.filter(|(number, place)| place.is_ready.load(Ordering::Acquire) || *number == OTHERS);
        known.map(|(_, place)| {
            let length = place.length.load(Ordering::Relaxed);
            let addresses =
                place.addresses.iter().take(length).map(|address| address.load(Ordering::Relaxed)).collect();
            // Freed counts are read first, since a free follows its allocation.
            let freed = place.freed.read();
            StackTotals { addresses, allocated: place.allocated.read(), freed }
        })
    }
}
