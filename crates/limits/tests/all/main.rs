//! Compares counters of limits with a model; tests them under threads, and in two processes.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod model;
mod threads;
mod two_processes;
