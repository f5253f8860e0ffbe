//! Who called the innermost function, also where it has no frame pointer.
//!
//! Functions of the C library, assembly and small functions of C have none, and any function is without while it is entered or left.
//! Following frame pointers from there misses the caller, or everything. Every binary has tables, though, that say for each
//! instruction where the caller's address and frame pointer are (`.eh_frame`, as exceptions need it). They are applied here, to the
//! copy of the top of the stack that the handler has made, until a function with a frame pointer is reached; from there on the
//! handler's own walk holds.
//!
//! What cannot be recovered is counted as truncated, not guessed.

use crate::signal::Sample;
use crate::symbols::Modules;
use crate::symbols::image::Image;
use crate::walk::End;
use addr2line::gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
    X86_64,
};
use std::collections::HashMap;

/// Functions without a frame pointer on top of each other.
const STEPS_MAX: usize = 12;

/// Instructions whose rule is remembered.
const RULES_MAX: usize = 1 << 16;

/// How the caller is found at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// By the frame pointer.
    Frame,
    /// So many bytes above the stack pointer is where the caller's began; its frame pointer is in the register still, or saved so
    /// many bytes above (that is, below: it is negative) that place.
    Stack { bytes: i64, saved: Option<i64> },
    /// There is no table, or it says something else.
    Unknown,
}

/// Applies the tables of all files.
#[derive(Debug)]
pub(crate) struct Unwinder {
    modules: Modules,
    rules: HashMap<u64, Rule>,
}

/// A stack, from the innermost function on: the interrupted instruction, then the calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unwound {
    /// In the calling instruction, not behind it.
    pub(crate) addresses: Vec<u64>,
    pub(crate) is_complete: bool,
}

impl Unwinder {
    pub(crate) fn new(modules: Modules) -> Unwinder {
        Unwinder { modules, rules: HashMap::new() }
    }

    pub(crate) fn into_modules(self) -> Modules {
        self.modules
    }

    /// The whole stack of a sample.
    pub(crate) fn unwind(&mut self, sample: &Sample<'_>) -> Unwound {
        let mut addresses = vec![sample.registers.ip as u64];
        let (mut at, mut sp, mut fp) =
            (sample.registers.ip as u64, sample.registers.sp as u64, sample.registers.fp as u64);
        for _ in 0..STEPS_MAX {
            let (bytes, saved) = match self.rule(at) {
                Rule::Stack { bytes, saved } => (bytes, saved),
                Rule::Frame => return follow(addresses, sample, fp),
                // Code that has no tables, as compiled by a JIT: what the walk has found is the best there is.
                Rule::Unknown if sample.end != End::Foreign && !sample.frames.is_empty() => {
                    return follow(addresses, sample, sample.frames[0]);
                }
                Rule::Unknown => break,
            };
            let cfa = sp.wrapping_add_signed(bytes);
            let word = |at: u64| {
                let offset = at.checked_sub(sample.registers.sp as u64)?;
                sample.top.get(usize::try_from(offset / 8).ok()?).copied()
            };
            let is_code = |caller: &u64| self.modules.of(caller.wrapping_sub(1)).is_some();
            let Some(caller) = word(cfa.wrapping_sub(8)).filter(is_code) else { break };
            // A place below the stack pointer is no more: the function is being left, and the register restored.
            let saved = saved.map(|saved| cfa.wrapping_add_signed(saved)).filter(|at| *at >= sp);
            match saved.map(word) {
                None => {}
                Some(Some(value)) => fp = value,
                Some(None) => break,
            }
            (at, sp) = (caller - 1, cfa);
            addresses.push(at);
        }
        Unwound { addresses, is_complete: false }
    }

    fn rule(&mut self, address: u64) -> Rule {
        if let Some(rule) = self.rules.get(&address) {
            return *rule;
        }
        let rule = self.modules.of(address).and_then(|module| rule(module.image()?, address)).unwrap_or(Rule::Unknown);
        if self.rules.len() >= RULES_MAX {
            self.rules.clear();
        }
        self.rules.insert(address, rule);
        rule
    }
}

/// The calls from the frame on that `fp` leads to.
fn follow(mut addresses: Vec<u64>, sample: &Sample<'_>, fp: u64) -> Unwound {
    let frames = sample.frames.as_chunks::<2>().0;
    let first = frames.iter().position(|[frame, _]| *frame == fp);
    let Some(first) = first else { return Unwound { addresses, is_complete: false } };
    addresses.extend(frames[first..].iter().map(|[_, caller]| caller.wrapping_sub(1)));
    Unwound { addresses, is_complete: sample.end == End::Bottom }
}

fn rule(image: &Image, address: u64) -> Option<Rule> {
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
    match row.cfa() {
        CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => Some(Rule::Stack { bytes: *offset, saved }),
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset: 16 } => Some(Rule::Frame),
        // Only the stubs that lead to other libraries have one: the second half of a stub has pushed a word.
        CfaRule::Expression(_) => Some(Rule::Stack { bytes: if own & 15 >= 11 { 16 } else { 8 }, saved: None }),
        CfaRule::RegisterAndOffset { .. } => None,
    }
}
