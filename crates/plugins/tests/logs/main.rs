//! Plugins that log and trace, but for what their receivers get.

#![allow(clippy::unwrap_used)]
#![allow(clippy::too_many_lines, reason = "tables of contexts")]

#[path = "../harness/mod.rs"]
mod harness;

mod refused;
mod traced;
