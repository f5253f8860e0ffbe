//! Finds the origin of memory: a wrapper around an allocator that samples allocations.
//!
//! About once in a number of bytes (512 KiB by default) an allocation's stack is recorded with its weight: an
//! allocation of `size` bytes is sampled with probability `1 − e^(−size/mean)`, so it represents the reciprocal of that
//! many. Counted by stack are all allocations since sampling was switched on, and the freed ones among them.
//!
//! A sampled allocation is aligned to a page. So freeing costs a test of the pointer's low bits, and only pointers with
//! that alignment are looked up. While sampling is off, allocating costs a load and a branch.
//!
//! Nothing here takes a lock or allocates: the tables have fixed places, whose memory is used only once they are.
//! Allocations that do not fit are not sampled, or counted without their stack.

#![expect(unsafe_code, reason = "an allocator")]

mod stacks;

use crate::cpu::{NamedStacks, Names, Stacks, be_nice, find_functions, unix_ns};
use crate::machine;
use crate::profile::{Label, Location, Profile, Sample, TRUNCATED, ValueType};
use crate::session::ProfileSession;
use crate::signal::{find_code, is_code};
use crate::symbols::Modules;
use crate::threads::{current, stack_range};
use crate::walk::{FRAMES_MAX, Stack, walk};
use stacks::{STACK_FRAMES_MAX, STACKS};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::cold_path;
use std::io;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Average number of bytes between two samples, by default.
pub const MEAN_BYTES_DEFAULT: u64 = 512 * 1024;

/// The minimum: with fewer, sampling would be most of the work.
pub const MEAN_BYTES_MIN: u64 = 16 * 1024;

/// The alignment of a sampled allocation.
const ALIGNED: usize = 4096;

/// Zero if sampling is off.
static MEAN_BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes until the next sample.
    static LEFT: Cell<i64> = const { Cell::new(0) };
    /// State of the generator of pauses; zero before the first use.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// Set while a sample is taken, so that allocations meanwhile are not sampled.
    static IS_SAMPLING: Cell<bool> = const { Cell::new(false) };
    /// The stack's range, for a thread that is not registered.
    static RANGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Starts sampling, or stops it (`None`). Sampled allocations stay known until they are freed. Fewer bytes than
/// [`MEAN_BYTES_MIN`] count as that many.
pub fn sample_every(mean_bytes: Option<u64>) {
    if mean_bytes.is_some() {
        find_code();
    }
    MEAN_BYTES.store(mean_bytes.map_or(0, |bytes| bytes.max(MEAN_BYTES_MIN)), Ordering::Relaxed);
}

