//! Where memory comes from: a wrapper around an allocator that samples allocations.
//!
//! About once in so many bytes (512 KiB unless it is said) an allocation's stack is written down, with the weight it has then: an
//! allocation of `size` bytes is sampled with probability `1 − e^(−size/mean)`, so it stands for the reciprocal of that many. All that was
//! allocated since sampling was switched on is counted by stack, and what of it was freed.
//!
//! A sampled allocation is aligned to a page. So freeing costs a test of the pointer's low bits, and only what is aligned like that is
//! looked up. While sampling is off, allocating costs a load and a branch.
//!
//! Nothing here takes a lock or allocates: the tables have fixed places, which are memory only once they are used. What does not fit is
//! not sampled, or counted without its stack.

#![expect(unsafe_code, reason = "an allocator")]

mod live;
mod snapshot;
mod stacks;

use crate::machine;
use crate::signal::{find_code, is_code};
use crate::threads::{current, stack_range};
use crate::walk::{FRAMES_MAX, Stack, walk};
use live::LIVE;
pub use snapshot::{Shown, snapshot};
use stacks::{STACK_FRAMES_MAX, STACKS};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::cold_path;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes between two samples on average, unless it is said.
pub const MEAN_BYTES_DEFAULT: u64 = 512 * 1024;

/// The fewest: below, sampling would be most of the work.
pub const MEAN_BYTES_MIN: u64 = 16 * 1024;

/// What a sampled allocation is aligned to.
const ALIGNED: usize = 4096;

/// Zero: sampling is off.
static MEAN_BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes until the next sample.
    static LEFT: Cell<i64> = const { Cell::new(0) };
    /// Of the generator of pauses; zero: there is none yet.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// While a sample is taken: what is allocated meanwhile is not sampled.
    static IS_SAMPLING: Cell<bool> = const { Cell::new(false) };
    /// Where the stack of a thread is that is not registered.
    static RANGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Samples from now on, or no more (`None`). What was sampled stays known until it is freed. Fewer than [`MEAN_BYTES_MIN`] count as that many.
pub fn sample_every(mean_bytes: Option<u64>) {
    if mean_bytes.is_some() {
        find_code();
    }
    MEAN_BYTES.store(mean_bytes.map_or(0, |bytes| bytes.max(MEAN_BYTES_MIN)), Ordering::Relaxed);
}

/// Bytes between two samples; `None`: sampling is off.
pub fn mean_bytes() -> Option<u64> {
    Some(MEAN_BYTES.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
}

/// An allocator whose allocations are sampled.
#[derive(Debug)]
pub struct Sampled<A>(A);

impl<A> Sampled<A> {
    /// Around this one. There is one of these in a process.
    pub const fn new(allocator: A) -> Sampled<A> {
        Sampled(allocator)
    }
}

// SAFETY: every allocation comes from the inner allocator and goes back to it with the layout it was asked for with: sampled ones are
// those in the table of live ones, and only those were asked for with a larger alignment.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
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
            // SAFETY: the caller's promise; what was allocated is of that size.
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
            // SAFETY: the caller's promise; it is not sampled, so the layout is the one it was allocated with.
            unsafe { self.0.realloc(pointer, layout, size) }
        }
    }
}

impl<A: GlobalAlloc> Sampled<A> {
    /// What `realloc` does, as the allocation is sampled or is to be: a new one, and the former is freed.
    ///
    /// # Safety
    ///
    /// As of `realloc`.
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

    /// Allocates with a sample; `None`: none is to be taken after all, or there is no memory.
    ///
    /// # Safety
    ///
    /// As of `alloc`.
    #[cold]
    #[inline(never)]
    unsafe fn sampled(&self, layout: Layout) -> Option<*mut u8> {
        let mean = mean_bytes()?;
        if !draw_pause(layout.size(), mean) || IS_SAMPLING.replace(true) {
            return None;
        }
        // SAFETY: the caller's promise, with a larger alignment; a size for which that makes no valid layout is not sampled.
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
            // SAFETY: just allocated with this layout, and nobody has it.
            unsafe { self.0.dealloc(pointer, layout) };
        }
        IS_SAMPLING.set(false);
        known
    }
}

/// The layout that a sampled allocation is made with.
fn aligned(layout: Layout) -> Option<Layout> {
    layout.align_to(ALIGNED).ok()
}

#[inline]
fn may_be_sampled(pointer: *mut u8) -> bool {
    pointer.addr().is_multiple_of(ALIGNED)
}

/// Takes a freed allocation off the live ones; the layout it was made with.
#[cold]
fn forget(pointer: *mut u8, layout: Layout) -> Layout {
    let Some(freed) = LIVE.remove(pointer.addr()) else { return layout };
    STACKS.freed(freed.stack, freed.size, freed.weight);
    aligned(layout).unwrap_or(layout)
}

/// Counts an allocation; whether it is time for a sample.
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

/// Draws when the next sample is due; whether this allocation is one. It is not if it is the thread's first, for which no pause was drawn.
fn draw_pause(size: usize, mean: u64) -> bool {
    let mut random = RANDOM.get();
    let is_first = random == 0;
    if is_first {
        // Different for each thread, as its memory is; odd, so never zero.
        random = (RANDOM.with(|place| &raw const *place as u64) ^ machine::ticks().rotate_left(32)) | 1;
    }
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // From just above 0 to 1.
        let fraction = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-fraction.ln() * mean as f64) as i64
    };
    // An exponential pause has no memory: the first one may begin at this allocation.
    let is_sampled = if is_first { (0..8).map(|_| next()).last() < Some(size as i64) } else { true };
    LEFT.set(next());
    RANDOM.set(random);
    is_sampled
}

/// In 256ths: how many allocations of this size one that was sampled stands for.
fn weight(size: usize, mean: u64) -> u64 {
    let weight = 1.0 / -(-(size.max(1) as f64) / mean as f64).exp_m1();
    (weight * 256.0) as u64
}

/// The calls that led here.
#[inline(never)]
fn frames() -> Frames {
    let mut frames = Frames { addresses: [0; STACK_FRAMES_MAX], length: 0 };
    // SAFETY: not null only while the registration of this very thread lives, which holds it.
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

/// Of a thread that is not registered. An empty one where it cannot be had.
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
