//! Stops functions that run for too long.
//!
//! ```text
//!  worker:    slot.call = n ── the function ── slot.call = 0
//!  watchdog:  every few ms: the same call as before, and more CPU time than it may have? slot.doomed = n, signal ─┐
//!  worker:    ◀── handler: still call n? then set LuaJIT's hook ◀────────────────────────────────────────────────┘
//!             the hook raises an error at every instruction, so that no `pcall` keeps it
//! ```
//!
//! A hook cannot be set from another thread, whose writes would race with the interpreter's dispatch table; so the
//! worker's own thread sets it, in a signal handler, as LuaJIT's own program does. Compiled code checks hooks since
//! LuaJIT is built with `LUAJIT_ENABLE_CHECKHOOK`. The signal may come in the middle of an update of that table, which
//! would undo it: it is sent again until the call has ended. Time is the thread's CPU time: a busy machine does not
//! cause stops.
//!
//! The watchdog sleeps as long as no function runs.

use crate::sampler::{self, SampleBuffer};
use mlua::{Function, Lua, Table, ffi};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;
use stillgate_profiler::threads::set_interpreter;
use stillgate_profiler::timer::cpu_time_of;

/// CPU time that one run of a function may take.
pub const RUN_TIME_MAX: Duration = Duration::from_millis(50);
/// CPU time limit on a thread that does not serve requests.
pub const WORK_TIME_MAX: Duration = Duration::from_secs(5);
/// The watchdog's interval; a function may run this much longer.
const TICK: Duration = Duration::from_millis(5);
/// After so many ticks without a call the watchdog sleeps until the next one.
const IDLE_TICKS_MAX: u32 = 200;

/// The error of a stopped function.
const STOPPED: &CStr = c"it ran for more than 50 ms of CPU time and was stopped";
const STOPPED_WORK: &CStr = c"it ran for more than 5 s of CPU time and was stopped";

/// One VM, as the watchdog sees it.
pub(crate) struct VmSlot {
    /// The running call; zero: none.
    pub(crate) call: AtomicU64,
    /// The call that must be stopped.
    pub(crate) doomed: AtomicU64,
    /// CPU time limit of the call, in nanoseconds.
    limit_ns: AtomicU64,
    /// The call that the watchdog last saw, and the thread's CPU time then, in nanoseconds.
    seen: AtomicU64,
    began_ns: AtomicU64,
    pub(crate) state: AtomicPtr<ffi::lua_State>,
    pub(crate) thread: libc::pid_t,
    /// Samples of profiles.
    pub(crate) kept: SampleBuffer,
}

/// A VM that is watched; dropped before the VM.
pub(crate) struct WatchedVm {
    slot: Arc<VmSlot>,
    last: Cell<u64>,
}

thread_local! {
    /// The slot of the VM that runs on this thread, for the handler.
    static RUNNING: Cell<*const VmSlot> = const { Cell::new(ptr::null()) };
}

/// A running call, until it ends in any way.
struct RunningCall<'a> {
    slot: &'a VmSlot,
    before: *const VmSlot,
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        // From here on the handler does nothing: it runs on this thread.
        self.slot.call.store(0, Ordering::SeqCst);
        RUNNING.set(self.before);
    }
}

static SLOTS: Mutex<Vec<Arc<VmSlot>>> = Mutex::new(Vec::new());
static IS_ASLEEP: AtomicBool = AtomicBool::new(false);
static WATCHDOG: OnceLock<Thread> = OnceLock::new();

impl WatchedVm {
    /// Watches a new VM of this thread.
    pub(crate) fn new(lua: &Lua) -> mlua::Result<WatchedVm> {
        install();
        prepare_hook(lua)?;
        let state = lua.exec_raw_lua(|raw| raw.state());
        // SAFETY: it only returns the calling thread's number.
        let thread = unsafe { libc::gettid() };
        let (call, doomed, seen, began_ns) = Default::default();
        let (limit_ns, state, kept) =
            (AtomicU64::new(nanos(RUN_TIME_MAX)), AtomicPtr::new(state), SampleBuffer::default());
        let slot = Arc::new(VmSlot { call, doomed, limit_ns, seen, began_ns, state, thread, kept });
        slots().push(slot.clone());
        Ok(WatchedVm { slot, last: Cell::new(0) })
    }

    /// Like [`WatchedVm::run`], with another limit.
    pub(crate) fn run_for<R>(&self, limit: Duration, call: impl FnOnce() -> R) -> (R, bool) {
        self.slot.limit_ns.store(nanos(limit), Ordering::SeqCst);
        let ran = self.run(call);
        self.slot.limit_ns.store(nanos(RUN_TIME_MAX), Ordering::SeqCst);
        ran
    }

