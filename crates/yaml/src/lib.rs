//! Parses YAML to a tree with positions, substitutes `${ENV}`, collects findings, and writes YAML.
//!
//! This crate knows no keys and no meanings: the gateway's configuration and the laboratory's mixes are read by the
//! same rules. Every value knows its line and column, so that each finding has its place. Nothing here does IO.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod budget;
pub mod cuts;
pub mod diagnostic;
pub mod environment;
mod hidden_texts;
pub mod scalar;
pub mod tree;
pub mod writer;

pub use budget::CompileBudget;
pub use diagnostic::{Fault, Path, Position, Sink};
pub use tree::{Entry, Node, Value};
