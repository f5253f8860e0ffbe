//! Plugins that log and trace, without the tests of their receivers.

#![allow(clippy::too_many_lines, reason = "tables of contexts")]

mod hidden;
mod refused;
mod traced;
