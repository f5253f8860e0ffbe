//! State of LuaJIT's compiler for the functions of each worker, from its own events.
//!
//! ```text
//!  LuaJIT ── trace, record ──▶ prelude/jit.lua ──▶ JitMonitor (the worker's own) ── after the run ──▶ JitStats ──▶ any thread
//! ```
//!
//! The compiler emits events only while functions become warm, so a run without any costs one look at a flag. It has no
//! event for blacklisting; the instruction at which a recording began shows that, after the recording has failed.
//!
//! A worker never waits for a reader: it publishes copies.

pub mod examine;
pub mod steps;

use arc_swap::ArcSwap;
use mlua::{FromLuaMulti, Function as LuaFunction, Lua, Table};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

/// Most functions of one worker that are counted separately.
const FUNCTIONS_MAX: usize = 4096;
/// Most lines with a mark, for one worker.
const LINES_MAX: usize = 16_384;
/// Most bytes of text that are kept for display, for one worker.
const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most types of aborts of one worker that are counted separately.
const ABORTS_MAX: usize = 1024;

/// State of a function or a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompileState {
    /// It is in compiled code.
    Compiled,
    /// It is in compiled code, but leaves it for a call that is not compiled.
    Stitched,
    /// It runs in the interpreter: it has not run often enough, or attempts have failed.
    Interpreted,
    /// LuaJIT has blacklisted it, or one of its loops: it stays in the interpreter.
    Blacklisted,
}

impl CompileState {
    /// All states.
    pub const ALL: [CompileState; 4] =
        [CompileState::Compiled, CompileState::Stitched, CompileState::Interpreted, CompileState::Blacklisted];

    /// Name in the API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            CompileState::Compiled => "compiled",
            CompileState::Stitched => "stitched",
            CompileState::Interpreted => "interpreted",
            CompileState::Blacklisted => "blacklisted",
        }
    }
}

/// A function in the text of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFunction {
    /// Its first line; zero: the whole text, which runs once.
    pub first_line: u32,
    /// Its last line.
    pub last_line: u32,
    /// Its lines with code of its own, in order.
    pub lines: Vec<u32>,
}

/// State of a line of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineJit {
    /// Number of traces that contain it.
    pub traces: u32,
    /// The functions that it calls outside of compiled code, with the number of traces for each.
    pub stitches: BTreeMap<String, u32>,
    /// LuaJIT has blacklisted a loop or function that begins here.
    pub is_blacklisted: bool,
}

/// One text, as a worker has loaded it.
#[derive(Debug, Clone, Default)]
pub struct LoadedText {
    /// The text; empty: there was no room for it.
    pub text: Arc<str>,
    /// Its sequence number among all texts loaded in this process, the newest last.
    pub generation: u64,
    /// How often a text of this name is loaded: an old one goes after the new one has come.
    count: usize,
    /// In the order of the text, inner functions after the enclosing one.
    pub functions: Vec<TextFunction>,
    /// Keyed by the first line of the function, and the line.
    pub lines: BTreeMap<(u32, u32), LineJit>,
}

/// A type of recording that ended without machine code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceAbort {
    /// The text that contains the line; the prelude, if no line of a user's text led there.
    pub source: String,
    /// Its line.
    pub line: u32,
    /// The place in the prelude that this line called; empty: the line itself.
    pub within: String,
    /// The called function, if LuaJIT does not compile it.
    pub called: String,
    /// The reason.
    pub reason: TraceAbortReason,
    /// The instruction that is not compiled.
    pub instruction: Option<&'static str>,
    /// The text in which the recording began.
    pub began_source: String,
    /// The line in which it began.
    pub began_line: u32,
}

/// What the compiler has done on one worker.
#[derive(Debug, Clone, Default)]
pub struct JitStats {
    /// Keyed by name.
    pub sources: BTreeMap<String, LoadedText>,
    /// Each with its count.
    pub aborts: BTreeMap<TraceAbort, u64>,
    /// Number of traces that were made.
    pub traces: u64,
    /// How often all machine code was discarded.
    pub flushes: u64,
    /// Size of all current machine code.
    pub machine_code_bytes: u64,
    /// Functions, lines and aborts that did not fit.
    pub lost: u64,
}