    /// Like [`WatchedVm::run`], for a call that continues and has `used` some of its time already. Also returns its
    /// total.
    pub(crate) fn resume_run<R>(&self, used: Duration, call: impl FnOnce() -> R) -> (R, bool, Duration) {
        let left = RUN_TIME_MAX.saturating_sub(used);
        let before = self.slot.cpu_time();
        let (result, is_stopped) = match left.is_zero() {
            true => self.run(|| {
                self.slot.doomed.store(self.last.get(), Ordering::SeqCst);
                // SAFETY: the state is this thread's and lives as long as `self`.
                unsafe {
                    ffi::lua_sethook(self.slot.state.load(Ordering::Relaxed), Some(raise), ffi::LUA_MASKCOUNT, 1)
                };
                call()
            }),
            false => self.run_for(left, call),
        };
        (result, is_stopped, used + self.slot.cpu_time().saturating_sub(before))
    }

    /// CPU time of the last call, as far as the watchdog has seen it: up to a tick too little. This makes calls no more
    /// expensive.
    pub(crate) fn used_by_last(&self) -> Duration {
        match self.slot.seen.load(Ordering::SeqCst) == self.last.get() {
            true => self.slot.used(),
            false => Duration::ZERO,
        }
    }

    /// Runs `call`, and returns whether it had to be stopped.
    #[inline]
    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> (R, bool) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let running = RunningCall { slot: &self.slot, before: RUNNING.replace(Arc::as_ptr(&self.slot)) };
        // Before the look at `IS_ASLEEP`: either we see that the watchdog sleeps, or it sees the call.
        self.slot.call.store(number, Ordering::SeqCst);
        if IS_ASLEEP.load(Ordering::SeqCst) {
            wake();
        }
        let result = call();
        drop(running);
        let is_stopped = self.slot.doomed.load(Ordering::SeqCst) == number;
        if is_stopped {
            // SAFETY: the state is this thread's and lives as long as `self`.
            unsafe { take_hook_away(self.slot.state.load(Ordering::Relaxed)) };
        }
        (result, is_stopped)
    }
}

impl Drop for WatchedVm {
    fn drop(&mut self) {
        slots().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

const fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The slot of the VM that runs on this thread; null: none does. Also for signal handlers.
pub(crate) fn running_slot() -> *const VmSlot {
    RUNNING.get()
}

/// Whether the call that runs on this thread must be stopped. LuaJIT's hook cannot interrupt native code: long
/// operations check this now and then.
pub(crate) fn is_doomed() -> bool {
    let slot = RUNNING.get();
    if slot.is_null() {
        return false;
    }
    // SAFETY: `RunningCall` removes it before its VM, which owns the slot, can go.
    let slot = unsafe { &*slot };
    slot.call.load(Ordering::SeqCst) == slot.doomed.load(Ordering::SeqCst)
}

/// The slots of all VMs.
pub(crate) fn live() -> Vec<Arc<VmSlot>> {
    slots().clone()
}

fn slots() -> std::sync::MutexGuard<'static, Vec<Arc<VmSlot>>> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn signal_number() -> c_int {
    libc::SIGRTMIN() + 5
}

#[cold]
fn wake() {
    if let Some(thread) = WATCHDOG.get() {
        thread.unpark();
    }
}

/// Installs the handler and starts the thread, once in the process.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_interpreter(sampler::ask);
        // SAFETY: the handler below touches nothing that a signal could find half done: two atomics and LuaJIT's hook.
        let installed = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stop as extern "C" fn(c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            // One signal at a time: frames of several do not fit on a small alternate stack.
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(signal_number(), &raw const action, ptr::null_mut())
        };
        assert_eq!(installed, 0, "a real-time signal can have a handler");
        let thread =
            thread::Builder::new().name("lua-watchdog".to_owned()).spawn(watch).expect("a thread at the start");
        WATCHDOG.get_or_init(|| thread.thread().clone());
    });
}

/// The watchdog's thread.
fn watch() {
    let mut idle = 0;
    loop {
        thread::park_timeout(TICK);
        let is_busy = check_vms();
        idle = if is_busy { 0 } else { idle + 1 };
        if idle < IDLE_TICKS_MAX {
            continue;
        }
        IS_ASLEEP.store(true, Ordering::SeqCst);
        if !slots().iter().any(|slot| slot.call.load(Ordering::SeqCst) != 0) {
            thread::park();
        }
        IS_ASLEEP.store(false, Ordering::SeqCst);
        idle = 0;
    }
}

/// Checks each VM once; `false`: no function has run since the last time.
fn check_vms() -> bool {
    let mut is_busy = false;
    for slot in slots().iter() {
        let call = slot.call.load(Ordering::SeqCst);
        if call == 0 {
            continue;
        }
        is_busy = true;
        if call != slot.seen.load(Ordering::SeqCst) {
            slot.began_ns.store(nanos(slot.cpu_time()), Ordering::SeqCst);
            slot.seen.store(call, Ordering::SeqCst);
        } else if slot.used() >= slot.limit() {
            slot.doomed.store(call, Ordering::SeqCst);
            // SAFETY: the thread lives: its slot is taken from the list, under this lock, before it ends.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), slot.thread, signal_number()) };
        }
    }
    is_busy
}

