//! What LuaJIT's compiler does with the functions of each worker, as it says itself.
//!
//! ```text
//!  LuaJIT ── trace, record ──▶ prelude/health.lua ──▶ Watch (the worker's own) ── after the run ──▶ Health ──▶ any thread
//! ```
//!
//! The compiler says something only while functions become warm, so a run that it says nothing in costs one look at a flag.
//! It has no event for giving up; the instruction that a recording began at shows that, after the recording has failed.
//!
//! A worker waits for no reader: it publishes copies.

pub mod examine;
mod reasons;
mod remedies;
pub mod steps;
mod watch;

pub use reasons::Reason;
pub(crate) use watch::Watch;

use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Functions of one worker that are counted separately.
const FUNCTIONS_MAX: usize = 4096;
/// Lines with a mark, of one worker.
const LINES_MAX: usize = 16_384;
/// Texts that are kept to be shown, of one worker.
const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Kinds of aborts of one worker that are counted separately.
const ABORTS_MAX: usize = 1024;

/// What has become of a function or a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It is in compiled code.
    Compiled,
    /// It is, and leaves it for a call that is not compiled.
    Stitched,
    /// It runs in the interpreter: it has not run often enough, or what was tried has failed.
    Interpreted,
    /// LuaJIT has given it up, or a loop of it: it stays in the interpreter.
    Blacklisted,
}

impl State {
    /// All of them.
    pub const ALL: [State; 4] = [State::Compiled, State::Stitched, State::Interpreted, State::Blacklisted];

    /// As the API and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            State::Compiled => "compiled",
            State::Stitched => "stitched",
            State::Interpreted => "interpreted",
            State::Blacklisted => "blacklisted",
        }
    }
}

/// A function in the text of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The line that it begins in; zero: all of the text, which runs once.
    pub first_line: u32,
    /// The line that it ends in.
    pub last_line: u32,
    /// Its lines with code of its own, in order.
    pub lines: Vec<u32>,
}

/// What is known of a line of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// In so many pieces of machine code.
    pub traces: u32,
    /// What it calls that is not compiled, and in how many pieces of machine code.
    pub stitches: BTreeMap<String, u32>,
    /// LuaJIT has given up what begins here.
    pub is_given_up: bool,
}

/// One text, as a worker has loaded it.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The text; empty: there was no room for it.
    pub text: Arc<str>,
    /// Which of all that were loaded in this process, the newest last.
    pub generation: u64,
    /// How often one of this name is loaded: an old one goes after the new one has come.
    count: usize,
    /// In the order of the text, inner ones after the one around them.
    pub functions: Vec<Function>,
    /// By the first line of the function, and the line.
    pub lines: BTreeMap<(u32, u32), Line>,
}

/// A way in which recordings end without machine code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Abort {
    /// The text with the line; of the prelude, where no line of a user's has led there.
    pub source: String,
    /// Its line.
    pub line: u32,
    /// The place in the prelude that this line has called; empty: it is the line itself.
    pub within: String,
    /// The function that was called, where LuaJIT does not compile that.
    pub called: String,
    /// Why.
    pub reason: Reason,
    /// The instruction that is not compiled.
    pub instruction: Option<&'static str>,
    /// The text that the recording began in.
    pub began_source: String,
    /// Where in it.
    pub began_line: u32,
}

/// What the compiler has done on one worker.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// By their names.
    pub sources: BTreeMap<String, Source>,
    /// And how often.
    pub aborts: BTreeMap<Abort, u64>,
    /// Pieces of machine code that were made.
    pub traces: u64,
    /// How often all machine code was thrown away.
    pub flushes: u64,
    /// Of all machine code that is there.
    pub machine_code_bytes: u64,
    /// Functions, lines and aborts that did not fit.
    pub lost: u64,
}

/// Of all workers together since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// Pieces of machine code that were made.
    pub traces: u64,
    /// Recordings that made none, by the reason's number.
    pub aborts: [u64; Reason::COUNT],
    /// How often all machine code of a worker was thrown away.
    pub flushes: u64,
}

static TRACES: AtomicU64 = AtomicU64::new(0);
static ABORTS: [AtomicU64; Reason::COUNT] = [const { AtomicU64::new(0) }; Reason::COUNT];
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// What the workers have counted so far.
pub fn totals() -> Totals {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Totals { traces: load(&TRACES), aborts: std::array::from_fn(|at| load(&ABORTS[at])), flushes: load(&FLUSHES) }
}

/// One worker's VM, as it was after its last run.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The name of its thread.
    pub thread: String,
    /// Memory in use, of [`crate::MEMORY_BYTES_MAX`].
    pub memory_bytes: u64,
    /// One more than VMs that the thread has had before: one that has used up its memory is replaced.
    pub generation: u64,
    /// Whether LuaJIT compiles at all: it ceases to where it gets no memory for machine code.
    pub is_compiling: bool,
    /// What its compiler has done.
    pub health: Arc<Health>,
}

/// Where one worker's copies are.
struct Published {
    thread: String,
    generation: u64,
    memory_bytes: AtomicU64,
    is_compiling: AtomicBool,
    health: ArcSwap<Health>,
}

static PUBLISHED: Mutex<Vec<Weak<Published>>> = Mutex::new(Vec::new());

/// Of each thread that has run functions.
pub fn of_all_threads() -> Vec<Worker> {
    let published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let live = published.iter().filter_map(Weak::upgrade);
    live.map(|published| Worker {
        thread: published.thread.clone(),
        memory_bytes: published.memory_bytes.load(Ordering::Relaxed),
        generation: published.generation,
        is_compiling: published.is_compiling.load(Ordering::Relaxed),
        health: published.health.load_full(),
    })
    .collect()
}

impl Source {
    /// What has become of a function.
    pub fn state(&self, function: &Function) -> State {
        let lines = self.lines.range((function.first_line, 0)..=(function.first_line, u32::MAX));
        let has = |state| lines.clone().any(|(_, line)| line.state() == state);
        // One line that is given up or left says more than all that are compiled.
        let found = [State::Blacklisted, State::Stitched, State::Compiled].into_iter().find(|state| has(*state));
        found.unwrap_or(State::Interpreted)
    }
}

impl Health {
    /// Functions of this state, but for whole texts, which run once.
    pub fn functions_in(&self, state: State) -> usize {
        let of_source = |source: &Source| {
            let functions = source.functions.iter().filter(|function| function.first_line > 0);
            functions.filter(|function| source.state(function) == state).count()
        };
        self.sources.values().map(of_source).sum()
    }
}

impl Line {
    /// What has become of it.
    pub fn state(&self) -> State {
        match self {
            Line { is_given_up: true, .. } => State::Blacklisted,
            Line { stitches, .. } if !stitches.is_empty() => State::Stitched,
            Line { traces: 0, .. } => State::Interpreted,
            _ => State::Compiled,
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
