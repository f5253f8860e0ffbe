//! One worker's LuaJIT: its sandbox, the loaded programs, and the running coroutines.
//!
//! ```text
//!  run(program, host) ──▶ idle coroutine ──▶ functions … ──▶ the end: the coroutine is idle again
//!                                              ├─ answers, fails: the coroutine is dropped
//!                                              └─ waits: the coroutine goes with the request ── resume ──▶ …
//! ```
//!
//! A run costs no new coroutine and no closure. A request's `ctx` is a record in the VM that its [`Context`] names.

use crate::bridge::{Bridge, CheckSchema, NoRequest, WHILE_LOADING};
use crate::call::{
    CallReply, FailureKind, HttpCall, HttpReply, LinkCall, MEMORY_BYTES_MAX, PausedRun, RunFailure, RunOutcome,
    RunUsage, RunWait, WAITS_MAX, WorkCall, describe, failed_outcome,
};
use crate::host::Host;
use crate::jit::JitMonitor;
use crate::json::{self, Style};
use crate::prelude::{self, PreludeFunctions};
use crate::program::{self, CallKind, Program};
use crate::watchdog::WatchedVm;
use mlua::{Error, IntoLuaMulti, Lua, LuaOptions, LuaString, StdLib, Table, Thread, Value};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// If a run has run out of memory, and more than this is in use after a garbage collection, the VM is replaced.
const EXHAUSTED_BYTES: usize = MEMORY_BYTES_MAX / 4 * 3;
/// Garbage that a run may leave to the next one, where few objects are alive.
const GARBAGE_BYTES_MAX: usize = MEMORY_BYTES_MAX / 16;
/// Compiled code is suspected of keeping memory where a collection leaves more than this in use.
const SUSPICIOUS_BYTES: usize = MEMORY_BYTES_MAX / 8;

/// Data that functions keep for one request between its phases: `ctx` and `ngx.ctx`. Empty until a function sets
/// something.
#[derive(Debug, Default)]
pub struct Context {
    generation: u64,
    /// Number of the record; zero: none.
    id: u32,
}

impl Context {
    /// Whether functions keep no data for the request.
    pub fn is_empty(&self) -> bool {
        self.id == 0
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.id != 0 {
            // When a thread ends, its VM is gone already.
            let _ = RELEASED.try_with(|released| released.borrow_mut().push((self.generation, self.id)));
        }
    }
}

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
    /// The VM for texts of a configuration, which is read on threads that do not serve requests.
    static CHECKER: RefCell<Option<Vm>> = const { RefCell::new(None) };
    /// Records of requests that have ended.
    static RELEASED: RefCell<Vec<(u64, u32)>> = const { RefCell::new(Vec::new()) };
    static GENERATION: Cell<u64> = const { Cell::new(0) };
}

/// Runs the functions of a program for a request.
pub fn run(program: &Arc<Program>, host: &mut dyn Host, context: &mut Context) -> RunOutcome {
    run_part(program, 0, host, context)
}

/// Runs one part of a program: the plugin's function for a phase of [`crate::PHASES`], which must exist.
pub fn run_part(program: &Arc<Program>, part: usize, host: &mut dyn Host, context: &mut Context) -> RunOutcome {
    with_vm(|vm| vm.run(program, part, host, context))
}

