//! Replacing the running process: what clients, metrics and operators see of it.

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
