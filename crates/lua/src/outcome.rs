//! What becomes of a run of functions: done, an answer, a wait or a failure.

use crate::call::{HttpCall, LinkCall, WorkCall};
use crate::program::Program;
use mlua::{Error, Thread};
use std::sync::Arc;
use std::time::Duration;

/// Memory of one VM.
pub const MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What becomes of a run.
#[derive(Debug)]
pub enum Outcome {
    /// The functions have run; for a condition, whether it holds.
    Done(bool),
    /// They answer.
    Answer {
        /// From 200 to 599.
        status: u16,
        /// `None`: nothing was said.
        body: Option<Vec<u8>>,
    },
    /// They wait.
    Wait(Wait, Paused),
    /// They failed.
    Failed(Failure),
}

/// What a function waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum Wait {
    /// `ngx.sleep`
    Sleep(Duration),
    /// The whole body of the request.
    Body,
    /// What another server answers; it goes on with [`resume_with`].
    Call(Box<HttpCall>),
    /// What a connection of `resty.redis` gives; it goes on with [`resume_with`].
    Link(Box<LinkCall>),
    /// What a function on another thread gives; it goes on with [`resume_with`].
    Work(Box<WorkCall>),
}

/// A run that waits; it goes on with [`resume`]. Dropped, it never does.
#[derive(Debug)]
pub struct Paused {
    pub(crate) thread: Thread,
    pub(crate) program: Arc<Program>,
    pub(crate) generation: u64,
    pub(crate) spent: Spent,
}

/// What a run has taken so far: its bounds are for all of it, however often it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    /// CPU time of the function itself.
    pub(crate) time: Duration,
    /// How often it has waited. What that takes of the worker is not the function's CPU time.
    pub(crate) waits: u32,
}

/// How often one run may wait.
pub const WAITS_MAX: u32 = 2_500;

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure, for a counter.
    pub kind: FailureKind,
    /// `NAME:LINE: MESSAGE`
    pub text: String,
}

impl Failure {
    /// Some errors have no place: want of memory, those of a tail call, and what is raised without one. These are named by the
    /// program that ran.
    pub(crate) fn of(mut self, program: &Program) -> Failure {
        let file = program.module.as_ref().map(|module| module.file.as_str());
        let mut names = [Some(program.name.as_str()), file].into_iter().flatten();
        if !names.any(|name| self.text.starts_with(name)) {
            self.text = format!("{}: {}", program.name, self.text);
        }
        self
    }
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// An error of the function.
    Error,
    /// It ran for too long.
    Time,
    /// It used too much memory.
    Memory,
}

impl FailureKind {
    /// As metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Error => "error",
            FailureKind::Time => "time",
            FailureKind::Memory => "memory",
        }
    }
}

#[cold]
pub(crate) fn failed(kind: FailureKind, text: String) -> Outcome {
    Outcome::Failed(Failure { kind, text })
}

/// The first line of an error, without the stack behind it.
pub(crate) fn describe(error: &Error) -> (FailureKind, String) {
    match error {
        Error::MemoryError(_) => {
            (FailureKind::Memory, format!("a worker's functions have {} MiB of memory", MEMORY_BYTES_MAX >> 20))
        }
        Error::CallbackError { cause, .. } => describe(cause),
        Error::RuntimeError(text) => {
            let line = text.lines().next().unwrap_or_default();
            let is_memory = line.ends_with("not enough memory");
            (if is_memory { FailureKind::Memory } else { FailureKind::Error }, line.to_owned())
        }
        other => (FailureKind::Error, other.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}
