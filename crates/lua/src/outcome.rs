//! Outcomes of a run of functions: done, an answer, a wait or a failure.

use crate::call::{HttpCall, LinkCall, WorkCall};
use crate::program::Program;
use mlua::{Error, Thread};
use std::sync::Arc;
use std::time::Duration;

/// Memory limit of one VM.
pub const MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Outcome of a run.
#[derive(Debug)]
pub enum RunOutcome {
    /// The functions have run; for a condition, whether it holds.
    Done(bool),
    /// The functions answer the request.
    Answer {
        /// From 200 to 599.
        status: u16,
        /// `None`: nothing was written.
        body: Option<Vec<u8>>,
    },
    /// The functions wait.
    Wait(RunWait, PausedRun),
    /// They failed.
    Failed(RunFailure),
}

/// What a function waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum RunWait {
    /// `ngx.sleep`
    Sleep(Duration),
    /// The whole body of the request.
    Body,
    /// The response of another server; the run continues with [`resume_with`].
    Call(Box<HttpCall>),
    /// The result of an operation on a connection of `resty.redis`; the run continues with [`resume_with`].
    Link(Box<LinkCall>),
    /// The result of a function on another thread; the run continues with [`resume_with`].
    Work(Box<WorkCall>),
}

/// A waiting run; it continues with [`resume`]. If it is dropped, it never continues.
#[derive(Debug)]
pub struct PausedRun {
    pub(crate) thread: Thread,
    pub(crate) program: Arc<Program>,
    pub(crate) generation: u64,
    pub(crate) spent: RunUsage,
}

/// What a run has used so far: its limits are for all of it, however often it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunUsage {
    /// CPU time of the function itself.
    pub(crate) time: Duration,
    /// Number of waits. Their cost for the worker is not part of the function's CPU time.
    pub(crate) waits: u32,
}

/// Most waits of one run.
pub const WAITS_MAX: u32 = 2_500;

/// The reason why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFailure {
    /// The type of failure, for a counter.
    pub kind: FailureKind,
    /// `NAME:LINE: MESSAGE`
    pub text: String,
}

impl RunFailure {
    /// Some errors have no place: those for want of memory, those of a tail call, and errors raised without one. These
    /// are named after the program that ran.
    pub(crate) fn of(mut self, program: &Program) -> RunFailure {
        let file = program.module.as_ref().map(|module| module.file.as_str());
        let mut names = [Some(program.name.as_str()), file].into_iter().flatten();
        if !names.any(|name| self.text.starts_with(name)) {
            self.text = format!("{}: {}", program.name, self.text);
        }
        self
    }
}

/// Types of failures.
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
    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Error => "error",
            FailureKind::Time => "time",
            FailureKind::Memory => "memory",
        }
    }
}

#[cold]
pub(crate) fn failed(kind: FailureKind, text: String) -> RunOutcome {
    RunOutcome::Failed(RunFailure { kind, text })
}

/// The first line of an error, without the stack trace.
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