/// Totals of all workers since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JitTotals {
    /// Number of traces that were made.
    pub traces: u64,
    /// Recordings without a result, by the reason's number.
    pub aborts: [u64; TraceAbortReason::COUNT],
    /// How often all machine code of a worker was discarded.
    pub flushes: u64,
}

static TRACES: AtomicU64 = AtomicU64::new(0);
static ABORTS: [AtomicU64; TraceAbortReason::COUNT] = [const { AtomicU64::new(0) }; TraceAbortReason::COUNT];
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// The totals of all workers so far.
pub fn totals() -> JitTotals {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    JitTotals { traces: load(&TRACES), aborts: std::array::from_fn(|at| load(&ABORTS[at])), flushes: load(&FLUSHES) }
}

/// One worker's VM, as it was after its last run.
#[derive(Debug, Clone)]
pub struct VmJitReport {
    /// The name of its thread.
    pub thread: String,
    /// Memory in use, limited by [`crate::MEMORY_BYTES_MAX`].
    pub memory_bytes: u64,
    /// Sequence number of the VM on its thread, from one: a VM that has used up its memory is replaced.
    pub generation: u64,
    /// Whether LuaJIT compiles at all: it stops if it gets no memory for machine code.
    pub is_compiling: bool,
    /// State of its compiler.
    pub stats: Arc<JitStats>,
}

/// One worker's published copies.
struct PublishedState {
    thread: String,
    generation: u64,
    memory_bytes: AtomicU64,
    is_compiling: AtomicBool,
    stats: ArcSwap<JitStats>,
}

static PUBLISHED: Mutex<Vec<Weak<PublishedState>>> = Mutex::new(Vec::new());

/// The VMs of all threads that have run functions.
pub fn of_all_threads() -> Vec<VmJitReport> {
    let published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let live = published.iter().filter_map(Weak::upgrade);
    live.map(|published| VmJitReport {
        thread: published.thread.clone(),
        memory_bytes: published.memory_bytes.load(Ordering::Relaxed),
        generation: published.generation,
        is_compiling: published.is_compiling.load(Ordering::Relaxed),
        stats: published.stats.load_full(),
    })
    .collect()
}

impl LoadedText {
    /// The state of a function.
    pub fn state(&self, function: &TextFunction) -> CompileState {
        let lines = self.lines.range((function.first_line, 0)..=(function.first_line, u32::MAX));
        let has = |state| lines.clone().any(|(_, line)| line.state() == state);
        // One line that was blacklisted or left is more important than all that are compiled.
        let found = [CompileState::Blacklisted, CompileState::Stitched, CompileState::Compiled]
            .into_iter()
            .find(|state| has(*state));
        found.unwrap_or(CompileState::Interpreted)
    }
}

impl JitStats {
    /// Number of functions in this state, without whole texts, which run once.
    pub fn functions_in(&self, state: CompileState) -> usize {
        let of_source = |source: &LoadedText| {
            let functions = source.functions.iter().filter(|function| function.first_line > 0);
            functions.filter(|function| source.state(function) == state).count()
        };
        self.sources.values().map(of_source).sum()
    }
}

impl LineJit {
    /// The state of the line.
    pub fn state(&self) -> CompileState {
        match self {
            LineJit { is_blacklisted: true, .. } => CompileState::Blacklisted,
            LineJit { stitches, .. } if !stitches.is_empty() => CompileState::Stitched,
            LineJit { traces: 0, .. } => CompileState::Interpreted,
            _ => CompileState::Compiled,
        }
    }
}

impl fmt::Display for TraceAbort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.reason.text())?;
        if let Some(instruction) = self.instruction {
            write!(out, ": {instruction}")?;
            if let Some(meaning) = examine::meaning_of(instruction) {
                write!(out, " ({meaning})")?;
            }
        }
        if !self.called.is_empty() {
            write!(out, ", in a call of {}", self.called)?;
        }
        if let Some(remedy) = examine::remedy_of(self) {
            write!(out, "; {remedy}")?;
        }
        Ok(())
    }
}

