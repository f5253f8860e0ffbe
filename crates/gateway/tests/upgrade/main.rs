//! Replacing the running process, as clients, metrics and operators see it.

mod chain;
mod command;
mod metrics;
mod parts;
mod probation;
mod refused;
#[path = "../shared/mod.rs"]
mod shared;
mod streams;
mod upgrade;
