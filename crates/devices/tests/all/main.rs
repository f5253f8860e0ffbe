//! The protocol of devices under every split of its bytes, and simulated worlds of nodes, devices and faults.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod client;
mod frame_cases;
mod frame_properties;
mod protocol;
mod session;
mod simulation;
