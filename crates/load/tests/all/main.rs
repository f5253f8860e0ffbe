//! Tests of the load generator: its requests, its measurements, and its reports.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod allocations;
mod engine;
mod mix;
mod present;
