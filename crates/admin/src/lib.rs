//! The Admin API: APISIX's below `/apisix/admin/`, and what goes beyond it below `/v1/`.
//!
//! It owns no state but sessions and the counts of wrong keys. What is stored, checked and served is behind
//! [`Control`], which the gateway implements; tests have one in memory.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod control;

pub use control::{Checked, Control, Outcome, Wait, WriteError};