// The worker's end: receives LuaJIT's events, and publishes them after the run.

/// Number of texts loaded so far.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// The state of one VM.
pub(crate) struct JitMonitor {
    events: Rc<EventLog>,
    /// Table shared by the parts of the prelude.
    shared: Table,
    published: Option<Arc<PublishedState>>,
    generation: u64,
}

/// Events, as written by the functions that LuaJIT calls.
#[derive(Default)]
struct EventLog {
    stats: RefCell<JitStats>,
    is_new: Cell<bool>,
}

/// The arguments of an abort from `jit.lua`.
type AbortArguments = (String, u32, String, String, i64, i64, String, u32, u32, bool);

impl JitMonitor {
    /// Registers the event handlers with the prelude.
    pub(crate) fn new(lua: &Lua, shared: &Table, generation: u64) -> mlua::Result<JitMonitor> {
        let events = Rc::new(EventLog::default());
        shared.set("fnew", FNEW)?;
        let numbers = lua.create_table()?;
        for number in blacklisting_instructions() {
            numbers.set(number, true)?;
        }
        shared.set("blacklisting", numbers)?;
        register_handler(lua, shared, &events, "on_compiled", JitStats::record_trace)?;
        register_handler(lua, shared, &events, "on_compiled_line", JitStats::record_compiled_line)?;
        register_handler(lua, shared, &events, "on_aborted", JitStats::record_abort)?;
        register_handler(lua, shared, &events, "on_flushed", JitStats::record_flush)?;
        register_handler(lua, shared, &events, "on_loaded_text", JitStats::add_text)?;
        register_handler(lua, shared, &events, "on_loaded_function", JitStats::add_function)?;
        register_handler(lua, shared, &events, "on_forgotten", JitStats::remove_text)?;
        Ok(JitMonitor { events, shared: shared.clone(), published: None, generation })
    }

    /// The current state.
    pub(crate) fn stats(&self) -> JitStats {
        self.events.stats.borrow().clone()
    }

    /// Number of events so far.
    pub(crate) fn events(&self) -> u64 {
        let stats = self.events.stats.borrow();
        stats.traces + stats.flushes + stats.aborts.values().sum::<u64>() + stats.lost
    }

    /// Starts counting how often lines run. This is slow, and keeps functions in the interpreter.
    pub(crate) fn count_lines(&self) -> mlua::Result<()> {
        self.shared.get::<LuaFunction>("count_lines")?.call(())
    }

    /// Stops counting, and returns the counts by `NAME:LINE`, and for calls by `NAME:LINE:CALLED`.
    pub(crate) fn stop_counting_lines(&self) -> mlua::Result<HashMap<String, u64>> {
        let counts: HashMap<String, u64> = self.shared.get::<LuaFunction>("counted_lines")?.call(())?;
        Ok(counts.into_iter().map(|(line, count)| (chunk_name(line), count)).collect())
    }

    /// Publishes changes.
    #[inline]
    pub(crate) fn publish(&mut self, memory_bytes: usize) {
        if self.events.is_new.replace(false) {
            self.publish_now();
        }
        if let Some(published) = &self.published {
            published.memory_bytes.store(memory_bytes as u64, Ordering::Relaxed);
        }
    }

    #[cold]
    fn publish_now(&mut self) {
        let stats = Arc::new(self.events.stats.borrow().clone());
        let is_compiling = AtomicBool::new(self.is_compiling().unwrap_or(false));
        match &self.published {
            Some(published) => {
                published.stats.store(stats);
                published.is_compiling.store(is_compiling.into_inner(), Ordering::Relaxed);
            }
            None => {
                let thread = thread::current().name().unwrap_or_default().to_owned();
                let (generation, stats, memory_bytes) = (self.generation, ArcSwap::new(stats), AtomicU64::new(0));
                let published = Arc::new(PublishedState { thread, generation, memory_bytes, is_compiling, stats });
                let mut all = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|other| other.strong_count() > 0);
                all.push(Arc::downgrade(&published));
                self.published = Some(published);
            }
        }
    }

    fn is_compiling(&self) -> mlua::Result<bool> {
        // It also returns the names of all optimisations that are on.
        self.shared.get::<Table>("jit")?.get::<LuaFunction>("status")?.call::<bool>(())
    }
}

