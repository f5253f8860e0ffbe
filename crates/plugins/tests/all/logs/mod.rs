//! Plugins that log and trace, but for what their receivers get.

#![allow(clippy::too_many_lines, reason = "tables of contexts")]

mod refused;
mod traced;
