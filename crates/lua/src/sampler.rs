//! Samples the CPU time of functions in Lua, by their own stacks.
//!
//! ```text
//!  timer of the worker's CPU time ── signal ──▶ where is the thread? set LuaJIT's hook ──▶ the next instruction: the Lua stack
//! ```
//!
//! A signal may come anywhere, so the stack is read when LuaJIT is about to interpret an instruction. Compiled code
//! checks hooks at the beginning of each trace (`LUAJIT_ENABLE_CHECKHOOK`, which the watchdog needs): a sample taken
//! there shows the trace that follows, which in a loop is the same.
//!
//! A hook that stays and counts interpreted instructions would show nothing: as long as it is set, LuaJIT leaves all
//! compiled code. So instructions are counted by time: a sample in the interpreter itself (`address`, whose function
//! the reader finds) represents the instructions that it interprets in a period; one in compiled code, in C or in the
//! garbage collector represents none.
//!
//! No timer is armed while no profile is running.

use crate::watchdog::{self, VmSlot};
use mlua::ffi;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use stillgate_profiler::threads::{ScriptFrame, add_script};
use stillgate_profiler::timer::{CpuTimer, periods_of};

/// Most frames of a stack.
const FRAMES_MAX: c_int = 64;
/// Most distinct stacks, with the address of the thread, of one VM.
const STACKS_MAX: usize = 32_768;

/// A function on the stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LuaFrame {
    /// Name of its text; `[C]` for functions of LuaJIT and of the gateway.
    pub source: String,
    /// The first line of the function; zero: of a whole text, or of C.
    pub first_line: u32,
    /// The current line; zero: of C.
    pub line: u32,
    /// The caller's name for it; empty: unknown.
    pub name: String,
}

/// A sampled stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledStack {
    /// The thread's name.
    pub thread: String,
    /// The stack, innermost function first.
    pub stack: Vec<LuaFrame>,
    /// The program counter of the thread.
    pub address: u64,
    /// Number of periods of CPU time.
    pub periods: u64,
}

/// The samples of one VM.
#[derive(Default)]
pub(crate) struct SampleBuffer {
    /// Periods of a sample whose stack was not read yet, with its address and call.
    pending: AtomicU64,
    address: AtomicU64,
    call: AtomicU64,
    /// The call whose stack a profile of all native code wants, and the ticks of its first and last sample; zero: none.
    asked_call: AtomicU64,
    asked_first: AtomicU64,
    asked_last: AtomicU64,
    stacks: Mutex<HashMap<(Vec<LuaFrame>, u64), u64>>,
    lost: AtomicU64,
}

/// Whether a profile is running. A signal may come after it has ended.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// A running profile; one at a time.
pub struct LuaProfiling {
    period: Duration,
    armed: Vec<(Arc<VmSlot>, CpuTimer)>,
}

impl LuaProfiling {
    /// Starts a profile.
    pub fn begin(hz: u32) -> io::Result<LuaProfiling> {
        install()?;
        IS_ON.store(true, Ordering::SeqCst);
        let mut sampling = LuaProfiling { period: Duration::from_secs(1) / hz.max(1), armed: Vec::new() };
        sampling.arm_new()?;
        Ok(sampling)
    }

