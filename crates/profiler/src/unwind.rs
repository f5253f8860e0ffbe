//! Finds the caller of the innermost function, also if that has no frame pointer.
//!
//! Functions of the C library, assembly and small C functions have none, and every function is without one while it is
//! entered or left. Following frame pointers from there misses the caller, or everything. However, every binary has
//! tables with the position of the caller's address and frame pointer for each instruction (`.eh_frame`, which
//! exceptions need). They are applied here, to the handler's copy of the top of the stack, until a function with a
//! frame pointer is reached; from there on the handler's own walk is used. The same is done at each gap of the walk.
//!
//! Stacks that cannot be recovered are counted as truncated, not guessed.

use crate::signal::RawSample;
use crate::symbols::Modules;
use crate::symbols::image::Image;
use crate::walk::WalkEnd;
use addr2line::gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice, Format, LittleEndian, Operation, OperationIter,
    RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use std::collections::HashMap;

/// Most functions of a stack without a frame pointer.
const STEPS_MAX: usize = 48;

/// Addresses that a process can have code at.
const MAPPED_MIN: u64 = 1 << 16;
const MAPPED_MAX: u64 = 1 << 47;

/// Bytes of a frame.
const FRAME_BYTES: u64 = 16;

/// Most instructions whose rule is remembered.
const RULES_MAX: usize = 1 << 16;

/// The way to find the caller at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnwindRule {
    /// By the frame pointer.
    Frame,
    /// By the position of the caller's stack pointer; its frame pointer is still in the register, or saved at this
    /// offset from there (negative, so below).
    Stack { top: Top, saved: Option<i64> },
    /// No table, or another rule.
    Unknown,
}

/// The position of the caller's stack pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Top {
    /// This many bytes above the stack pointer.
    Above(i64),
    /// This many bytes above the address in the frame pointer's register.
    AboveFrame(i64),
    /// This many bytes above the address that is in the stack at `at` bytes above the stack pointer: assembly that
    /// aligns its stack.
    AboveSaved { at: i64, bytes: u64 },
}

/// Applies the tables of all files.
#[derive(Debug)]
pub(crate) struct Unwinder {
    modules: Modules,
    rules: HashMap<u64, UnwindRule>,
}

/// A stack, from the innermost function on: the interrupted instruction, then the calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnwoundStack {
    /// Addresses in the calling instructions, not after them.
    pub(crate) addresses: Vec<u64>,
    pub(crate) is_complete: bool,
}

