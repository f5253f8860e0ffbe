//! Google's encoder of brotli (RFC 7932), with one state for each body.
//!
//! It is written in C: the port to Rust takes a third more time for the same bytes. This crate contains the unsafe
//! calls, and bounds the memory, which comes from Rust's allocator. It does not decode.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use compu_brotli_sys as sys;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

/// The parameters of an encoder.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    /// The kind of body: 0: anything, 1: text in UTF-8, 2: fonts.
    pub mode: u8,
    /// From 0, the fastest, to 11, the smallest.
    pub quality: u8,
    /// The reach of matches, as a power of two from 10 to 24.
    pub lgwin: u8,
    /// Bytes that are processed together, as a power of two from 16 to 24. Below level 4 it is 14.
    pub lgblock: u8,
}

impl Params {
    /// The most memory that an encoder takes, in bytes: its window twice, the tables of its level, and the commands of 16
    /// bytes that a body becomes. It gathers as many commands as an eighth of twice the window before it writes, and has
    /// them twice while it makes room for those of another block.
    pub fn bytes_max(self) -> usize {
        const KIB: usize = 1024;
        let (window, block) = (1_usize << self.lgwin, 1_usize << self.lgblock);
        let (tables, of_block) = match self.quality {
            ..=4 => (768 * KIB, 24 * block),
            5 | 6 => (2304 * KIB, 24 * block),
            // Each level up takes twice the tables.
            7..=9 => ((8 << (self.quality - 7)) * 1024 * KIB, 24 * block),
            _ => (1536 * KIB + 8 * window, 70 * block),
        };
        tables + of_block + 10 * window.max(block)
    }
}

/// What follows a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// More blocks; output may be held back until they come.
    More,
    /// More blocks at some time: everything so far must be decodable.
    Flush,
    /// The end of the body.
    End,
}

/// A partially encoded body.
pub struct Encoder {
    /// Owned by this encoder alone.
    state: NonNull<sys::BrotliEncoderState>,
}

// SAFETY: a state is not bound to the thread that made it, and is used through `&mut self` only.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Send for Encoder {}

impl Encoder {
    /// `None` if there is no memory for it.
    #[expect(unsafe_code, reason = "calls of C")]
    pub fn new(params: Params) -> Option<Encoder> {
        // SAFETY: both functions are an allocator's, and ignore the pointer that they are given.
        let state = unsafe { sys::BrotliEncoderCreateInstance(Some(allocate), Some(free), null_mut()) };
        let encoder = Encoder { state: NonNull::new(state)? };
        for (param, value) in [
            (sys::BrotliEncoderParameter_BROTLI_PARAM_MODE, params.mode),
            (sys::BrotliEncoderParameter_BROTLI_PARAM_QUALITY, params.quality),
            (sys::BrotliEncoderParameter_BROTLI_PARAM_LGWIN, params.lgwin),
            (sys::BrotliEncoderParameter_BROTLI_PARAM_LGBLOCK, params.lgblock),
        ] {
            // SAFETY: the state is live, and nothing has been coded yet.
            let is_set = unsafe { sys::BrotliEncoderSetParameter(encoder.state.as_ptr(), param, value.into()) };
            debug_assert!(is_set != 0);
        }
        Some(encoder)
    }

    /// Encodes a block and appends the output. `None` if there is no memory for it; then the encoder must not be used
    /// again.
    #[expect(unsafe_code, reason = "calls of C")]
    pub fn code(&mut self, block: &[u8], then: Then, out: &mut Vec<u8>) -> Option<()> {
        /// Least room for output.
        const ROOM_BYTES: usize = 1024;
        let operation = match then {
            Then::More => sys::BrotliEncoderOperation_BROTLI_OPERATION_PROCESS,
            Then::Flush => sys::BrotliEncoderOperation_BROTLI_OPERATION_FLUSH,
            Then::End => sys::BrotliEncoderOperation_BROTLI_OPERATION_FINISH,
        };
        let state = self.state.as_ptr();
        let (mut left, mut at) = (block.len(), block.as_ptr());
        loop {
            out.reserve(ROOM_BYTES + left / 2);
            let spare = out.spare_capacity_mut();
            let (mut room, mut to) = (spare.len(), spare.as_mut_ptr().cast::<u8>());
            // SAFETY: `left` bytes may be read at `at`, which both begin as the block and advance along it together;
            // `room` bytes may be written at `to`.
            let is_coded = unsafe {
                sys::BrotliEncoderCompressStream(state, operation, &mut left, &mut at, &mut room, &mut to, null_mut())
            };
            // SAFETY: it has written all of the room except the part that it reports as left.
            unsafe { out.set_len(out.capacity() - room) };
            // SAFETY: the state is live.
            let has_more = unsafe { sys::BrotliEncoderHasMoreOutput(state) } != 0;
            match (is_coded != 0, left == 0 && !has_more) {
                (false, _) => return None,
                (true, true) => return Some(()),
                (true, false) => {}
            }
        }
    }
}

