//! Processor-specific code: registers of an interrupted thread, the current frame pointer, and a clock that a handler
//! may read.

#![expect(unsafe_code, reason = "registers have no safe name")]

use crate::walk::Registers;
use std::arch::asm;
use std::arch::x86_64::_rdtsc;

/// The registers in the context that the kernel passes to a signal handler.
///
/// # Safety
///
/// `context` is the third argument of a running handler that was installed with `SA_SIGINFO`.
#[inline]
pub(crate) unsafe fn interrupted(context: *const libc::c_void) -> Registers {
    // SAFETY: the caller's promise; the kernel has filled it.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let [.., rbp, _, _, _, _, rsp, rip, _, _, _, _, _, _] = registers;
    Registers { ip: *rip as usize, sp: *rsp as usize, fp: *rbp as usize }
}

/// The registers of the function this is inlined into.
#[inline(always)]
pub(crate) fn here() -> Registers {
    let (ip, sp, fp): (usize, usize, usize);
    // SAFETY: reads registers, changes none but the outputs.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) fp, options(nomem, nostack));
    }
    Registers { ip, sp, fp }
}

/// A clock that runs evenly and is equal on all cores of the machines that Linux uses it on. Its unit is found by
/// reading it together with another clock.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { _rdtsc() }
}

/// Reads a word of the stack.
///
/// # Safety
///
/// `at` is aligned, and inside the mapped part of a stack of this thread.
#[inline]
pub(crate) unsafe fn word_at(at: usize) -> usize {
    // SAFETY: the caller's promise. Volatile, since any function may own the word.
    unsafe { (at as *const usize).read_volatile() }
}
