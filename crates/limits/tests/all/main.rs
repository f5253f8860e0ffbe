//! Counters of limits beside a model, under threads, and in two processes.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod model;
mod threads;
mod two_processes;