/// A number for [`Host::start_timer`], distinct from those of all other timers and programs of this process.
pub fn timer_number() -> u64 {
    /// Above the numbers of programs, and exact as a number of Lua.
    const FIRST: u64 = 1 << 48;
    static NEXT: AtomicU64 = AtomicU64::new(FIRST);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs the function of a timer that a function of the program has started, by the number that its host assigned.
pub fn run_timer(program: &Arc<Program>, timer: u64, host: &mut dyn Host, context: &mut Context) -> RunOutcome {
    with_vm(|vm| match vm.loaded.contains_key(&program.id) {
        true => vm.start(timer, program, host, context),
        // The VM was replaced, or had no memory for the program.
        false => memory_used_up(),
    })
}

/// Continues a run that has waited, for the same request.
pub fn resume(paused: PausedRun, host: &mut dyn Host, context: &mut Context) -> RunOutcome {
    with_vm(|vm| match paused.generation == vm.generation {
        true => vm.continue_run(paused.thread, (0, 0, false), &paused.program, Some(paused.usage), host, context),
        false => memory_used_up(),
    })
}

/// The fields that functions have set in `ctx` of a request, as JSON with sorted keys. `None`: none, or they cannot be
/// represented in JSON.
pub fn fields_in_context(context: &Context, name: &str) -> Option<serde_json::Value> {
    VM.with_borrow(|slot| {
        let vm = slot.as_ref().filter(|vm| vm.generation == context.generation && !context.is_empty())?;
        let value = vm.entries.kept.call::<Value>((context.id, name)).ok().filter(|value| !value.is_nil())?;
        serde_json::from_slice(&json::write(&value, &vm.array_mt, Style { sorted: true, ..Style::default() }).ok()?)
            .ok()
    })
}

/// Memory of this thread's VM that was not freed yet. After a run that is at most half as much again as what lives, or a few MiB more.
pub fn memory_in_use() -> usize {
    VM.with_borrow(|slot| slot.as_ref().map_or(0, |vm| vm.lua.used_memory()))
}

/// Calls `then` with this thread's state of the compiler; `None`: no function has run.
pub(crate) fn with_monitor<R>(then: impl FnOnce(&JitMonitor) -> R) -> Option<R> {
    VM.with_borrow(|slot| slot.as_ref().map(|vm| then(&vm.monitor)))
}

/// See [`crate::check`].
pub(crate) fn check(source: &str) -> Result<(), String> {
    let said =
        with_checker(None, WHILE_LOADING, |vm| vm.watched.run(|| vm.entries.check.call::<Option<String>>(source)).0);
    said.map_err(|error| format!("pcall error: {error}"))?.map_or(Ok(()), Err)
}

/// Runs a closure in the VM that checks texts of a configuration. A VM in which it failed is not used again.
pub(crate) fn with_checker<R>(
    check_schema: Option<CheckSchema>,
    why: &'static str,
    then: impl FnOnce(&Vm) -> mlua::Result<R>,
) -> Result<R, String> {
    CHECKER.with_borrow_mut(|slot| {
        let vm = match slot.take() {
            Some(vm) => vm,
            None => Vm::new().map_err(|error| format!("there is no LuaJIT: {error}"))?,
        };
        let mut host = NoRequest { check_schema, why };
        let result = vm.bridge.run_with_host(&mut host, || then(&vm)).map_err(|error| describe(&error).1)?;
        *slot = Some(vm);
        Ok(result)
    })
}

/// Continues a run that has waited for another server or thread; an error is the reason why there is no reply.
pub fn resume_with(
    paused: PausedRun,
    reply: Result<CallReply, String>,
    host: &mut dyn Host,
    context: &mut Context,
) -> RunOutcome {
    with_vm(|vm| match paused.generation == vm.generation {
        true => vm.resume_with_reply(paused, reply, host, context),
        false => memory_used_up(),
    })
}

#[cold]
fn memory_used_up() -> RunOutcome {
    failed_outcome(FailureKind::Memory, "other functions have used up the memory of this worker's functions".to_owned())
}

fn with_vm(then: impl FnOnce(&mut Vm) -> RunOutcome) -> RunOutcome {
    VM.with_borrow_mut(|slot| {
        let vm = match slot {
            Some(vm) => vm,
            None => match Vm::new() {
                Ok(vm) => slot.insert(vm),
                Err(error) => return failed_outcome(FailureKind::Memory, format!("there is no LuaJIT: {error}")),
            },
        };
        let outcome = then(vm);
        vm.make_room();
        if vm.is_exhausted {
            *slot = None;
        }
        outcome
    })
}

pub(crate) struct Vm {
    pub(crate) watched: WatchedVm,
    monitor: JitMonitor,
    pub(crate) entries: PreludeFunctions,
    idle: Option<Thread>,
    /// The flag says whether it is a plugin's file.
    loaded: HashMap<u64, (Weak<Program>, bool)>,
    /// The number of dropped programs when it last forgot them.
    gone: u64,
    generation: u64,
    is_exhausted: bool,
    /// Garbage is collected after a run that leaves more bytes than this in use.
    collects_above: usize,
    /// Compiled code is thrown away if a collection leaves more bytes than this in use.
    flushes_above: usize,
    pub(crate) array_mt: Table,
    bridge: Rc<Bridge>,
    pub(crate) lua: Lua,
}

/// The values that a coroutine yields: the type, the record, a number, a text.
type YieldedValues = (u32, u32, Option<f64>, Option<LuaString>);

impl Vm {
    fn new() -> mlua::Result<Vm> {
        let libraries = StdLib::TABLE
            | StdLib::STRING
            | StdLib::BIT
            | StdLib::MATH
            | StdLib::OS
            | StdLib::PACKAGE
            | StdLib::JIT
            | StdLib::FFI
            | StdLib::DEBUG;
        // SAFETY: `ffi` and `debug` are what makes this unsafe. The prelude, which is ours, takes what it needs of them
        // into locals and closes both before any other code is loaded.
        let lua = unsafe { Lua::unsafe_new_with(libraries, LuaOptions::default()) };
        let watched = WatchedVm::new(&lua)?;
        let bridge = Rc::new(Bridge::default());
        let array_mt = lua.create_table()?;
        let shared = lua.create_table()?;
        let generation = GENERATION.get() + 1;
        GENERATION.set(generation);
        let monitor = JitMonitor::new(&lua, &shared, generation)?;
        let entries = prelude::run(&lua, &shared, &bridge, &array_mt)?;
        lua.set_memory_limit(MEMORY_BYTES_MAX)?;
        Ok(Vm {
            watched,
            monitor,
            entries,
            idle: None,
            loaded: HashMap::new(),
            gone: program::dropped_programs(),
            generation,
            is_exhausted: false,
            collects_above: GARBAGE_BYTES_MAX,
            flushes_above: SUSPICIOUS_BYTES,
            array_mt,
            bridge,
            lua,
        })
    }

    fn run(&mut self, program: &Arc<Program>, part: usize, host: &mut dyn Host, context: &mut Context) -> RunOutcome {
        self.release();
        if self.gone != program::dropped_programs() {
            self.forget();
        }
        if !self.loaded.contains_key(&program.id)
            && let Err(failure) = self.load(program)
        {
            return RunOutcome::Failed(failure);
        }
        self.start(program.id + part as u64, program, host, context)
    }

    /// Runs the function that is loaded under a number.
    fn start(&mut self, id: u64, program: &Arc<Program>, host: &mut dyn Host, context: &mut Context) -> RunOutcome {
        if context.generation != self.generation {
            *context = Context { generation: self.generation, id: 0 };
        }
        let thread = match self.idle.take() {
            Some(thread) => thread,
            None => match self.lua.create_thread(self.entries.runner.clone()) {
                Ok(thread) => thread,
                Err(error) => return RunOutcome::Failed(self.failure(&error, false)),
            },
        };
        self.continue_run(thread, (id, context.id, context.id != 0), program, None, host, context)
    }

    /// Passes a reply to the function that waits for it.
    fn resume_with_reply(
        &mut self,
        PausedRun { thread, usage: spent, program, .. }: PausedRun,
        reply: Result<CallReply, String>,
        host: &mut dyn Host,
        context: &mut Context,
    ) -> RunOutcome {
        let texts = match &reply {
            Ok(CallReply::Http(HttpReply { headers, body, .. })) => [&headers[..], body],
            Ok(CallReply::Work(result) | CallReply::Link(result)) => [&result[..], &[]],
            Err(why) => [why.as_bytes(), &[]],
        };
        let texts = texts.map(|text| self.lua.create_string(text));
        let (first, second) = match texts {
            [Ok(first), Ok(second)] => (first, second),
            [Err(error), _] | [_, Err(error)] => return RunOutcome::Failed(self.failure(&error, false)),
        };
        match reply {
            Ok(CallReply::Http(HttpReply { status, .. })) => {
                self.continue_run(thread, (status, first, second), &program, Some(spent), host, context)
            }
            Ok(CallReply::Work(_) | CallReply::Link(_)) => {
                self.continue_run(thread, first, &program, Some(spent), host, context)
            }
            Err(_) => self.continue_run(thread, (Value::Nil, first), &program, Some(spent), host, context),
        }
    }

    /// `usage`: `None` at the start of the run. Most runs never wait, and none of these pays for the clock.
    fn continue_run(
        &mut self,
        thread: Thread,
        arguments: impl IntoLuaMulti,
        program: &Arc<Program>,
        usage: Option<RunUsage>,
        host: &mut dyn Host,
        context: &mut Context,
    ) -> RunOutcome {
        let (waits, bytes_before) = usage.map_or((0, 0), |spent| (spent.waits, spent.bytes));
        let used_before = self.lua.used_memory();
        let resume = || thread.resume::<YieldedValues>(arguments);
        let (yielded, is_stopped, used) = self.bridge.run_with_host(host, || match usage.map(|spent| spent.time) {
            None => {
                let (yielded, is_stopped) = self.watched.run(resume);
                (yielded, is_stopped, None)
            }
            Some(used) => {
                let (yielded, is_stopped, used) = self.watched.resume_run(used, resume);
                (yielded, is_stopped, Some(used))
            }
        });
        self.bridge.trim();
        let used_after = self.lua.used_memory();
        self.monitor.publish(used_after);
        let bytes = bytes_before.max(used_after.saturating_sub(used_before));
        let (kind, id, number, text) = match yielded {
            Ok(yielded) => yielded,
            Err(error) => {
                context.id = self.entries.failed.call(context.id).unwrap_or(context.id);
                return RunOutcome::Failed(self.failure(&error, is_stopped).of(program));
            }
        };
        context.id = id;
        // The first wait of this run beyond the limit.
        if matches!(kind, 2 | 3 | 5..=7) && waits >= WAITS_MAX {
            let text = format!("it waited more than {WAITS_MAX} times and was stopped");
            return RunOutcome::Failed(RunFailure { kind: FailureKind::Time, text }.of(program));
        }
        let used = || RunUsage { time: used.unwrap_or_else(|| self.watched.used_by_last()), waits: waits + 1, bytes };
        match kind {
            0 => {
                self.idle = Some(thread);
                RunOutcome::Done(number == Some(1.0))
            }
            1 => {
                let status = number.unwrap_or(200.0);
                if !(200.0..600.0).contains(&status) {
                    return failed_outcome(
                        FailureKind::Error,
                        format!("{status} is not a valid status; use 200 to 599"),
                    );
                }
                RunOutcome::Answer { status: status as u16, body: text.map(|text| text.as_bytes().to_vec()) }
            }
            2 => {
                let time = Duration::try_from_secs_f64(number.unwrap_or_default()).unwrap_or(Duration::MAX);
                RunOutcome::Wait(RunWait::Sleep(time), self.pause(thread, program, used()))
            }
            3 => RunOutcome::Wait(RunWait::Body, self.pause(thread, program, used())),
            5..=7 => {
                let message = text.map_or_else(Vec::new, |text| text.as_bytes().to_vec());
                let wait = match kind {
                    5 => HttpCall::read(&message, number.unwrap_or_default()).map(|call| RunWait::Call(Box::new(call))),
                    6 => WorkCall::read(&message).map(|call| RunWait::Work(Box::new(call))),
                    _ => LinkCall::read(&message).map(|call| RunWait::Link(Box::new(call))),
                };
                match wait {
                    Some(wait) => RunOutcome::Wait(wait, self.pause(thread, program, used())),
                    None => failed_outcome(FailureKind::Error, "no call; this is a bug of the gateway".to_owned()),
                }
            }
            _ => RunOutcome::Done(false),
        }
    }

    fn pause(&self, thread: Thread, program: &Arc<Program>, usage: RunUsage) -> PausedRun {
        PausedRun { thread, program: Arc::clone(program), generation: self.generation, usage }
    }

    /// Forgets programs that were dropped.
    #[cold]
    fn forget(&mut self) {
        self.gone = program::dropped_programs();
        let gone = self.loaded.extract_if(|_, (program, _)| program.strong_count() == 0);
        for (id, (_, is_plugin)) in gone.collect::<Vec<_>>() {
            self.forget_program(id, is_plugin);
        }
    }

    #[cold]
    fn forget_program(&self, id: u64, is_plugin: bool) {
        let forget = if is_plugin { &self.entries.forget_plugin } else { &self.entries.forget };
        // This sets fields of a table to nil and reports removed texts, for which there is memory again at the latest
        // then.
        let _ = forget.call::<()>(id);
    }

    /// Compiles the functions of a program.
    #[cold]
    fn load(&mut self, program: &Arc<Program>) -> Result<(), RunFailure> {
        let conf =
            json::to_lua(&self.lua, &program.conf, &self.array_mt).map_err(|error| self.failure(&error, false))?;
        let name = program.name.as_str();
        let module = program.module.as_ref().map(|module| module.to_lua(self)).transpose();
        let module = module.map_err(|error| self.failure(&error, false))?;
        let is_module = module.is_some();
        let (is_plugin, is_filter) = (program.kind == CallKind::Plugin, program.kind == CallKind::Filter);
        let (result, is_stopped) = self.watched.run(|| match module {
            Some(module) => self.entries.load_plugin.call::<()>((program.id, name, conf, module)),
            None => self.entries.load.call((program.id, name, program.sources.clone(), conf, is_plugin, is_filter)),
        });
        if let Err(error) = result {
            self.forget_program(program.id, is_module);
            return Err(self.failure(&error, is_stopped).of(program));
        }
        self.loaded.insert(program.id, (Arc::downgrade(program), is_module));
        Ok(())
    }

    /// Frees the records of requests that have ended.
    #[inline]
    fn release(&self) {
        RELEASED.with_borrow_mut(|released| {
            for (generation, id) in released.drain(..) {
                if generation == self.generation {
                    // It only sets fields to nil.
                    let _ = self.entries.release.call::<()>(id);
                }
            }
        });
    }

    /// Frees memory for the next run: LuaJIT does not collect garbage before it refuses an allocation. The next collection is due
    /// after half as much garbage as there are live objects, so that these are not traversed too often, and at the latest when three
    /// quarters of the free memory are used.
    #[inline]
    fn make_room(&mut self) {
        if self.lua.used_memory() > self.collects_above && !self.is_exhausted {
            self.collect();
        }
    }

    #[cold]
    fn collect(&mut self) {
        self.is_exhausted = self.lua.gc_collect().is_err();
        let mut used = self.lua.used_memory();
        if used > self.flushes_above {
            used = self.flush();
        }
        let free = MEMORY_BYTES_MAX.saturating_sub(used);
        self.collects_above = used + (used / 2).max(GARBAGE_BYTES_MAX).min(free / 4 * 3);
    }

    /// Throws compiled code away, and returns the memory in use then. LuaJIT computes constant expressions when it compiles, as
    /// `("x"):rep(8e6)`, and the code keeps their values, also the code of functions that are gone. The next time is due when half as
    /// much again is in use, so that functions with much data of their own are not compiled again and again.
    #[cold]
    fn flush(&mut self) -> usize {
        self.is_exhausted |= self.entries.flush.call::<()>(()).and_then(|()| self.lua.gc_collect()).is_err();
        let used = self.lua.used_memory();
        self.flushes_above = (used + used / 2).max(SUSPICIOUS_BYTES);
        used
    }

    /// Converts an error to a failure; if memory has run out, makes room.
    #[cold]
    fn failure(&mut self, error: &Error, is_stopped: bool) -> RunFailure {
        let (kind, text) = describe(error);
        if is_stopped {
            return RunFailure { kind: FailureKind::Time, text };
        }
        if kind == FailureKind::Memory {
            self.flushes_above = 0;
            self.collect();
            self.is_exhausted |= self.lua.used_memory() > EXHAUSTED_BYTES;
        }
        RunFailure { kind, text }
    }
}
