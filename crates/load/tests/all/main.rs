//! The load generator: what it sends, what it measures, and how it says so.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod allocations;
mod engine;
mod mix;
mod present;
