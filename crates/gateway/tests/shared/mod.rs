//! The servers and files that tests of several themes share: gateways, nodes, certificates, files.

#![allow(dead_code, reason = "each test executable uses a part of it")]

pub(crate) mod authority;
pub(crate) mod dashboard;
pub(crate) mod devices;
pub(crate) mod folder;
pub(crate) mod killing;
pub(crate) mod logs;
pub(crate) mod measured;
pub(crate) mod reflect;
pub(crate) mod streams;
pub(crate) mod tunnel;
pub(crate) mod upgrade;

/// The gateway that cargo has built for these tests.
pub(crate) const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");
