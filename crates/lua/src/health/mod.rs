//! State of LuaJIT's compiler for the functions of each worker, from its own events.
//!
//! ```text
//!  LuaJIT ── trace, record ──▶ prelude/health.lua ──▶ Watch (the worker's own) ── after the run ──▶ Health ──▶ any thread
//! ```
//!
//! The compiler emits events only while functions become warm, so a run without any costs one look at a flag. It has no
//! event for giving up; the instruction at which a recording began shows that, after the recording has failed.
//!
//! A worker never waits for a reader: it publishes copies.

pub mod examine;
mod reasons;
mod remedies;
pub mod steps;
mod watch;

pub use reasons::AbortReason;
pub(crate) use watch::VmWatch;

use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
    /// LuaJIT has given it up, or one of its loops: it stays in the interpreter.
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
pub struct LineHealth {
    /// Number of traces that contain it.
    pub traces: u32,
    /// The functions that it calls outside of compiled code, with the number of traces for each.
    pub stitches: BTreeMap<String, u32>,
    /// LuaJIT has given up a loop or function that begins here.
    pub is_given_up: bool,
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
    pub lines: BTreeMap<(u32, u32), LineHealth>,
}

/// A type of recording that ended without machine code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Abort {
    /// The text that contains the line; the prelude, if no line of a user's text led there.
    pub source: String,
    /// Its line.
    pub line: u32,
    /// The place in the prelude that this line called; empty: the line itself.
    pub within: String,
    /// The called function, if LuaJIT does not compile it.
    pub called: String,
    /// The reason.
    pub reason: AbortReason,
    /// The instruction that is not compiled.
    pub instruction: Option<&'static str>,
    /// The text in which the recording began.
    pub began_source: String,
    /// The line in which it began.
    pub began_line: u32,
}

/// What the compiler has done on one worker.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Keyed by name.
    pub sources: BTreeMap<String, LoadedText>,
    /// Each with its count.
    pub aborts: BTreeMap<Abort, u64>,
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
pub struct Totals {
    /// Number of traces that were made.
    pub traces: u64,
    /// Recordings without a result, by the reason's number.
    pub aborts: [u64; AbortReason::COUNT],
    /// How often all machine code of a worker was discarded.
    pub flushes: u64,
}

static TRACES: AtomicU64 = AtomicU64::new(0);
static ABORTS: [AtomicU64; AbortReason::COUNT] = [const { AtomicU64::new(0) }; AbortReason::COUNT];
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// The totals of all workers so far.
pub fn totals() -> Totals {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Totals { traces: load(&TRACES), aborts: std::array::from_fn(|at| load(&ABORTS[at])), flushes: load(&FLUSHES) }
}

/// One worker's VM, as it was after its last run.
#[derive(Debug, Clone)]
pub struct VmHealth {
    /// The name of its thread.
    pub thread: String,
    /// Memory in use, limited by [`crate::MEMORY_BYTES_MAX`].
    pub memory_bytes: u64,
    /// Sequence number of the VM on its thread, from one: a VM that has used up its memory is replaced.
    pub generation: u64,
    /// Whether LuaJIT compiles at all: it stops if it gets no memory for machine code.
    pub is_compiling: bool,
    /// State of its compiler.
    pub health: Arc<Health>,
}

/// One worker's published copies.
struct PublishedState {
    thread: String,
    generation: u64,
    memory_bytes: AtomicU64,
    is_compiling: AtomicBool,
    health: ArcSwap<Health>,
}

static PUBLISHED: Mutex<Vec<Weak<PublishedState>>> = Mutex::new(Vec::new());

/// The VMs of all threads that have run functions.
pub fn of_all_threads() -> Vec<VmHealth> {
    let published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let live = published.iter().filter_map(Weak::upgrade);
    live.map(|published| VmHealth {
        thread: published.thread.clone(),
        memory_bytes: published.memory_bytes.load(Ordering::Relaxed),
        generation: published.generation,
        is_compiling: published.is_compiling.load(Ordering::Relaxed),
        health: published.health.load_full(),
    })
    .collect()
}

impl LoadedText {
    /// The state of a function.
    pub fn state(&self, function: &TextFunction) -> CompileState {
        let lines = self.lines.range((function.first_line, 0)..=(function.first_line, u32::MAX));
        let has = |state| lines.clone().any(|(_, line)| line.state() == state);
        // One line that was given up or left is more important than all that are compiled.
        let found = [CompileState::Blacklisted, CompileState::Stitched, CompileState::Compiled]
            .into_iter()
            .find(|state| has(*state));
        found.unwrap_or(CompileState::Interpreted)
    }
}

impl Health {
    /// Number of functions in this state, without whole texts, which run once.
    pub fn functions_in(&self, state: CompileState) -> usize {
        let of_source = |source: &LoadedText| {
            let functions = source.functions.iter().filter(|function| function.first_line > 0);
            functions.filter(|function| source.state(function) == state).count()
        };
        self.sources.values().map(of_source).sum()
    }
}

impl LineHealth {
    /// The state of the line.
    pub fn state(&self) -> CompileState {
        match self {
            LineHealth { is_given_up: true, .. } => CompileState::Blacklisted,
            LineHealth { stitches, .. } if !stitches.is_empty() => CompileState::Stitched,
            LineHealth { traces: 0, .. } => CompileState::Interpreted,
            _ => CompileState::Compiled,
        }
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.reason.text())?;
        if let Some(instruction) = self.instruction {
            write!(out, ": {instruction}")?;
            if let Some(meaning) = remedies::meaning(instruction) {
                write!(out, " ({meaning})")?;
            }
        }
        if !self.called.is_empty() {
            write!(out, ", in a call of {}", self.called)?;
        }
        if let Some(remedy) = remedies::of(self) {
            write!(out, "; {remedy}")?;
        }
        Ok(())
    }
}
