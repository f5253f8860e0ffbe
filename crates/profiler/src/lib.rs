//! Profiles of its own process, taken in production: where its threads spend CPU time, which allocations fill the heap,
//! and what blocks an event loop. It costs nothing while no profile is taken.
//!
//! ```text
//!  thread ── Registration ──▶ list of threads ◀── CpuProfile, Stalls: one at a time (Session)
//!    ▲                                               │ arms a timer of the thread's CPU time, or asks with a signal
//!    └── signal: registers, stack, frames ──▶ ring of the thread ──▶ collector: unwinds the leaf, adds up
//!                                                                       └─▶ symbols ──▶ Profile ──▶ pprof, SVG, HTML, JSON
//! ```
//!
//! - Ownership: a [`threads::Registration`] is owned by its thread and ends with it. Only the signal handler on that
//!   thread writes its ring, only the running [`session::ProfileSession`] reads it. A session owns its timers; dropping it
//!   disarms them.
//! - The handler ([`mod@signal`]) takes no lock, allocates nothing and calls no function of the C library. It reads
//!   only the stack of its own thread, above the stack pointer, so it cannot fault.
//! - Bounds: threads, ring words, frames of a stack, stacks of a profile, samples with a time, bytes of a file that is
//!   read for symbols. Excess is counted and reported in the profile.
//! - Frame pointers are needed (`-C force-frame-pointers=yes`). The innermost frames, which may have none, are
//!   recovered by their unwind tables from a copy of the top of the stack (`unwind`).
//!
//! Only Linux on x86-64 is supported; elsewhere [`threads::Registration`] is refused.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod continuous;
pub mod cpu;
pub mod heap;
mod machine;
pub mod output;
pub mod profile;
pub mod session;
pub mod signal;
pub mod stalls;
#[cfg(test)]
mod storm_tests;
mod symbols;
pub mod threads;
pub mod timer;
mod unwind;
mod walk;

pub use symbols::names_of;
