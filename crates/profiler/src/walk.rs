//! Follows frame pointers up a stack, for the signal handler.
//!
//! ```text
//!  sp ▶ │ locals of the innermost function │
//!  fp ▶ │ saved fp ─────────┐ │ return address │   a frame: its address and its caller
//!       │ locals            │ │
//!       │ saved fp ◀────────┘ │ return address │   always further up, aligned, inside the stack
//! ```
//!
//! A value that is not a frame pointer is detected if it is not aligned, does not rise or leaves the stack. Code that uses the register
//! for something else, such as LuaJIT's interpreter, has called the function of that frame: the walk looks for the next frame
//! above, and reports a gap. It reads only between the stack pointer and the end of the stack, which is always mapped.

use std::ops::Range;

/// Most frames kept of one stack; in a deeper one the outermost are missing.
pub(crate) const FRAMES_MAX: usize = 192;

/// Words above the stack pointer that are searched for a frame if the frame pointer's register holds something else.
const SEARCHED_WORDS: usize = 160;

/// Most gaps of one stack.
pub(crate) const GAPS_MAX: usize = 4;

/// Bytes of a frame: two words.
const FRAME_BYTES: usize = 16;

/// Registers of an interrupted function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) ip: usize,
    pub(crate) sp: usize,
    pub(crate) fp: usize,
}

/// Why a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkEnd {
    /// At the thread's first function.
    Bottom,
    /// After [`FRAMES_MAX`] frames.
    Depth,
    /// At a value that is not a frame pointer.
    Broken,
    /// The stack pointer is not in the thread's stack: code with a stack of its own.
    Foreign,
}

impl WalkEnd {
    pub(crate) fn word(self) -> u64 {
        self as u64
    }

    pub(crate) fn of_word(word: u64) -> WalkEnd {
        [WalkEnd::Bottom, WalkEnd::Depth, WalkEnd::Broken, WalkEnd::Foreign]
            .into_iter()
            .find(|end| end.word() == word)
            .unwrap_or(WalkEnd::Broken)
    }
}

/// A thread's stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stack {
    pub(crate) range: Range<usize>,
    /// The address of the outermost frame; zero if unknown.
    pub(crate) bottom: usize,
}

/// The result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WalkResult {
    /// Words that were written.
    pub(crate) words: usize,
    /// Addresses of the frames whose caller's frame had to be searched for; zero: there are no more.
    pub(crate) gaps: [usize; GAPS_MAX],
    pub(crate) end: WalkEnd,
}

/// Writes pairs of a frame's address and its return address, the innermost first. `read`
/// is only called with aligned addresses inside the stack and above the stack pointer. `is_code` returns whether a word
/// may be a return address; it is only called if a frame has to be searched for.
#[inline]
pub(crate) fn walk(
    registers: Registers,
    stack: &Stack,
    read: impl Fn(usize) -> usize,
    is_code: impl Fn(usize) -> bool,
    frames: &mut [u64; 2 * FRAMES_MAX],
) -> WalkResult {
    let Registers { sp, fp, .. } = registers;
    let mut walked = WalkResult { words: 0, gaps: [0; GAPS_MAX], end: WalkEnd::Foreign };
    if !stack.range.contains(&sp) {
        return walked;
    }
    let is_frame = |at: usize, above: usize| {
        at >= above && at.is_multiple_of(8) && at.checked_add(FRAME_BYTES).is_some_and(|end| end <= stack.range.end)
    };
    let is_called = |at: usize, above: usize| is_frame(at, above) && is_code(read(at + 8));
    let mut at = fp;
    if !is_called(at, sp) {
        match search(sp, stack.range.end, &read, is_called) {
            Some(found) => at = found,
            None => return WalkResult { end: WalkEnd::Broken, ..walked },
        }
    }
    let mut gaps = walked.gaps.iter_mut();
    walked.end = loop {
        let (next, caller) = (read(at), read(at + 8));
        let Some([frame, return_address]) = frames.get_mut(walked.words..walked.words + 2) else {
            break WalkEnd::Depth;
        };
        (*frame, *return_address) = (at as u64, caller as u64);
        walked.words += 2;
        if at == stack.bottom || (next == 0 && stack.bottom == 0) {
            break WalkEnd::Bottom;
        }
        if is_frame(next, at + FRAME_BYTES) {
            at = next;
            continue;
        }
        let Some(gap) = gaps.next() else { break WalkEnd::Broken };
        match search(at + FRAME_BYTES, stack.range.end, &read, is_called) {
            Some(found) => (*gap, at) = (at, found),
            None => break WalkEnd::Broken,
        }
    };
    walked
}

