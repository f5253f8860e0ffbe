//! The worker: a thread, its turns and what it owns, from the first connection to the last.
//!
//! `fleet` starts and ends the threads, `thread` is what one of them has and does, `turns` what it does whenever it wakes,
//! `draining` how it comes to its end. The rest is what it lends to those it serves: memory, time, counts.

pub(crate) mod buffer;
pub(crate) mod clock;
pub(crate) mod counters;
mod draining;
pub(crate) mod fleet;
mod thread;
pub(crate) mod troubles;
mod turns;
pub(crate) mod uptake;

pub(crate) use thread::{Command, Setup, Worker, run};