fn register_handler<A: FromLuaMulti + 'static>(
    lua: &Lua,
    shared: &Table,
    events: &Rc<EventLog>,
    name: &str,
    take: fn(&mut JitStats, A),
) -> mlua::Result<()> {
    let events = Rc::clone(events);
    let function = lua.create_function(move |_, arguments: A| {
        take(&mut events.stats.borrow_mut(), arguments);
        events.is_new.set(true);
        Ok(())
    })?;
    shared.set(name, function)
}

/// LuaJIT prefixes a character that gives the type of the name.
fn chunk_name(chunk: String) -> String {
    chunk.strip_prefix('=').map(str::to_owned).unwrap_or(chunk)
}

impl JitStats {
    fn record_trace(&mut self, code_bytes: u64) {
        TRACES.fetch_add(1, Ordering::Relaxed);
        self.traces += 1;
        self.machine_code_bytes += code_bytes;
    }

    /// `called` is empty unless the line leaves compiled code for it.
    fn record_compiled_line(&mut self, (chunk, first, line, called): (String, u32, u32, String)) {
        let Some(line) = self.line(&chunk, first, line) else { return };
        if called.is_empty() {
            line.traces += 1;
        } else {
            *line.stitches.entry(called).or_default() += 1;
        }
    }

    fn record_abort(&mut self, arguments: AbortArguments) {
        let (source, line, within, called, reason, detail, began_source, began_first, began_line, is_blacklisted) =
            arguments;
        let reason = TraceAbortReason::of(reason);
        ABORTS[reason.number()].fetch_add(1, Ordering::Relaxed);
        if is_blacklisted && let Some(line) = self.line(&began_source, began_first, began_line) {
            line.is_blacklisted = true;
        }
        let is_called = !within.is_empty() || reason.is_of_calls();
        let abort = TraceAbort {
            source: chunk_name(source),
            line,
            within: chunk_name(within),
            called: if is_called { called } else { String::new() },
            reason,
            instruction: reason.instruction(detail),
            began_source: chunk_name(began_source),
            began_line,
        };
        if self.aborts.len() >= ABORTS_MAX && !self.aborts.contains_key(&abort) {
            self.lost += 1;
            return;
        }
        *self.aborts.entry(abort).or_default() += 1;
    }

    fn record_flush(&mut self, (): ()) {
        FLUSHES.fetch_add(1, Ordering::Relaxed);
        self.flushes += 1;
        self.machine_code_bytes = 0;
        for source in self.sources.values_mut() {
            // Blacklisted lines stay blacklisted.
            source.lines.retain(|_, line| line.is_blacklisted);
            source.lines.values_mut().for_each(|line| (line.traces, line.stitches) = Default::default());
        }
    }

    fn add_text(&mut self, (chunk, text): (String, String)) {
        let bytes: usize = self.sources.values().map(|source| source.text.len()).sum();
        let name = chunk_name(chunk);
        self.forget_aborts(&name);
        let source = self.sources.entry(name).or_default();
        source.count += 1;
        source.generation = LOADED.fetch_add(1, Ordering::Relaxed);
        source.functions.clear();
        source.lines.clear();
        source.text = if bytes + text.len() <= TEXT_BYTES_MAX { text.into() } else { "".into() };
    }

    fn remove_text(&mut self, chunk: String) {
        let name = chunk_name(chunk);
        let Some(source) = self.sources.get_mut(&name) else { return };
        source.count -= 1;
        if source.count == 0 {
            self.sources.remove(&name);
            self.forget_aborts(&name);
        }
    }

    /// Drops aborts whose lines are those of an earlier text.
    fn forget_aborts(&mut self, name: &str) {
        self.aborts.retain(|abort, _| abort.source != name && abort.began_source != name);
    }