impl VmSlot {
    fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit_ns.load(Ordering::SeqCst))
    }

    /// CPU time since the watchdog saw the call.
    fn used(&self) -> Duration {
        self.cpu_time().saturating_sub(Duration::from_nanos(self.began_ns.load(Ordering::SeqCst)))
    }

    fn cpu_time(&self) -> Duration {
        // The thread lives: its slot is taken from the list before it ends.
        cpu_time_of(self.thread).unwrap_or_default()
    }
}

/// The handler, on the thread whose function runs for too long.
extern "C" fn stop(_: c_int) {
    let slot = RUNNING.get();
    if slot.is_null() {
        return;
    }
    // SAFETY: `RUNNING` is set while the slot's owner is borrowed by `WatchedVm::run` on this very thread.
    let slot = unsafe { &*slot };
    let call = slot.call.load(Ordering::SeqCst);
    if call != 0 && call == slot.doomed.load(Ordering::SeqCst) {
        // SAFETY: allowed by LuaJIT's manual, from a signal handler of the thread that runs the state.
        unsafe { ffi::lua_sethook(slot.state.load(Ordering::Relaxed), Some(raise), ffi::LUA_MASKCOUNT, 1) };
    }
}

unsafe extern "C-unwind" fn raise(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    /// Most calls that are searched for one of the user's.
    const LEVELS_MAX: c_int = 30;
    let slot = RUNNING.get();
    // SAFETY: as in `stop`: the hook runs within the call.
    let is_work = !slot.is_null() && unsafe { (*slot).limit() } > RUN_TIME_MAX;
    let stopped = if is_work { STOPPED_WORK } else { STOPPED };
    // SAFETY: LuaJIT calls the hook with the running state, and with room on its stack. Fields of `place` are read only
    // if `lua_getinfo` has filled them. `lua_error` does not return, and nothing here needs to be dropped.
    unsafe {
        let mut place: ffi::lua_Debug = std::mem::zeroed();
        for level in 0..LEVELS_MAX {
            if ffi::lua_getstack(state, level, &raw mut place) == 0 {
                break;
            }
            // The names of the prelude's chunks begin with a bracket.
            if ffi::lua_getinfo(state, c"Sl".as_ptr(), &raw mut place) != 0
                && place.currentline > 0
                && place.short_src[0] != b'(' as c_char
            {
                ffi::lua_pushfstring(
                    state,
                    c"%s:%d: %s".as_ptr(),
                    place.short_src.as_ptr(),
                    place.currentline,
                    stopped.as_ptr(),
                );
                ffi::lua_error(state);
            }
        }
        ffi::lua_pushstring_(state, stopped.as_ptr());
        ffi::lua_error(state);
    }
}

// Removes LuaJIT's hook so that its compiler can continue.
//
// A call of a hook aborts the compiler's recording. The compiler tidies up at the next instruction, but only if a hook
// is still set. If the first call removes the hook, nothing tidies up: LuaJIT compiles nothing more, and an exit of
// machine code that has become hot starts on a half-finished recording, which can end the process. So an empty
// function is run before the hook is removed. It is never compiled, so it starts no recording either.

/// Registry key of the function.
const IDLE_FUNCTION: &CStr = c"stillgate.idle";

/// Registers the function in a new VM.
fn prepare_hook(lua: &Lua) -> mlua::Result<()> {
    let jit: Table = lua.globals().get("jit")?;
    let text = "local jit = ...  local function idle() end  jit.off(idle)  return idle";
    let idle: Function = lua.load(text).set_name("=(hook)").call(jit)?;
    lua.set_named_registry_value(&IDLE_FUNCTION.to_string_lossy(), idle)
}

/// Removes the hook.
///
/// # Safety
///
/// The state belongs to a VM that was prepared and that runs on this thread, in a hook or outside of all functions.
pub(crate) unsafe fn take_hook_away(state: *mut ffi::lua_State) {
    // SAFETY: by the caller's contract; there is room for two values, and the stack is left unchanged.
    unsafe {
        if ffi::lua_checkstack(state, 2) != 0 {
            ffi::lua_sethook(state, Some(nothing), ffi::LUA_MASKCOUNT, 1);
            ffi::lua_getfield(state, ffi::LUA_REGISTRYINDEX, IDLE_FUNCTION.as_ptr());
            if ffi::lua_pcall(state, 0, 0, 0) != 0 {
                ffi::lua_pop(state, 1);
            }
        }
        ffi::lua_sethook(state, None, 0, 0);
    }
}

unsafe extern "C-unwind" fn nothing(_: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {}
