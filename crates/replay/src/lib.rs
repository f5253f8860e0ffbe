//! What a configuration does with requests, without sending any: which route takes a request and why, and which of the recorded
//! requests change their route or their plugins from one configuration to another.
//!
//! For `stillgate explain`, `check --requests`, `lua check --requests` and the admin API.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod explain;
mod fields_read;
pub mod replay;