    fn add_function(&mut self, (chunk, first_line, last_line, mut lines): (String, u32, u32, Vec<u32>)) {
        let functions: usize = self.sources.values().map(|source| source.functions.len()).sum();
        let Some(source) = chunk.strip_prefix('=').and_then(|name| self.sources.get_mut(name)) else { return };
        if functions == FUNCTIONS_MAX {
            self.lost += 1;
            return;
        }
        lines.sort_unstable();
        lines.dedup();
        source.functions.push(TextFunction { first_line, last_line, lines });
        source.functions.sort_by_key(|function| (function.first_line, Reverse(function.last_line)));
    }

    /// A line of a program's text; `None`: it belongs to no program, or there are too many.
    fn line(&mut self, chunk: &str, first: u32, line: u32) -> Option<&mut LineJit> {
        let lines: usize = self.sources.values().map(|source| source.lines.len()).sum();
        let source = self.sources.get_mut(chunk.strip_prefix('=')?)?;
        if lines >= LINES_MAX && !source.lines.contains_key(&(first, line)) {
            self.lost += 1;
            return None;
        }
        Some(source.lines.entry((first, line)).or_default())
    }
}

// Reasons why LuaJIT does not compile code, in words: its reasons and instructions by their numbers.
//
// LuaJIT has its words in a Lua file that does not belong into a sandbox, and they are meant for its developers. The
// numbers change with its version; tests compare those that can be provoked.

/// LuaJIT's instructions by their numbers (`lj_bc.h`).
const INSTRUCTIONS: &str = "ISLT ISGE ISLE ISGT ISEQV ISNEV ISEQS ISNES ISEQN ISNEN ISEQP ISNEP ISTC ISFC IST ISF ISTYPE ISNUM \
    MOV NOT UNM LEN ADDVN SUBVN MULVN DIVVN MODVN ADDNV SUBNV MULNV DIVNV MODNV ADDVV SUBVV MULVV DIVVV MODVV POW CAT KSTR \
    KCDATA KSHORT KNUM KPRI KNIL UGET USETV USETS USETN USETP UCLO FNEW TNEW TDUP GGET GSET TGETV TGETS TGETB TGETR TSETV TSETS \
    TSETB TSETM TSETR CALLM CALL CALLMT CALLT ITERC ITERN VARG ISNEXT RETM RET RET0 RET1 FORI JFORI FORL IFORL JFORL ITERL \
    IITERL JITERL LOOP ILOOP JLOOP JMP BNOT BAND BOR BXOR BSHL BSHR BSAR FUNCF IFUNCF JFUNCF FUNCV IFUNCV JFUNCV FUNCC FUNCCW";

/// The instruction that creates a closure.
const FNEW: usize = 51;

/// Instructions that mark code that LuaJIT has blacklisted.
const BLACKLISTING_INSTRUCTIONS: [&str; 5] = ["IFORL", "IITERL", "ILOOP", "IFUNCF", "IFUNCV"];

/// A reason's name for metrics and scripts, and its meaning.
const REASONS: [(&str, &str); 35] = [
    ("error", "an error is thrown, or a profile or the watchdog looks in, while it is recorded"),
    ("too_short", "there is too little before a call that is not compiled"),
    ("too_long", "the recorded path is too long"),
    ("too_deep", "calls are nested too deeply"),
    ("snapshots", "the recorded path has too many branches"),
    ("blacklisted", "it calls what LuaJIT has given up before"),
    ("retry", "it is recorded again"),
    ("bytecode", "the bytecode is not compiled"),
    ("leaves_loop", "the loop ends while it is recorded"),
    ("inner_loop", "there is a loop within that repeats"),
    ("unroll_loop", "a loop is unrolled too often"),
    ("bad_type", "an argument has a type that is not compiled"),
    ("switched_off", "compiling is switched off for the function"),
    ("unroll_call", "calls are unrolled too often"),
    ("down_recursion", "it returns further than it began"),
    ("built_in", "this use of a built-in function is not compiled"),
    ("lower_frame", "it returns to where it was not called from"),
    ("nil_key", "a table is written with nil or NaN as key"),
    ("metamethod", "a metamethod is missing"),
    ("endless_index", "a look-up has no end"),
    ("mixed_table", "a table that is both list and map is made"),
    ("symbol", "a symbol of C is not known"),
    ("c_conversion", "a type of C is not converted"),
    ("c_call", "a function of C is not compiled"),
    ("guard", "a type changes while it is recorded"),
    ("loop_values", "too many values change in a loop"),
    ("type_changes", "a value's type changes with each turn of a loop"),
    ("no_memory", "there is no memory for machine code"),
    ("code_too_long", "its machine code is too long"),
    ("memory_full", "the memory for machine code is full"),
    ("spills", "too many values are used at once"),
    ("registers", "registers cannot be allocated"),
    ("operation", "an operation cannot be assembled"),
    ("shuffled", "values of a loop are exchanged in too many ways"),
    ("joined", "registers cannot be joined"),
];

