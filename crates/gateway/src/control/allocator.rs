//! The process's allocator: mimalloc, because it can give memory back after a burst of connections.
//!
//! The C library's allocator keeps the 20 MB of ten thousand closed connections for ever, as a few survivors are spread over them.
//! mimalloc gives them back, but only while its thread goes on allocating, which an idle worker does not: so the workers call
//! [`give_back`]. The sampling of heap profiles wraps it, if enabled.

use stillgate_profiler::heap::SamplingAllocator;

#[global_allocator]
static ALLOCATOR: SamplingAllocator<mimalloc::MiMalloc> = SamplingAllocator::new(mimalloc::MiMalloc);

/// Returns the calling thread's free memory to the system.
pub(crate) fn give_back() {
    // SAFETY: `mi_collect` takes no pointer and may be called by any thread at any time; it touches free memory only.
    #[expect(
        unsafe_code,
        reason = "the safe crate has no name for it; measured: 1.9 KB a closed connection otherwise stay"
    )]
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}
