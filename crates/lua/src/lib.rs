//! Lua functions of a configuration, on LuaJIT: a VM for each worker, bounded in memory and time.
//!
//! ```text
//!  text ── check ──▶ Program ── run(program, host, context) ──▶ Outcome: done, answer, wait, failed
//!                                    │ ask ▲
//!                                    ▼     │
//!                                  Host: the request
//! ```
//!
//! Functions are written by the operator, and are trusted with what they compute; they are not trusted to end. A run
//! has [`RUN_TIME_MAX`] of CPU time, whatever it does ([`watchdog`]), and all functions of a worker share
//! [`MEMORY_BYTES_MAX`]. They have no access to files, processes, `ffi` or bytecode. The crate depends on neither proxy
//! nor plugins: it calls a [`Host`].

#![cfg_attr(test, allow(clippy::unwrap_used))]
// LuaJIT is C: a VM with a time limit is not possible without it. It is limited to a few files: `bridge.rs` (called by
// compiled code), `watchdog.rs` and `sampler.rs` (signal and hook), `jit/steps.rs` (another process) and the creation
// of the VM in `vm.rs`.
#![allow(unsafe_code)]

mod bridge;
mod call;
pub mod host;
pub mod jit;
mod json;
mod operations;
mod pattern;
mod prelude;
mod program;
mod regex_classes;
mod regexes;
pub mod sampler;
mod shared;
#[cfg(test)]
mod storm_tests;
mod vm;
mod watchdog;

pub use bridge::CheckSchema;
pub use call::{
    CallReply, FailureKind, HttpCall, HttpReply, LinkCall, MEMORY_BYTES_MAX, OpenedLink, PausedRun, RunFailure,
    RunOutcome, RunWait, WAITS_MAX, WorkCall,
};
pub use host::{HeaderChange, Host, MessageSide, NginxLevel, RequestDocument};
pub use program::{CallKind, Description, Module, PHASES, Program, check};
pub use vm::{Context, fields_in_context, memory_in_use, resume, resume_with, run, run_part, run_timer, timer_number};
pub use watchdog::{RUN_TIME_MAX, WORK_TIME_MAX};