impl Unwinder {
    pub(crate) fn new(modules: Modules) -> Unwinder {
        Unwinder { modules, rules: HashMap::new() }
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The whole stack of a sample.
    pub(crate) fn unwind(&mut self, sample: &RawSample<'_>) -> UnwoundStack {
        let mut addresses = vec![sample.registers.ip as u64];
        let (mut at, mut sp, mut fp) =
            (sample.registers.ip as u64, sample.registers.sp as u64, sample.registers.fp as u64);
        for _ in 0..STEPS_MAX {
            let frame = match self.rule(at) {
                UnwindRule::Frame => Some(fp),
                // Code without tables, such as a JIT's: the result of the walk is the best available.
                UnwindRule::Unknown => sample.frame_above(sp),
                UnwindRule::Stack { .. } => None,
            };
            let (top, saved) = match (self.rule(at), frame) {
                (UnwindRule::Stack { top, saved }, _) => (top, saved),
                (_, Some(frame)) => match follow(&mut addresses, sample, frame) {
                    FollowedTo::End { is_complete } => return UnwoundStack { addresses, is_complete },
                    FollowedTo::Gap { caller, frame } => {
                        let Some(value) = sample.word(frame) else { break };
                        (at, sp, fp) = (caller, frame + FRAME_BYTES, value);
                        continue;
                    }
                },
                (_, None) => break,
            };
            let word = |at: u64| sample.word(at);
            let cfa = match top {
                Top::Above(bytes) => Some(sp.wrapping_add_signed(bytes)),
                Top::AboveFrame(bytes) => Some(fp.wrapping_add_signed(bytes)),
                Top::AboveSaved { at, bytes } => {
                    word(sp.wrapping_add_signed(at)).map(|saved| saved.wrapping_add(bytes))
                }
            };
            // A stack only shrinks on the way out.
            let Some(cfa) = cfa.filter(|cfa| *cfa > sp) else { break };
            // Machine code of a JIT may be newer than the list of modules. It has no table: a frame above must follow.
            let is_code = |caller: &u64| {
                let may_be_jit = (MAPPED_MIN..MAPPED_MAX).contains(caller) && sample.frame_above(cfa).is_some();
                self.modules.of(caller.wrapping_sub(1)).is_some() || may_be_jit
            };
            let Some(caller) = word(cfa.wrapping_sub(8)).filter(is_code) else { break };
            // A saved value below the stack pointer is gone: the function is being left, and the register is restored.
            let saved = saved.map(|saved| cfa.wrapping_add_signed(saved)).filter(|at| *at >= sp);
            match saved.map(word) {
                None => {}
                Some(Some(value)) => fp = value,
                Some(None) => break,
            }
            (at, sp) = (caller - 1, cfa);
            addresses.push(at);
        }
        UnwoundStack { addresses, is_complete: false }
    }

    fn rule(&mut self, address: u64) -> UnwindRule {
        if let Some(rule) = self.rules.get(&address) {
            return *rule;
        }
        let rule =
            self.modules.of(address).and_then(|module| rule(module.image()?, address)).unwrap_or(UnwindRule::Unknown);
        if self.rules.len() >= RULES_MAX {
            self.rules.clear();
        }
        self.rules.insert(address, rule);
        rule
    }
}

/// Where the walk that follows frame pointers leads.
enum FollowedTo {
    End {
        is_complete: bool,
    },
    /// To a frame whose caller has no frame pointer.
    Gap {
        caller: u64,
        frame: u64,
    },
}

/// Adds the calls from the frame at `fp` on.
fn follow(addresses: &mut Vec<u64>, sample: &RawSample<'_>, fp: u64) -> FollowedTo {
    let frames = sample.frames.as_chunks::<2>().0;
    let Some(first) = frames.iter().position(|[frame, _]| *frame == fp) else {
        return FollowedTo::End { is_complete: false };
    };
    for [frame, caller] in &frames[first..] {
        let caller = caller.wrapping_sub(1);
        addresses.push(caller);
        if sample.gaps.iter().any(|gap| gap[0] == *frame) {
            return FollowedTo::Gap { caller, frame: *frame };
        }
    }
    FollowedTo::End { is_complete: sample.end == WalkEnd::Bottom }
}

fn rule(image: &Image, address: u64) -> Option<UnwindRule> {
    let (header, frames) = (image.eh_frame_hdr.as_ref()?, image.eh_frame.as_ref()?);
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.address).set_eh_frame(frames.address);
    let parsed = EhFrameHdr::new(image.bytes_of(header), LittleEndian).parse(&bases, 8).ok()?;
    let section: EhFrame<EndianSlice<'_, LittleEndian>> = EhFrame::new(image.bytes_of(frames), LittleEndian);
    let own = address.wrapping_sub(image.bias);
    let mut context = UnwindContext::new();
    let row =
        parsed.table()?.unwind_info_for_address(&section, &bases, &mut context, own, EhFrame::cie_from_offset).ok()?;
    let saved = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(bytes)) => Some(bytes),
        Some(_) => return None,
    };
    let top = match row.cfa() {
        CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => Top::Above(*offset),
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset: 16 } if saved == Some(-16) => {
            return Some(UnwindRule::Frame);
        }
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset } => Top::AboveFrame(*offset),
        CfaRule::RegisterAndOffset { .. } => return None,
        CfaRule::Expression(expression) => {
            let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
            top_of(expression.get(&section).ok()?.operations(encoding), own)?
        }
    };
    Some(UnwindRule::Stack { top, saved })
}

/// The two kinds of expressions in binaries: those of assembly that has saved the former stack pointer, and those of
/// the stubs that lead to other libraries.
fn top_of(mut operations: OperationIter<EndianSlice<'_, LittleEndian>>, own: u64) -> Option<Top> {
    let Operation::RegisterOffset { register: X86_64::RSP, offset: at, .. } = operations.next().ok()?? else {
        return None;
    };
    match operations.next().ok()?? {
        Operation::Deref { size: 8, .. } => match operations.next().ok()? {
            Some(Operation::PlusConstant { value }) => Some(Top::AboveSaved { at, bytes: value }),
            None => Some(Top::AboveSaved { at, bytes: 0 }),
            Some(_) => None,
        },
        // The second half of a stub has pushed a word.
        Operation::RegisterOffset { register: X86_64::RA, .. } => {
            Some(Top::Above(if own & 15 >= 11 { at + 8 } else { at }))
        }
        _ => None,
    }
}
