//! One file per command: its arguments, what it does with them, its exit code.
//!
//! Each has `run(&Arguments) -> Result<u8>`: the exit code if the command was carried out, an error if it could not be.

pub(crate) mod bisect;
mod builds;
pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod explain;
pub(crate) mod history;
pub(crate) mod host_agent;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod nightly;
pub(crate) mod profile;
pub(crate) mod report;
pub(crate) mod respond;
pub(crate) mod tail;
pub(crate) mod verify;
