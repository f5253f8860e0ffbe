//! What measurements and tests need of the operating system: processes and their end, CPUs, scheduling, descriptors, ports,
//! callgrind, strace, and what `/proc` says.
//!
//! It knows nothing of gateways and of HTTP. What a figure means is for those who use it.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod callgrind;
pub mod cpus;
pub mod descriptors;
mod error;
pub mod group;
pub mod ports;
pub mod proc;
mod running;
pub mod schedule;
pub mod strace;

pub use error::{Error, Result};
pub use running::{Child, NotListening, Running, find_program, send};
pub use rustix::process::Signal;