/// Bytes between two samples; `None` if sampling is off.
pub fn mean_bytes() -> Option<u64> {
    Some(MEAN_BYTES.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
}

/// An allocator whose allocations are sampled.
#[derive(Debug)]
pub struct SamplingAllocator<A>(A);

impl<A> SamplingAllocator<A> {
    /// Wraps this allocator. A process has only one wrapper.
    pub const fn new(allocator: A) -> SamplingAllocator<A> {
        SamplingAllocator(allocator)
    }
}

// SAFETY: every allocation comes from the inner allocator and goes back to it with the layout of its request: the
// sampled ones are those in the table of live ones, and only those were requested with a larger alignment.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SamplingAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_due(layout.size()) {
            // SAFETY: the caller's promise.
            if let Some(pointer) = unsafe { self.sampled(layout) } {
                return pointer;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_due(layout.size()) {
            // SAFETY: the caller's promise; the allocation has that size.
            unsafe {
                if let Some(pointer) = self.sampled(layout) {
                    pointer.write_bytes(0, layout.size());
                    return pointer;
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let layout = if may_be_sampled(pointer) { forget(pointer, layout) } else { layout };
        // SAFETY: the caller's promise, and the layout it was allocated with.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_due(size) || (may_be_sampled(pointer) && LIVE.has(pointer.addr())) {
            // SAFETY: the caller's promise: a size that makes a valid layout.
            unsafe { self.moved(pointer, layout, size) }
        } else {
            // SAFETY: the caller's promise; it is not sampled, so its layout is unchanged.
            unsafe { self.0.realloc(pointer, layout, size) }
        }
    }
}

impl<A: GlobalAlloc> SamplingAllocator<A> {
    /// `realloc` for an allocation that is sampled or becomes so: allocates a new one, and frees the former.
    ///
    /// # Safety
    ///
    /// The conditions of `realloc`.
    #[cold]
    unsafe fn moved(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise. Both allocations are of at least the copied length, and they do not overlap.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(size, layout.align());
            let new = match self.sampled(new_layout) {
                Some(new) => new,
                None => self.0.alloc(new_layout),
            };
            if !new.is_null() {
                copy_nonoverlapping(pointer, new, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }

    /// Allocates with a sample; `None` if none is to be taken after all, or there is no memory.
    ///
    /// # Safety
    ///
    /// The conditions of `alloc`.
    #[cold]
    #[inline(never)]
    unsafe fn sampled(&self, layout: Layout) -> Option<*mut u8> {
        let mean = mean_bytes()?;
        if !draw_pause(layout.size(), mean) || IS_SAMPLING.replace(true) {
            return None;
        }
        // SAFETY: the caller's promise, with a larger alignment; a size that makes an invalid layout with that is not
        // sampled.
        let pointer =
            unsafe { aligned(layout).map(|layout| self.0.alloc(layout)).filter(|pointer| !pointer.is_null()) };
        let known = pointer.filter(|pointer| {
            let stack = STACKS.intern(&frames());
            let weight = weight(layout.size(), mean);
            let is_kept = LIVE.insert(pointer.addr(), layout.size(), stack, weight);
            if is_kept {
                STACKS.record_allocation(stack, layout.size(), weight);
            }
            is_kept
        });
        if let (Some(pointer), None, Some(layout)) = (pointer, known, aligned(layout)) {
            // SAFETY: just allocated with this layout, and not shared.
            unsafe { self.0.dealloc(pointer, layout) };
        }
        IS_SAMPLING.set(false);
        known
    }
}

/// The layout of a sampled allocation.
fn aligned(layout: Layout) -> Option<Layout> {
    layout.align_to(ALIGNED).ok()
}

#[inline]
fn may_be_sampled(pointer: *mut u8) -> bool {
    pointer.addr().is_multiple_of(ALIGNED)
}

/// Removes a freed allocation from the live ones; returns the layout it was made with.
#[cold]
fn forget(pointer: *mut u8, layout: Layout) -> Layout {
    let Some(freed) = LIVE.remove(pointer.addr()) else { return layout };
    STACKS.record_free(freed.stack, freed.size, freed.weight);
    aligned(layout).unwrap_or(layout)
}

/// Counts an allocation; returns whether a sample is due.
#[inline]
fn is_due(size: usize) -> bool {
    if MEAN_BYTES.load(Ordering::Relaxed) == 0 {
        return false;
    }
    cold_path();
    let left = LEFT.get().saturating_sub_unsigned(size as u64);
    LEFT.set(left);
    left < 0
}

/// Draws the pause until the next sample; returns whether this allocation is sampled. The thread's first one is sampled
/// only if its own random pause ends within it.
fn draw_pause(size: usize, mean: u64) -> bool {
    let mut random = RANDOM.get();
    let is_first = random == 0;
    if is_first {
        // Different for each thread, since its address is; odd, so never zero.
        random = (RANDOM.with(|place| &raw const *place as u64) ^ machine::ticks().rotate_left(32)) | 1;
    }
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // A fraction from just above 0 to 1.
        let fraction = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-fraction.ln() * mean as f64) as i64
    };
    // An exponential pause has no memory: the first one may begin at this allocation.
    let is_sampled = if is_first { (0..8).map(|_| next()).last() < Some(size as i64) } else { true };
    LEFT.set(next());
    RANDOM.set(random);
    is_sampled
}

/// The number of allocations of this size, in 256ths, that a sampled one represents.
fn weight(size: usize, mean: u64) -> u64 {
    let weight = 1.0 / -(-(size.max(1) as f64) / mean as f64).exp_m1();
    (weight * 256.0) as u64
}

/// The calls up to here.
#[inline(never)]
fn frames() -> Frames {
    let mut frames = Frames { addresses: [0; STACK_FRAMES_MAX], length: 0 };
    // SAFETY: null, or valid while this thread's registration lives, which holds it.
    let range = match unsafe { current().as_ref() } {
        Some(thread) => (thread.stack.range.start, thread.stack.range.end),
        None => own_range(),
    };
    let stack = Stack { range: range.0..range.1, bottom: 0 };
    let mut pairs = [0; 2 * FRAMES_MAX];
    // SAFETY: `walk` reads aligned words between the stack pointer and the end of this thread's stack only.
    let walked = walk(machine::here(), &stack, |at| unsafe { machine::word_at(at) }, is_code, &mut pairs);
    let callers = pairs[..walked.words].as_chunks::<2>().0.iter().map(|[_, caller]| caller.wrapping_sub(1));
    for (place, caller) in frames.addresses.iter_mut().zip(callers) {
        *place = caller;
        frames.length += 1;
    }
    frames
}

/// The stack's range of a thread that is not registered; empty if it is unknown.
fn own_range() -> (usize, usize) {
    if RANGE.get().1 == 0 {
        RANGE.set(stack_range().map_or((0, 1), |range| (range.start, range.end)));
    }
    RANGE.get()
}

/// A stack, from the innermost call on.
struct Frames {
    addresses: [u64; STACK_FRAMES_MAX],
    length: usize,
}

// The heap as a profile: live allocations, and all allocations since sampling was switched on.

/// The value that is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MainValue {
    /// Allocations that have not been freed.
    Live,
    /// All allocations.
    Allocated,
}

/// Functions between the program and the allocator, and within this crate: they are in every stack and
/// uninteresting.
const ALLOCATING: &[&str] = &["stillgate_profiler::heap::", "__rust_", "__rustc::__rust_", "__rg_", "alloc::alloc::"];

/// Reads the tables on the calling thread, whose priority is lowered for good.
pub fn snapshot(session: ProfileSession, shown: MainValue) -> io::Result<Profile> {
    be_nice();
    let modules = Modules::read()?;
    let mut stacks = Stacks::default();
    let mut counted = Vec::new();
    for of in STACKS.read() {
        let is_truncated = of.addresses.len() == STACK_FRAMES_MAX;
        let live = ((of.allocated.0 - of.freed.0).max(0), (of.allocated.1 - of.freed.1).max(0));
        if of.allocated.0 > 0
            && let Some(stack) = stacks.number(of.addresses)
        {
            counted.push((stack, is_truncated, vec![of.allocated.0, of.allocated.1, live.0, live.1]));
        }
    }
    let NamedStacks { mappings, mut functions, mut locations, stacks } =
        find_functions(stacks, &mut Names::default(), &modules);
    let is_allocating = |location: &Location| {
        let is_one = |name: &str| ALLOCATING.iter().any(|part| name.contains(part));
        location.lines.last().is_some_and(|line| is_one(&functions[line.function].name))
    };
    let is_allocating: Vec<bool> = locations.iter().map(is_allocating).collect();
    // For stacks that had no place in the table.
    let other = locations.len();
    functions.push(crate::profile::Function { name: "(other stacks)".to_owned(), file: String::new() });
    let line = crate::profile::Line { function: functions.len() - 1, line: 0 };
    locations.push(Location { address: 0, mapping: None, lines: vec![line] });
    let samples = counted.into_iter().map(|(stack, is_truncated, values)| {
        let mut stack: Vec<usize> = stacks[stack].iter().copied().skip_while(|place| is_allocating[*place]).collect();
        if stack.is_empty() {
            stack.push(other);
        }
        let truncated = (TRUNCATED.to_owned(), Label::Text("yes".to_owned()));
        Sample { stack, values, labels: if is_truncated { vec![truncated] } else { Vec::new() } }
    });
    let profile = Profile {
        samples: samples.collect(),
        values: vec![
            ValueType::new("alloc_objects", "count"),
            ValueType::new("alloc_space", "bytes"),
            ValueType::new("inuse_objects", "count"),
            ValueType::new("inuse_space", "bytes"),
        ],
        main: match shown {
            MainValue::Live => 3,
            MainValue::Allocated => 1,
        },
        period: (ValueType::new("space", "bytes"), mean_bytes().unwrap_or(0) as i64),
        time_ns: unix_ns(),
        duration_ns: 0,
        notes: notes(),
        mappings,
        functions,
        locations,
    };
    drop(session);
    Ok(profile)
}

fn notes() -> Vec<String> {
    let mut notes = vec![match mean_bytes() {
        Some(bytes) => format!(
            "one sample in {} KiB; allocations from before sampling was switched on are not in it",
            bytes / 1024
        ),
        None => "sampling is off: only what was sampled before is in it".to_owned(),
    }];
    let refused = LIVE.refused();
    if refused > 0 {
        notes.push(format!("{refused} samples are missing: there were too many live ones"));
    }
    notes
}

// The sampled allocations that have not been freed.
//
// A table of buckets without locks. Any thread inserts into a free place; only the thread that frees an allocation
// looks for its entry and removes it, so an entry does not change while it is read.

/// Most sampled allocations in the table: enough for 8 GiB at the usual mean.
const PLACES: usize = 1 << 14;

/// Places per bucket.
const BUCKET: usize = 8;

/// Buckets that may hold an allocation.
const BUCKETS_TRIED: usize = 4;

/// Marks a place that is being filled.
const CLAIMED: usize = 1;

static LIVE: Live = Live {
    used: AtomicUsize::new(0),
    refused: AtomicU64::new(0),
    places: [const {
        LiveSlot {
            pointer: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            stack: AtomicUsize::new(0),
            weight: AtomicU64::new(0),
        }
    }; PLACES],
};

struct Live {
    used: AtomicUsize,
    /// Allocations that were not sampled for lack of a place.
    refused: AtomicU64,
    places: [LiveSlot; PLACES],
}

struct LiveSlot {
    /// Zero if it is free.
    pointer: AtomicUsize,
    size: AtomicUsize,
    stack: AtomicUsize,
    weight: AtomicU64,
}

/// An allocation that was freed.
struct FreedAllocation {
    size: usize,
    stack: usize,
    weight: u64,
}

impl Live {
    /// Inserts an allocation; `false` if there is no free place.
    fn insert(&self, pointer: usize, size: usize, stack: usize, weight: u64) -> bool {
        let free = self
            .places_of(pointer)
            .find(|place| place.pointer.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok());
        let Some(place) = free else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        place.size.store(size, Ordering::Relaxed);
        place.stack.store(stack, Ordering::Relaxed);
        place.weight.store(weight, Ordering::Relaxed);
        self.used.fetch_add(1, Ordering::Relaxed);
        place.pointer.store(pointer, Ordering::Release);
        true
    }

    fn has(&self, pointer: usize) -> bool {
        self.find(pointer).is_some()
    }

    /// Removes an allocation; `None` if it is not sampled.
    fn remove(&self, pointer: usize) -> Option<FreedAllocation> {
        let place = self.find(pointer)?;
        let freed = FreedAllocation {
            size: place.size.load(Ordering::Relaxed),
            stack: place.stack.load(Ordering::Relaxed),
            weight: place.weight.load(Ordering::Relaxed),
        };
        self.used.fetch_sub(1, Ordering::Relaxed);
        place.pointer.store(0, Ordering::Release);
        Some(freed)
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The allocation happened before, on this thread or on one that passed the pointer to this: so its insertion is
    /// visible.
    fn find(&self, pointer: usize) -> Option<&LiveSlot> {
        if self.used.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.places_of(pointer).find(|place| place.pointer.load(Ordering::Acquire) == pointer)
    }

    fn places_of(&self, pointer: usize) -> impl Iterator<Item = &LiveSlot> {
        // The low bits of all pointers are equal.
        let hash = (pointer as u64 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let first = hash as usize * BUCKET;
        (0..BUCKET * BUCKETS_TRIED).filter_map(move |number| self.places.get((first + number) % PLACES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, since there is a single table.
    #[test]
    fn what_is_inserted_is_found_until_it_is_removed_and_a_full_table_refuses() {
        let pointer = |number: usize| 0x7000_0000_0000 + number * 4096;
        let kept: Vec<usize> =
            (0..2 * PLACES).map(pointer).filter(|pointer| LIVE.insert(*pointer, 7, 3, 256)).collect();
        assert!(kept.len() > PLACES / 2 && kept.len() <= PLACES, "{}", kept.len());
        assert_eq!(LIVE.refused() as usize, 2 * PLACES - kept.len());
        assert!(!LIVE.has(0x6000_0000_0000) && LIVE.remove(0x6000_0000_0000).is_none());
        for pointer in &kept {
            let freed = LIVE.remove(*pointer).unwrap();
            assert_eq!((freed.size, freed.stack, freed.weight), (7, 3, 256));
            assert!(!LIVE.has(*pointer));
        }
        assert_eq!(LIVE.used.load(Ordering::Relaxed), 0);
    }
}
