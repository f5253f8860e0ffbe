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

mod live;
mod snapshot;
mod stacks;

use crate::machine;
use crate::signal::{find_code, is_code};
use crate::threads::{current, stack_range};
use crate::walk::{FRAMES_MAX, Stack, walk};
use live::LIVE;
pub use snapshot::{MainValue, snapshot};
use stacks::{STACK_FRAMES_MAX, STACKS};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::cold_path;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicU64, Ordering};

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
            let stack = STACKS.number(&frames());
            let weight = weight(layout.size(), mean);
            let is_kept = LIVE.insert(pointer.addr(), layout.size(), stack, weight);
            if is_kept {
                STACKS.allocated(stack, layout.size(), weight);
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
    STACKS.freed(freed.stack, freed.size, freed.weight);
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
    let (words, _) = walk(machine::here(), &stack, |at| unsafe { machine::word_at(at) }, is_code, &mut pairs);
    let callers = pairs[..words].as_chunks::<2>().0.iter().map(|[_, caller]| caller.wrapping_sub(1));
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
