//! Profiles of a process of its own: formats, splitting of stacks, stalls, hostile reading.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod formats;
mod hostile;
mod readers;
mod split;
mod stall;

/// All threads of the process are watched, and the right to take a profile belongs to it: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