/// The reason for numbers that this table does not have.
const UNKNOWN: (&str, &str) = ("other", "LuaJIT gives a reason that is not known here");

/// Reasons that a function call can cause.
const OF_CALLS: [&str; 6] = ["error", "too_short", "bad_type", "built_in", "c_conversion", "c_call"];

/// Reasons that also occur on the way to machine code.
const HARMLESS: [&str; 6] = ["blacklisted", "retry", "leaves_loop", "inner_loop", "unroll_loop", "lower_frame"];

/// The reason whose `detail` is the number of an instruction.
const BYTECODE: usize = 7;

/// The reason why a recording has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceAbortReason(u8);

impl TraceAbortReason {
    /// Number of reasons, including the unknown one.
    pub const COUNT: usize = REASONS.len() + 1;

    /// The reason for LuaJIT's number.
    fn of(number: i64) -> TraceAbortReason {
        let known = usize::try_from(number).ok().filter(|number| *number < REASONS.len());
        // There are 36.
        TraceAbortReason(known.unwrap_or(REASONS.len()) as u8)
    }

    /// All reasons.
    pub fn all() -> impl Iterator<Item = TraceAbortReason> {
        (0..TraceAbortReason::COUNT as u8).map(TraceAbortReason)
    }

    /// Its index among all.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// Name for metrics and scripts.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Text for people.
    pub fn text(self) -> &'static str {
        self.row().1
    }

    /// Whether the callee is the reason.
    fn is_of_calls(self) -> bool {
        OF_CALLS.contains(&self.name())
    }

    /// Whether it also occurs if all is well: LuaJIT continues at another place.
    pub fn is_harmless(self) -> bool {
        HARMLESS.contains(&self.name())
    }

    fn row(self) -> (&'static str, &'static str) {
        REASONS.get(self.number()).copied().unwrap_or(UNKNOWN)
    }

    /// The instruction that a detail of this reason names.
    fn instruction(self, detail: i64) -> Option<&'static str> {
        let number = usize::try_from(detail).ok().filter(|_| self.number() == BYTECODE)?;
        INSTRUCTIONS.split_ascii_whitespace().nth(number)
    }
}

/// The numbers of the instructions that mark code that LuaJIT has blacklisted.
fn blacklisting_instructions() -> impl Iterator<Item = usize> {
    let all = INSTRUCTIONS.split_ascii_whitespace().enumerate();
    all.filter(|(_, name)| BLACKLISTING_INSTRUCTIONS.contains(name)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_luajit_s_numbers() {
        let names: Vec<&str> = INSTRUCTIONS.split_ascii_whitespace().collect();
        assert_eq!((names.len(), names[50], names[FNEW]), (104, "UCLO", "FNEW"));
        assert_eq!(blacklisting_instructions().collect::<Vec<_>>(), [80, 83, 86, 97, 100]);
    }

    #[test]
    fn reasons_have_names_of_their_own() {
        let mut names: Vec<&str> = TraceAbortReason::all().map(TraceAbortReason::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TraceAbortReason::COUNT);
        assert_eq!(
            (TraceAbortReason::of(7).name(), TraceAbortReason::of(35).name(), TraceAbortReason::of(-1).name()),
            ("bytecode", "other", "other")
        );
        assert_eq!(
            (TraceAbortReason::of(7).instruction(51), TraceAbortReason::of(15).instruction(51)),
            (Some("FNEW"), None)
        );
    }
}
