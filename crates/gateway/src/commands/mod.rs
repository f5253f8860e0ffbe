//! What can be typed, and what each subcommand does with it: read, look, answer, print, end with an exit code.
//!
//! A running gateway is not here: `run`, `proxy` and `demo` start what `control` wires up.

pub(crate) mod check;
pub(crate) mod cli;
pub(crate) mod demo;
mod demo_upstream;
pub(crate) mod explain;
pub(crate) mod exporter;
pub(crate) mod import;
pub(crate) mod init;
mod invitation;
pub(crate) mod lua;
pub(crate) mod profile;
pub(crate) mod proxy;
pub(crate) mod run;
mod starter;
pub(crate) mod status;
mod stdout;
pub(crate) mod transfer;
pub(crate) mod upgrade;