impl Drop for Encoder {
    #[expect(unsafe_code, reason = "calls of C")]
    fn drop(&mut self) {
        // SAFETY: `self` owns the state.
        unsafe { sys::BrotliEncoderDestroyInstance(self.state.as_ptr()) }
    }
}

/// The bytes before each allocation, which hold its length; their number keeps it aligned.
const LENGTH_BYTES: usize = 16;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(LENGTH_BYTES)?, LENGTH_BYTES).ok()
}

#[expect(unsafe_code, reason = "called from C")]
unsafe extern "C" fn allocate(_: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(layout) = layout(bytes) else { return null_mut() };
    // SAFETY: the layout's size is not zero, and a length fits into it, aligned.
    unsafe {
        let memory = alloc(layout);
        if memory.is_null() {
            return null_mut();
        }
        memory.cast::<usize>().write(bytes);
        memory.add(LENGTH_BYTES).cast()
    }
}

#[expect(unsafe_code, reason = "called from C")]
unsafe extern "C" fn free(_: *mut c_void, memory: *mut c_void) {
    if memory.is_null() {
        return;
    }
    // SAFETY: `memory` came from `allocate`, so its layout was made from the length before it.
    unsafe {
        let memory = memory.cast::<u8>().sub(LENGTH_BYTES);
        if let Some(layout) = layout(memory.cast::<usize>().read()) {
            dealloc(memory, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that are given to an encoder at once.
    const BLOCK_BYTES: usize = 64 * 1024;

    /// Random letters: they take more commands for their length than text does.
    fn letters(bytes: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut letter = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"etaoin <>"[(state >> 24) as usize % 9]
        };
        (0..bytes).map(|_| letter()).collect()
    }

    fn decoded(mut coded: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        brotli_decompressor::BrotliDecompress(&mut coded, &mut out).unwrap();
        out
    }

    #[test]
    fn memory_is_bounded() {
        let body = letters(3 * BLOCK_BYTES);
        for quality in 0..=11 {
            for (lgwin, lgblock) in [(10, 16), (16, 16), (20, 16), (20, 18)] {
                let params = Params { mode: 0, quality, lgwin, lgblock };
                let mut out = Vec::with_capacity(2 * body.len());
                let took = allocation_counter::measure(|| {
                    let mut encoder = Encoder::new(params).unwrap();
                    body.chunks(BLOCK_BYTES).for_each(|block| encoder.code(block, Then::More, &mut out).unwrap());
                    encoder.code(&[], Then::End, &mut out).unwrap();
                });
                let (took, most) = (took.bytes_max as usize, params.bytes_max());
                assert!(took <= most, "{params:?}: {took} of {most}");
                assert_eq!(decoded(&out), body);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn decoding_gives_the_body_back(
            body in prop_oneof![prop::collection::vec(any::<u8>(), 0..5_000), (0..100_000_usize).prop_map(letters)],
            cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..5),
            (mode, quality, lgwin, lgblock) in (0..=2_u8, 0..=11_u8, 10..=20_u8, 16..=18_u8),
        ) {
            let mut encoder = Encoder::new(Params { mode, quality, lgwin, lgblock }).unwrap();
            let mut cuts: Vec<(usize, bool)> = cuts.iter().map(|(at, flush)| (at.index(body.len() + 1), *flush)).collect();
            cuts.sort_unstable();
            let (mut out, mut from) = (Vec::new(), 0);
            for (to, flush) in cuts {
                encoder.code(&body[from..to], if flush { Then::Flush } else { Then::More }, &mut out).unwrap();
                from = to;
            }
            encoder.code(&body[from..], Then::End, &mut out).unwrap();
            prop_assert_eq!(decoded(&out), body);
        }
    }
}
