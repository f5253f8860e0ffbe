//! Serving scrapes: beside a busy process, to real Prometheus, and to clients that misbehave.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod beside;
mod handle;
mod prometheus;
mod running;
mod serving;