/// The lowest word that looks like a saved frame pointer of a caller's frame: a function without a frame, which uses the
/// register for something else, has saved it somewhere above. Where a return address is next to it, both words are as
/// good as a frame; otherwise the first frame is the caller's. The unwind tables decide later whether it is right.
#[inline]
fn search(
    sp: usize,
    end: usize,
    read: impl Fn(usize) -> usize,
    is_called: impl Fn(usize, usize) -> bool,
) -> Option<usize> {
    let first = sp.next_multiple_of(8);
    let words = (0..SEARCHED_WORDS).map(|word| first + 8 * word).take_while(|at| *at + 8 <= end);
    let found = words.map(|at| (at, read(at))).find(|(at, saved)| is_called(*saved, at + 8));
    found.map(|(at, saved)| if is_called(at, at) { at } else { saved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: usize = 0x7000_0000;
    const CODE: usize = 0x40_0000;

    fn walked(words: &[usize], registers: Registers, bottom: usize) -> (Vec<u64>, WalkEnd) {
        let range = BASE..BASE + 8 * words.len();
        let read = |at: usize| {
            assert!(at.is_multiple_of(8) && at >= registers.sp && at + 8 <= range.end, "reads {at:#x} of {range:#x?}");
            words[(at - BASE) / 8]
        };
        let mut frames = [0; 2 * FRAMES_MAX];
        let stack = Stack { range: range.clone(), bottom };
        let WalkResult { words: written, end, .. } =
            walk(registers, &stack, read, |word| (CODE..CODE + 0x1000).contains(&word), &mut frames);
        (frames[..written].to_vec(), end)
    }

    fn at(word: usize) -> usize {
        BASE + 8 * word
    }

    #[test]
    fn a_chain_is_followed_to_its_bottom() {
        let words = [0, at(3), CODE + 1, at(5), CODE + 2, 99, CODE + 3];
        let registers = Registers { ip: CODE, sp: at(0), fp: at(1) };
        let frames = vec![at(1) as u64, CODE as u64 + 1, at(3) as u64, CODE as u64 + 2, at(5) as u64, CODE as u64 + 3];
        assert_eq!(walked(&words, registers, at(5)), (frames.clone(), WalkEnd::Bottom));
        // 99 is not a frame pointer.
        assert_eq!(walked(&words, registers, 0), (frames, WalkEnd::Broken));
        let elsewhere = Registers { sp: 0x1000, ..registers };
        assert_eq!(walked(&words, elsewhere, 0), (vec![], WalkEnd::Foreign));
    }

    #[test]
    fn a_clobbered_register_is_replaced_by_what_was_saved() {
        let words = [5, 6, at(4), 0, at(6), CODE + 1, 0, CODE + 2];
        let registers = Registers { ip: 1, sp: at(0), fp: 12345 };
        let frames = vec![at(4) as u64, CODE as u64 + 1, at(6) as u64, CODE as u64 + 2];
        assert_eq!(walked(&words, registers, 0), (frames, WalkEnd::Bottom));
    }

    #[test]
    fn a_gap_is_bridged_by_what_was_saved() {
        // A frame at 1, called by code that has saved the frame pointer at 5, next to its return address.
        let words = [0, 77, CODE + 1, 3, 4, at(7), CODE + 2, at(9), CODE + 3, 0, CODE + 4];
        let registers = Registers { ip: CODE, sp: at(0), fp: at(1) };
        let pairs = [(1, 1), (5, 2), (7, 3), (9, 4)];
        let frames: Vec<u64> = pairs.iter().flat_map(|(word, call)| [at(*word) as u64, (CODE + call) as u64]).collect();
        assert_eq!(walked(&words, registers, at(9)), (frames.clone(), WalkEnd::Bottom));
        // Without a return address next to it.
        let words = [0, 77, CODE + 1, 3, 4, at(7), 0, at(9), CODE + 3, 0, CODE + 4];
        assert_eq!(walked(&words, registers, at(9)), ([&frames[..2], &frames[4..]].concat(), WalkEnd::Bottom));
    }

    #[test]
    fn depth_is_bounded() {
        let words: Vec<usize> =
            (0..2 * FRAMES_MAX + 20).map(|word| if word % 2 == 0 { at(word + 2) } else { CODE }).collect();
        let (frames, end) = walked(&words, Registers { ip: 0, sp: at(0), fp: at(0) }, 0);
        assert_eq!((frames.len(), end), (2 * FRAMES_MAX, WalkEnd::Depth));
    }

    proptest! {
        /// For any content of the stack and the registers: no read outside, an end, rising frames.
        #[test]
        fn nothing_makes_it_read_elsewhere(
            words in prop::collection::vec(prop_oneof![
                (0..80_usize).prop_map(at),
                (0..700_usize).prop_map(|byte| BASE + byte),
                Just(CODE + 5),
                any::<usize>(),
                Just(usize::MAX - 7),
            ], 1..80),
            sp in 0..700_usize,
            fp in prop_oneof![(0..90_usize).prop_map(at), any::<usize>(), Just(usize::MAX - 15), Just(usize::MAX - 7)],
        ) {
            let (frames, _) = walked(&words, Registers { ip: 0, sp: BASE + sp, fp }, 0);
            prop_assert!(frames.chunks(2).is_sorted_by(|a, b| a[0] < b[0]));
        }
    }
}