    /// Arms timers for VMs that were created since.
    pub fn arm_new(&mut self) -> io::Result<()> {
        for slot in watchdog::live() {
            if self.armed.iter().any(|(armed, _)| Arc::ptr_eq(armed, &slot)) {
                continue;
            }
            // Drops the rest of an earlier profile.
            drop(slot.kept.take());
            slot.kept.lost.store(0, Ordering::Relaxed);
            match CpuTimer::arm(slot.thread, signal_number(), 0, self.period) {
                Ok(timer) => self.armed.push((slot, timer)),
                // Its thread has ended since it was listed.
                Err(_) if Arc::strong_count(&slot) == 1 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the profile: returns the samples, and how many periods of CPU time were lost.
    pub fn end(mut self) -> (Vec<SampledStack>, u64) {
        let (mut all, mut lost) = (Vec::new(), 0);
        for (slot, timer) in std::mem::take(&mut self.armed) {
            drop(timer);
            let thread = name_of(slot.thread);
            lost += slot.kept.lost.load(Ordering::Relaxed);
            let stacks = slot.kept.take();
            all.extend(stacks.into_iter().map(|((stack, address), periods)| SampledStack {
                thread: thread.clone(),
                stack,
                address,
                periods,
            }));
        }
        (all, lost)
    }
}

impl Drop for LuaProfiling {
    fn drop(&mut self) {
        IS_ON.store(false, Ordering::SeqCst);
    }
}

impl SampleBuffer {
    fn take(&self) -> HashMap<(Vec<LuaFrame>, u64), u64> {
        std::mem::take(&mut self.stacks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn name_of(thread: libc::pid_t) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
    name.map_or_else(|_| thread.to_string(), |name| name.trim_end().to_owned())
}

pub(crate) fn signal_number() -> c_int {
    libc::SIGRTMIN() + 6
}

/// Installs the handler, once in the process. It stays installed: a late signal must not end the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: the handler below does what the watchdog's does, and touches atomics.
        let failed = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                sample as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO;
            // One signal at a time: frames of several do not fit on a small alternate stack.
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(signal_number(), &raw const action, null_mut()) != 0
        };
        if failed { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(()) }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// The handler, on the thread that has used so much CPU time.
extern "C" fn sample(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the slot's owner is borrowed by `WatchedVm::run` on this very thread while it is the running one; the kernel has filled
    // `info` and `context`.
    unsafe {
        let Some(slot) = watchdog::running_slot().as_ref() else { return };
        let call = slot.call.load(Ordering::SeqCst);
        if call == 0 || call == slot.doomed.load(Ordering::SeqCst) {
            return;
        }
        // A signal that a process sent represents no time.
        let periods = if (*info).si_code == libc::SI_TIMER { periods_of(info) } else { 1 };
        slot.kept.address.store(address_of(context), Ordering::Relaxed);
        slot.kept.call.store(call, Ordering::Relaxed);
        slot.kept.pending.fetch_add(periods, Ordering::Relaxed);
        // See the watchdog: allowed from a signal handler of the thread that runs the state.
        ffi::lua_sethook(slot.state.load(Ordering::Relaxed), Some(look), ffi::LUA_MASKCOUNT, 1);
    }
}

/// Has a sample of native code joined by the stack of the function that runs; `false`: none does. Called by the
/// profiler's handler.
pub(crate) fn ask(ticks: u64) -> bool {
    // SAFETY: as in `sample`.
    unsafe {
        let Some(slot) = watchdog::running_slot().as_ref() else { return false };
        let call = slot.call.load(Ordering::SeqCst);
        if call == 0 || call == slot.doomed.load(Ordering::SeqCst) {
            return false;
        }
        let kept = &slot.kept;
        if kept.asked_first.load(Ordering::Relaxed) == 0 || kept.asked_call.load(Ordering::Relaxed) != call {
            kept.asked_first.store(ticks, Ordering::Relaxed);
        }
        kept.asked_call.store(call, Ordering::Relaxed);
        kept.asked_last.store(ticks, Ordering::Relaxed);
        ffi::lua_sethook(slot.state.load(Ordering::Relaxed), Some(look), ffi::LUA_MASKCOUNT, 1);
        true
    }
}

/// Joins the samples of native code by the stack.
unsafe fn join(slot: &VmSlot, state: *mut ffi::lua_State) {
    let kept = &slot.kept;
    let first = kept.asked_first.swap(0, Ordering::Relaxed);
    if first == 0 || kept.asked_call.load(Ordering::Relaxed) != slot.call.load(Ordering::SeqCst) {
        return;
    }
    // SAFETY: by the caller's contract, the state runs on this thread, and its hook was called.
    let frames = unsafe { stack_of(state) };
    let frame = |LuaFrame { source, first_line, line, name }: LuaFrame| {
        let function = match (first_line, line) {
            (0, 0) => format!("lua {}", if name.is_empty() { "function of C" } else { &name }),
            (0, _) => format!("lua main chunk ({source})"),
            _ => format!("lua {} ({source}:{first_line})", if name.is_empty() { "function" } else { &name }),
        };
        ScriptFrame { function, file: source, line }
    };
    add_script(first, kept.asked_last.load(Ordering::Relaxed), frames.into_iter().map(frame).collect());
}

/// Where the thread was interrupted.
#[cfg(target_arch = "x86_64")]
unsafe fn address_of(context: *mut c_void) -> u64 {
    // SAFETY: by the caller's contract, from a handler with `SA_SIGINFO`.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] as u64
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn address_of(_: *mut c_void) -> u64 {
    0
}

/// LuaJIT's hook: it is about to interpret an instruction. Memory may be allocated here.
unsafe extern "C-unwind" fn look(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: LuaJIT calls it on the thread of the state, between two instructions.
    unsafe {
        watchdog::take_hook_away(state);
        let Some(slot) = watchdog::running_slot().as_ref() else { return };
        join(slot, state);
        let periods = slot.kept.pending.swap(0, Ordering::Relaxed);
        // If the call has ended since, the stack belongs to another one.
        if periods == 0 || slot.kept.call.load(Ordering::Relaxed) != slot.call.load(Ordering::SeqCst) {
            slot.kept.lost.fetch_add(periods, Ordering::Relaxed);
            return;
        }
        let key = (stack_of(state), slot.kept.address.load(Ordering::Relaxed));
        let mut stacks = slot.kept.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        if stacks.len() >= STACKS_MAX && !stacks.contains_key(&key) {
            slot.kept.lost.fetch_add(periods, Ordering::Relaxed);
            return;
        }
        *stacks.entry(key).or_default() += periods;
    }
}

/// The running functions, innermost first.
unsafe fn stack_of(state: *mut ffi::lua_State) -> Vec<LuaFrame> {
    let text = |at: *const c_char| match at.is_null() {
        true => String::new(),
        // SAFETY: LuaJIT's texts end with zero, and live as long as their function.
        false => unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned(),
    };
    let mut frames = Vec::new();
    // SAFETY: fields of `place` are read only if `lua_getinfo` has filled them; neither call raises errors.
    unsafe {
        let mut place: ffi::lua_Debug = std::mem::zeroed();
        for level in 0..FRAMES_MAX {
            if ffi::lua_getstack(state, level, &raw mut place) == 0 {
                break;
            }
            if ffi::lua_getinfo(state, c"Sln".as_ptr(), &raw mut place) == 0 {
                continue;
            }
            let source = text(place.source);
            let number = |number: c_int| u32::try_from(number).unwrap_or(0);
            frames.push(LuaFrame {
                source: source.strip_prefix('=').map(str::to_owned).unwrap_or(source),
                first_line: number(place.linedefined),
                line: number(place.currentline),
                name: text(place.name),
            });
        }
    }
    frames
}
