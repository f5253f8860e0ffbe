//! End-to-end tests of the metrics engine: expositions, concurrent and successive processes, hostile values.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod client_model;
mod encoding;
mod exposition;
mod expositions;
mod folding;
mod hostile_values;
mod inheritance;
mod interleavings;
mod shared_folder;
mod started;
mod succession;
mod two_processes;
